from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.experiments import Monitor, Terminated
from sacristan.experiments.running.signals import SAVED_CODE, Signals
from sacristan.ingredients import Checkpointer, CheckpointError, Place
from sacristan.ingredients.checkpoints.files import load_checkpoint, load_weights, preparation_of
from sacristan.ingredients.checkpoints.folder import CheckpointFolder
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.splitting import Split


class Record:
    """A run that notes what a checkpointer asks of it, and when."""

    def __init__(self, uid="u1", fingerprint="f" * 64):
        self.uid, self.info = uid, {"data": {"fingerprint": fingerprint}}
        self.signals = Signals()
        self.asked = []

    def position(self):
        return {"metrics": {"loss": [3, 7]}, "media": {}}

    def flush(self):
        self.asked.append("flush")

    def num_missing(self, position):
        return 0

    def rewind(self, position, step):
        self.asked.append((position, step))

    def signals_deferred(self):
        return self.signals.deferred()

    @property
    def stopping(self):
        return self.signals.stopping

    def stop(self, step):
        self.signals.stop(step)


@pytest.fixture
def record():
    record = Record()
    # Signals may be ignored, as in what a shell starts in the background.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with record.signals.handled():
        yield record
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def prepared(seed=0, **config):
    """Return what data were prepared by, split by a seed."""
    config = {"limit": None, "val_fraction": 0.2, "test_fraction": 0.2, "stratify": True, "split_seed": None} | config
    split = Split.of(config, seed)
    split = split.drawn("f" * 64, split.indices(np.arange(40) % 2, None, "classification"))
    fitted = {"mean": np.ones(2, np.float32), "std": np.ones(2, np.float32), "target_mean": None, "target_std": None}
    names = {"classes": ("a", "b"), "features": None, "target_names": None}
    counts = {"class_counts": (12, 12), "num_targets": 2, "image_size": None}
    return Preparation("classification", (2,), split=split, **fitted, **names, **counts)


def make_parts(value=1.0):
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, value)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "monitor": Monitor("val/loss")}


def saved(folder, record=None, epochs=2, **options):
    """Save the states of two epochs of five steps, the first of them the best."""
    keeper, parts = Checkpointer(folder, {}, record=record, **options), make_parts()
    with keeper.session():
        for epoch in range(1, epochs + 1):
            improved = parts["monitor"].update({"val/loss": float(epoch)}, epoch)
            keeper.save(Place(epoch, 0, 5 * epoch), parts, {"val/loss": 1.0} if improved else None)
    return keeper


def end_of(keeper, body, expected=Terminated):
    """Do something in a session of a training, and return what that ends with."""

    def train():
        with keeper.session():
            body()

    with pytest.raises(expected) as ended:
        keeper.record.signals.interruptible(train)()
    return ended.value


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def test_begin_without_a_state_is_the_beginning_and_changes_nothing(tmp_path, record):
    parts = make_parts(2.0)
    assert vars(Checkpointer(tmp_path, {}, record=record).begin(parts)) == vars(Place())
    assert parts["model"].weight.tolist() == [[2.0, 2.0]]
    assert record.asked == []


def test_begin_of_a_new_run_looks_at_no_state_in_its_folder(tmp_path, record):
    saved(tmp_path, record)
    record.asked.clear()
    assert Checkpointer(tmp_path, {}, record=record).begin(make_parts()).step == 0
    assert record.asked == []


def test_begin_of_a_run_that_goes_on_takes_up_its_state_and_takes_back_the_record(tmp_path, record):
    saved(tmp_path, record)
    parts = make_parts(2.0)
    place = Checkpointer(tmp_path, {}, resume=True, record=record).begin(parts)
    assert (place.epoch, place.step) == (2, 10)
    assert parts["model"].weight.tolist() == [[1.0, 1.0]]
    assert record.asked[-1] == (record.position(), 10)


