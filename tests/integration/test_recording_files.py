"""`FileObserver` with real runs: what is recorded, and what is left of runs that are killed."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import sacred
import torch
from sacred.observers import FileStorageObserver

from sacristan.experiments import Experiment
from sacristan.experiments.running import captured_output
from sacristan.observers import ArtifactError, FileObserver, MediaError, MongoObserver, Text, read_media, read_metrics
from sacristan.observers.errors import MetricError
from sacristan.observers.record.identity import is_alive, true_status
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import summarize
from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.points.point_log import PointLog
from sacristan.observers.record.schema import LIVE
from sacristan.runs import open_store, reap
from tests.integration.conftest import HEAD
from tests.processes import run


def load(folder, name="run.json"):
    return json.loads((Path(folder) / name).read_text())


def record(tmp_path, main, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(main)
    return ex.run(options={"--capture": "sys"}, **options)


def test_run_is_recorded_with_result_times_sources_and_uid(tmp_path):
    def main(_run):
        print("hello ä")
        _run.info["note"] = {"x": 1}
        return 42

    record(tmp_path, main)
    run = load(tmp_path / "runs" / "1")
    assert run["status"] == "COMPLETED"
    assert run["result"] == 42
    assert run["start_time"] <= run["stop_time"]
    assert len(run["uid"]) == 32
    assert run["command_line"] == sys.argv
    names = [name for name, _ in run["experiment"]["sources"]]
    assert Path(__file__).name in names
    for name, stored in run["experiment"]["sources"]:
        assert (tmp_path / "runs" / stored).read_bytes() == (Path(__file__).parent / name).read_bytes()
    assert load(tmp_path / "runs" / "1", "info.json") == {"note": {"x": 1}}
    assert "hello ä" in (tmp_path / "runs" / "1" / "cout.txt").read_text()


def test_heartbeat_moves_points_to_their_file_while_the_run_is_active(tmp_path, wait_for):
    def main(_run):
        for count in (1, 2):
            _run.log_scalar("loss", 0.5)
            wait_for(lambda count=count: len(read_points(tmp_path / "runs" / "1")) == count, "the point in its file")

    ex = Experiment("recorded", base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(main)
    ex.run(options={"--capture": "sys", "--beat-interval": "0.05"})


def test_short_run_writes_its_document_at_its_start_and_at_its_end(tmp_path, monkeypatch):
    written, write = [], Journal.write
    monkeypatch.setattr(
        Journal, "write", lambda self, name, *args, **kwargs: written.append(name) or write(self, name, *args, **kwargs)
    )
    record(tmp_path, lambda _run: None)
    assert written.count("run.json") == 2


def test_provenance_holds_packages_machine_and_uncommitted_changes(tmp_path, start):
    lab = tmp_path / "lab"
    lab.mkdir()
    git = "git -c user.name=t -c user.email=t@t.invalid"
    os.system(f"cd {lab} && git init -q && echo 'x = 1' > part.py && {git} add . && {git} commit -qm one")
    (lab / "part.py").write_text("x = 2\n")
    (lab / "new.py").write_text("y = 3\n")
    process = start(lab, "import part\nex.observers.append(FileObserver('r'))\n@ex.automain\ndef main(): return 1\n")
    process.finish()
    found = load(lab / "r" / "1", "provenance.json")
    assert "-x = 1\n+x = 2" in found["git"]["diff"]
    assert found["git"]["untracked"]["new.py"] == "y = 3\n"
    assert len(found["git"]["commit"]) == 40
    assert found["packages"]["sacred"] == "0.8.7"
    assert found["machine"]["python"] == sys.version.split()[0]
    assert {"part.py", "recorded.py"} <= {name for name, _ in load(lab / "r" / "1")["experiment"]["sources"]}


def test_repository_without_a_commit_is_recorded_all_the_same(tmp_path, start):
    os.system(f"cd {tmp_path} && git init -q")
    process = start(tmp_path, "ex.observers.append(FileObserver('r'))\n@ex.automain\ndef main(): return 1\n")
    process.finish()
    assert load(tmp_path / "r" / "1", "provenance.json")["git"]["commit"] is None


def test_metrics_of_all_kinds_come_back(tmp_path):
    def main(_run):
        _run.log_scalar("plain", 0.5)
        _run.log_scalar("plain", float("nan"))
        _run.log({"numpy": np.float32(1.5), "torch": torch.tensor(2.5, requires_grad=True)}, step=7)
        _run.log_scalar("epochs", 1.0, 0.25)

    record(tmp_path, main)
    found = read_metrics(tmp_path / "runs" / "1")
    assert found["plain"].steps.tolist() == [0, 1]
    assert np.isnan(found["plain"].values[1])
    assert (found["numpy"].values.tolist(), found["torch"].values.tolist()) == ([1.5], [2.5])
    assert found["torch"].steps.tolist() == [7]
    assert found["epochs"].steps.tolist() == [0.25]
    summary = load(tmp_path / "runs" / "1", "summary.json")
    assert summary["plain"]["count"] == 2
    assert summary["torch"]["last"] == 2.5
    sacred_form = load(tmp_path / "runs" / "1", "metrics.json")
    assert sacred_form["plain"]["steps"] == [0, 1]
    assert set(sacred_form["plain"]) == {"steps", "values", "timestamps"}


class Wordless:
    """Has no text: `str` raises."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def test_heartbeat_writes_a_new_result_and_when_it_was(tmp_path):
    seen = []

    def main(_run):
        for _run.result in (0.5, {"loss": 0.25}):
            _run._emit_heartbeat()
            entries = load(tmp_path / "runs" / "1")
            seen.append((entries["status"], entries["result"]))
            assert entries["start_time"] <= entries["heartbeat"]

    record(tmp_path, main)
    assert seen == [("RUNNING", 0.5), ("RUNNING", {"loss": 0.25})]


