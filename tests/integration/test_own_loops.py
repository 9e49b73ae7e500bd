"""Loops of a script's own, cut at any step and resumed to the same bits; with every kind of loader."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest

import sacristan
from sacristan.experiments.scripts import tracking
from sacristan.ingredients import CheckpointError
from sacristan.runs import open_store

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils import data  # noqa: E402

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 14, 4, 3


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACRISTAN_STORE", raising=False)
    yield
    while tracking.current_run() is not None:
        tracking.current_run().finish()


class Noisy(data.Dataset):
    """Samples with noise of each of the generators that augmentations draw from."""

    def __init__(self, own=False):
        self.inputs = torch.arange(NUM_SAMPLES * 4.0).reshape(-1, 4).sin()
        self.own = np.random.default_rng(5) if own else None

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        noise = torch.rand(()) + random.random() + np.random.random()
        noise = noise if self.own is None else noise + self.own.normal()
        return self.inputs[index] + 0.1 * float(noise), self.inputs[index, :1]


class Streamed(data.IterableDataset):
    """A shuffled stream of samples, split over workers."""

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        order = torch.randperm(NUM_SAMPLES)[first::step]
        yield from ((torch.full((4,), i / NUM_SAMPLES) + torch.rand(()), torch.rand(1)) for i in order)


def plain():
    return data.DataLoader(Noisy(), BATCH_SIZE, shuffle=True)


def with_workers():
    return data.DataLoader(Noisy(), BATCH_SIZE, shuffle=True, num_workers=2)


def with_generators():
    generator = torch.Generator().manual_seed(3)
    return data.DataLoader(Noisy(own=True), BATCH_SIZE, shuffle=True, generator=generator)


def with_sampler():
    generator = torch.Generator().manual_seed(3)
    sampler = data.WeightedRandomSampler(torch.arange(1.0, NUM_SAMPLES + 1), NUM_SAMPLES, generator=generator)
    return data.DataLoader(Noisy(), batch_sampler=data.BatchSampler(sampler, BATCH_SIZE, drop_last=True))


def of_stream():
    return data.DataLoader(Streamed(), BATCH_SIZE)


def of_stream_with_workers():
    return data.DataLoader(Streamed(), BATCH_SIZE, num_workers=2)


def stateful():
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Noisy(), BATCH_SIZE, shuffle=True, num_workers=0)


def accelerated():
    accelerate = pytest.importorskip("accelerate")
    inputs = torch.arange(NUM_SAMPLES * 4.0).reshape(-1, 4).sin()
    loader = data.DataLoader(data.TensorDataset(inputs, inputs[:, :1]), BATCH_SIZE, shuffle=True)
    return accelerate.Accelerator(cpu=True).prepare(loader)


LOADERS = [
    plain, with_generators, with_sampler, with_workers, of_stream_with_workers, stateful, accelerated,
]  # fmt: skip


def train(make_loader, stop_at=None, *, use_epochs=True, **options):
    """Train a small network; SIGTERM comes at a step. Return its weights."""
    for each in (torch.manual_seed, random.seed, np.random.seed):
        each(7)
    run = sacristan.init(config={"lr": 0.1}, resume="auto")
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = run.checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, loader=make_loader(), **options)
    for epoch in state.epochs(EPOCHS) if use_epochs else range(state.epoch, EPOCHS):
        for inputs, targets in state.loader:
            if state.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss.item(), "epoch": epoch})
        scheduler.step()
        with torch.no_grad():  # it draws, too
            run.log({"noise": float(torch.rand(())), "rate": scheduler.get_last_lr()[0]})
    run.finish()
    return [weight.detach().clone() for weight in model.state_dict().values()]


def points(number):
    with open_store("my_runs") as store:
        run = store.get(number)
        names = [name for name in run.metrics if not name.startswith("system/")]
        found = {name: (run.metric(name).steps.tolist(), run.metric(name).values.tolist()) for name in names}
        return run.status, found


CASES = [
    *(pytest.param(make_loader, True) for make_loader in (plain, of_stream)),
    *(pytest.param(make_loader, True, marks=pytest.mark.slow) for make_loader in LOADERS[1:]),
    pytest.param(plain, False),
]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # of torchdata
@pytest.mark.parametrize(("make_loader", "use_epochs"), CASES)
def test_loop_cut_within_epochs_continues_to_the_same_bits(make_loader, use_epochs):
    expected = train(make_loader, use_epochs=use_epochs)
    status, curves = points(1)
    num_steps = len(curves["loss"][0])
    assert (status, len(curves["rate"][0])) == ("COMPLETED", EPOCHS)
    generator = random.Random(f"{make_loader.__name__}{use_epochs}")
    cuts = [generator.randrange(num_steps), num_steps - 1]
    for cut in cuts:
        with pytest.raises(SystemExit) as end:
            train(make_loader, cut, use_epochs=use_epochs)
        assert end.value.code == 75
        assert points(2)[0] == "INTERRUPTED"
    found = train(make_loader, use_epochs=use_epochs)
    assert points(2) == ("COMPLETED", curves)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_states_between_are_kept_and_a_killed_loop_continues_from_the_newest():
    expected = train(plain, every=4)
    status, curves = points(1)

    class CrashError(Exception):
        pass

    def crash_at(step):
        loader = plain()

        def collate(samples):
            crash_at.count += 1
            if crash_at.count == step:
                raise CrashError
            return data.default_collate(samples)

        crash_at.count = 0
        loader.collate_fn = collate
        return loader

    with pytest.raises(CrashError):
        train(lambda: crash_at(7), every=4)
    tracking.current_run()._end(CrashError())  # as the process would
    assert len(points(2)[1]["loss"][0]) == 6
    found = train(plain, every=4)
    assert points(2) == (status, curves)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def loop_of_steps(stop_at=None, *, total=12, order="step, scheduler, log", ask=True):
    torch.manual_seed(1)
    run = sacristan.init(resume="auto")
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    state = run.checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    state.values.setdefault("seen", [])
    for step in state.steps(total) if ask else range(state.step, total):
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        state.values["seen"].append(step)
        for part in order.split(", "):
            if part == "step":
                optimizer.step()
            elif part == "scheduler":
                scheduler.step()
            else:
                run.log({"loss": loss.item(), "rate": optimizer.param_groups[0]["lr"]}, step)
    run.finish()
    return state.values["seen"]


@pytest.mark.parametrize("ask", [True, False])
def test_loop_of_steps_is_stopped_whole_whether_it_asks_or_not(ask):
    assert loop_of_steps(ask=ask) == list(range(12))
    for cut in (3, 7):
        with pytest.raises(SystemExit, match="75"):
            loop_of_steps(cut, ask=ask)
    assert loop_of_steps(ask=ask) == list(range(12))
    assert points(1) == points(2)


@pytest.mark.parametrize("order", ["log, step, scheduler", "step, log, scheduler"])
def test_loop_that_logs_within_its_step_is_ended_without_a_state(order, caplog):
    with pytest.raises(SystemExit, match="143"):
        loop_of_steps(3, ask=False, order=order)
    assert "log last in its body" in caplog.text
    assert points(1)[0] == "INTERRUPTED"


def test_second_signal_ends_the_run_at_once():
    run = sacristan.init()
    state = run.checkpoint(model=nn.Linear(1, 1))

    def loop():
        for _ in state.steps(3):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert state.step == 0


def test_finished_loop_gives_signals_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    loop_of_steps()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_loop_without_a_record_runs():
    run = sacristan.init(mode="disabled")
    state = run.checkpoint(model=nn.Linear(1, 1), loader=plain())
    assert [epoch for epoch in state.epochs(2) if [*state.loader]] == [0, 1]
    assert (state.epoch, state.step) == (2, 8)


def test_loop_without_a_loader_says_how_to_give_it_one():
    state = sacristan.init(mode="disabled").checkpoint(model=nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"has no loader; give it one: run.checkpoint\(loader=loader\)"):
        state.loader  # noqa: B018


def test_state_is_saved_every_ten_minutes_unless_told_otherwise():
    run = sacristan.init(mode="disabled")
    states = [run.checkpoint(model=nn.Linear(1, 1), **options) for options in ({}, {"every": 500}, {"every_s": 5.0})]
    assert [(state.every, state.every_s) for state in states] == [(None, 600.0), (500, 600.0), (None, 5.0)]


def test_epoch_that_is_left_early_is_done():
    run = sacristan.init(mode="disabled")
    state = run.checkpoint(loader=plain())
    for epoch in state.epochs(2):
        for _ in state.loader:
            break
        assert state.epoch == epoch
    assert (state.epoch, state.batch) == (2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "model is a int, which has no state_dict"),
        ({"loop": nn.Linear(1, 1)}, "the name loop is the lab's own"),
        ({"loader": iter([1, 2])}, "got a list_iterator as loader, expected one that can be iterated over again"),
    ],
)
def test_part_that_cannot_be_saved_is_rejected(options, message):
    with pytest.raises(CheckpointError, match=message):
        sacristan.init(mode="disabled").checkpoint(**options)


def test_persistent_workers_are_warned_of(caplog):
    loader = data.DataLoader(Noisy(), 4, num_workers=1, persistent_workers=True)
    sacristan.init(mode="disabled").checkpoint(loader=loader)
    assert "the workers of this loader persist" in caplog.text
