"""One process has one run at a time, and those that it starts itself."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from sacristan.experiments import Experiment
from sacristan.ingredients import ConcurrentRunError, Ingredient
from sacristan.observers import FileObserver
from tests.processes import PIPE, run

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"--capture": "no"}


def make(tmp_path, main, name="outer", ingredients=(), **config):
    ex = Experiment(name, ingredients, system_metrics_s=None, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / name))
    ex.add_config(lr=0.1, **config)
    ex.main(main)
    return ex


def load(tmp_path, name, number=1):
    return json.loads((tmp_path / name / str(number) / "run.json").read_text())


def test_run_in_another_thread_is_refused_and_the_first_is_as_if_alone(tmp_path):
    raised = []

    def main(_run, _config, lr):
        def second(other):
            with pytest.raises(ConcurrentRunError, match="another thread of this process runs outer") as caught:
                other.run(config_updates={"lr": 0.7}, options=OPTIONS)
            raised.append(caught.value)

        for other in (ex, make(tmp_path, lambda: None, "second")):
            thread = threading.Thread(target=second, args=(other,))
            thread.start()
            thread.join()
        _run.log_scalar("lr", _config.lr)
        return lr, ex.current_run is _run

    ex = make(tmp_path, main)
    assert ex.run(options=OPTIONS).result == (0.1, True)
    assert len(raised) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    # The next one may, from any thread.
    thread = threading.Thread(target=make(tmp_path, lambda: None, "second").run, kwargs={"options": OPTIONS})
    thread.start()
    thread.join()
    assert load(tmp_path, "second")["status"] == "COMPLETED"


def test_nested_run_has_the_outer_one_as_its_parent_and_leaves_it_as_it_was(tmp_path):
    data = Ingredient("data")
    data.add_config(size=3)

    @data.capture
    def size_of(size):
        return size

    def inner():
        return size_of()

    def main(_run):
        other = make(tmp_path, inner, "inner", [data])
        results = [other.run(config_updates={"data.size": 5}, options=OPTIONS).result]
        results.append(other.run(meta_info={"parent": None}, options=OPTIONS).result)
        with pytest.raises(ConcurrentRunError, match="outer: this run has observers that record the run which starts"):
            ex.run(config_updates={"data.size": 9}, options=OPTIONS)
        observers = ex.observers.copy()
        ex.observers.clear()
        results.append(ex.run("size", config_updates={"data.size": 9}, options=OPTIONS).result)
        ex.observers += observers
        return [*results, size_of(), ex.current_run is _run]

    ex = make(tmp_path, main, ingredients=[data])

    @ex.command
    def size():
        return size_of()

    run = ex.run(options=OPTIONS)
    assert run.result == [5, 3, 9, 3, True]
    assert load(tmp_path, "inner", 1)["parent"] == load(tmp_path, "outer")["uid"]
    assert "parent" not in load(tmp_path, "inner", 2)
    outer = load(tmp_path, "outer")
    assert (outer["status"], outer["result"], "parent" in outer) == ("COMPLETED", run.result, False)
    assert [path.name for path in tmp_path.glob("*/[0-9]*")].count("2") == 1


def test_run_after_another_has_no_parent(tmp_path):
    ex = make(tmp_path, lambda: None)
    for _ in range(2):
        ex.run(options=OPTIONS)
    assert "parent" not in load(tmp_path, "outer", 2)


def test_forked_child_runs_an_experiment_of_its_own(tmp_path):
    def main():
        def fork():
            # From another thread than that of the run, as a pool forks its workers.
            child = os.fork()
            if child == 0:
                try:
                    make(tmp_path, lambda: None, "child").run(options=OPTIONS)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    make(tmp_path, main).run(options=OPTIONS)
    child = load(tmp_path, "child")
    assert (child["status"], child["parent"]) == ("COMPLETED", load(tmp_path, "outer")["uid"])


LATE = """
from sacristan.experiments import Experiment
ex = Experiment("late", record_to=None, save_git_info=False)

@ex.automain
def main():
    import torch
    print(torch.rand(3).tolist())
"""


@pytest.mark.slow
def test_torch_that_is_imported_within_the_run_is_seeded(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "late.py", "with", "seed=7"]
    done = run(command, cwd=tmp_path, env=environment, stdout=PIPE, text=True, cold=True)
    assert json.loads(done.stdout) == torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()
