"""The earlier run that `checkpoint.resume=auto` continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sacristan.configs import to_plain
from sacristan.experiments import Experiment
from sacristan.experiments.running import launching
from sacristan.ingredients import ConfigError, Ingredient, LabError, checkpoint, data, distributed, probe, training
from sacristan.ingredients.checkpoints.files import save_checkpoint
from sacristan.ingredients.ranks import World
from sacristan.observers import FileObserver
from sacristan.observers.record.identity import lease

PARENT = "01a1ffeb3c174508e1a2f664eafc1f36"


@pytest.fixture
def run(tmp_path):
    """Run an experiment, which fails if it is told to, and return the number of its run."""

    def start(command="main", *, fail=False, resume="auto", meta={}, **settings):
        drill = Ingredient("drill", is_tool=True, base_dir=Path(__file__).parent)
        drill.add_config(speed=3)
        drill.command(lambda: None)
        ingredients = [checkpoint.ingredient, distributed.ingredient, probe.ingredient, drill]
        ex = Experiment("chosen", ingredients, base_dir=Path(__file__).parent, system_metrics_s=None)
        ex.observers.append(FileObserver(tmp_path))
        ex.add_config({"seed": 0, "lr": 0.1})

        @ex.config
        def config():
            width = 3  # layers that were as wide before this said so

        config.legacy(width=3)

        @ex.main
        def main(_run):
            if fail:
                raise ZeroDivisionError

        @ex.command
        def evaluate(_run):
            main(_run)

        updates = {"checkpoint.resume": resume, **settings}
        try:
            done = ex.run(command, config_updates=updates, meta_info=dict(meta), options={"--capture": "sys"})
        except ZeroDivisionError:
            done = ex.current_run
        return int(Path(done.observers[0].dir).name)

    return start


def status(folder, number):
    return json.loads((folder / str(number) / "run.json").read_text())["status"]


def test_unfinished_run_of_the_same_config_is_continued(run, tmp_path):
    assert run(fail=True) == 1
    assert status(tmp_path, 1) == "FAILED"
    assert run() == 1
    assert status(tmp_path, 1) == "COMPLETED"
    assert run() == 2


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_run_that_cannot_be_read_is_passed_over_and_named(run, tmp_path, caplog):
    assert run(fail=True) == 1
    (tmp_path / "1" / "run.json").write_text("{torn")
    assert run() == 2
    said = [text for text in caplog.messages if "is skipped" in text]
    assert len(said) == 1
    assert said[0].startswith(f"resume=auto: {tmp_path}/1 may be of this config, but is skipped")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "damage", ["cut", "gone", *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("empty", "zeros", "list"))]
)
def test_unfinished_run_whose_config_is_damaged_is_named(run, tmp_path, caplog, damage):
    assert run("evaluate", resume=None) == 1
    assert [run(fail=True, lr=0.2), run(fail=True)] == [2, 3]
    for number in ("1", "3"):  # the first one has come to its end
        config = tmp_path / number / "config.json"
        content = config.read_bytes()
        damaged = {"cut": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content)), "list": b"[1]\n"}
        config.unlink() if damage == "gone" else config.write_bytes(damaged[damage])
    assert run() == 4
    [said] = [text for text in caplog.messages if "is skipped" in text]
    assert said.startswith(f"resume=auto: {tmp_path}/3 may be of this config, but is skipped")
    assert "config.json" in said
    assert "mend or remove it" in said


def test_run_that_another_process_is_at_work_on_is_passed_over_and_named(run, tmp_path, caplog):
    assert run(fail=True) == 1
    edit(tmp_path / "1" / "run.json", status="RUNNING")
    (tmp_path / "1" / "lease.json").write_text(json.dumps(lease(1.0)))
    assert run() == 2
    assert f"resume=auto: {tmp_path}/1 is skipped, because a process is working on it" in caplog.messages


def test_changes_since_the_first_session_are_told_once(run, tmp_path, caplog):
    assert run(fail=True) == 1
    record = json.loads((tmp_path / "1" / "run.json").read_text())
    own = Path(__file__).name
    sources = [
        [name, "_sources/x.py" if Path(name).name == own else at] for name, at in record["experiment"]["sources"]
    ]
    edit(tmp_path / "1" / "run.json", experiment={**record["experiment"], "sources": sources})
    found = json.loads((tmp_path / "1" / "provenance.json").read_text())
    packages, flags = {**found["packages"], "numpy": "0.1"}, {**found["determinism"], "num_threads": 99}
    edit(tmp_path / "1" / "provenance.json", packages=packages, determinism=flags)
    assert run() == 1
    said = [text.partition(" is resumed, but not as it began, so it may end differently: ") for text in caplog.messages]
    told = sorted(text for folder, _, text in said if folder == str(tmp_path / "1"))
    assert [text.partition(":")[0] for text in told] == ["determinism", "packages", "sources"]
    assert f"num_threads was 99, is {found['determinism']['num_threads']}" in told[0]
    assert f"numpy was 0.1, is {found['packages']['numpy']}" in told[1]
    assert own in told[2]


def test_run_that_was_started_without_the_setting_is_continued(run):
    assert [run(fail=True, resume=None), run(fail=True), run(**{"checkpoint.requeue": True})] == [1, 1, 1]


def test_restarted_ranks_continue_the_run_that_they_began_from_the_state_of_another(run, tmp_path, monkeypatch):
    assert run(resume=None) == 1
    state = tmp_path / "1" / "checkpoints" / "last.pt"
    state.parent.mkdir()
    save_checkpoint({"model": {}, "epoch": 1, "batch": 0, "step": 3, "losses": [], "streams": {}}, state)
    for restarts in (0, 1):
        monkeypatch.setattr(
            launching, "own_world", lambda *_, restarts=restarts: World(launch="job", restarts=restarts)
        )
        assert run(fail=True, resume=str(state), lr=0.2, meta={"ranks": {"launch": "job"}}) == 2
    first, second = (json.loads((tmp_path / id / "run.json").read_text()) for id in "12")
    assert (second["parent"], len(second["sessions"])) == (first["uid"], 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("other", [{"lr": 0.2}, {"seed": 1}, {"checkpoint.keep": 5}, {"meta": {"parent": PARENT}}])
def test_run_of_another_config_or_parent_is_not_continued(run, other):
    assert [run(fail=True, **other), run(), run(fail=True, **other)] == [1, 2, 1]


def without(path, *names):
    """Take entries out of a recorded config, as it was before the lab had them."""
    config = json.loads(path.read_text())
    for name in names:
        group, _, entry = name.rpartition(".")
        del (config[group] if group else config)[entry]
    path.write_text(json.dumps(config, indent=2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("lacks", "settings", "number"),
    [
        (["distributed", "probe", "checkpoint.dtype"], {"checkpoint.keep": 5}, 1),
        (["probe"], {"probe.every": 7}, 2),
        (["lr"], {}, 2),  # nobody knows what an experiment of one's own did before it had a setting
        (["width"], {}, 1),
        (["width"], {"width": 4}, 2),
        (["checkpoint"], {}, 2),
    ],
)
def test_run_that_was_recorded_before_there_was_a_setting_is_continued_where_that_is_at_its_default(
    run, tmp_path, lacks, settings, number
):
    assert run(fail=True, **settings) == 1
    without(tmp_path / "1" / "config.json", *lacks)
    assert run(**settings) == number


@pytest.mark.parametrize(
    ("lacks", "settings", "advice"),
    [
        (["lr"], {}, ["/1 is unfinished, but recorded before there was lr=0.1.", "config.legacy(lr=0.1)"]),
        (["lr"], {"seed": 1}, []),
        (["probe"], {"probe.every": 7}, []),
    ],
)
def test_run_that_lacks_an_entry_of_unknown_meaning_is_named_with_ways_to_continue_it(
    run, tmp_path, caplog, lacks, settings, advice
):
    assert run(fail=True) == 1
    without(tmp_path / "1" / "config.json", *lacks)
    assert run(**settings) == 2
    [*warnings] = [record.getMessage() for record in caplog.records if "is unfinished" in record.getMessage()]
    assert len(warnings) == bool(advice)
    assert all(part in warnings[0] for part in advice)
    if advice:
        assert "`sacristan resume 1` resumes it" in warnings[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"training.epochs: got 3, but .*last.pt has 3 epochs behind it.* such as epochs=6"),
        ({"training.epochs": 4, "data.val_fraction": 0.3}, r"was trained with data.val_fraction=0.2, .*new_split=True"),
    ],
)
def test_fork_that_cannot_start_is_refused_before_there_is_a_run(tmp_path, settings, message):
    ex = Experiment("forked", [checkpoint.ingredient, data.ingredient, training.ingredient], system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.add_config({"seed": 0})
    ex.main(lambda: 1)
    base = {"training.epochs": 3, "data.val_fraction": 0.2}
    place = {"epoch": 3, "batch": 0, "step": 9, "losses": [], "streams": {}}
    state = {"model": {}, **place, "config": {"seed": 0, "data": to_plain(config_of(ex, base)["data"])}}
    save_checkpoint(state, tmp_path / "last.pt")
    updates = {**base, "checkpoint.resume": str(tmp_path / "last.pt"), **settings}
    with pytest.raises(LabError, match=message):
        ex.run(config_updates=updates)
    assert not (tmp_path / "runs").exists()
    ex.run(config_updates={**updates, "training.epochs": 4, "data.new_split": True})
    assert (tmp_path / "runs" / "1").exists()


def config_of(ex, updates):
    return ex.run("print_config", config_updates=updates).config


def test_run_of_an_earlier_version_which_recorded_the_settings_of_tools_is_continued(run, tmp_path):
    assert run(fail=True) == 1
    config = json.loads((tmp_path / "1" / "config.json").read_text())
    assert "drill" not in config
    edit(tmp_path / "1" / "config.json", drill={"speed": 3})
    assert run(fail=True) == 1
    edit(tmp_path / "1" / "config.json", drill={"speed": 4})
    assert run(fail=True) == 2


def test_command_that_is_not_the_experiments_main_passes_over_the_setting(run):
    assert [run(fail=True), run("evaluate", fail=True), run("evaluate")] == [1, 2, 3]
    assert run("evaluate", resume="nowhere/last.pt") == 4
    with pytest.raises(ConfigError, match=r"checkpoint.resume: got 'nowhere/last.pt', expected auto, or a checkpoint"):
        run(resume="nowhere/last.pt")
