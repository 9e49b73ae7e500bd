"""What the watch says of runs in a folder, by their records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from sacristan.runs.work.watching import RecentRuns

NOW = datetime.now(UTC).replace(tzinfo=None)


def write(store, runs):
    """Write runs, whose times are ages, with their information."""
    for number, (run, info) in enumerate(runs, 1):
        folder = store / str(number)
        folder.mkdir()
        times = {name: (NOW - age).isoformat() for name, age in run.items() if name.endswith("_time")}
        entries = {"experiment": {"name": "train"}, "command": "main", "uid": f"u{number}", **run, **times}
        (folder / "run.json").write_text(json.dumps(entries))
        (folder / "info.json").write_text(json.dumps(info))


@pytest.fixture
def notices(tmp_path):
    """Write runs, and return the events that are worth a message."""

    def notices_of(*runs, unsent=(), after_s=60.0, is_sending=True):
        write(tmp_path, runs)
        with open_store(tmp_path) as store:
            for id, event in unsent:
                assert store.messages.claim(store.get(id), event)
                store.messages.note(store.get(id), event, is_sent=False)
            recent = RecentRuns(store, timedelta(hours=1)).look()
            return sorted((notice.run.id, notice.event) for notice in recent.notices(after_s, is_sending=is_sending))

    return notices_of


def ended(status, *, minutes=10, seconds_long=120, **entries):
    stop = timedelta(minutes=minutes)
    return {"status": status, "start_time": stop + timedelta(seconds=seconds_long), "stop_time": stop, **entries}


def test_run_that_sends_its_own_messages_is_left_out_unless_nobody_took_one(notices):
    failed, own = ended("FAILED"), {"notifies": True}
    runs = [(failed, {}), (failed, own), (failed, own), (failed, {"notifies": False})]
    assert notices(*runs, unsent=[(3, "failed")]) == [("1", "failed"), ("3", "failed"), ("4", "failed")]


def test_all_is_listed_where_nothing_is_sent(notices):
    assert notices((ended("FAILED"), {"notifies": True}), is_sending=False) == [("1", "failed")]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (ended("COMPLETED", seconds_long=60), [("1", "finished")]),
        (ended("COMPLETED", seconds_long=59), []),
        (ended("COMPLETED", minutes=61), []),
        (ended("FAILED", seconds_long=0), [("1", "failed")]),
        (ended("INTERRUPTED"), []),
        (ended("PRUNED"), []),
    ],
)
def test_long_runs_and_failures_of_the_last_hour_are_worth_a_message(notices, run, expected):
    assert notices((run, {})) == expected


def test_empty_queue_is_worth_a_message_once_no_run_waits(notices):
    queued = {"queue_time": timedelta(hours=1)}
    done = ended("COMPLETED", seconds_long=1, **queued)
    last = ended("COMPLETED", minutes=1, seconds_long=1, **queued)
    assert notices((last, {}), (done, {})) == [("1", "queue_empty")]


def test_queue_with_a_run_that_waits_is_not_empty(notices):
    queued = {"queue_time": timedelta(minutes=5)}
    assert notices((ended("COMPLETED", seconds_long=1, **queued), {}), ({"status": "QUEUED", **queued}, {})) == []


def test_watch_looks_once_and_prints_what_it_would_send(tmp_path, capsys):
    write(tmp_path, [(ended("FAILED"), {}), (ended("COMPLETED", seconds_long=5), {})])
    words = ["--store", str(tmp_path), "watch", "--once"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("run 1 train failed")
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["uid"], document["event"], document["level"]) == ("1", "u1", "failed", "error")
