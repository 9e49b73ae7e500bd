"""`runs` on folders of somebody else: such that cannot be read, and such that cannot be written."""

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

import pytest

from sacristan import runs
from sacristan.__main__ import main
from sacristan.command_line import make_parser
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import Tolerance, open_store
from sacristan.runs.commands import COMMANDS, name_of
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.planning import planned
from sacristan.runs.rerun.reproducing import carry_out
from tests.processes import run


@pytest.fixture
def place(monkeypatch):
    """A folder that everybody may enter, as the current one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield Path(folder)


def write_run(store):
    """Write a small run, and return its folder."""
    folder = store / "1"
    folder.mkdir(parents=True)
    experiment = {"name": "small", "base_dir": str(store), "mainfile": "exp.py", "sources": []}
    document = {"experiment": experiment, "command": "main", "status": "COMPLETED", "start_time": "2026-01-01T00:00:00"}
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def as_nobody():
    """Do something without the rights of root, which no permission binds."""
    for module in pkgutil.walk_packages(runs.__path__, "sacristan.runs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)  # nobody may not read where they lie

    def call(*words):
        if os.geteuid() != 0:
            return main(list(words))
        os.seteuid(65534)
        try:
            return main(list(words))
        finally:
            os.seteuid(0)

    return call


SCRIPT = """
from sacristan.experiments import Experiment
from sacristan.observers import file_observer

ex = Experiment("small", system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))


@ex.automain
def main(_run):
    _run.log_scalar("loss", 0.5, 0)
