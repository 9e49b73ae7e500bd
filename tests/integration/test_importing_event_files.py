"""Event files: each point arrives as TensorBoard reads it, whoever wrote them; copies and damaged ones lose nothing."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from sacristan.__main__ import main
from sacristan.runs import StoreError
from sacristan.runs.transfer import foreign
from sacristan.runs.transfer.foreign import StagedImport
from sacristan.runs.transfer.trackers.foreign_run import ForeignRun
from tests.trackers import take

pytest.importorskip("tensorboard")
from torch.utils.tensorboard import SummaryWriter


def theirs(folder):
    """Return the points that TensorBoard reads in one folder, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }  # fmt: skip


def points(run):
    series = {name: run.metric(name) for name in run.metrics}
    return {name: [*zip(each.steps.tolist(), each.values.tolist(), strict=True)] for name, each in series.items()}


def by_title(store):
    return {run.display_name: run for run in store}


def files_of(folder):
    return sorted(folder.rglob("*tfevents*"), key=lambda file: file.stat().st_size)


def anonymous(folder, second=1_700_000_000):
    """Give event files names as tensorboardX writes them: without the process, of one second."""
    for file in files_of(folder):
        file.rename(file.with_name(f"events.out.tfevents.{second}.machine"))


def write(folder, num_points, *trials, tag="accuracy", offset=0.0):
    """Write a curve, and hyperparameters with a final value for each trial."""
    with SummaryWriter(str(folder)) as writer:
        for step in range(num_points):
            writer.add_scalar(tag, step / 7 + offset, step)
        for lr in trials:
            writer.add_hparams({"lr": lr, "layers": 3, "scale": 0.5}, {tag: lr + 1}, run_name=f"trial-{lr}")


def test_hyperparameters_with_the_name_of_a_curve_leave_the_curve_as_it_is(tmp_path, store):
    write(tmp_path / "logs" / "run", 100, 0.25)
    [outcome] = take(tmp_path / "logs", store)
    assert (outcome.num_points, outcome.left_out) == (101, ())
    [run] = store
    assert points(run) == {
        "accuracy": theirs(tmp_path / "logs" / "run")["accuracy"],
        "hparams/accuracy": theirs(tmp_path / "logs" / "run" / "trial-0.25")["accuracy"],
    }
    assert dict(run.config) == {"lr": 0.25, "layers": 3, "scale": 0.5}
    assert isinstance(run.config["layers"], int)


@pytest.mark.parametrize("num_points", [0, 100])
def test_trials_of_one_writer_are_runs_of_their_own_and_its_curves_stay(num_points, tmp_path, store):
    folder = tmp_path / "logs" / "search"
    write(folder, num_points, 0.125, 0.25, 0.5)
    with SummaryWriter(str(folder / "trial-0.5" / "extra")) as writer:  # below a trial
        writer.add_scalar("loss", 1.0, 0)
    outcomes = take(tmp_path / "logs", store)
    assert {run.left_out for run in outcomes} == {()}
    assert sum(run.num_points for run in outcomes) == num_points + 4
    runs = by_title(store)
    trials = {f"search/trial-{lr}": lr for lr in (0.125, 0.25, 0.5)}
    assert runs.keys() == {*trials, *(["search"] if num_points else [])}
    for title, lr in trials.items():
        assert (runs[title].config["lr"], points(runs[title])["accuracy"]) == (lr, [(0, lr + 1)])
    assert points(runs["search/trial-0.5"])["extra/loss"] == [(0, 1.0)]
    if num_points:
        assert points(runs["search"]) == theirs(folder)
    assert {run.outcome for run in take(tmp_path / "logs", store)} == {"present"}


def test_further_trials_in_one_folder_which_tensorboard_does_not_tell_apart_are_reported(tmp_path, store, capsys):
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for lr in (0.5, 0.5, 0.25):
            writer.add_hparams({"lr": lr}, {"accuracy": lr}, run_name=".", global_step=int(lr * 4))
    [outcome] = take(tmp_path / "run", store)
    assert outcome.left_out == ("the hyperparameters of 1 further trials in the same folder",)
    [run] = store
    assert (run.config, points(run)) == ({"lr": 0.5}, {"accuracy": [(2, 0.5), (2, 0.5), (1, 0.25)]})
    assert main(["--store", store.where, "show", run.id]) == 0
    assert outcome.left_out[0] in " ".join(capsys.readouterr().out.split())
    assert store.find("imported.kind=tensorboard") == [run]


def test_writers_of_one_second_whose_files_have_one_name_are_two_runs(tmp_path, store):
    for number in (1, 2):
        write(tmp_path / "logs" / f"run{number}", 10 * number, offset=number)
        anonymous(tmp_path / "logs" / f"run{number}")
    expected = {f"run{number}": theirs(tmp_path / "logs" / f"run{number}") for number in (1, 2)}
    for outcome in ("new", "present"):
        assert [run.outcome for run in take(tmp_path / "logs", store)] == [outcome] * 2
        assert {title: points(run) for title, run in by_title(store).items()} == expected


def test_writers_below_another_are_joined_only_if_they_are_parts_of_it(tmp_path, store):
    folder = tmp_path / "logs" / "run"
    write(folder, 5, 0.5)
    with SummaryWriter(str(folder / "loss" / "train")) as writer:  # as add_scalars of tensorboardX writes it
        writer.add_scalar("loss", 1.0, 0)
    write(folder / "another", 3)
    anonymous(folder)
    take(tmp_path / "logs", store)
    runs = by_title(store)
    assert {title: {name: len(each) for name, each in points(run).items()} for title, run in runs.items()} == {
        "run": {"accuracy": 5, "hparams/accuracy": 1, "loss/train/loss": 1},
        "run/another": {"accuracy": 3},
    }


