"""Notifications of real runs, sent by Apprise to real HTTP receivers on the loopback."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.configs.packages import install_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MissingExtraError, MongoObserver, NotifyError, notifying
from sacristan.observers.notifying import (
    ABANDONED_S,
    Message,
    Sending,
    SentMessages,
    finished_after_s,
    read_addresses,
    sender,
)
from sacristan.runs import StoreAwayError, copy, open_store
from sacristan.runs.board.security import Policy
from sacristan.runs.board.serving import create_app
from sacristan.runs.sweeps.views import Digests
from sacristan.runs.work.watching import Outbox, RecentRuns
from tests.processes import PIPE, Process, run

# Joined, because runs record this file.
SECRET = "-".join(("tok3n", "of", "mine"))


class Receiver:
    """An HTTP server that takes messages, and answers as `how` says: 200, 500, drop, never, or drip for ever."""

    def __init__(self, how="200"):
        self.how, self.messages, self.is_free = how, [], threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.messages.append(message)
                if outer.how == "drop":
                    return
                if outer.how == "never":
                    outer.is_free.wait(60)
                    return
                self.send_response(500 if outer.how == "500" else 200)
                self.send_header("Content-Length", "1000000" if outer.how == "drip" else "0")
                self.end_headers()
                while outer.how == "drip" and not outer.is_free.wait(0.1):
                    self.wfile.write(b"x")

            def handle(self):
                with contextlib.suppress(OSError):
                    super().handle()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"json://{SECRET}@127.0.0.1:{self.server.server_port}/?cto=2&rto=2"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def titles(self):
        return sorted(message["title"] for message in self.messages)

    def close(self):
        self.is_free.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receivers():
    made = []

    def make(how="200"):
        made.append(Receiver(how))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture(autouse=True)
def _no_addresses_of_the_person(monkeypatch):
    monkeypatch.setenv("SACRISTAN_NOTIFY", "")
    monkeypatch.delenv("SACRISTAN_NOTIFY_AFTER_S", raising=False)


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_until_sent():
    """Wait for the threads of this process that see messages through."""
    wait_for(lambda: "notification" not in {thread.name for thread in threading.enumerate()})


def record(body, *observers, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, save_git_info=False, system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(body)
    with contextlib.suppress(RuntimeError):
        return ex.run(options={"--capture": "sys", **options})
    return ex.current_run


def bad(_run):
    for step in range(3):
        _run.log_scalar("loss", float("nan"), step)
        _run.log_scalar("accuracy", step, step)
    _run.log_scalar("accuracy", float("nan"), 3)
    _run.alert("look here", level="error")
    raise RuntimeError("boom")


def fails():
    raise RuntimeError("boom")


def texts(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_long_error_is_cut_to_its_last_2000_characters(tmp_path, monkeypatch, receivers):
    receiver = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)

    def body():
        raise RuntimeError("first" + "x" * 3000 + "last")

    record(body, FileObserver(tmp_path))
    wait_until_sent()
    error, _, facts = receiver.messages[0]["message"].partition("\ncommand: ")
    assert error.strip().endswith("xlast")
    assert len(error) == 2000
    assert facts.startswith("body")


def test_each_event_is_sent_once_in_each_session_of_a_run(tmp_path, monkeypatch, receivers, capfd, caplog):
    receiver = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    record(bad, FileObserver(tmp_path / "store"))
    expected = ["recorded 1: NaN in loss, accuracy", "recorded 1: alert: look here", "recorded 1: failed"]
    wait_until_sent()
    assert receiver.titles == expected
    failure = next(message for message in receiver.messages if message["title"].endswith("failed"))
    assert "RuntimeError: boom" in failure["message"]
    assert failure["type"] == "failure"

    monkeypatch.setenv("SACRISTAN_RESUME", str(tmp_path / "store" / "1"))
    record(bad, FileObserver(tmp_path / "store"))
    wait_until_sent()
    assert receiver.titles == sorted(expected * 2)
    with open_store(tmp_path / "store") as store:  # a watcher has nothing to add
        assert RecentRuns(store, timedelta(hours=1)).look().notices(600) == []
    info = json.loads((tmp_path / "store" / "1" / "info.json").read_text())
    assert [alert["text"] for alert in info["alerts"]] == ["look here"] * 2
    out, err = capfd.readouterr()
    assert SECRET not in out + err + caplog.text + json.dumps(receiver.messages)
    assert SECRET.encode() not in texts(tmp_path)


def test_completed_run_is_told_of_from_the_stated_duration_on(tmp_path, monkeypatch, receivers):
    receiver = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", f"{receiver.address}\n{receivers('500').address}")
    record(lambda: 0.5, FileObserver(tmp_path))
    monkeypatch.setenv("SACRISTAN_NOTIFY_AFTER_S", "0")
    record(lambda: 0.5, FileObserver(tmp_path), **{"--anonymous": True})
    wait_until_sent()
    assert receiver.titles == ["recorded 2: finished"]
    assert receiver.messages[0]["message"].startswith("result: 0.5\ncommand: <lambda>\nafter: 0 s")  # no host


@pytest.mark.parametrize(
    "how", ["500", *(pytest.param(how, marks=pytest.mark.slow) for how in ("never", "drop", "absent"))]
)
def test_receiver_that_fails_costs_the_run_nothing_and_the_watch_repeats_the_message(
    tmp_path, monkeypatch, receivers, how, capsys
):
    receiver = receivers(how)
    if how == "absent":
        receiver.close()
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    record(fails, FileObserver(tmp_path / "store"))
    claim = tmp_path / "store" / "1" / "notified" / "failed"
    assert claim.exists()  # the run is over, and no receiver has refused yet
    if how == "never":
        wait_for(lambda: len(receiver.messages) == 1)
        others = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name != str(os.getpid())]
        commands = {path.parent: read(path) for path in others}
        assert not [line for line in commands.values() if SECRET.encode() in line]
        senders = [process for process, line in commands.items() if sender.__file__.encode() in line]
        assert senders
        assert not [process for process in senders if SECRET.encode() in read(process / "environ")]
    wait_for(claim.with_name("failed.unsent").exists)
    good = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", good.address)
    for _ in range(2):
        assert main(["--store", str(tmp_path / "store"), "watch", "--once", "--notify"]) == 0
    assert [title.partition(" after ")[0] for title in good.titles] == ["run 1 recorded failed"]
    assert capsys.readouterr().out.count("failed after") == 1


def read(path):
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@pytest.mark.slow
def test_receiver_that_drips_for_ever_is_left_when_the_time_is_over(monkeypatch, receivers):
    monkeypatch.setattr(notifying, "LIMIT_S", 5.0)
    good, dripping = receivers(), receivers("drip")
    addresses = [dripping.address, good.address, "nosuch://x"]
    problems = Sending(Message("title", "text\x1b[0m"), addresses).problems()
    assert problems == [
        "address 1 of 3 (json://...): no answer in time",
        "address 3 of 3 (nosuch://...): not an address that apprise knows",
    ]
    assert good.messages[0]["message"] == "text [0m"


KILLED = """
ex.observers.append({observer})
@ex.automain
def main():
    open("begun", "w").close()
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_killed_run_is_told_of_once_by_two_watchers(tmp_path, start, receivers, kind, request):
    where, observer = str(tmp_path / "store"), "FileObserver('store')"
    if kind == "mongo":
        where = f"{request.getfixturevalue('mongo_url')}/{request.getfixturevalue('database').name}"
        observer = f"MongoObserver({where.rpartition('/')[0]!r}, {where.rpartition('/')[2]!r}, failure_dir='spool')"
    killed = start(tmp_path, KILLED.format(observer=observer), env={**os.environ, "SACRISTAN_NOTIFY": ""})
    wait_for((tmp_path / "begun").exists)
    with open_store(where) as store:
        wait_for(lambda: [run.status for run in store.find()] == ["RUNNING"])
        assert RecentRuns(store, timedelta(hours=1)).look().notices(0) == []
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    receiver, told = receivers(), []
    together = threading.Barrier(2)

    def watch():
        with open_store(where) as store:
            outbox = Outbox(store, [receiver.address], told.append)
            notices = RecentRuns(store, timedelta(hours=1)).look().notices(0)
            assert [notice.event for notice in notices] == ["dead"]
            together.wait(60)
            told.extend(outbox.send(notices))

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(receiver.messages) == 1
    assert receiver.titles[0].startswith("run 1 recorded is dead")
    with open_store(where) as store:
        assert not store.messages.claim(store.get("1"), "dead")
        store.messages.note(store.get("1"), "dead", is_sent=False)
        assert store.messages.is_unsent(store.get("1"), "dead")
        assert store.messages.claim(store.get("1"), "dead")


