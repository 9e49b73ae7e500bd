"""Children that a run forks: what they log is the run's, and its record stays its process's, however they end."""

import json
import textwrap

from sacristan.observers import read_media, read_metrics
from sacristan.runs import reap

# `child(_run)` is called in a forked process; the parent waits for its end, and logs before and after.
BODY = """
import multiprocessing, signal, threading
import torch
from sacristan.observers import Text, TensorBoardObserver
ex.observers.extend([{observers}])

def child(_run):
{child}

@ex.automain
def main(_run):
    for step in range(50):
        _run.log_scalar("loss", step / 7, step)
    pid = os.fork()
    if pid == 0:
        child(_run)
        return "the child's"
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for step in range(50, 100):
        _run.log_scalar("loss", step / 7, step)
    print("the parent's output")
    return code
"""

ENDS = """
import signal
ex.observers.extend([{observers}])

ENDS = [
    ("returns", lambda run: None, 0),
    ("sys.exit", lambda run: sys.exit(3), 3),
    ("os._exit", lambda run: os._exit(4), 4),
    ("raises", lambda run: 1 / 0, 1),
    ("cannot print", lambda run: (setattr(sys, "stdout", open("/dev/full", "w")), print("lost")), 120),
    ("is terminated", lambda run: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(60)), -15),
    ("is killed", lambda run: os.kill(os.getpid(), signal.SIGKILL), -9),
    ("flushes", lambda run: (run.flush(), run._emit_heartbeat()), 0),
    ("ends the heartbeat", lambda run: run._stop_heartbeat(), 0),
]

@ex.automain
def main(_run):
    codes = {{}}
    for step, (name, end, code) in enumerate(ENDS):
        _run.log_scalar("loss", step / 7, step)
        pid = os.fork()
        if pid == 0:
            _run.log_scalar("child", step / 3)
            end(_run)
            return "the child's"
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) - code
    print("the parent's output")
    return codes
"""
NUM_ENDS = 9


def load(folder, name="run.json"):
    return json.loads((folder / name).read_text())


def body(child, observers="FileObserver('runs')"):
    lines = "\n".join(f"    {line}" for line in textwrap.dedent(child).strip().splitlines())
    return BODY.format(child=lines, observers=observers)


def test_end_of_a_child_is_not_that_of_the_run(tmp_path, start):
    start(tmp_path, ENDS.format(observers="FileObserver('runs')")).finish()
    folder = tmp_path / "runs" / "1"
    run = load(folder)
    assert run["status"] == "COMPLETED"
    assert list(run["result"].values()) == [0] * NUM_ENDS, run["result"]
    found = read_metrics(folder)
    assert found["loss"].values.tolist() == [step / 7 for step in range(NUM_ENDS)]
    assert found["child"].values.tolist() == [step / 3 for step in range(NUM_ENDS)]
    assert "the parent's output" in (folder / "cout.txt").read_text()
    assert load(folder, "summary.json")["loss"]["count"] == NUM_ENDS
    assert not list(folder.glob("metrics.live")) + list(folder.glob("*children*"))


def test_points_of_children_are_the_runs(tmp_path, start):
    logs = """
        _run.log_scalar("loss", 100.0, 100)
        for step in range(200): _run.log_scalar("worker/time", step / 3, step)
        _run.log({"worker/auto": torch.tensor(0.5), "worker/nan": float("nan")})
        _run.log_scalar("worker/auto", 1.5)
        _run.log_scalar("worker/last", 1.0, 2**63 - 1)
        _run.log_scalar("worker/last", 2.0)
        _run.log_scalar("worker/half", 1.0, 0.5)
    """
    said = start(tmp_path, body(logs)).finish()
    assert (
        said.count("a point of a forked child is lost: log_scalar('worker/last'): got no step, and the last one") == 1
    )
    found = read_metrics(tmp_path / "runs" / "1")
    assert sorted(found["loss"].steps.tolist()) == list(range(101))
    assert found["worker/time"].values.tolist() == [step / 3 for step in range(200)]
    assert (found["worker/auto"].steps.tolist(), found["worker/auto"].values.tolist()) == ([0, 1], [0.5, 1.5])
    assert found["worker/half"].steps.tolist() == [0.5]
    assert found["worker/last"].values.tolist() == [1.0]
    assert len(found["worker/nan"]) == 1
    assert load(tmp_path / "runs" / "1", "summary.json")["worker/time"]["count"] == 200


