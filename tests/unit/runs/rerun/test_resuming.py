from __future__ import annotations

import json
import re
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sacristan.__main__ import main
from sacristan.observers.record.identity import lease
from sacristan.observers.record.points import POINT
from sacristan.observers.record.sealed_zip import SealingStream
from sacristan.runs import LaunchError, open_store
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.replaying import replay
from sacristan.runs.rerun.resuming import changed_sources, fork_launch, resume_launch, states_of, with_folder
from sacristan.runs.sweeps.agents import resumed

UID = "01a1ffeb3c174508e1a2f664eafc1f36"


def write_state(path, step, *, damaged=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state", f"step {step}" * 100)
    raw = path.read_bytes()
    with path.open("wb") as stream:
        sealing = SealingStream(stream)
        sealing.write(raw.replace(b"step", b"pets", 1) if damaged else raw)
        sealing.seal(json.dumps({"step": step}).encode())
    if damaged:
        path.write_bytes(path.read_bytes().replace(b"pets", b"step", 1))


@pytest.fixture
def write_run(tmp_path):
    """Write a run of a script `lab/exp.py`, with states of steps 10, 20 and 30."""
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "exp.py").write_text("one\n")

    def write(config={}, *, states=(10, 20, 30), info={}, **entries):
        folder = tmp_path / "store" / "3"
        folder.mkdir(parents=True)
        sources = folder.parent / "_sources"
        sources.mkdir()
        (sources / "exp_ab.py").write_text("one\n")
        experiment = {"name": "exp", "base_dir": str(lab), "mainfile": "exp.py"}
        experiment["sources"] = [["exp.py", "_sources/exp_ab.py"]]
        record = {"experiment": experiment, "command": "main", "status": "INTERRUPTED", "cwd": str(lab), "uid": UID}
        record |= {"meta": {"options": {}}, "host": {"hostname": "elsewhere"}}
        (folder / "run.json").write_text(json.dumps({**record, **entries}))
        (folder / "config.json").write_text(json.dumps({"checkpoint": {"last": True}, **config}))
        (folder / "info.json").write_text(json.dumps(info))
        for step in states:
            name = "last.pt" if step == states[-1] else f"step-{step:09d}.pt"
            write_state(folder / "checkpoints" / name, step)
        return open_store(folder.parent).get("3")

    return write


def test_run_goes_on_where_its_experiment_records_by_itself(write_run, tmp_path):
    run = write_run(folder=str(tmp_path / "store" / "3"))
    environment = resume_launch(run).environment
    assert environment["SACRISTAN_RESUME"] == str(run.folder)
    assert "SACRISTAN_RECORD_TO" not in environment


def test_trial_whose_run_cannot_be_resumed_starts_over_and_says_why(write_run, tmp_path, caplog):
    definition = types.SimpleNamespace(path=tmp_path / "lab" / "exp.py", cwd=str(tmp_path), is_script=False)
    run = write_run({"url": "postgresql://ann:***@db.lab/lab"})
    assert resumed(run, definition, Launch(("python",), tmp_path, {}, ())) is None
    assert "run 3 of the sweep is not resumed; its trial starts over: run 3 was recorded without" in caplog.text


@pytest.mark.parametrize("parent", [{}, {"folder": "{tmp_path}/store/3", "parent": UID}])
def test_run_that_may_lie_elsewhere_goes_on_there(write_run, tmp_path, parent):
    entries = {name: value.format(tmp_path=tmp_path) for name, value in parent.items()}
    run = write_run(info={"data": {"fingerprint": "f1"}}, **entries)
    launch = resume_launch(run, ["-m", "there"])
    assert launch.command[2:] == ("main", "with", str(run.folder / "config.json"), "-m", "there")
    environment = {name: value for name, value in launch.environment.items() if name.startswith("SACRISTAN")}
    assert environment == {
        "SACRISTAN_RESUME": str(run.folder),
        "SACRISTAN_RECORD_TO": str(run.folder.parent),
        "SACRISTAN_EXPECT_DATA": "f1",
    }