def test_begin_of_a_run_that_goes_on_without_a_state_takes_back_the_record_to_its_beginning(tmp_path, record):
    assert Checkpointer(tmp_path / "checkpoints", {}, resume=True, record=record).begin(make_parts()).step == 0
    assert record.asked == [(None, 0)]


def test_begin_of_the_first_of_two_trainings_leaves_the_points_of_the_second(tmp_path, record):
    saved(tmp_path / "checkpoints", record)
    saved(tmp_path / "checkpoints-2", record)
    record.asked.clear()
    Checkpointer(tmp_path / "checkpoints", {}, resume=True, record=record).begin(make_parts())
    assert record.asked == []
    Checkpointer(tmp_path / "checkpoints-2", {}, resume=True, record=record).begin(make_parts())
    assert record.asked == [(record.position(), 10)]


def numbered(record):
    """Let each state of a record have a position of its own: the number of those asked for before it."""
    asked = iter(range(1, 100))
    record.position = lambda: {"metrics": {"loss": [next(asked), 0]}, "media": {}}


@pytest.mark.parametrize(("num_there", "steps"), [(9, [15]), (2, [10]), (1, [5]), (0, [15])])
def test_begin_goes_back_to_the_newest_state_whose_points_are_all_in_the_record(
    tmp_path, record, num_there, steps, caplog
):
    numbered(record)
    saved(tmp_path, record, epochs=3, keep=3)
    record.num_missing = lambda position: max(0, position["metrics"]["loss"][0] - num_there)
    place = Checkpointer(tmp_path, {}, resume=True, record=record, keep=3).begin(make_parts())
    assert [place.step] == steps
    position, step = record.asked[-1]
    assert (5 * position["metrics"]["loss"][0], step) == (place.step, place.step)
    assert load_checkpoint(tmp_path / "last.pt")["step"] == place.step
    assert ("1 entries of the record up to this state are missing" in caplog.text) == (num_there < 3)
    is_incomplete = "the record is not complete at any state that is kept; resuming from the newest good one"
    assert (is_incomplete in caplog.text) == (num_there == 0)


def test_begin_where_no_state_is_good_raises_though_the_record_lacks_points(tmp_path, record):
    saved(tmp_path, record)
    record.num_missing = lambda position: 1
    with pytest.raises(CheckpointError, match="none of its 2 states of the training can be loaded"):
        Checkpointer(tmp_path, {}, resume=True, record=record).begin({"model": nn.Linear(9, 1)})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Record("u2"), "is of the run u1, not of u2; to start from another run's state, fork that"),
        (Record(fingerprint="e" * 64), "on data with the fingerprint ffffffffffff, and these have eeeeeeeeeeee"),
    ],
)
def test_begin_with_states_of_another_run_or_other_data_raises(tmp_path, record, other, message):
    saved(tmp_path, record)
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(tmp_path, {}, resume=True, record=other).begin(make_parts())


def test_begin_at_a_state_of_another_run_has_its_best_weights(tmp_path, record):
    saved(tmp_path / "a", record)
    keeper, parts = (
        Checkpointer(tmp_path / "b", {}, start=tmp_path / "a" / "last.pt", record=Record("u2")),
        make_parts(),
    )
    assert keeper.begin(parts).step == 10
    assert load_checkpoint(keeper.best_path)["epoch"] == parts["monitor"].epoch == 1


def test_begin_at_a_state_whose_best_weights_are_gone_starts_the_best_anew(tmp_path, record, caplog):
    saved(tmp_path / "a", record)
    (tmp_path / "a" / "best.pt").unlink()
    keeper, parts = Checkpointer(tmp_path / "b", {}, start=tmp_path / "a" / "last.pt"), make_parts()
    keeper.begin(parts)
    assert (parts["monitor"].epoch, keeper.best_path.exists()) == (0, False)
    assert "weights of epoch 1, its best, are missing; the best value starts again" in caplog.text