def test_message_is_claimed_by_one_of_many_at_once(tmp_path):
    together, events = threading.Barrier(4), range(100)

    def claims(_):
        return [together.wait(60) >= 0 and SentMessages(tmp_path).claim(f"event-{number}") for number in events]

    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(claims, range(4)))
    assert [sum(each) for each in zip(*claimed, strict=True)] == [1] * len(events)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "mongo"])
def test_events_and_alerts_of_runs_without_addresses_are_told_by_the_watch(
    tmp_path, monkeypatch, receivers, kind, request
):
    where, observers = str(tmp_path / "store"), [FileObserver(tmp_path / "store")]
    if kind == "mongo":
        database, url = request.getfixturevalue("database"), request.getfixturevalue("mongo_url")
        where = f"{url}/{database.name}"
        observers += [MongoObserver(url, database.name)]
    record(bad, *observers)
    receiver = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    record(bad, *observers)  # sends its own
    wait_until_sent()
    receiver.messages.clear()
    expected = ["run 1 recorded: alert: look here", "run 1 recorded failed"]
    for _ in range(2):
        assert main(["--store", where, "watch", "--once", "--notify"]) == 0
    told = [line.partition(" after ")[0] for line in receiver.messages[0]["message"].splitlines()]
    assert told[:-1] == expected
    assert receiver.titles == [f"2 events in {where}"]
    with open_store(where) as store:
        assert [alert["text"] for alert in store.get("1").alerts] == ["look here"]

    monkeypatch.setenv("SACRISTAN_NOTIFY", "")
    monkeypatch.setenv("SACRISTAN_RESUME", str(tmp_path / "store" / "1"))
    record(bad, *observers)
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    for _ in range(2):
        assert main(["--store", where, "watch", "--once", "--notify"]) == 0
    again = receiver.messages[1:]
    assert [line.partition(" after ")[0] for line in again[0]["message"].splitlines()][:-1] == expected
    assert len(again) == 1


