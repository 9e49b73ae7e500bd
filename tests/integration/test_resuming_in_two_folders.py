"""Runs that are recorded in two folders, and go on from either of them."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint
from sacristan.observers import FileObserver, ResumeError
from sacristan.runs import open_store
from sacristan.runs.rerun.resuming import resume_launch, states_of, with_folder


@pytest.fixture
def train(tmp_path):
    """Record a run in the folders `a` and `b`, or resume one; it logs points, and fails if it is told to."""

    def run(*folders, resume=None, fails=False, **options):
        ex = Experiment(
            "twice", [checkpoint.ingredient], record_to="a", base_dir=Path(__file__).parent, system_metrics_s=None
        )
        ex.observers += [FileObserver(tmp_path / folder) for folder in folders]

        @ex.main
        def main(_run):
            _run.rewind()
            _run.log_scalar("loss", 1.0, 0)
            if fails:
                raise ZeroDivisionError

        meta_info = {} if resume is None else {"resume": str(resume)}
        with contextlib.suppress(ZeroDivisionError):
            ex.run(config_updates={"seed": 0}, meta_info=meta_info, options={"--capture": "sys", **options})
        return ex.current_run

    return run


def status(folder):
    return json.loads((folder / "run.json").read_text())["status"]


@pytest.mark.parametrize("named", ["a/1", pytest.param("b/2", marks=pytest.mark.slow)])
def test_run_in_two_folders_goes_on_in_both_from_either(train, tmp_path, named):
    train("b")
    train("a", "b", fails=True)
    assert (status(tmp_path / "a" / "1"), status(tmp_path / "b" / "2")) == ("FAILED", "FAILED")
    done = train("a", "b", resume=tmp_path / named)
    assert [Path(observer.dir) for observer in done.observers] == [tmp_path / "a" / "1", tmp_path / "b" / "2"]
    assert (status(tmp_path / "a" / "1"), status(tmp_path / "b" / "2")) == ("COMPLETED", "COMPLETED")
    assert sorted(path.name for folder in "ab" for path in (tmp_path / folder).glob("[0-9]*")) == ["1", "1", "2"]


@pytest.mark.slow
def test_run_that_an_option_recorded_beside_the_default_goes_on_in_both(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train("a", "b", fails=True)
    monkeypatch.setenv("SACRISTAN_RESUME", str(tmp_path / "a" / "1"))
    done = train(**{"--file_storage": "b"})
    assert [Path(observer.dir).absolute() for observer in done.observers] == [
        tmp_path / "a" / "1",
        tmp_path / "b" / "1",
    ]
    assert (status(tmp_path / "a" / "1"), status(tmp_path / "b" / "1")) == ("COMPLETED", "COMPLETED")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("other", ["b", "c"])
def test_states_of_a_run_in_several_folders_are_found_from_the_others(train, tmp_path, other):
    train("a", "b", "c", fails=True)
    state = tmp_path / "a" / "1" / "checkpoints" / "last.pt"
    state.parent.mkdir()
    state.write_bytes(b"")
    with open_store(tmp_path / other) as store:
        run = store.get("1")
        assert with_folder(run)[1] == tmp_path / "a" / "1"
        assert [one.path for one in states_of(run)] == [state]
        assert resume_launch(run).environment["SACRISTAN_RESUME"] == str(tmp_path / "a" / "1")
        elsewhere = resume_launch(run, script=tmp_path / "moved" / "script.py")
        assert elsewhere.command[1] == str(tmp_path / "moved" / "script.py")
        shutil.rmtree(tmp_path / "a" / "1")
        assert with_folder(run)[1] == tmp_path / other / "1"


def test_run_that_an_observer_has_not_is_not_resumed_by_it(train, tmp_path):
    train("a", fails=True)
    with pytest.raises(ResumeError, match=r"a/1 cannot be resumed: runs are recorded in .*b; record in"):
        train("b", resume=tmp_path / "a" / "1")