def saved_with(folder, preparation, config={}):
    """Save a state of a training on data that were prepared so."""
    keeper, parts = Checkpointer(folder, config), make_parts()
    keeper.begin(parts, preparation=preparation)
    keeper.save(Place(1, 0, 5), parts, {"val/loss": 1.0}, final=True)
    return folder / "last.pt"


def test_every_checkpoint_holds_what_the_data_were_prepared_by(tmp_path):
    saved_with(tmp_path, prepared())
    for name in ("best.pt", "last.pt"):
        assert preparation_of(load_checkpoint(tmp_path / name), name).split == prepared().split


@pytest.mark.parametrize("preparation", [prepared(1), prepared(val_fraction=0.3)])
def test_begin_at_a_state_that_was_trained_on_another_split_raises_unless_asked_for(tmp_path, preparation):
    start = saved_with(tmp_path / "a", prepared())
    keeper = Checkpointer(tmp_path / "b", {"data": {"new_split": False}}, start=start)
    message = r"last\.pt: was trained on another split of the data, .* start=checkpoint\.load_split\(_run\), or ask for"
    with pytest.raises(CheckpointError, match=message):
        keeper.begin(make_parts(), preparation=preparation)
    assert not (tmp_path / "b").exists()
    keeper = Checkpointer(tmp_path / "b", {"data": {"new_split": True}}, start=start)
    assert keeper.begin(make_parts(), preparation=preparation).step == 5
    assert Checkpointer(tmp_path / "c", {}, start=start).begin(make_parts(), preparation=prepared()).step == 5
    assert Checkpointer(tmp_path / "d", {}, start=start).begin(make_parts()).step == 5


def test_begin_of_a_run_whose_data_are_split_otherwise_than_before_raises(tmp_path):
    saved_with(tmp_path, prepared())
    with pytest.raises(CheckpointError, match="was trained on another split of the data"):
        Checkpointer(tmp_path, {}, resume=True).begin(make_parts(), preparation=prepared(1))
    assert Checkpointer(tmp_path, {}, resume=True).begin(make_parts(), preparation=prepared()).step == 5


def test_begin_at_a_state_of_an_earlier_version_compares_the_split_of_its_config(tmp_path):
    config = {"limit": None, "val_fraction": 0.2, "test_fraction": 0.2, "stratify": True, "split_seed": None}
    start = saved_with(tmp_path / "a", None, {"seed": 0, "data": config})
    assert "preparation" not in load_checkpoint(start)
    assert Checkpointer(tmp_path / "b", {}, start=start).begin(make_parts(), preparation=prepared()).step == 5
    with pytest.raises(CheckpointError, match="was trained on another split of the data"):
        Checkpointer(tmp_path / "c", {}, start=start).begin(make_parts(), preparation=prepared(1))


def test_split_of_a_fork_is_told_by_its_own_states_and_before_by_its_start(tmp_path):
    start = saved_with(tmp_path / "a", prepared(3))
    folder = CheckpointFolder(tmp_path / "b", 2)
    assert folder.split(start) == prepared(3).split
    folder.keep_start(start, 0)
    start.unlink()
    assert folder.split(start) == prepared(3).split
    saved_with(tmp_path / "b", prepared(4))
    assert folder.split(start) == prepared(4).split


def test_begin_at_weights_alone_raises(tmp_path, record):
    saved(tmp_path / "a", record)
    keeper = Checkpointer(tmp_path / "b", {}, start=tmp_path / "a" / "best.pt")
    with pytest.raises(CheckpointError, match=r"best.pt: holds no batch, losses, .*\(best.pt holds weights alone\)"):
        keeper.begin(make_parts())