def test_refused_values_end_no_heartbeat_and_take_no_point_with_them(tmp_path):
    bad = [torch.zeros(3), torch.zeros(0), "5", None, Wordless(), 10**400]

    def main(_run):
        for step, value in enumerate(bad):
            _run.log_scalar("x", float(step), step)
            for name, given, at in (("x", value, step), (value, 1.0, step), ("x", 1.0, Wordless())):
                if not isinstance(name, str) or name == "x":
                    with pytest.raises(MetricError, match="line "):
                        _run.log_scalar(name, given, at)
            with pytest.raises(MetricError, match=r"log_scalar\('b'\)") as refused:
                _run.log({"a": 0.5, "b": value, "c": 1.5, "d": value}, step)
            assert "log_scalar('d')" in str(refused.value)
            _run._emit_heartbeat()
        with pytest.raises(MediaError, match="got the name 7"):
            _run.log({7: Text("a"), "text": Text("b"), "late": 1.0})

    bad.remove("5")  # which is a name, if no value
    record(tmp_path, main)
    found = read_metrics(tmp_path / "runs" / "1")
    assert {name: len(series) for name, series in found.items() if not name.startswith("system/")} == {
        "x": 5,
        "a": 5,
        "c": 5,
        "late": 1,
    }
    assert [entry.name for entry in read_media(tmp_path / "runs" / "1")] == ["text"]
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_refused_value_that_nobody_catches_fails_the_run_at_its_line(tmp_path):
    def main(_run):
        _run.log_scalar("loss", 0.5)
        _run.log_scalar("loss", torch.zeros(2))

    with pytest.raises(MetricError, match=r"log_scalar\('loss'\) in test_recording_files.py, line \d+: got a Tensor"):
        record(tmp_path, main)
    run = load(tmp_path / "runs" / "1")
    assert run["status"] == "FAILED"
    assert '_run.log_scalar("loss", torch.zeros(2))' in "".join(run["fail_trace"])
    assert read_metrics(tmp_path / "runs" / "1")["loss"].values.tolist() == [0.5]


