"""Queued runs, on files and in a real MongoDB: each is started once, in its own record, by any number of workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.observers.record.identity import lease
from sacristan.runs import LaunchError, open_store, sync
from sacristan.runs.stores.folders.documents import FolderDocuments
from sacristan.runs.work import Claim, End, Worker, is_pending, run_claims, visible_gpus
from sacristan.runs.work.run_queue import Queue
from tests.processes import PIPE, Process, run, warm_children

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "sacred", "sacred.observers", "sacred.commandline_options", "pymongo", "gridfs")
SCRIPT = """
import json, os, sys, time
from sacristan.experiments import Experiment
from sacristan.observers import MongoObserver
ex = Experiment("tiny", system_metrics_s=None, record_to={record_to!r})
{observers}

@ex.config
def config():
    x = 0
    how = "pass"
    seed = 0

@ex.main
def main(_run, x, how):
    with open({ran!r}, "a") as stream:
        print(x, file=stream)
    _run.log_scalar("val/loss", x, 0)
    exec(how)
    return {{name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}}

if __name__ == "__main__":
    for settings in json.loads(os.environ.get("ENQUEUE", "[]")):
        options = {{"--queue": True, **settings.pop("options", {{}})}}
        ex.run(config_updates=settings, options=options)
    if "ENQUEUE" not in os.environ:
        ex.run_commandline()
"""
WAIT = "while True: time.sleep(0.05)"
WORKER = """
import sys
from sacristan.runs.stores.opening import open_store
from sacristan.runs.work.run_queue import Queue
from sacristan.runs.work import Worker
tell = lambda text: print(text, flush=True)
with open_store(sys.argv[1]) as store:
    Worker(Queue(store, tell), tell, packages={packages!r}).work(until_empty=True)