PROCESSES = """
import multiprocessing
ex.observers.append(FileObserver("runs"))

def work(_run, number):
    for step in range(300):
        _run.log_scalar(f"worker/{number}", step / 7, step)
        _run.log_scalar("worker/shared", float(number))

@ex.automain
def main(_run):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(_run, number)) for number in range(4)]
    for worker in workers: worker.start()
    for step in range(300): _run.log_scalar("loss", step / 7, step)
    for worker in workers: worker.join()
    return [worker.exitcode for worker in workers]
"""


def test_many_children_at_once_lose_no_point(tmp_path, start):
    start(tmp_path, PROCESSES, "-b", "0.02").finish()
    folder = tmp_path / "runs" / "1"
    assert load(folder)["result"] == [0, 0, 0, 0]
    found = read_metrics(folder)
    for name in ("loss", *(f"worker/{number}" for number in range(4))):
        assert found[name].values.tolist() == [step / 7 for step in range(300)]
    # Their steps are counted by the run: no two of them share one.
    assert found["worker/shared"].steps.tolist() == list(range(1200))
    assert sorted(found["worker/shared"].values.tolist()) == sorted([0.0, 1.0, 2.0, 3.0] * 300)


LOADER = """
import torch
ex.observers.append(FileObserver("runs"))

class Items(torch.utils.data.Dataset):
    def __init__(self, run): self.run = run
    def __len__(self): return 40
    def __getitem__(self, index):
        self.run.log_scalar("data/index", float(index), index)
        return torch.tensor(float(index))

@ex.automain
def main(_run):
    loader = torch.utils.data.DataLoader(Items(_run), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for epoch in range(2):
        for step, batch in enumerate(loader):
            _run.log_scalar("loss", batch.mean(), epoch * 10 + step)
"""


def test_workers_of_a_loader_log_into_the_run(tmp_path, start):
    start(tmp_path, LOADER).finish()
    found = read_metrics(tmp_path / "runs" / "1")
    assert found["loss"].steps.tolist() == list(range(20))
    assert sorted(found["data/index"].steps.tolist()) == sorted([*range(40)] * 2)


def test_what_a_child_cannot_record_is_said_once(tmp_path, start):
    records = """
        for _ in range(3):
            _run.log_media("note", Text("a"))
            _run.add_artifact(__file__)
            _run.add_resource(__file__)
        for call in (lambda: _run.log_artifact("code", __file__), lambda: _run.rewind(None)):
            try: call()
            except Exception as error: print(type(error).__name__, error, file=sys.stderr)
    """
    told = start(tmp_path, body(records)).finish()
    folder = tmp_path / "runs" / "1"
    assert told.count("is not recorded") == 1, told
    assert "ArtifactError" in told
    assert "ResumeError" in told
    assert read_media(folder) == []
    assert load(folder)["artifacts"] == load(folder)["resources"] == []
    assert len(read_metrics(folder)["loss"]) == 100


def test_wrong_metric_of_a_child_is_refused_in_its_call(tmp_path, start):
    logs = """
        try: _run.log_scalar("x", "5")
        except TypeError as error: print(error, file=sys.stderr)
        _run.log_scalar("x", 1.0)
    """
    told = start(tmp_path, body(logs)).finish()
    assert "log_scalar('x') in recorded.py, line" in told
    assert read_metrics(tmp_path / "runs" / "1")["x"].values.tolist() == [1.0]