@pytest.mark.slow
def test_watch_looks_again_and_again_until_it_is_told_to_end(tmp_path):
    record(fails, FileObserver(tmp_path / "store"))
    command = [
        sys.executable,
        "-m",
        "sacristan",
        "--store",
        str(tmp_path / "store"),
        "watch",
        "--interval",
        "0.1",
        "--json",
    ]
    with Process(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        for id in "12":
            assert json.loads(process.stdout.readline())["run"] == id
            record(fails, FileObserver(tmp_path / "store"))
        shutil.move(tmp_path / "store", tmp_path / "away")
        assert "there is no folder" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


KILLED_WATCH = """
import os, signal, sys
from sacristan.__main__ import main
from sacristan.runs.work import watching
watching.Sending = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(["--store", sys.argv[1], "watch", "--once", "--notify"])
"""


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_message_whose_watcher_was_killed_before_it_was_sent_is_sent_once_later(
    tmp_path, monkeypatch, receivers, kind, request
):
    where, observer = str(tmp_path / "store"), FileObserver(tmp_path / "store")
    if kind == "mongo":
        database, url = request.getfixturevalue("database"), request.getfixturevalue("mongo_url")
        where, observer = f"{url}/{database.name}", MongoObserver(url, database.name, failure_dir=tmp_path / "spool")
    record(fails, observer)
    receiver = receivers()
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    killed = run([sys.executable, "-c", KILLED_WATCH, where], cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    watch = ["--store", where, "watch", "--once", "--notify"]
    assert main(watch) == 0
    assert receiver.titles == []  # it may still be on its way
    if kind == "mongo":
        old = (datetime.now(UTC) - timedelta(seconds=ABANDONED_S + 1)).isoformat()
        database.runs.update_one({}, {"$set": {"notified.failed": old}})
    else:
        old = time.time() - ABANDONED_S - 1
        os.utime(tmp_path / "store" / "1" / "notified" / "failed", (old, old))
    for _ in range(2):
        assert main(watch) == 0
    assert [title.partition(" after ")[0] for title in receiver.titles] == ["run 1 recorded failed"]


def test_claims_that_were_abandoned_or_confirmed(tmp_path):
    sent = SentMessages(tmp_path)
    assert sent.claim("a")
    assert not sent.is_unsent("a")
    old = time.time() - ABANDONED_S - 1
    os.utime(sent.path("a"), (old, old))
    assert sent.is_unsent("a")
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda _: SentMessages(tmp_path).claim("a"), range(8))) == 1
    sent.confirm("a")
    os.utime(sent.path("a"), (old, old))
    assert not sent.is_unsent("a")
    assert not sent.claim("a")