"""


@pytest.mark.slow
def test_run_of_somebody_else_is_reproduced_into_a_folder_of_ones_own(place, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    (place / "small.py").write_text(SCRIPT)
    run([sys.executable, "small.py"], cwd=place, check=True, capture_output=True, timeout=60)
    store = place / "my_runs"
    with open_store(store) as opened, contextlib.ExitStack() as stack:
        with planned(Record(opened.get("1")), Tolerance()) as plan:
            assert not plan.is_read_only
        before = sorted(map(str, store.glob("[!.]*/**/*")))  # the index is a cache, which root may write
        store.chmod(0o555)
        if os.geteuid() == 0:
            stack.callback(os.seteuid, 0)
            os.seteuid(65534)
        with planned(Record(opened.get("1")), Tolerance()) as plan:
            stack.close()  # nobody may not start the Python of root
            done = carry_out(plan, output=2)
            assert done.verdict.verdict == "IDENTICAL"
        assert sorted(map(str, store.glob("[!.]*/**/*"))) == before
        assert opened.get("1").reproductions == []
    store.chmod(0o755)
    assert f"{store} cannot be written to: the new run goes into {place}/reproduce-1/runs" in plan.notes
    with open_store("reproduce-1/runs") as own:
        new = own.get("1")
        uid, verdicts = plan.record.run.uid, [entry["verdict"] for entry in new.reproductions]
        assert (new["parent"], verdicts) == (uid, ["IDENTICAL"])


@contextlib.contextmanager
def user(uid, umask):
    """Be another user, with a umask of his own; only root can."""
    before = os.umask(umask)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.umask(before)


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be become by root only")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_second_user_of_a_shared_store_records_as_the_first_one_does(place, monkeypatch, umask, caplog):
    module = f"shared_source_{umask}"
    (place / f"{module}.py").write_text("a = 1")
    (place / "read.txt").write_text("read")
    monkeypatch.syspath_prepend(place)
    importlib.import_module(module)
    store = place / "store"
    store.mkdir()
    store.chmod(0o1777)

    def record():
        ex = Experiment("small", base_dir=place, save_git_info=False, system_metrics_s=None)
        ex.observers.append(FileObserver(store))
        ex.main(lambda _run: _run.add_resource(place / "read.txt"))
        return ex.run(options={"--capture": "sys"})

    try:
        for uid in (12345, 12346):
            with user(uid, umask):
                document = json.loads((store / record()._id / "run.json").read_text())
                assert document["status"] == "COMPLETED"
                stored = dict([*document["experiment"]["sources"], *document["resources"]])
                assert (store / stored[f"{module}.py"]).read_text() == "a = 1"
                assert (store / stored[str(place / "read.txt")]).read_text() == "read"
        # As an earlier version made it, or somebody who wants it so.
        (store / "_sources").chmod(0o700)
        with user(12347, umask):
            run = record()
    finally:
        sys.modules.pop(module)
    document = json.loads((store / run._id / "run.json").read_text())
    assert (document["status"], document["lost_sources"]) == ("COMPLETED_WITH_LOSS", [f"{module}.py"])
    assert f"1 sources are not stored, and are lost: {module}.py ({store / '_sources'}" in caplog.text


# Commands that read no store, start runs, or serve it until they are stopped.
UNTRIED = {"board", "check", "completion", "docs", "mcp", "mongod", "schema", "sweep", "tokens"}
# Words of the others, beside those that take a run for each argument that must be given.
SPECIAL = {
    "compare": ["--by", "lr", "--metric", "loss"],
    "copy": ["1", "--to", "other"],
    "export": ["1", "-o", "run.zip"],
    "import": ["nothing.zip"],
    "plot": ["1", "--metric", "loss"],
    "rename": ["1", "name"],
    "report": ["1", "-o", "report.html"],
    "rm": ["1"],
    "tag": ["1", "good"],
    "watch": ["--once"],
    "work": ["--until-empty"],
    **{name: ["ls", "1"] for name in ("artifacts", "sources")},
}


def words_of(parser):
    """Return a run for each argument that a command must be given."""
    return ["1" for action in parser._actions if not action.option_strings and action.nargs in (None, "+")]


PARSERS = next(action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
TRIED = [name for name in map(name_of, COMMANDS) if name not in UNTRIED]
WORDS = {name: SPECIAL.get(name, words_of(PARSERS[name])) for name in TRIED}


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_store_that_cannot_be_read_is_one_line(place, as_nobody, capsys, mode):
    store = place / "store"
    write_run(store)
    store.chmod(mode)
    for name, words in WORDS.items():
        assert as_nobody("--store", str(store), name, *words) in (1, 2), name
        err = capsys.readouterr().err
        assert err.startswith("error: "), name
        assert err.count("\n") == 1, err
        assert "Permission denied" in err or name == "import", err
    store.chmod(0o755)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["run.json", "config.json", "metrics.json", "cout.txt", "summary.json", "notes.json"])
def test_file_of_a_run_that_cannot_be_read_is_one_line_or_left_out(place, as_nobody, capsys, name):
    folder = write_run(place / "store")
    path = folder / name
    if not path.exists():
        path.write_text("{}")
    path.chmod(0o000)
    for command, words in WORDS.items():
        if command not in ("fork", "reproduce", "resume", "rm"):
            code = as_nobody("--store", "store", command, *words)
            err = capsys.readouterr().err
            assert code == 0 or (err.startswith("error: ") and err.count("\n") == 1), (command, err)


def test_run_that_cannot_be_read_is_one_line(place, as_nobody, capsys):
    folder = write_run(place / "store")
    folder.chmod(0o000)
    for name, words in WORDS.items():
        if "1" in words:
            assert as_nobody("--store", "store", name, *words) in (1, 2), name
            assert (
                capsys.readouterr().err == "error: store/1 cannot be read (Permission denied); check its permissions\n"
            )
    assert as_nobody("--store", "store", "reap") == 0
    assert as_nobody("--store", "store", "gc", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unreadable"] == ["1"]
    folder.chmod(0o755)


def test_gc_names_as_removed_only_the_runs_that_are_gone(place, as_nobody, capsys):
    write_run(place)
    (place / "1").rename(place / "2")
    write_run(place)
    with open_store(place) as store:
        store.discard([store.get("1"), store.get("2")])
    for path in [place, *(place / ".trash").glob("**")]:
        path.chmod(0o777)
    [kept] = (place / ".trash").glob("*/2")
    kept.chmod(0o555)
    assert as_nobody("gc", "--store", str(place), "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["runs"], done["kept"]) == (["1"], ["2"])
    assert as_nobody("gc", "--store", str(place)) == 0
    assert capsys.readouterr().err == "note: run 2 in the trash cannot be deleted; check the permissions\n"
    assert [folder.name for folder in (place / ".trash").glob("*/*")] == ["2"]
    kept.chmod(0o777)
    assert as_nobody("gc", "--store", str(place), "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == ["2"]
