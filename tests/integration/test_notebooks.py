"""Runs, stores and lists of runs in a notebook that is executed, over a folder and a real MongoDB."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pymongo
import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import open_store
from tests import processes

ROOT = Path(__file__).resolve().parents[2]

EVIL = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp("notebooks")
    ex = Experiment("evil", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        lr = 0.1
        text = "harmless"

    @ex.main
    def main(_run, lr, text):
        for step in range(50):
            _run.log_scalar("train/loss", math.nan if step == 30 else lr / (1 + step), step)
            _run.log_scalar(f"val/{text[:30]}", step, step)
        return text

    ex.observers.append(FileObserver(folder / "store"))
    ex.observers.append(MongoObserver(mongo_url, "notebooks", failure_dir=folder / "spool"))
    for lr, text in ((0.1, "harmless"), (0.2, EVIL)):
        ex.run(config_updates={"lr": lr, "text": text}, options={"--capture": "sys"})
    yield {"files": str(folder / "store"), "mongo": f"{mongo_url}/notebooks"}
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database("notebooks")


class Tags(HTMLParser):
    """Collects the tags of a text as a browser reads them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    @property
    def names(self):
        return {tag for tag, _ in self.found}


ALLOWED = re.compile("details|div|h3|line|p|path|span|summary|svg|table|tbody|td|text|th|thead|title|tr")


def check_form(form):
    tags = Tags(form)
    assert [name for name in tags.names if not ALLOWED.fullmatch(name)] == []
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert not re.search(r"""(src|href)=["']""", form)
    return tags


@pytest.mark.nightly  # by day the forms are asked for in this process
def test_forms_are_shown_by_a_notebook(recorded, tmp_path):
    import nbformat  # which takes seconds
    from nbclient import NotebookClient

    cells = [f"from sacristan import runs\nstores = [runs.open_store(where) for where in {list(recorded.values())!r}]"]
    cells += [cell for at in (0, 1) for cell in (f"stores[{at}]", f"stores[{at}].get(2)", f"stores[{at}].find()[:1]")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [cell.outputs[0].data["text/html"] for cell in book.cells[1:]]
    for form in shown:
        assert "svg" in check_form(form).names
    for store, run, found in (shown[:3], shown[3:]):
        assert "2 runs, the newest first" in store
        assert "run 2" in run
        assert [name for name in ("train", "lr", "0.2", "COMPLETED") if name not in run] == []
        assert "1 run<" in found


@pytest.mark.parametrize("kind", ["files", pytest.param("mongo", marks=pytest.mark.slow)])
def test_what_a_run_wrote_is_text(recorded, kind):
    with open_store(recorded[kind]) as store:
        form = store.get(2)._repr_html_()
        assert "●</span> COMPLETED</span>" in form
        tags = check_form(form)
        assert sum(tag == "path" for tag, _ in tags.found) >= 2
        check_form(store._repr_html_())


def rows_of(form):
    return [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(form).iter("tr")]


def test_forms_show_every_fact_of_a_run(tmp_path):
    times = {"start_time": "2026-01-02T03:04:05", "stop_time": "2026-01-02T03:06:12"}
    run = {"experiment": {"name": "train"}, "command": "main", "status": "COMPLETED", **times, "result": 0.5}
    files = {
        "run": {**run, "uid": "u1", "display_name": "Best"},
        "config": {"lr": 0.1},
        "summary": {"loss": {"last": 1, "min": 0.5, "max": 2, "count": 3}},
    }
    (tmp_path / "1").mkdir()
    for name, content in files.items():
        (tmp_path / "1" / f"{name}.json").write_text(json.dumps(content))
    with open_store(tmp_path) as store:
        store.write_note(store.tag(store.get(1), ["a", "b"]), "the best")
        form, table = store.get(1)._repr_html_(), store.find()._repr_html_()
    assert rows_of(form) == [
        ["display name", "Best"],
        ["status", "● COMPLETED"],
        ["start", "2026-01-02 03:04:05"],
        ["duration", "2m07s"],
        ["result", "0.5"],
        ["uid", "u1"],
        ["tags", "a, b"],
        ["note", "the best"],
        ["entry", "value"],
        ["lr", "0.1"],
        ["metric", "last", "min", "max", "count"],
        ["loss", "1", "0.5", "2", "3"],
    ]
    assert rows_of(table) == [
        ["id", "name", "status", "start", "duration", "result"],
        ["1", "train", "● COMPLETED", "2026-01-02 03:04", "2m07s", "0.5"],
    ]


def test_a_store_without_runs_and_a_damaged_run_are_shown(tmp_path):
    with open_store(tmp_path, create=True) as store:
        assert "0 runs" in store._repr_html_()
        assert "0 runs" in store.find()._repr_html_()
        folder = tmp_path / "1"
        folder.mkdir()
        (folder / "run.json").write_text('{"experiment": {"name": "torn"}, "status": "COMPLETED"}')
        (folder / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
        (folder / "metrics.bin").mkdir()
        form = store.get(1)._repr_html_()
    check_form(form)
    assert "run 1 cannot be shown: " in form


CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in (
    "from sacristan.experiments import Experiment",
    "factor = 3\\nex = Experiment('cells', interactive=True, system_metrics_s=None)",
    "%time None",
    "@ex.main\\ndef main(_run, seed):\\n    _run.log_scalar('loss', factor, 1)\\n    return factor * 2",
    "result = ex.run(config_updates={'seed': 0}).result",
):
    shell.run_cell(cell, store_history=True).raise_error()
"""


def test_executed_cells_are_kept_and_run_as_a_script(tmp_path, monkeypatch, capfd):
    pytest.importorskip("IPython")  # which incense brings, below Python 3.12
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = processes.run(
        [sys.executable, "-c", CELLS], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert main(["reproduce", "1"]) == 2
    assert "its executed cells are an artifact, which runs as a script" in capfd.readouterr().err
    assert main(["artifacts", "get", "1", "executed_cells.py", "-o", "."]) == 0
    script = Path("executed_cells.py").read_text()
    assert "factor = 3" in script
    assert script.index("# %% [2]") < script.index("def main") < script.index("ex.run(")
    script = script.replace("get_ipython()", "# get_ipython()")
    Path("executed_cells.py").write_text(script)
    done = processes.run(
        [sys.executable, "executed_cells.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with open_store("my_runs") as store:
        assert store.get("1").result == store.get("2").result == 6