@pytest.mark.slow
def test_run_whose_end_comes_late_and_runs_of_a_large_store_are_told(tmp_path):
    record(fails, FileObserver(tmp_path))
    path = tmp_path / "1" / "run.json"
    ended = json.loads(path.read_text())
    times = dict.fromkeys(("start_time", "heartbeat", "stop_time"), "2026-01-01T00:00:00")
    path.write_text(json.dumps({**ended, **times, "status": "QUEUED", "stop_time": None}))
    for number in range(2, 2103):
        (tmp_path / str(number)).mkdir()
        one = {**ended, "uid": f"{number:032x}", "status": "COMPLETED" if number > 2 else "FAILED"}
        (tmp_path / str(number) / "run.json").write_text(json.dumps(one))
    with open_store(tmp_path) as store:
        recent = RecentRuns(store, timedelta(hours=1)).look()
        assert len(recent.runs) == 2102
        assert [notice.run.id for notice in recent.notices(600)] == ["2"]
        path.write_text(json.dumps({**ended, **times}))
        for _ in range(2):
            recent.look()
            assert [notice.run.id for notice in recent.notices(600)] == ["2", "1"]
        assert [notice.run.id for notice in RecentRuns(store, timedelta(hours=1)).look().notices(600)] == ["2"]


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_run_that_is_delivered_as_a_whole_after_the_window_is_told(tmp_path, kind, request, capsys):
    """An offline run, which began and ended long ago; the time of delivery counts."""
    where, offline = str(tmp_path / "store"), tmp_path / "offline"
    (tmp_path / "store").mkdir()
    if kind == "mongo":
        where = f"{request.getfixturevalue('mongo_url')}/{request.getfixturevalue('database').name}"
    for _ in range(4):
        record(bad, FileObserver(offline))
    for id in "124":
        age(offline / id, "2026-01-01T00:00:00")

    def told(recent):
        notices = recent.look().notices(600, outbox.done)
        return [notice.text.partition(" after ")[0] for notice in outbox.send(notices)]

    def deliver(id):
        with open_store(offline) as source, open_store(where) as target:
            copy(source.get(id), target)

    deliver("1")
    with open_store(where) as store:
        outbox, recent = Outbox(store, [], print), RecentRuns(store, timedelta(hours=1))
        assert told(recent) == []  # it was there before
        deliver("2")
        assert told(recent) == ["run 2 recorded: alert: look here", "run 2 recorded failed"]
        assert told(recent) == []
        recent._back = timedelta(0)  # time passes
        assert [run.id for run in recent.look().runs] == []
        deliver("3")
        deliver("4")
    capsys.readouterr()
    assert main(["--store", where, "watch", "--once", "--back", "1"]) == 0
    told_once = capsys.readouterr().out.splitlines()
    assert [line.partition(" after ")[0] for line in told_once if "failed" in line] == [
        f"run {id} recorded failed"
        for id in "34"  # run 4 came after run 3, which started lately
    ]