ODD = [{1: "a", "b": 2}, {(1, 2): 3}, np.zeros(3), {1, 2}, b"\xff", "\udc80"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [Wordless(), {"deep": Wordless()}, *ODD], ids=range(2 + len(ODD)))
def test_whatever_info_holds_ends_no_heartbeat(tmp_path, value):
    def main(_run):
        _run.info.update({"odd": value, "good": 1})
        _run._emit_heartbeat()
        _run.log_scalar("x", 1.0)
        assert _run.observers[0].num_errors == 0

    record(tmp_path, main)
    assert load(tmp_path / "runs" / "1", "info.json")["good"] == 1
    assert len(read_metrics(tmp_path / "runs" / "1")["x"]) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_whatever_the_result_is_ends_no_heartbeat(tmp_path, value):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda: value)
    ex.run(options={"--capture": "no"})
    assert ex.observers[0].num_errors == 0
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_stock_experiment_with_odd_names_and_values_keeps_the_good_ones(tmp_path):
    ex = sacred.Experiment("stock", base_dir=str(Path(__file__).parent), save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def main(_run):
        for name in (7, None, ("a", 1), "good"):
            for value in (0.5, "text", torch.zeros(2), Wordless(), torch.tensor(1.5)):
                _run.log_scalar(name, value)

    ex.run()
    found = read_metrics(tmp_path / "runs" / "1")
    assert found.keys() == {"7", "None", "('a', 1)", "good"}
    assert all(series.values.tolist() == [0.5, 1.5] for series in found.values())
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_value_that_changes_in_place_after_logging_is_recorded_as_it_was(tmp_path):
    def main(_run):
        value, array = torch.zeros(()), np.zeros(())
        _run.log_scalar("x", value, 0)
        value += 5
        _run.log_scalar("x", array, 1)
        array += 5

    record(tmp_path, main)
    assert read_metrics(tmp_path / "runs" / "1")["x"].values.tolist() == [0.0, 0.0]


def test_unchanged_stock_experiment_records_the_same(tmp_path):
    ex = sacred.Experiment("stock", base_dir=str(Path(__file__).parent), save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def main(_run):
        for step in range(10):
            _run.log_scalar("x", step / 3, step)

    ex.run()
    assert len(read_metrics(tmp_path / "runs" / "1")["x"]) == 10
    assert load(tmp_path / "runs" / "1")["status"] == "COMPLETED"


def test_stock_experiment_hands_points_over_with_its_heartbeat(tmp_path):
    ex = sacred.Experiment("stock", base_dir=str(Path(__file__).parent), save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.main
    def main(_run):
        _run.log_scalar("x", 0.5)
        assert read_metrics(tmp_path / "runs" / "1") == {}
        _run._emit_heartbeat()
        assert len(read_metrics(tmp_path / "runs" / "1")["x"]) == 1

    ex.run()


@pytest.mark.slow
def test_identical_runs_keep_each_content_once(tmp_path):
    resource = tmp_path / "resource.txt"
    resource.write_text("content")

    def main(_run):
        _run.add_resource(str(resource))

    for _ in range(5):
        record(tmp_path, main)
    kept = list((tmp_path / "runs" / "_resources").iterdir())
    assert [path.read_text() for path in kept] == ["content"]
    contents = [path.read_bytes() for path in (tmp_path / "runs" / "_sources").iterdir()]
    assert len(contents) == len(set(contents))
    assert load(tmp_path / "runs" / "5")["resources"] == [[str(resource), f"_resources/{kept[0].name}"]]


@pytest.mark.slow
def test_large_info_is_written_rarely_and_whole_at_the_end(tmp_path):
    ex = Experiment("large", system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    written = set()

    @ex.main
    def main(_run):
        for number in range(30):
            _run.info["numbers"] = list(range(200_000 + number))
            _run._emit_heartbeat()
            path = tmp_path / "runs" / "1" / "info.json"
            written.add(path.stat().st_mtime_ns if path.exists() else None)

    ex.run(options={"--beat-interval": "1000"})
    assert len(written - {None}) < 10
    info = json.loads((tmp_path / "runs" / "1" / "info.json").read_text())
    assert info["numbers"] == list(range(200_029))


def test_folder_that_cannot_be_made_moves_the_record_and_the_run_goes_on(tmp_path, caplog):
    (tmp_path / "runs").write_text("a file stands in the way")
    run = record(tmp_path, lambda: 3)
    assert run.result == 3
    folder = caplog.text.partition("this run is recorded in ")[2].split()[0]
    assert load(folder)["result"] == 3


def test_failed_run_says_so_with_its_traceback(tmp_path):
    def main():
        raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        record(tmp_path, main)
    run = load(tmp_path / "runs" / "1")
    assert run["status"] == "FAILED"
    assert "broken on purpose" in "".join(run["fail_trace"])


# Counts in memory that outlives the process, too, what `log` has returned from.
COUNTS_AND_LOGS = """
import mmap
ex.observers.extend([{observers}])
with open("count", "wb+") as stream:
    stream.truncate(8)
    count = memoryview(mmap.mmap(stream.fileno(), 8)).cast("Q")
@ex.automain
def main(_run):
    step = 0
    while True:
        _run.log_scalar("loss", step / 7, step)
        step += 1
        count[0] = step
        if step % {rest} == 0:
            time.sleep(0.001)
"""


def logged_by(folder):
    return int.from_bytes((folder / "count").read_bytes(), sys.byteorder)


def check_every_point(folder, logged):
    """See to it that a record has every point, each once; the process may have been killed before it counted one."""
    loss = read_metrics(folder)["loss"]
    assert loss.steps.tolist() == list(range(len(loss)))
    assert loss.values.tolist() == [step / 7 for step in range(len(loss))]
    assert logged <= len(loss) <= logged + 1


def check_summary(folder):
    """See to it that lists and the run itself sum up every point, although no heartbeat came after the last ones."""
    loss = read_metrics(folder)["loss"]
    summary = summarize(loss.values, loss.steps)
    with open_store(folder.parent) as store:
        for _ in range(2):  # as it is indexed, and from the index
            [found] = store.find(f"loss.count={len(loss)} and loss.last={summary['last']!r}")
            assert found.summary["loss"] == summary
            assert store.find(f"loss.count<{len(loss)}") == []


@pytest.mark.parametrize(
    ("rest", "at_least"), [(20, 10_000), (1000, 200_000), pytest.param(10**9, 400_000, marks=pytest.mark.slow)]
)
def test_killed_run_keeps_every_point(tmp_path, rest, at_least, start, wait_for):
    recorded = start(tmp_path, COUNTS_AND_LOGS.format(observers="FileObserver('runs')", rest=rest))
    folder = tmp_path / "runs" / "1"
    wait_for(lambda: (tmp_path / "count").exists() and logged_by(tmp_path) > at_least, "points")
    # While it lives, they are all there, too.
    before = logged_by(tmp_path)
    assert len(read_metrics(folder)["loss"]) >= before
    wait_for((folder / "summary.json").exists, "a heartbeat")
    with open_store(folder.parent) as store:
        assert store.find("loss.count>0")[0].status == "RUNNING"
    recorded.process.kill()
    recorded.process.wait()
    check_every_point(folder, logged_by(tmp_path))
    check_summary(folder)
    run, lease = load(folder), load(folder, "lease.json")
    assert run["status"] == "RUNNING"
    assert not is_alive(lease)
    assert true_status(run, lease) == "DEAD"
    assert [where for where, _ in reap(tmp_path / "runs")] == [folder]
    assert load(folder)["status"] == "DEAD"
    assert list(reap(tmp_path / "runs")) == []
    # What was reaped is as it would be of a run that ended.
    assert not (folder / LIVE).exists()
    check_every_point(folder, logged_by(tmp_path))
    assert load(folder, "summary.json")["loss"]["count"] == len(read_metrics(folder)["loss"])


def test_killed_run_keeps_every_point_in_every_folder_it_is_recorded_in(tmp_path, start, wait_for):
    observers = "FileObserver('runs'), FileObserver('others')"
    recorded = start(tmp_path, COUNTS_AND_LOGS.format(observers=observers, rest=100))
    wait_for(lambda: (tmp_path / "count").exists() and logged_by(tmp_path) > 20_000, "points")
    recorded.process.kill()
    recorded.process.wait()
    check_every_point(tmp_path / "runs" / "1", logged_by(tmp_path))
    others = len(read_metrics(tmp_path / "others" / "1")["loss"])
    assert abs(others - logged_by(tmp_path)) <= 1


def test_run_killed_before_its_first_heartbeat_keeps_every_point(tmp_path, start, wait_for):
    body = COUNTS_AND_LOGS.format(observers="FileObserver('runs')", rest=20)
    recorded = start(tmp_path, body, "-b", "1000")
    wait_for(lambda: (tmp_path / "count").exists() and logged_by(tmp_path) > 100, "points")
    recorded.process.kill()
    recorded.process.wait()
    assert (tmp_path / "runs" / "1" / "metrics.bin").stat().st_size == 0
    check_every_point(tmp_path / "runs" / "1", logged_by(tmp_path))
    check_summary(tmp_path / "runs" / "1")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("interval", [0, "0", 0.0])
def test_run_without_heartbeats_has_everything_at_its_end(tmp_path, interval):
    others = []

    class Other(sacred.observers.RunObserver):
        def started_event(self, *args, **kwargs):
            pass

        def log_metrics(self, metrics_by_name, info):
            others.append({name: found["values"] for name, found in metrics_by_name.items()})

    def main(_run):
        print("some output")
        _run.info["note"] = 1
        for step in range(50):
            _run.log_scalar("x", float(step))
        assert _run._heartbeat is None

    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers += [FileObserver(tmp_path / "runs"), Other()]
    ex.main(main)
    ex.run(options={"--capture": "sys", "--beat-interval": interval})
    folder = tmp_path / "runs" / "1"
    assert read_metrics(folder)["x"].values.tolist() == list(range(50))
    assert (load(folder)["status"], load(folder, "info.json")) == ("COMPLETED", {"note": 1})
    assert load(folder, "lease.json")["beat_interval"] == 0
    assert "some output" in (folder / "cout.txt").read_text()
    assert others == [{"x": [float(step) for step in range(50)]}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signal_ends_the_run_as_interrupted_and_is_named(tmp_path, number, code, start, wait_for):
    recorded = start(tmp_path, COUNTS_AND_LOGS.format(observers="FileObserver('runs')", rest=1000), "-b", "0.2")
    folder = tmp_path / "runs" / "1"
    wait_for(lambda: len(read_points(folder)) > 0, "points")
    assert true_status(load(folder), load(folder, "lease.json")) == "RUNNING"
    recorded.process.send_signal(number)
    assert recorded.process.wait(60) == code
    assert "Traceback" not in recorded.err.read_text()
    run = load(folder)
    assert run["status"] == "INTERRUPTED"
    assert run["meta"]["interrupted_by"] == signal.Signals(number).name
    counts = {name: row["count"] for name, row in load(folder, "summary.json").items()}
    assert {name: len(series) for name, series in read_metrics(folder).items()} == counts
    assert {"loss", "system/memory_percent"} <= counts.keys()


def test_beat_moves_points_once(tmp_path, monkeypatch):
    ex, drained = Experiment("drained", system_metrics_s=None), []
    ex.observers.append(FileObserver(tmp_path))
    drain = PointLog.drain

    @ex.main
    def main(_run):
        _run.log_scalar("loss", 0.5, 1)
        monkeypatch.setattr(PointLog, "drain", lambda self: drained.append(self) or drain(self))
        _run._emit_heartbeat()
        monkeypatch.undo()
        assert (tmp_path / "1" / "metrics.bin").stat().st_size

    ex.run(options={"--beat-interval": 1000})
    assert len(drained) == 1


def test_beat_that_meets_the_closing_of_the_output_loses_nothing(tmp_path, monkeypatch):
    ex, reading, closed = Experiment("beaten", system_metrics_s=None), threading.Event(), threading.Event()
    ex.observers.append(FileObserver(tmp_path))
    whole = captured_output.read_parts

    def slow(out):
        if threading.current_thread() is threading.main_thread() or out.closed:
            return list(whole(out))
        reading.set()
        # In vain, as long as the one who closes waits for this beat.
        closed.wait(0.3)
        return [str(os.fstat(out.buffer.fileno()).st_size)[:0]]

    monkeypatch.setattr("sacristan.experiments.running.recorder.read_parts", slow)

    @ex.main
    def main(_run):
        out, close = _run._output_file, _run._output_file.finalize
        out.finalize = lambda: (close(), closed.set())
        for step in range(20):
            _run.log_scalar("loss", step, step)
        assert reading.wait(10)

    ex.run(options={"--beat-interval": 0.001})
    assert len(read_metrics(tmp_path / "1")["loss"]) == 20
    assert json.loads((tmp_path / "1" / "run.json").read_text())["status"] == "COMPLETED"


def test_output_that_is_printed_while_it_is_read_is_whole(tmp_path):
    """Sacred's buffer of `--capture=sys` loses what comes between finding its place and reading on."""
    ex = Experiment("printed", system_metrics_s=None)
    ex.observers += [FileObserver(tmp_path / "ours"), FileStorageObserver(tmp_path / "sacreds")]
    lines = [f"line {number} \N{EURO SIGN}" for number in range(1_000)]

    @ex.main
    def main(_run):
        buffer = _run._output_file.buffer
        read = buffer.read
        buffer.read = lambda: print("meanwhile") or read()
        for line in lines:
            print(line)
        _run._get_captured_output()

    run = ex.run(options={"--capture": "sys", "--beat-interval": 0.001, "--loglevel": "ERROR"})
    texts = [(tmp_path / store / "1" / "cout.txt").read_text() for store in ("ours", "sacreds")]
    for text in (run.captured_out, *texts):
        assert [line for line in text.splitlines() if line != "meanwhile"] == lines


def test_output_that_is_no_utf8_does_not_end_the_record(tmp_path, start):
    body = """
ex.observers.append(FileObserver("runs"))
@ex.automain
def main(_run):
    os.write(1, b"bytes \\xff\\xfe here\\n")
    time.sleep(0.5)
    os.write(1, "half ä".encode()[:-1]); time.sleep(0.5); os.write(1, "ä".encode()[-1:] + b" whole\\n")
    time.sleep(0.3)
    _run.log_scalar("late", 1.0)
"""
    process = start(tmp_path, body, "-b", "0.1")
    process.finish()
    text = (tmp_path / "runs" / "1" / "cout.txt").read_text()
    assert "bytes \N{REPLACEMENT CHARACTER}" in text
    assert "half ä whole" in text
    assert len(read_metrics(tmp_path / "runs" / "1")["late"]) == 1


def test_many_processes_on_one_folder_make_a_run_each(tmp_path, start):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(_run): _run.log_scalar('x', 1.0)\n"
    processes = [start(tmp_path, body) for _ in range(4)]
    for process in processes:
        process.finish()
    folders = [path for path in (tmp_path / "runs").iterdir() if path.name.isdigit()]
    assert sorted(path.name for path in folders) == list("1234")
    assert len({load(path)["uid"] for path in folders}) == 4
    assert all(load(path)["status"] == "COMPLETED" for path in folders)


def test_option_for_the_folder_that_is_recorded_in_already_makes_no_second_record(tmp_path, start):
    body = """
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(): pass
"""
    start(tmp_path, body, "-F", "runs").finish()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "_sources"]


# What scripts for Sacred's observers call


def test_observers_are_created_as_sacreds_were(tmp_path, mongo_url):
    made = FileObserver.create(tmp_path / "runs", priority=50)
    assert (type(made), made.basedir, made.priority) == (FileObserver, str(tmp_path / "runs"), 50)
    made = MongoObserver.create(url=mongo_url, db_name="lab")
    assert (type(made), made.destination.db_name) == (MongoObserver, "lab")


def test_file_saved_by_the_observer_is_in_the_folder_of_the_run(tmp_path):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, system_metrics_s=None)
    observer = FileObserver(tmp_path / "runs")
    ex.observers.append(observer)
    (tmp_path / "table.csv").write_text("a,b\n")

    @ex.main
    def main():
        observer.save_file(tmp_path / "table.csv")
        observer.save_file(str(tmp_path / "table.csv"), "renamed.csv")
        with pytest.raises(ArtifactError, match="that its record does not use"):
            observer.save_file(tmp_path / "table.csv", "run.json")

    ex.run()
    folder = tmp_path / "runs" / "1"
    assert (folder / "table.csv").read_text() == (folder / "renamed.csv").read_text() == "a,b\n"
    assert load(folder)["artifacts"] == ["table.csv", "renamed.csv"]


# What the shell takes away is gone before Python starts.
WITHOUT_STREAMS = """
"$0" recorded.py <&- >&- 2>&- || exit 1
"$0" recorded.py >&- || exit 2
cd "$1" && "$0" -m sacristan --store "$2" ls <&- >&- 2>&-; test $? = 74 || exit 3
"""


@pytest.mark.slow
def test_run_without_standard_streams_is_recorded(tmp_path, request):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(_run): print('printed'); return 3\n"
    (tmp_path / "recorded.py").write_text(HEAD.format(root=str(request.config.rootpath)) + body)
    words = ["sh", "-c", WITHOUT_STREAMS, sys.executable, str(request.config.rootpath), str(tmp_path / "runs")]
    done = run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number in ("1", "2"):
        folder = tmp_path / "runs" / number
        document = json.loads((folder / "run.json").read_text())
        assert (document["status"], document["result"]) == ("COMPLETED", 3)
        assert "printed" in (folder / "cout.txt").read_text().splitlines()