"""


class Lab:
    """A folder with a script whose runs are queued."""

    def __init__(self, folder: Path, observers: str = "", record_to: str | None = "my_runs") -> None:
        self.folder, self.ran = folder, folder / "ran.txt"
        self.script = folder / "tiny.py"
        self.script.write_text(SCRIPT.format(ran=str(self.ran), observers=observers, record_to=record_to))
        (folder / "worker.py").write_text(WORKER.format(packages=PACKAGES))
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.told: list[str] = []

    def enqueue(self, *settings: dict) -> None:
        environment = {**self.environment, "ENQUEUE": json.dumps(settings)}
        done = run([sys.executable, str(self.script)], cwd=self.folder, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr

    def start_worker(self, where: str) -> Process:
        command = [sys.executable, "worker.py", where]
        environment = self.environment
        streams = {"stdout": PIPE, "stderr": subprocess.STDOUT, "text": True}
        return Process(command, cwd=self.folder, env=environment, starts_python=True, **streams)

    def work(self, where: str = "my_runs", num_places: int = 1, held: str | None = None, **options) -> Worker:
        """Work in this process until the queue is empty."""
        where = where if "://" in where else str(self.folder / where)
        with open_store(where) as store:
            queue = Queue(store, self.told.append, record_to=self.folder / "my_runs", **options)
            if held is not None:
                queue.enqueue(store.get(held))
            queue.tell_waiting()
            worker = Worker(queue, self.told.append, num_places=num_places, packages=PACKAGES)
            with warm_children():
                worker.work(until_empty=True)
            queue.close()
        return worker

    def runs(self, where: str = "my_runs") -> dict[str, str]:
        with open_store(where if "://" in where else self.folder / where) as store:
            return {run.id: run.status for run in store.find(sort="id")}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Lab(tmp_path)


@pytest.fixture
def where(request, lab, database, mongo_url):
    """A store to queue into, and where nothing else is recorded: of files, or a database."""
    if request.param == "files":
        return "my_runs"
    url = f"{mongo_url}/{database.name}"
    lab.__init__(lab.folder, f"ex.observers.append(MongoObserver({mongo_url!r}, {database.name!r}))", None)
    return url


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_run_that_came_in_an_archive_is_started_when_a_person_says_so(lab, kind, database, mongo_url, capsys):
    lab.enqueue({"x": 1}, {"x": 2})
    cut_off = lab.folder / "my_runs" / "2"
    (cut_off / "claims").mkdir()
    (cut_off / "claims" / "1.json").write_text("{}")
    entry = json.loads((cut_off / "run.json").read_text())
    (cut_off / "run.json").write_text(json.dumps({**entry, "status": "INTERRUPTED", "artifacts": ["claims/1.json"]}))
    archive, where = str(lab.folder / "runs.zip"), f"{mongo_url}/{database.name}"
    where = where if kind == "mongo" else str(lab.folder / "imported")
    assert main(["--store", str(lab.folder / "my_runs"), "export", "1", "2", "-o", archive]) == 0
    capsys.readouterr()
    assert main(["--store", where, "import", archive]) == 0
    assert "not taken over: its place in the queue: it brings its own code, and is HELD" in capsys.readouterr().err
    assert lab.runs(where if kind == "mongo" else "imported") == {"1": "HELD", "2": "INTERRUPTED"}
    assert lab.work(where).num_started == 0
    assert not lab.ran.exists()
    assert lab.told[0].startswith("run 1: queued elsewhere, with code of its own, and HELD; look at it")
    assert not list(lab.folder.glob("imported/*/claims"))
    with pytest.raises(LaunchError, match="run 2 is INTERRUPTED, expected HELD"):
        lab.work(where, held="2")
    shutil.rmtree(lab.folder / "my_runs")
    record_to = lab.folder / "elsewhere"
    words = ["work", "--until-empty", "--held", "1", "--record-to", str(record_to)]
    assert main(["--store", where, *words]) == 0
    assert lab.ran.read_text() == "1\n"
    with open_store(where) as store:  # although the script itself delivers to no database
        assert store.get("1").status == "COMPLETED"
        assert store.get("1").metric("val/loss").values.tolist() == [1]
    assert (record_to / "1" / "run.json").exists() == (kind == "mongo")


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("where", ["files", pytest.param("mongo", marks=pytest.mark.slow)], indirect=True)
def test_two_workers_start_each_queued_run_once_in_its_own_record(lab, where, count):
    lab.enqueue(*({"x": x} for x in range(count)))
    with open_store(where if "://" in where else lab.folder / where) as store:
        before = {run.id: (run.uid, run.config.x) for run in store.find()}
    assert set(lab.runs(where).values()) == {"QUEUED"}
    assert not list(lab.folder.glob("my_runs/_spool/*"))
    assert len(before) == count
    workers = [lab.start_worker(where) for _ in range(2)]
    told = [worker.communicate(120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    for worker in workers:
        worker.close()
    assert all("is started" in text for text in told), told
    assert Counter(lab.ran.read_text().split()) == Counter(map(str, range(count))), told
    with open_store(where if "://" in where else lab.folder / where) as store:
        found = store.find()
        assert {run.status for run in found} == {"COMPLETED"}
        assert {run.id: (run.uid, run.config.x) for run in found} == before
        assert all(run.metric("val/loss").values.tolist() == [run.config.x] for run in found)
        assert all(run["queue_time"] and run.sessions == [] for run in found)
    assert len(lab.runs()) == count  # of a database alone, each has a folder now


def test_queued_run_keeps_options_comment_and_place_and_goes_by_priority(lab, database, mongo_url):
    url = f"{mongo_url}/{database.name}"
    given = {"--mongo_db": url, "--comment": "for later"}
    lab.enqueue({"x": 1, "options": {**given, "--priority": 1}}, {"x": 2, "options": {**given, "--priority": 5}})
    (document,) = database.runs.find({"config.x": 2})
    # Whoever takes it in one of its stores has it in the other one.
    with open_store(lab.folder / "my_runs") as folder, open_store(url) as there:
        ours, theirs = Queue(folder, lab.told.append), Queue(there, lab.told.append)
        first, second = ours.take(), theirs.take()
        assert [taken.run.config.x for taken in (first, second)] == [2, 1]
        assert ours.take() is None
        assert theirs.take() is None
        first.interrupted(End())
        second.interrupted(End())
        ours.close()
    lab.work()
    assert lab.ran.read_text().split() == ["2", "1"]
    found = list(database.runs.find(sort=[("config.x", 1)]))
    assert [one["status"] for one in found] == ["COMPLETED", "COMPLETED"]
    assert (found[1]["_id"], found[1]["uid"]) == (document["_id"], document["uid"])
    assert found[1]["meta"]["comment"] == "for later"
    assert len(found[1]["claims"]) == 1


def test_queued_record_does_not_undo_in_the_database_that_the_run_was_started_elsewhere(lab, database, mongo_url):
    lab.enqueue({"x": 1, "options": {"--mongo_db": f"{mongo_url}/{database.name}"}})
    database.runs.update_one({}, {"$set": {"status": "COMPLETED"}})
    assert [result.outcome for result in sync(lab.folder / "my_runs")] == ["started elsewhere"]
    assert database.runs.find_one()["status"] == "COMPLETED"
    assert lab.work().num_started == 0


def test_run_that_cannot_be_started_fails_with_the_reason_and_the_next_goes_on(lab):
    lab.enqueue({"x": 1}, {"x": 2})
    text = lab.script.read_text()
    # As where this machine lacks something.
    lab.script.write_text(
        text.replace("import json", "import sys\nif '/1/' in sys.argv[-1]: sys.exit('no gpu')\nimport json")
    )
    worker = lab.work(any_sources=True)
    assert (worker.num_started, worker.num_failed) == (2, 1)
    assert lab.runs() == {"1": "FAILED", "2": "COMPLETED"}
    with open_store(lab.folder / "my_runs") as store:
        assert store.get(1)["fail_trace"] == ["no gpu"]
    assert "run 1 FAILED: it could not be started: no gpu" in lab.told


def test_run_whose_sources_have_changed_is_passed_over_and_started_where_that_is_meant(lab):
    lab.enqueue({"x": 1})
    lab.script.write_text(lab.script.read_text() + "# changed\n")
    assert lab.work().num_started == 0
    assert lab.told == [
        "run 1 is skipped: its sources have changed since it was recorded (tiny.py); put back what they were, or "
        "say --any-sources"
    ]
    assert lab.work(any_sources=True).num_started == 1
    assert lab.runs() == {"1": "COMPLETED"}


def test_work_says_how_many_runs_it_passed_over(lab, capsys):
    lab.enqueue({"x": 1}, {"x": 2})
    lab.script.write_text(lab.script.read_text() + "# changed\n")
    store = str(lab.folder / "my_runs")
    assert main(["--store", store, "work", "--until-empty"]) == 0
    assert capsys.readouterr().out == f"2 runs wait in {store} and cannot be started here, for the reasons above\n"


@pytest.mark.parametrize("where", ["files", pytest.param("mongo", marks=pytest.mark.slow)], indirect=True)
def test_a_queued_run_that_is_removed_is_cancelled_until_it_is_restored(lab, where):
    lab.enqueue({"x": 1}, {"x": 2})
    store = where if "://" in where else str(lab.folder / where)
    assert main(["--store", store, "rm", "1", "--yes"]) == 0
    assert lab.work(where).num_started == 1
    assert lab.ran.read_text() == "2\n"
    assert main(["--store", store, "restore", "1"]) == 0
    assert lab.work(where).num_started == 1
    assert lab.ran.read_text() == "2\n1\n"


def test_a_queued_run_is_cancelled_while_its_worker_is_busy(lab):
    go = lab.folder / "go"
    lab.enqueue({"x": 1, "how": f"while not os.path.exists({str(go)!r}): time.sleep(0.02)"}, {"x": 2})
    with lab.start_worker("my_runs") as worker:
        wait_until(lab.ran.exists)
        assert main(["--store", str(lab.folder / "my_runs"), "rm", "2", "--yes"]) == 0
        go.touch()
        assert "run 2" not in worker.communicate(60)[0]
    assert lab.ran.read_text() == "1\n"
    assert lab.runs() == {"1": "COMPLETED"}


def test_places_share_threads_and_gpus(lab, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS")
    lab.enqueue({"x": 1}, {"x": 2})
    lab.work(num_places=2)
    with open_store(lab.folder / "my_runs") as store:
        found = [store.get(number) for number in (1, 2)]
    results = [one.result for one in found]
    assert [one["provenance.machine.cuda_visible_devices"] for one in found] == [
        result["CUDA_VISIBLE_DEVICES"] for result in results
    ]
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [result["OMP_NUM_THREADS"] for result in results] == [threads, threads]
    assert sorted(result["CUDA_VISIBLE_DEVICES"] for result in results) == ["3", "5"]


@pytest.mark.parametrize(("given", "expected"), [("0, 1", ["0", "1"]), ("", []), ("GPU-8a", ["GPU-8a"])])
def test_visible_gpus_are_those_of_the_environment(given, expected):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == expected


@pytest.mark.nightly
def test_queued_run_of_several_ranks_is_started_by_torchrun(lab):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*torchrun, str(ROOT / "exp.py"), "-q", "with", "data.fast", "epochs=1"]
    done = run([sys.executable, *words], cwd=lab.folder, capture_output=True, starts_python=True)
    assert done.returncode == 0, done.stderr
    assert lab.work().num_failed == 0, lab.told
    assert lab.runs() == {"1": "COMPLETED"}


def test_failed_run_fails_the_worker_and_is_not_taken_again(lab):
    lab.enqueue({"x": 1, "how": "1 / 0"})
    assert lab.work().num_failed == 1
    assert lab.work().num_started == 0
    assert lab.runs() == {"1": "FAILED"}


def test_interrupted_worker_interrupts_its_run_and_takes_no_more(lab):
    lab.enqueue({"x": 1, "how": WAIT}, {"x": 2})
    with lab.start_worker("my_runs") as worker:
        assert worker.stdout.readline() == "run 1 is started: tiny main\n"
        wait_until(lambda: lab.ran.exists())
        worker.send_signal(signal.SIGINT)
        told = worker.communicate(60)[0]
    assert "interrupting 1; once more kills it" in told
    assert "run 1 INTERRUPTED" in told
    assert lab.runs() == {"1": "INTERRUPTED", "2": "QUEUED"}
    # What a person has ended is not resumed by itself.
    assert lab.work().num_started == 1
    assert lab.runs() == {"1": "INTERRUPTED", "2": "COMPLETED"}


@pytest.mark.slow
def test_run_that_was_about_to_start_when_its_worker_was_interrupted_is_queued_as_before(lab):
    lab.enqueue({"x": 1})
    text, importing = lab.script.read_text(), lab.folder / "importing"
    lab.script.write_text(f"from pathlib import Path\nimport time\nPath({str(importing)!r}).touch()\n{WAIT}")
    with open_store(lab.folder / "my_runs") as store:
        taken = Queue(store, lab.told.append, any_sources=True).take()
        taken.interrupted(End())
    (lab.folder / "worker.py").write_text(
        (lab.folder / "worker.py").read_text().replace("tell),", "tell, any_sources=True),")
    )
    with lab.start_worker("my_runs") as worker:
        wait_until(importing.exists)
        worker.send_signal(signal.SIGINT)
        worker.communicate(60)
    assert run_claims(FolderDocuments(lab.folder / "my_runs"), "1").listed() == []
    lab.script.write_text(text)
    assert lab.work().num_started == 1
    assert lab.runs() == {"1": "COMPLETED"}


@pytest.mark.nightly
def test_killed_worker_leaves_a_run_that_the_next_one_resumes(lab):
    words = ["data.fast", "training.epochs=40"]
    done = run([sys.executable, str(ROOT / "exp.py"), "-q", "with", *words], cwd=lab.folder, capture_output=True)
    assert done.returncode == 0, done.stderr
    folder = lab.folder / "my_runs" / "1"
    uid = json.loads((folder / "run.json").read_text())["uid"]
    with lab.start_worker("my_runs") as worker:
        wait_until(lambda: (folder / "checkpoints" / "last.pt").exists())
        worker.kill()
        wait_until(lambda: lab.runs() == {"1": "INTERRUPTED"})
    with lab.start_worker("my_runs") as worker:
        assert worker.stdout.readline() == "run 1 is resumed, attempt 2: exp main\n"
        told = worker.communicate(120)[0]
    assert "run 1 COMPLETED" in told
    with open_store(lab.folder / "my_runs") as store:
        found = store.get(1)
        assert (found.uid, [session["status"] for session in found.sessions]) == (uid, ["INTERRUPTED", "COMPLETED"])
        assert found.sessions[1]["step"] > 0
    assert len(run_claims(FolderDocuments(folder.parent), folder.name).listed()) == 2


@pytest.mark.parametrize("where", ["files", pytest.param("mongo", marks=pytest.mark.slow)], indirect=True)
def test_run_that_another_worker_has_taken_over_does_not_begin(lab, where):
    lab.enqueue({"x": 1})
    with open_store(where if "://" in where else lab.folder / where) as store:
        queue = Queue(store, lab.told.append, record_to=lab.folder / "my_runs")
        take, other = queue.take, lease(60.0)

        def taken_over():
            task = take()
            if task is not None:
                assert task.claims.add(2)
                assert task.claims.begin(2, other)
                assert [process["pid"] for process in task.claims.earlier_processes(3)] == [os.getpid()]
            return task

        queue.take = taken_over
        worker = Worker(queue, lab.told.append, packages=PACKAGES)
        with warm_children():
            worker.work(until_empty=True)
        assert (worker.num_started, worker.num_failed) == (1, 0)
        queue.close()
    assert lab.told[-1] == "run 1 was taken over by another worker before it began"
    assert lab.runs(where) == {"1": "QUEUED"}
    assert not lab.ran.exists()


def test_claim_is_pending_while_the_process_lives_that_its_worker_started():
    gone = {**lease(60.0), "pid": 2**22 + 1}
    assert not is_pending(Claim(1, lease=gone), None)
    assert is_pending(Claim(1, lease=gone, process=lease(1.0)), None)
    assert not is_pending(Claim(1, lease=lease(60.0)), time.time() + 1)


def test_run_that_is_cut_off_again_and_again_is_given_up(lab):
    lab.enqueue({"x": 1})
    folder = lab.folder / "my_runs" / "1"
    claims = run_claims(FolderDocuments(folder.parent), folder.name)
    for number in (1, 2):
        assert claims.add(number)
        assert not claims.add(number)
    with open_store(lab.folder / "my_runs") as store:
        # The worker that has it, which is this process, may be about to start it.
        assert Queue(store, lab.told.append, retries=1).take() is None
        assert lab.told == []
        for path in (folder / "claims").iterdir():
            path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 2**22 + 1}))
        assert Queue(store, lab.told.append, retries=1).take() is None
        assert "taken 2 times, and cut off each time; --retries N allows for more" in lab.told[0]
        taken = Queue(store, lab.told.append, retries=2).take()
        assert (taken.attempt, taken.run.id) == (3, "1")


def test_empty_queue_is_told_in_one_line(lab, capsys):
    (lab.folder / "my_runs").mkdir()
    assert main(["--store", str(lab.folder / "my_runs"), "work", "--until-empty"]) == 0
    assert capsys.readouterr().out == f"no run waits in {lab.folder / 'my_runs'}\n"


def test_password_that_was_not_recorded_is_asked_for(lab):
    text = lab.script.read_text().replace("    x = 0\n", '    x = 0\n    url = "http://ann:s3cret@host/db"\n')
    lab.script.write_text(text)
    lab.enqueue({"x": 1})
    assert lab.work().num_started == 0
    assert "was recorded without the password in its config: url=" in lab.told[0]
    assert lab.work(settings=["url=http://ann:s3cret@host/db", "other=1"]).num_failed == 0
    assert lab.runs() == {"1": "COMPLETED"}


def test_worker_counts_many_waiting_runs_by_kind_first(tmp_path):
    for number in range(1, 9):
        (tmp_path / str(number)).mkdir()
        status = "QUEUED" if number < 8 else "COMPLETED"
        document = {"status": status, "experiment": {"name": "grid"}, "uid": f"{number:032x}", "format": "sacristan-1"}
        (tmp_path / str(number) / "run.json").write_text(json.dumps(document))
    told = []
    with open_store(tmp_path) as store:
        Queue(store, told.append).tell_waiting()
    assert told == ["7 runs (7 QUEUED) of grid wait"]