def test_password_that_is_given_is_not_printed(write_run, capsys):
    run = write_run()
    given = ("--", "-m", "mongodb://user:secret@host/lab", "--mongo_db=mongodb://user:secret@host/lab")
    assert main(["--store", str(run.folder.parent), "resume", "3", "--dry", *given]) == 0
    shown = capsys.readouterr().err
    assert "-m mongodb://host/lab --mongo_db=mongodb://host/lab" in shown
    assert "secret" not in shown


def test_run_is_forked_from_its_newest_state_with_itself_as_parent(write_run):
    run = write_run()
    launch = fork_launch(run, ["lr=0.1"], ["-m", "there"])
    start = f"checkpoint.resume='{run.folder}/checkpoints/last.pt'"
    assert launch.command[2:] == ("main", "with", str(run.folder / "config.json"), "lr=0.1", start, "-m", "there")
    assert launch.environment["SACRISTAN_PARENT"] == UID
    assert "SACRISTAN_RESUME" not in launch.environment


@pytest.mark.parametrize("given", ["tensorboard", "--tensorboard", "-T"])
def test_option_of_the_record_can_be_dropped_in_a_fork(write_run, given):
    run = write_run(meta={"options": {"--tensorboard": True, "--name": "mine", "--comment": None}})
    assert fork_launch(run).command[-2:] == ("--tensorboard", "--name=mine")
    command = fork_launch(run, without=[given]).command
    assert ("--name=mine" in command, "--tensorboard" in command) == (True, False)


def test_option_that_is_dropped_is_one_of_the_record(write_run, tmp_path, capsys):
    run = write_run(meta={"options": {"--tensorboard": True, "--comment": None, "help": True}})
    words = ["--store", str(run.folder.parent), "fork", "3", "--dry"]
    assert main([*words, "--without", "comment"]) == 1
    said = "error: without: got 'comment', expected an option that run 3 was started with: --tensorboard\n"
    assert capsys.readouterr().err == said
    (tmp_path / "lab" / "exp.py").write_text("")
    assert main([*words, "--without=-T", "with", "lr=1"]) == 0
    assert "--tensorboard" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["step-000000020.pt", "{folder}/checkpoints/step-000000020.pt"])
def test_run_is_forked_from_the_state_that_is_named(write_run, name):
    run = write_run()
    launch = fork_launch(run, state=Path(name.format(folder=run.folder)))
    assert launch.command[-1].endswith("/checkpoints/step-000000020.pt'")


def test_run_is_forked_from_the_newest_state_that_is_good(write_run):
    run = write_run()
    write_state(run.folder / "checkpoints" / "last.pt", 30, damaged=True)
    assert fork_launch(run).command[-1].endswith("/checkpoints/step-000000020.pt'")


def test_fork_from_a_state_that_is_damaged_raises(write_run):
    run = write_run()
    write_state(run.folder / "checkpoints" / "last.pt", 30, damaged=True)
    message = r"last.pt: is damaged: its bytes are not .*; good ones are: step-000000020.pt, step-000000010.pt"
    with pytest.raises(LaunchError, match=message):
        fork_launch(run, state=Path("last.pt"))


def test_fork_from_a_state_that_is_not_there_raises(write_run):
    with pytest.raises(
        LaunchError, match=r"run 3 has no state best.pt; good ones are: last.pt, step-000000020.pt, step"
    ):
        fork_launch(write_run(), state=Path("best.pt"))


def test_fork_of_a_run_without_states_raises(write_run):
    with pytest.raises(LaunchError, match=r"run 3 has no good state to start from$"):
        fork_launch(write_run(states=()))


def test_states_are_those_of_the_last_training_newest_first(write_run):
    run = write_run()
    assert [state.step for state in states_of(run)] == [30, 20, 10]
    for number in (2, 10):
        write_state(run.folder / f"checkpoints-{number}" / "last.pt", number)
    assert [(state.step, state.fault) for state in states_of(run)] == [(10, "")]


def test_run_of_several_trainings_is_not_forked_but_resumed(write_run):
    run = write_run()
    write_state(run.folder / "checkpoints-2" / "last.pt", 5)
    with pytest.raises(LaunchError, match=r"checkpoints-2/last.pt: is a state of a later training of its run"):
        fork_launch(run)
    assert resume_launch(run).command


