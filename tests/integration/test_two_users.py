"""Two users of the machine, and one folder of runs: what the second one may do with the runs of the first."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sacristan import observers, runs
from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import open_store
from sacristan.runs.board.security import Policy
from sacristan.runs.board.serving import create_app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become two other users"),
]
ADA, BOB, GROUP = 12001, 12002, 12345
SHARED, STICKY, CLOSED = 0o2775, 0o1777, 0o755


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the users need: they may not read where it lies."""
    for package in (runs, observers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # of an extra
                    importlib.import_module(module.name)
    for name in ("fileinput", "scipy.stats"):
        importlib.import_module(name)


@pytest.fixture
def place():
    """A folder that all may enter, with a file to record."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "made.txt").write_text("made")
        for user in (ADA, BOB):
            home = Path(folder) / str(user)
            home.mkdir()
            os.chown(home, user, GROUP)
        yield Path(folder)


@pytest.fixture
def store(place):
    """Make a folder of runs of ADA: `store(mode)`."""

    def make(mode: int) -> Path:
        folder = place / "my_runs"
        folder.mkdir()
        os.chown(folder, ADA, GROUP)
        folder.chmod(mode)
        return folder

    return make


def as_user(user: int, umask: int, call: Callable[[], int | None]) -> tuple[int, str]:
    """Call something in a process of a user, and return its exit code and all that it wrote."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            os.environ |= {"SACRISTAN_USER": str(user), "XDG_CACHE_HOME": tempfile.mkdtemp()}
            code = call() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def runs_as(user: int, umask: int, store: Path, *words: str) -> tuple[int, str]:
    return as_user(user, umask, lambda: main([words[0], "--store", str(store), *words[1:]]))


def record_as(user: int, umask: int, store: Path, resume: Path | None = None) -> tuple[int, str]:
    """Record a run with an artifact, a version of one and a resource."""

    def record() -> None:
        ex = Experiment("small", base_dir=store.parent, save_git_info=False, system_metrics_s=None)
        ex.observers.append(FileObserver(store))

        @ex.main
        def body(_run):
            _run.log_scalar("loss", 1.0)
            _run.add_artifact(store.parent / "made.txt")
            _run.add_resource(store.parent / "made.txt")
            _run.log_artifact("data", store.parent / "made.txt")

        ex.run(options={"--capture": "no"}, meta_info={"resume": resume} if resume else {})

    return as_user(user, umask, record)


def entry(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def assert_done(*results: tuple[int, str]) -> None:
    assert [text for code, text in results if code != 0] == []


@pytest.mark.parametrize(
    ("mode", "umask"),
    [
        (SHARED, 0o022),
        pytest.param(STICKY, 0o022, marks=pytest.mark.slow),
        pytest.param(STICKY, 0o077, marks=pytest.mark.slow),
    ],
)
def test_second_user_reads_and_records_beside_and_changes_only_own_runs(store, mode, umask):
    folder = store(mode)
    assert_done(*(record_as(user, umask, folder) for user in (ADA, ADA, BOB, BOB)))
    assert [entry(folder / str(number))["status"] for number in range(1, 5)] == ["COMPLETED"] * 4
    assert_done(runs_as(ADA, umask, folder, "ls"), runs_as(ADA, umask, folder, "rm", "2", "--yes"))
    code, text = runs_as(BOB, umask, folder, "ls", "--json")
    assert code == 0, text
    assert [row["id"] for row in json.loads(text)] == ["4", "3", "1"]
    if umask == 0o022:
        looks = (["show", "1"], ["compare", "--by", "name", "--metric", "loss.last"], ["artifacts", "ls", "1"])
        assert_done(*(runs_as(BOB, umask, folder, *words) for words in looks))
    for words in (["tag", "1", "x"], ["note", "1", "x"], ["rm", "1", "--yes"], ["rm", "1", "--now", "--yes"]):
        code, text = runs_as(BOB, umask, folder, *words)
        assert code == 1, (words, text)
        assert text.startswith("error: "), text
        assert "not permitted" in text or "ermission" in text, text
    own = (["tag", "3", "x"], ["rm", "3", "--yes"], ["restore", "3"], ["rm", "3", "--yes"], ["gc"])
    assert_done(*(runs_as(BOB, umask, folder, *words) for words in own))
    assert_done(runs_as(ADA, umask, folder, "restore", "2"))
    assert sorted(path.name for path in folder.glob("[0-9]*")) == ["1", "2", "4"]
    dead = {**entry(folder / "1"), "status": "RUNNING", "stop_time": None}
    (folder / "1" / "run.json").write_text(json.dumps(dead))  # stays ADA's
    before = (folder / "1" / "run.json").read_bytes()
    dead = {**entry(folder / "4"), "status": "RUNNING", "stop_time": None}
    (folder / "4" / "run.json").write_text(json.dumps(dead))  # BOB's
    assert_done(runs_as(BOB, umask, folder, "reap"))
    assert entry(folder / "4")["status"] == "DEAD"
    code, text = record_as(BOB, umask, folder, folder / "1")
    assert code != 0
    assert "cannot be resumed" in text
    assert "damaged" not in text
    assert "Permission denied" in text
    assert (folder / "1" / "run.json").read_bytes() == before


def test_members_of_a_group_do_everything_with_all_runs(store):
    folder = store(SHARED)
    assert_done(*(record_as(user, 0o002, folder) for user in (ADA, BOB, ADA)))
    assert_done(runs_as(ADA, 0o002, folder, "ls"), runs_as(ADA, 0o002, folder, "rm", "3", "--yes"))
    index = folder / ".index.sqlite"
    written = index.stat().st_mtime_ns
    words = (["tag", "1", "x"], ["note", "1", "so"], ["ls"], ["restore", "3"], ["rm", "1", "--yes"], ["gc"])
    assert_done(*(runs_as(BOB, 0o002, folder, *one) for one in words))
    assert index.stat().st_mtime_ns > written
    assert sorted(path.name for path in folder.glob("[0-9]*")) == ["2", "3"]
    assert_done(record_as(BOB, 0o002, folder, folder / "3"))
    assert entry(folder / "3")["status"] == "COMPLETED"
    assert [session["user"] for session in entry(folder / "3")["sessions"]] == [str(ADA), str(BOB)]


QUEUED = """
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver

ex = Experiment("queued", save_git_info=False)
ex.observers.append(FileObserver("my_runs"))


@ex.automain
def main(_run):
    _run.log_scalar("loss", 1.0)
"""


def test_worker_starts_the_queued_runs_that_its_user_may_write_and_skips_others(store):
    """BOB needs a Python of the same version that he may execute; the one of the tests may be root's alone."""
    folder = store(SHARED)
    script = folder.parent / "queued.py"
    script.write_text(QUEUED)
    python = f"/usr/bin/python3.{sys.version_info.minor}"

    def queue():
        os.chdir(folder.parent)
        sys.argv = [str(script), "--queue"]
        runpy.run_path(str(script), run_name="__main__")

    def work():
        os.chdir(folder.parent)
        sys.executable = python
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return main(["work", "--store", str(folder), "--until-empty", "--retries", "0"])

    assert_done(as_user(ADA, 0o022, queue))
    code, text = as_user(BOB, 0o022, work)
    assert code == 0
    assert "run 1 is skipped" in text
    assert "claims cannot be written (Permission denied)" in text
    assert "1 run waits" in text
    assert entry(folder / "1")["status"] == "QUEUED"
    if not Path(python).exists():
        pytest.skip(f"there is no {python}")
    assert_done(as_user(ADA, 0o002, queue))
    code, text = as_user(BOB, 0o002, work)
    assert (code, entry(folder / "2")["status"]) == (0, "COMPLETED"), text
    assert entry(folder / "2")["host"]["user"] == str(ADA)  # who queued it
    assert (folder / "2" / "metrics.bin").stat().st_uid == BOB


def test_reader_of_a_closed_folder_writes_nothing_there(store):
    folder = store(CLOSED)
    assert_done(record_as(ADA, 0o022, folder), record_as(ADA, 0o022, folder))

    def state():
        return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}

    before = state()
    looks = (["ls"], ["show", "1"], ["diff", "1", "2"], ["metrics", "1"], ["log", "1"], ["artifacts", "ls", "1"])
    assert_done(*(runs_as(BOB, 0o022, folder, *words) for words in (*looks, ["reap"])))

    def board():
        with TestClient(create_app(lambda: open_store(folder), Policy()), base_url="http://127.0.0.1") as client:
            for page in ("/runs", "/runs?where=user=me", "/runs/1", "/compare?run=1&run=2"):
                assert client.get(page).status_code == 200, page
            form = {"run": ["1"], "add": "good"}
            answer = client.post("/list/tag", data=form, headers={"origin": "http://127.0.0.1"})
            assert answer.status_code >= 400
            assert "cannot be written" in answer.text

    assert_done(as_user(BOB, 0o022, board))
    assert state() == before