def test_state_is_in_place_only_once_the_record_is_flushed(tmp_path, record):
    seen = []
    record.flush = lambda: seen.append((tmp_path / "last.pt").exists())
    saved(tmp_path, record, epochs=1)
    assert seen == [False]
    assert load_checkpoint(tmp_path / "last.pt")["position"] == record.position()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signal_is_held_back_until_the_state_is_saved(tmp_path, record, number, capfd):
    keeper, parts = Checkpointer(tmp_path, {}, record=record), make_parts()

    def body():
        assert not keeper.is_due(1)
        send(number)
        assert keeper.is_due(2)
        keeper.save(Place(0, 2, 2), parts)

    ended = end_of(keeper, body)
    assert (ended.code, ended.step, ended.signal) == (SAVED_CODE, 2, signal.Signals(number).name)
    assert load_checkpoint(keeper.last_path)["step"] == 2
    assert "saving a checkpoint after this step; once more ends the run at once" in capfd.readouterr().err


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_second_signal_ends_at_once(tmp_path, record, number, expected):
    keeper = Checkpointer(tmp_path, {}, record=record)

    def body():
        send()
        send(number)
        raise AssertionError("is not reached")

    end_of(keeper, body, expected)
    assert not keeper.last_path.exists()


def test_signal_outside_of_a_training_ends_at_once(tmp_path, record):
    saved(tmp_path, record)
    with pytest.raises(Terminated) as ended:
        record.signals.interruptible(send)()
    assert (ended.value.code, ended.value.step) == (143, None)


def test_signal_to_a_training_that_keeps_no_states_ends_at_once(tmp_path, record):
    assert end_of(Checkpointer(tmp_path, {}, last=False, record=record), send).code == 143


def test_signal_after_the_last_save_ends_the_run_after_it(tmp_path, record):
    keeper, parts = Checkpointer(tmp_path, {}, record=record), make_parts()

    def body():
        keeper.save(Place(3, 0, 15), parts, final=True)
        send()

    ended = end_of(keeper, body)
    assert (ended.code, ended.step) == (SAVED_CODE, 15)


def failing(count, error):
    yield from range(count)
    raise error


@pytest.mark.parametrize("error", [RuntimeError("a worker was killed"), EOFError(), ConnectionResetError()])
def test_loader_that_fails_after_the_signal_ends_the_epoch(tmp_path, record, error):
    keeper, seen = Checkpointer(tmp_path, {}, record=record), []

    def body():
        for item in keeper.until_stopped(failing(2, error)):
            seen.append(item)
            if item == 1:
                send()
        keeper.save(Place(0, 2, 2), make_parts())

    ended = end_of(keeper, body)
    assert (seen, ended.code) == ([0, 1], SAVED_CODE)


def test_loader_that_fails_raises(tmp_path, record):
    with pytest.raises(RuntimeError, match="a worker was killed"):
        list(Checkpointer(tmp_path, {}, record=record).until_stopped(failing(2, RuntimeError("a worker was killed"))))


def test_validation_that_fails_after_the_signal_saves_the_state_before_it(tmp_path, record):
    keeper = Checkpointer(tmp_path, {}, record=record)

    def body():
        with keeper.saving_if_stopped(lambda: keeper.save(Place(0, 5, 5), make_parts())):
            send()
            raise RuntimeError("a worker was killed")

    ended = end_of(keeper, body)
    assert (ended.code, ended.step) == (SAVED_CODE, 5)
    assert load_checkpoint(keeper.last_path)["batch"] == 5