@pytest.mark.parametrize("where", ["a-backup/run", "run/z-backup"])
def test_copies_and_backups_add_nothing_and_replace_nothing(where, tmp_path, store):
    logs = tmp_path / "logs"
    write(logs / "run", 100)
    [file] = files_of(logs)
    backup = logs / where
    backup.mkdir(parents=True)
    (backup / file.name).write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    take(logs, store)
    for _ in range(2):
        [run] = store
        assert points(run) == theirs(logs / "run")
        outcomes = take(logs, store)
        assert {each.outcome for each in outcomes} == {"present"}
        assert sorted(each.left_out[-1:] for each in outcomes) == [
            (),
            (f"a part of run {run.id}, which stays as it is",),
        ]
    shutil.copytree(logs / "run", tmp_path / "elsewhere" / "renamed")
    [outcome, *_] = take(tmp_path / "elsewhere", store)
    assert (outcome.outcome, len(store)) == ("present", 1)


@pytest.mark.parametrize("num_places", [6, pytest.param(200, marks=pytest.mark.nightly)])
def test_flipped_byte_costs_one_event_at_most_and_is_reported(num_places, tmp_path, store):
    write(tmp_path / "whole", 300)
    [file] = files_of(tmp_path / "whole")
    data, whole = file.read_bytes(), theirs(tmp_path / "whole")["accuracy"]
    for place in np.linspace(0, len(data) - 1, num_places).astype(int):
        folder = tmp_path / f"flipped-{place}"
        folder.mkdir()
        (folder / file.name).write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        [outcome] = take(folder, store)
        assert outcome.num_points >= 299
        lost = [each for each in outcome.left_out if each.endswith("are no whole event")]
        assert len(lost) == 1
        assert set(points(store.get(outcome.id))["accuracy"]) <= set(whole)
    assert len(store) <= 2  # a file whose beginning is damaged is another one


def test_damaged_run_does_not_replace_a_whole_one_and_is_completed_by_it(tmp_path, store):
    write(tmp_path / "run", 100)
    [file] = files_of(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:1000] + b"\xff" * 200 + data[1200:])
    [damaged] = take(tmp_path / "run", store)
    assert (damaged.outcome, damaged.num_points) == ("new", 94)
    assert damaged.left_out == (f"{file.name}: 276 bytes from byte 960 on are no whole event",)
    whole = tmp_path / "whole" / "run" / file.name
    whole.parent.mkdir(parents=True)
    whole.write_bytes(data)
    assert [run.outcome for run in take(tmp_path / "whole", store)] == ["completed"]
    assert [run.outcome for run in take(tmp_path / "run", store)] == ["present"]
    assert [len(run.metric("accuracy")) for run in store] == [100]


def test_run_of_an_earlier_import_is_recognized_by_the_key_that_it_had(tmp_path, store, monkeypatch):
    from sacristan.runs.transfer.trackers import event_files

    write(tmp_path / "run", 10)
    with monkeypatch.context() as patch:
        patch.setattr(event_files, "_identity", lambda path: path.name)
        take(tmp_path / "run", store)
    store.tag(store.get("1"), ["mine"])
    assert [run.outcome for run in take(tmp_path / "run", store)] == ["present"]
    with SummaryWriter(str(tmp_path / "run")) as writer:
        writer.add_scalar("accuracy", 2.0, 10)
    assert [run.outcome for run in take(tmp_path / "run", store)] == ["completed"]
    [run] = store
    assert (run.tags, len(run.metric("accuracy"))) == (["mine"], 11)


def test_metrics_that_two_files_name_alike_are_kept_apart(tmp_path, store):
    folder = tmp_path / "dvclive" / "plots" / "metrics"
    folder.mkdir(parents=True)
    (folder / "loss.tsv").write_text("step\tloss\n0\t1\n1\t2\n")
    (folder / "loss.csv").write_text("step,loss\n0,3\n")
    [outcome] = take(tmp_path, store, kind="dvclive")
    assert (outcome.num_points, outcome.left_out) == (
        3, ("the name of another metric 'loss', which is 'loss_2' here",),
    )  # fmt: skip
    assert points(store.get("1")) == {"loss": [(0, 3.0)], "loss_2": [(0, 1.0), (1, 2.0)]}


def test_files_that_one_name_would_overwrite_are_reported(tmp_path):
    (tmp_path / "a").write_text("1")
    names = ("x/y", "x", "z", "z/w")
    run = ForeignRun("test", artifacts=dict.fromkeys(names, tmp_path / "a"))
    staged = StagedImport(run, "0" * 32, {}, tmp_path / "staged", (), None).write()
    reason = "another file or folder of the run has that name"
    assert staged.left_out == tuple(f"file {name!r}: {reason}" for name in ("x", "z/w"))


def test_import_that_wrote_fewer_points_than_it_read_is_an_error(tmp_path, store, monkeypatch):
    write_series = foreign.write_series
    monkeypatch.setattr(
        foreign, "write_series", lambda folder, series, start: write_series(folder, [*series][1:], start)
    )
    (tmp_path / "a.csv").write_text("loss,acc\n1,2\n")
    with pytest.raises(StoreError, match=r"1 of the 2 points of .*a\.csv were written, as run 1; check the disk"):
        take(tmp_path / "a.csv", store)