def age(folder, at):
    """Write into a record when it was made."""
    document = json.loads((folder / "run.json").read_text())
    times = dict.fromkeys(("start_time", "heartbeat", "stop_time"), at)
    (folder / "run.json").write_text(json.dumps({**document, **times}))


@pytest.mark.slow
def test_empty_queue_is_told_of_once(tmp_path, monkeypatch, receivers):
    for _ in range(2):
        record(lambda: None, FileObserver(tmp_path), **{"--queue": True})
    receiver, sent = receivers(), []
    for id in ("1", "2"):
        monkeypatch.setenv("SACRISTAN_START", str(tmp_path / id))
        record(lambda: None, FileObserver(tmp_path))
        for _ in range(2):  # two watchers, one after the other
            with open_store(tmp_path) as store:
                outbox = Outbox(store, [receiver.address], sent.append)
                sent += [
                    notice.text for notice in outbox.send(RecentRuns(store, timedelta(hours=1)).look().notices(600))
                ]
        assert len(sent) == int(id) - 1
    assert sent == ["the queue is empty; run 2 recorded was the last one"]
    assert receiver.titles == sent


def test_finished_sweep_is_told_of_in_one_digest(tmp_path, receivers):
    with tarfile.open(Path(__file__).parents[1] / "data" / "0.2.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    receiver, sent, problems = receivers(), [], []
    with open_store(tmp_path / "my_runs") as store:
        recent = RecentRuns(store, timedelta(days=36500)).look()
        assert not [notice for notice in recent.notices(0) if "sweep" in notice.run["meta"]]
        digests = Digests(store, problems.append)
        for _ in range(2):  # two watchers, one after the other
            outbox = Outbox(store, [receiver.address], problems.append)
            sent += [notice.text for notice in outbox.send(digests.notices(recent))]
        digests.close()
    assert [text.splitlines()[0] for text in sent] == ["sweep lr_folder: 1 of 1 done"]
    assert sent[0].splitlines()[1].startswith("best: trial 0")
    assert [message["message"].startswith(sent[0]) for message in receiver.messages] == [True]
    assert [problem.partition(" in /")[0] for problem in problems] == ["sweep lr: there is no sweep lr"]


@pytest.mark.slow
def test_message_claimed_before_the_store_went_away_is_sent(tmp_path, monkeypatch, receivers):
    for _ in range(2):
        record(fails, FileObserver(tmp_path))
    receiver, problems = receivers(), []
    with open_store(tmp_path) as store:
        claim = store.messages.claim

        def claim_once(run, event):
            return next(answers)(run, event)

        def away(run, event):
            raise StoreAwayError("the store is away")

        answers = iter([claim, away])
        monkeypatch.setattr(store.messages, "claim", claim_once)
        outbox = Outbox(store, [receiver.address], problems.append)
        notices = RecentRuns(store, timedelta(hours=1)).look().notices(600)
        assert len(notices) == 2
        with pytest.raises(StoreAwayError):
            outbox.send(notices)
        assert receiver.titles == [notices[0].text.partition("\n")[0]]
        monkeypatch.setattr(store.messages, "claim", claim)
        assert outbox.send(notices) == notices[1:]


@pytest.mark.slow
def test_run_removed_beside_a_watcher_hides_no_others_and_an_untaken_message_is_an_exit_code(
    tmp_path, monkeypatch, receivers
):
    for _ in range(2):
        record(fails, FileObserver(tmp_path))
    receiver, problems = receivers("500"), []
    with open_store(tmp_path) as store:
        outbox = Outbox(store, [receiver.address], problems.append)
        notices = RecentRuns(store, timedelta(hours=1)).look().notices(600)
        store.remove([notices[0].run])
        assert outbox.send(notices) == []
        assert SentMessages(notices[1].run.folder).is_unsent("failed")
        assert outbox.has_untaken
    monkeypatch.setenv("SACRISTAN_NOTIFY", receiver.address)
    assert main(["--store", str(tmp_path), "watch", "--once", "--notify"]) == 1


def test_sweep_with_a_trial_that_died_long_ago_is_told_of_once_it_is_done(tmp_path):
    with tarfile.open(Path(__file__).parents[1] / "data" / "0.2.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with open_store(tmp_path / "my_runs") as store:
        recent = RecentRuns(store, timedelta(days=36500)).look()
        recent.runs = [run for run in recent.runs if run["meta.sweep.id"] == "lr_folder"]
        ended = recent.ended
        recent.runs.append(recent.runs[0])
        answers = iter([False, True])
        recent.ended = lambda run: next(answers) and ended(run)
        digests = Digests(store, [].append)
        assert [notice.event for notice in digests.notices(recent)] == ["sweep_done"]
        digests.close()


def test_alerts_are_bounded_and_shown_as_text(tmp_path, capsys, caplog):
    def body(_run):
        with pytest.raises(ValueError, match="level: got 'loud', expected one of info, warning, error"):
            _run.alert("x", level="loud")
        _run.alert("<b>\x1b[31m" + "x" * 2000, level="error")
        for number in range(20):
            _run.alert(f"number {number}", level="info")

    record(body, FileObserver(tmp_path))
    assert caplog.text.count("an alert was dropped") == 1
    with open_store(tmp_path) as store:
        alerts = store.get("1").alerts
        assert [(alert["level"], len(alert["text"])) for alert in alerts] == [("error", 1000), *[("info", 8)] * 4]
        assert [run.id for run in store.find("info.alert_level=error")] == ["1"]
    assert main(["--store", str(tmp_path), "show", "1"]) == 0
    assert "error  <b> [31mxxx" in capsys.readouterr().out
    app = create_app(lambda: open_store(tmp_path), Policy())
    with TestClient(app, base_url="http://127.0.0.1", headers={"origin": "http://127.0.0.1"}) as client:
        page = client.get("/runs/1").text
    alerts = page[page.index('id="alerts-title"') : page.index('id="facts-title"')]
    assert "&lt;b&gt;" in alerts
    assert "<b>" not in alerts


def test_addresses_that_cannot_be_used_are_one_sentence_without_them(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setenv("SACRISTAN_NOTIFY", f"json://127.0.0.1:9 {SECRET}")
    with pytest.raises(NotifyError, match="SACRISTAN_NOTIFY: address 2 of 2 is not a URL such as mailto://") as caught:
        read_addresses()
    assert SECRET not in str(caught.value)
    assert main(["watch", "--test"]) == 2
    assert SECRET not in capsys.readouterr().err
    record(lambda: None, FileObserver(tmp_path / "store"))
    assert caplog.text.count("no notifications: ") == 1
    assert SECRET not in caplog.text

    monkeypatch.setenv("SACRISTAN_NOTIFY", "json://127.0.0.1:9")
    assert main(["watch", "--test"]) == 1
    assert "not sent: address 1 of 1 (json://...): not delivered" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(MissingExtraError, match=f"need the package 'apprise'.* {re.escape(install_command('notify'))}"):
        read_addresses()
    monkeypatch.setenv("SACRISTAN_NOTIFY", "")
    assert read_addresses() == []
    assert main(["watch", "--notify"]) == 2
    monkeypatch.setenv("SACRISTAN_NOTIFY_AFTER_S", "soon")
    with pytest.raises(NotifyError, match="got 'soon', expected a number of seconds of at least 0"):
        finished_after_s()


def test_file_of_addresses_must_be_private(tmp_path, monkeypatch):
    monkeypatch.delenv("SACRISTAN_NOTIFY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_addresses() == []
    path = tmp_path / "sacristan" / "notify"
    path.parent.mkdir()
    path.write_text("# mine\njson://127.0.0.1:9\n\n  mailto://a:b@c\n")
    path.chmod(0o640)
    with pytest.raises(NotifyError, match="got mode 0640, expected 0600"):
        read_addresses()
    path.chmod(0o600)
    assert read_addresses() == ["json://127.0.0.1:9", "mailto://a:b@c"]
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a user whom only the container's start names
    assert read_addresses() == []
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path.write_text("json://h\n" * 5000)
    with pytest.raises(NotifyError, match="got more than 16384 bytes"):
        read_addresses()