@pytest.mark.parametrize("status", ["COMPLETED", "COMPLETED_WITH_LOSS"])
def test_run_that_came_to_its_end_is_not_resumed(write_run, status):
    with pytest.raises(
        LaunchError, match=rf"run 3 is {status}: nothing is left to do; .* sacristan --store \S+ fork 3 with epochs="
    ):
        resume_launch(write_run(status=status))


@pytest.mark.parametrize("status", ["QUEUED", "COPYING"])
def test_run_that_did_not_begin_is_not_resumed(write_run, status):
    with pytest.raises(LaunchError, match=f"run 3 is {status}: it has nothing to resume from"):
        resume_launch(write_run(status=status))


def test_run_that_is_running_is_not_resumed_and_one_that_died_is(write_run):
    run = write_run(status="RUNNING")
    alive = lease(1.0)
    (run.folder / "lease.json").write_text(json.dumps(alive))
    with pytest.raises(LaunchError, match="run 3 is running; it can be resumed when it has ended"):
        resume_launch(run.store.get("3"))
    (run.folder / "lease.json").write_text(json.dumps({**alive, "pid_start": 1}))
    assert resume_launch(run.store.get("3")).command


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"checkpoint": None}, "run 3 keeps no states of its training: its experiment has no ingredient checkpoint"),
        ({"checkpoint": {"last": False}}, "run 3 kept no states of its training: it has checkpoint.last=False"),
    ],
)
@pytest.mark.parametrize("start", [resume_launch, fork_launch])
def test_run_that_keeps_no_states_raises(write_run, config, message, start):
    with pytest.raises(LaunchError, match=message):
        start(write_run(config))


def test_run_of_stock_sacred_raises(write_run):
    with pytest.raises(LaunchError, match="run 3 was recorded by stock Sacred, which keeps no states to resume from"):
        with_folder(write_run(uid=None))


def test_sources_that_changed_or_are_gone_are_named(write_run, tmp_path):
    run = write_run()
    assert changed_sources(Record(run)) == []
    (tmp_path / "lab" / "exp.py").write_text("two\n")
    assert changed_sources(Record(run)) == ["exp.py"]
    (tmp_path / "lab" / "exp.py").unlink()
    assert changed_sources(Record(run)) == ["exp.py"]
    (tmp_path / "lab").rmdir()
    assert changed_sources(Record(run)) == []  # on another machine there is nothing to compare


URL = {"db": {"url": "postgresql://ann:***@db.lab/lab"}}


@pytest.mark.parametrize("start", [resume_launch, fork_launch])
def test_password_that_was_not_recorded_is_asked_for(write_run, start):
    run = write_run(URL)
    message = r"run 3 was recorded without the password in its config: db.url=postgresql://ann:\*\*\*@db.lab/lab; give "
    with pytest.raises(LaunchError, match=message + "it: with db.url=..."):
        start(run)
    launch = start(run, settings=["db.url=postgresql://ann:s3cret@db.lab/lab"])
    assert "db.url=postgresql://ann:s3cret@db.lab/lab" in launch.command
    assert "db.url=postgresql://ann:***@db.lab/lab" in launch.text
    assert "s3cret" not in launch.text


@pytest.mark.parametrize(
    ("config", "setting", "expected"),
    [(URL, "lr=3", "got lr, expected db.url"), ({}, "lr=3", "expected no setting"), (URL, "fast", "got fast")],
)
def test_resumed_run_takes_no_other_setting(write_run, config, setting, expected):
    with pytest.raises(LaunchError, match=f"run 3 is started with its own config: .*{expected}"):
        resume_launch(write_run(config), settings=[setting])


@pytest.mark.parametrize(
    ("states", "hint"),
    [
        ((10, 20, 30), "its oldest one allows --verify 20, and --verify 30 replays all of it"),
        ((30,), "steps; --verify 30 replays all of it"),
    ],
)
def test_replay_without_an_early_state_says_how_many_steps_can_be_replayed(write_run, states, hint):
    run = write_run(states=states)
    points = np.zeros(1, POINT)
    points["step"] = 30
    (run.folder / "metrics.bin").write_bytes(points.tobytes())
    (run.folder / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
    with pytest.raises(LaunchError, match=re.escape(hint)):
        replay(run, 25)
