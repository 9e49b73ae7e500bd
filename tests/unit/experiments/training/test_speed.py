from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.experiments import fit
from sacristan.experiments.training.progress import Speed, Stopwatch, peak_memory_bytes
from sacristan.ingredients import LoaderBatches, Loss, Place, TensorBatches

CPU = torch.device("cpu")


class Clock:
    """Seconds that go on when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class SlowSamples:
    """Twenty samples of one number each; reading one takes a tenth of a second of the clock."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 20

    def __getitem__(self, key):
        self.clock.now += 0.1
        return np.zeros(4, np.float32), np.int64(key[1] % 2)


def read_slowly(clock):
    return LoaderBatches(SlowSamples(clock), CPU, 8, 0, False)


def pass_through(batches, clock, step_s, epochs=1):
    """Time epochs whose steps take `step_s` seconds, each."""
    watch, place = Stopwatch(batches, CPU, clock), Place()
    for epoch in range(1, epochs + 1):
        watch.start(place)
        for _ in watch.epoch(epoch, place.batch):
            clock.now += step_s
            place.batch, place.step = place.batch + 1, place.step + 1
        watch.stop(place)
        clock.now += 1000.0  # a validation
        place.epoch, place.batch = epoch, 0
    return watch.report()


def test_speed_counts_samples_and_steps_of_epochs_without_what_lies_between_them():
    speed = pass_through(TensorBatches(torch.zeros(20, 4), torch.zeros(20), 8), Clock(), 0.5, epochs=2)
    assert (speed.samples, speed.steps, speed.train_s) == (40, 6, 3.0)
    assert speed.data_wait is None
    assert "data_wait" not in speed.figures
    assert speed.figures["samples_per_s"] == pytest.approx(40 / 3)
    assert speed.figures["steps_per_s"] == 2.0


def test_share_of_waiting_is_that_of_the_time_between_batches():
    clock = Clock()
    speed = pass_through(read_slowly(clock), clock, 2.0)  # reads for 2 s, computes for 6
    assert speed.data_wait == pytest.approx(0.25)
    assert speed.train_s == pytest.approx(8.0)


@pytest.mark.parametrize(("step_s", "epochs", "is_said"), [(0.0, 4, True), (0.0, 1, False), (20.0, 4, False)])
def test_loader_is_called_the_bottleneck_where_waiting_is_long_and_much(caplog, step_s, epochs, is_said):
    clock = Clock()
    with caplog.at_level(logging.INFO, "sacristan.experiments.training.progress"):
        pass_through(read_slowly(clock), clock, step_s, epochs)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == is_said
    if is_said:
        assert "the training waited for data 100% of its time; raise data.num_workers (it is 0)" in said[0]


def test_speed_of_a_resumed_epoch_counts_what_is_left_of_it():
    batches = TensorBatches(torch.zeros(20, 4), torch.zeros(20), 8)
    clock, place = Clock(), Place(batch=1, step=1)
    watch = Stopwatch(batches, CPU, clock)
    watch.start(place)
    place.batch, place.step, clock.now = 3, 3, 101.0
    watch.stop(place)
    speed = watch.report()
    assert (speed.samples, speed.steps) == (12, 2)


def test_session_without_a_step_has_no_speed():
    assert Stopwatch(TensorBatches(torch.zeros(20, 4), torch.zeros(20), 8), CPU).report() is None


def test_speed_in_words():
    assert str(Speed(2.0, 3000, 25, 3 * 2**20, 0.125)) == (
        "1,500 samples/s, 12.5 steps/s; peak memory 3 MiB; 12% of the time waiting for data"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell the peak")
def test_peak_memory_is_in_bytes():
    held = torch.ones(2**25)
    assert held.nbytes < peak_memory_bytes(CPU) < 2**44


def test_fit_returns_and_logs_its_speed(tensor_data, caplog):
    data = tensor_data((torch.randn(20, 4), torch.zeros(20).long()))
    model = nn.Linear(4, 3)
    told = {"log": lambda *point: None, "epochs": 2}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with caplog.at_level(logging.INFO, "sacristan.experiments.training.progress"):
        result = fit(model, data, Loss(nn.CrossEntropyLoss(), "classes", 3), optimizer, **told)
    assert (result.speed.samples, result.speed.steps) == (40, 6)
    assert caplog.records[-1].getMessage() == f"trained at {result.speed}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_waiting_is_that_of_the_device_on_cuda():
    device = torch.device("cuda")
    batches = LoaderBatches(SlowSamples(Clock()), device, 8, 0, False)
    watch, place = Stopwatch(batches, device), Place()
    factor = torch.randn(4096, 4096, device=device)
    watch.start(place)
    for _ in watch.epoch(1, 0):
        for _ in range(50):
            factor = factor @ factor  # the process runs ahead: while it reads, the device computes
        place.batch, place.step = place.batch + 1, place.step + 1
    torch.cuda.synchronize()
    watch.stop(place)
    speed = watch.report()
    assert 0 <= speed.data_wait < 0.5
    assert speed.peak_memory_bytes >= factor.nbytes