def unwritable(folder):
    """Let nothing more be written to a folder, whoever writes: a file stands where it was."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("")


def test_state_that_cannot_be_written_raises_at_the_next_save(tmp_path, record):
    keeper, folder = saved(tmp_path / "x", record), tmp_path / "x"
    unwritable(folder)

    def body():
        keeper.save(Place(3, 0, 15), make_parts())
        keeper.save(Place(4, 0, 20), make_parts())
        raise AssertionError("is not reached")

    assert "cannot be written" in str(end_of(keeper, body, CheckpointError))


def test_state_that_cannot_be_written_raises_at_the_end(tmp_path, record):
    keeper, folder = saved(tmp_path / "x", record), tmp_path / "x"
    unwritable(folder)
    error = end_of(keeper, lambda: keeper.save(Place(3, 0, 15), make_parts()), CheckpointError)
    assert "cannot be written" in str(error)


def test_state_that_cannot_be_written_is_said_where_the_training_fails_anyway(tmp_path, record, caplog):
    keeper, folder = saved(tmp_path / "x", record), tmp_path / "x"
    unwritable(folder)

    def body():
        keeper.save(Place(3, 0, 15), make_parts())
        raise ZeroDivisionError

    end_of(keeper, body, ZeroDivisionError)
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(("interval", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_last_is_saved_every_interval_and_at_the_end(tmp_path, interval, expected):
    keeper, steps = Checkpointer(tmp_path, {}, interval=interval), []
    for epoch in range(1, 6):
        keeper.save(Place(epoch, 0, epoch), make_parts(), final=epoch == 5)
        keeper.wait()
        with contextlib.suppress(CheckpointError):
            steps.append(load_checkpoint(keeper.last_path)["step"])
    assert sorted(set(steps)) == expected


def test_last_is_due_within_an_epoch_every_so_many_steps(tmp_path):
    keeper = Checkpointer(tmp_path, {}, interval_steps=3)
    assert [step for step in range(1, 10) if keeper.is_due(step)] == [3, 6, 9]


def test_best_and_last_switched_off_write_nothing(tmp_path):
    keeper, model = Checkpointer(tmp_path / "x", {}, best=False, last=False, interval_steps=1), make_parts()
    with keeper.session():
        assert not keeper.is_due(1)
        keeper.save(Place(1, 0, 1), model, {"val/loss": 1.0}, final=True)
    keeper.restore_best(model["model"])
    assert list(tmp_path.iterdir()) == []


def test_best_weights_are_restored(tmp_path):
    keeper = saved(tmp_path)
    model = nn.Linear(2, 1)
    keeper.restore_best(model)
    assert model.weight.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["interval", "interval_steps", "keep"])
def test_checkpointer_with_a_number_below_one_raises(tmp_path, name):
    with pytest.raises(CheckpointError, match=f"checkpoint.{name}: got 0, expected at least 1"):
        Checkpointer(tmp_path, {}, **{name: 0})


def test_saving_is_not_reached_by_what_the_training_does_meanwhile(tmp_path, monkeypatch):
    keeper, parts = Checkpointer(tmp_path, {}), make_parts()
    with monkeypatch.context() as patch:
        # The thread writes only after the weights have changed.
        started = []
        patch.setattr(keeper._writer, "start", started.append)
        keeper.save(Place(1, 0, 5), parts)
    nn.init.zeros_(parts["model"].weight)
    for job in started[0]:
        job()
    assert load_checkpoint(keeper.last_path)["model"]["weight"].tolist() == [[1.0, 1.0]]


def test_training_whose_parts_have_names_of_their_own_is_resumed_and_forked(tmp_path):
    keeper = Checkpointer(tmp_path / "own", {"seed": 1})
    parts = {"generator": nn.Linear(2, 1), "critic": nn.Linear(1, 1)}
    keeper.begin(parts)
    with keeper.session():
        keeper.save(Place(1, 0, 5), parts)
        with pytest.raises(
            CheckpointError, match=r"best weights are those of the part `model`, .*: generator, critic; name"
        ):
            keeper.save(Place(2, 0, 10), parts, {"val/loss": 1.0})
    for options in ({"resume": True}, {"start": keeper.last_path}):
        folder = tmp_path / ("own" if "resume" in options else "fork")
        again = {"generator": nn.Linear(2, 1), "critic": nn.Linear(1, 1)}
        assert Checkpointer(folder, {"seed": 1}, **options).begin(again) == Place(1, 0, 5)
        assert all(torch.equal(part.weight, again[name].weight) for name, part in parts.items())
    with pytest.raises(CheckpointError, match=r"last.pt: holds no part named `model`; load its parts"):
        load_weights(nn.Linear(2, 1), keeper.last_path, {})