def test_child_that_outlives_its_run_is_told_and_changes_nothing(tmp_path, start, wait_for):
    logs = """
        os.close(1)
        deadline = time.monotonic() + 60
        while "stop_time" not in open("runs/1/run.json").read() and time.monotonic() < deadline: time.sleep(0.01)
        while os.path.exists("runs/1/metrics.children.jsonl") and time.monotonic() < deadline: time.sleep(0.01)
        for step in range(5): _run.log_scalar("late", 1.0, step)
        with open("done", "w") as stream: stream.write("done")
    """
    script = body(logs).replace("code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "code = 0")
    process = start(tmp_path, script, "--capture", "no")
    process.finish()
    wait_for((tmp_path / "done").exists, "the child")
    folder = tmp_path / "runs" / "1"
    assert load(folder)["status"] == "COMPLETED"
    assert "late" not in read_metrics(folder)
    assert process.err.read_text().count("it has ended") == 1
    assert not list(folder.glob("*children*"))


def test_children_touch_nothing_in_mongodb(tmp_path, mongo_url, database, start):
    observers = f"MongoObserver({mongo_url!r}, db_name={database.name!r}, failure_dir='spool')"
    start(tmp_path, ENDS.format(observers=observers)).finish()
    run = database.runs.find_one()
    assert run["status"] == "COMPLETED"
    assert database.metrics.find_one({"name": "loss"})["values"] == [step / 7 for step in range(NUM_ENDS)]
    assert database.metrics.find_one({"name": "child"})["values"] == [step / 3 for step in range(NUM_ENDS)]
    assert list((tmp_path / "spool").iterdir()) == []


KILLED = """
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_run):
    _run.log_scalar("loss", 0.5, 0)
    pid = os.fork()
    if pid == 0:
        _run.log_scalar("loss", 1.5)
        for step in range(100): _run.log_scalar("child", step / 3, step)
        _run.log_scalar("child", 50.0)
        open("ready", "w").close()
        while os.path.exists("ready"): time.sleep(0.01)
        _run.log_scalar("child", 60.0)
        open("done", "w").close()
        return
    time.sleep(60)
"""


def test_points_of_children_outlive_a_parent_that_is_killed(tmp_path, start, wait_for):
    process = start(tmp_path, KILLED, "-b", "1000")
    wait_for((tmp_path / "ready").exists, "the child")
    process.process.kill()
    process.process.wait(60)
    folder = tmp_path / "runs" / "1"
    # A program that was about to be started when its parent was killed may hold the lock for a moment.
    [(reaped, _)] = wait_for(lambda: reap(tmp_path / "runs"), "the end of the lock")
    assert reaped == folder
    found = read_metrics(folder)
    assert (found["loss"].steps.tolist(), found["loss"].values.tolist()) == ([0, 1], [0.5, 1.5])
    assert found["child"].steps.tolist() == [*range(101)]
    assert found["child"].values.tolist() == [*(step / 3 for step in range(100)), 50.0]
    assert load(folder, "summary.json")["child"]["count"] == 101
    # Who is left of the run changes nothing of its record any more, and is told so.
    (tmp_path / "ready").unlink()
    wait_for((tmp_path / "done").exists, "the child")
    assert len(read_metrics(folder)["child"]) == 101
    assert "it has ended" in process.err.read_text()


STOCK = """
import sacred
ex = sacred.Experiment("stock", save_git_info=False)
ex.observers.append(FileObserver("runs"))

@ex.automain
def main(_run):
    _run.log_scalar("loss", 0.5, 0)
    pid = os.fork()
    if pid == 0:
        try:
            _run.add_artifact(__file__)
            _run._emit_heartbeat()
            _run.observers[0].failed_event(_run.start_time, ["the child's"])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    _run.log_scalar("loss", 1.5, 1)
"""


def test_observer_of_a_stock_experiment_knows_whose_it_is(tmp_path, start):
    told = start(tmp_path, STOCK).finish()
    folder = tmp_path / "runs" / "1"
    assert load(folder)["status"] == "COMPLETED"
    assert load(folder)["artifacts"] == []
    assert read_metrics(folder)["loss"].values.tolist() == [0.5, 1.5]
    assert told.count("was forked from") == 1
