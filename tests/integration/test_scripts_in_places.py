"""Scripts in notebooks, sent to a database, and with threads, forks and seeds of their own: one whole record each."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, run

THREE_LINES = """
import sacristan
with sacristan.init(config={"lr": 0.1}) as run:
    for step in range(5):
        run.log({"loss": 1 / (step + 1)}, step)
"""


@pytest.mark.parametrize("words", [["-m", "sacristan", "run", "train.py"], ["train.py"]], ids=["captured", "init"])
def test_run_of_a_script_is_in_the_database_of_the_environment(tmp_path, mongo_url, database, words):
    (tmp_path / "train.py").write_text(THREE_LINES)
    store = f"{mongo_url}/{database.name}"
    env = {**os.environ, "SACRISTAN_STORE": store}
    done = run([sys.executable, *words], cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    for where in (store, tmp_path / "my_runs"):
        with open_store(where) as opened:
            [found] = opened.find()
            assert (found.status, found.name, found.config["lr"]) == ("COMPLETED", "train", 0.1)
            assert found.metric("loss").values.tolist() == [1 / (step + 1) for step in range(5)]


OF_SEEDS = """
import multiprocessing, os, threading
import sacristan

def work(name):
    for step in range(20):
        sacristan.log({name: step})

def child(queue):
    sacristan.log({"child": 1.0})
    queue.put(os.getpid())

if __name__ == "__main__":
    for seed in range(3):
        run = sacristan.init(config={"seed": seed})
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        assert queue.get() == process.pid
        process.join()
        assert process.exitcode == 0
        run.finish()
"""


def test_each_seed_is_a_run_with_the_points_of_its_threads_and_children(tmp_path):
    (tmp_path / "train.py").write_text(OF_SEEDS)
    for words in (["train.py"], ["-m", "sacristan", "run", "train.py"]):
        done = run([sys.executable, *words], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
        assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        found = sorted(store.find(), key=lambda each: int(each.id))
        assert [(each.config["seed"], each.status) for each in found] == [(seed, "COMPLETED") for seed in (0, 1, 2)] * 2
        for each in found:
            lengths = {name: len(each.metric(name)) for name in each.metrics if not name.startswith("system/")}
            assert lengths == {"a": 20, "b": 20, "child": 1}


CELLS = [
    "import os, sacristan\nos.getpid()",
    "run = sacristan.init(config={'lr': 0.1})\nrun.log({'loss': 0.5}, 0)",
    "run.log({'loss': 0.25}, 1)\nrun.finish()",
    "run = sacristan.init(config={'lr': 0.2})\nrun.log({'loss': 1.0}, 0)",
    "run = sacristan.init(config={'lr': 0.3})\nrun.log({'loss': 2.0}, 0)",
]


@pytest.fixture
def notebook(tmp_path):
    """A kernel in a folder, with a function that executes cells in it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel(env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}):

        def execute():
            for number, cell in enumerate(book.cells):
                client.execute_cell(cell, number)
            return int(book.cells[0].outputs[0]["data"]["text/plain"])

        yield execute


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_killed", [False, True], ids=["ends", "dies"])
def test_cells_start_and_end_runs_and_a_kernel_that_dies_leaves_its_points(tmp_path, notebook, is_killed, request):
    process = psutil.Process(notebook())
    with open_store(tmp_path / "my_runs") as store:
        found = sorted(store.find(), key=lambda each: int(each.id))
        assert [each.status for each in found] == ["COMPLETED", "COMPLETED", "RUNNING"]
        assert found[0].metric("loss").values.tolist() == [0.5, 0.25]
        assert found[0].get("meta.script.kind") == "notebook"
        (process.kill if is_killed else process.terminate)()
        process.wait(60)
        last = store.get(3)
        assert last.status == ("DEAD" if is_killed else "INTERRUPTED")
        assert (last.config["lr"], last.metric("loss").values.tolist()) == (0.3, [2.0])
