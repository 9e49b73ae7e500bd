"""Cost of checkpointing: the thread that trains, the steps beside the writing, each step, and the loading.

    python benchmarks/checkpointing.py [--turns 15] [--blocks 31] [--epochs 10] [--threads 1] [saving] [beside] [steps]

All in one run, what is compared in turns, so that what else the machine does falls on all; medians, and of ratios and
differences those of the pairs. "its CPU" is the time that the training thread is at work, which says more than the wall
on a machine that others use too. The states are those of transformer encoders of 5 and 25 million parameters with
AdamW, which are three times the weights, and they belong to a run that records.

The copy by hand is `clone` of every tensor, or `to("cpu")` from a GPU. The peer is what people write by hand:
`torch.save` of the same state, and `os.fsync`, between two steps. It has no digest, overwrites the file before it, and
its run's record may be behind it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

warnings.filterwarnings("ignore")  # Sacred's import says that pkg_resources is deprecated

from loop_overhead import BATCH, SAMPLES, by_hand_selecting, make_parts

from sacristan.experiments import Experiment
from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.experiments.training.evaluation import Monitor
from sacristan.experiments.training.loop import fit
from sacristan.ingredients.checkpoints import Checkpointer
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.checkpoints.training_state import Place
from sacristan.ingredients.datasets.batches import Data, TensorBatches
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.precision import MixedPrecision
from sacristan.observers import FileObserver

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# By the parameters in millions: the width and the layers of an encoder.
ENCODERS = {5: (256, 6), 25: (512, 8)}
TOKENS = 16
TINY = "64-64-10"
# Steps that are no part of the time: those up to the first logging.
LOG_INTERVAL = 50


class Training:
    """An encoder with AdamW that has done a step, and what a checkpointer saves of it."""

    def __init__(self, millions):
        width, layers = ENCODERS[millions]
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, layers).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.inputs = torch.randn(1, TOKENS, width, device=DEVICE)
        self.step()
        monitor, amp = Monitor("val/loss", "auto", None, 0.0), MixedPrecision(DEVICE)
        self.parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": None,
            "amp": amp,
            "monitor": monitor,
        }
        self.place = Place()

    def step(self):
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self):
        state = self.state()
        yield from state["model"].values()
        for values in state["optimizer"]["state"].values():
            yield from values.values()

    def save(self, keeper):
        self.place.step += 1
        self.place.batch = 1
        keeper.save(self.place, self.parts)


class Tiny:
    """The 64-64-10 MLP of the loop's benchmark, whose steps are nearly all Python."""

    def __init__(self):
        self.model, self.optimizer, self.criterion = make_parts(DEVICE)
        self.inputs, self.targets = torch.randn(BATCH, 64, device=DEVICE), torch.zeros(BATCH, dtype=int, device=DEVICE)

    def step(self):
        self.criterion(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def timed(work):
    """Return the milliseconds that `work` takes, and those that this thread is at work in it."""
    wait()
    wall, cpu = time.perf_counter(), time.thread_time()
    kept = work()
    wait()
    times = 1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - cpu)
    del kept
    return times


def save_by_hand(training, path):
    with path.open("wb") as stream:
        torch.save(training.state(), stream)
        stream.flush()
        os.fsync(stream.fileno())


def copy_by_hand(training):
    if DEVICE.type == "cpu":
        return [tensor.clone() for tensor in training.tensors()]
    return [tensor.to("cpu") for tensor in training.tensors()]


# ---------------------------------------------------------------------- saving and loading


def report_saving(top, run, turns):
    print(f"\nsaving, {turns} turns, ms{'':<21}wall   its CPU    x the copy   x its CPU")
    for millions in ENCODERS:
        training = Training(millions)
        keeper = Checkpointer(top / f"saving-{millions}", {}, record=run)
        peer = top / f"peer-{millions}.pt"
        cases = {
            "copy by hand": lambda training=training: copy_by_hand(training),
            "Checkpointer.save": lambda training=training, keeper=keeper: training.save(keeper),
            "  until it is written": keeper.wait,
            "torch.save and fsync": lambda training=training, peer=peer: save_by_hand(training, peer),
        }
        took = measured(cases, turns)
        size = sum(tensor.nbytes for tensor in training.tensors())
        count = sum(parameter.numel() for parameter in training.model.parameters())
        print(f"{count:,} parameters, {size:,} bytes in {sum(1 for _ in training.tensors())} tensors")
        print_ratios(took, "copy by hand")
        loading = measured(
            {
                "torch.load": lambda peer=peer: torch.load(peer, weights_only=True),
                "load_checkpoint": lambda keeper=keeper: load_checkpoint(keeper.last_path),
            },
            turns,
        )
        print_ratios(loading, "torch.load")
        ours, theirs = keeper.last_path.stat().st_size, peer.stat().st_size
        print(f"  the file {ours:,} bytes, {ours / size:.4f} x its tensors; that of torch.save {theirs:,}")


def measured(cases, turns):
    took = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, work in cases.items():
            times = timed(work)
            if turn:  # The first one warms up, and reads back what it wrote.
                took[name].append(times)
    return took


def print_ratios(took, base):
    for name, times in took.items():
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        ratios = [
            statistics.median(
                one[which] / max(other[which], 1e-9) for one, other in zip(times, took[base], strict=True)
            )
            for which in (0, 1)
        ]
        print(f"  {name:<40}{medians[0]:>8.1f}{medians[1]:>10.1f}{ratios[0]:>14.2f}{ratios[1]:>12.2f}", flush=True)


# ---------------------------------------------------------------------- the steps beside the writing


def report_beside(top, run, turns):
    print(f"\nsteps beside the writing, {turns} turns, {torch.get_num_threads()} thread(s) of torch, ms")
    titles = ("alone", "its CPU", "beside", "its CPU", "ratio", "of CPU", "lost", "written in", "longest")
    print(f"{'steps of':<10}{'writing':<9}" + "".join(f"{title:>11}" for title in titles))
    trainings = {f"{millions} M": Training(millions) for millions in ENCODERS}
    largest = list(trainings)[-1]
    for stepping, writing in ((TINY, largest), *((name, name) for name in trainings)):
        trained = Tiny() if stepping == TINY else trainings[stepping]
        keeper = Checkpointer(top / f"beside-{stepping}", {}, record=run)
        rows = [beside(trained, trainings[writing], keeper) for _ in range(turns + 1)][1:]
        values = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{stepping:<10}{writing:<9}" + "".join(f"{value:>11.2f}" for value in values), flush=True)


def beside(trained, saved, keeper):
    """Return what `report_beside` prints of one saving: ms of a step, ratios, and ms over all of the writing."""
    saved.save(keeper)
    times, cpu = steps_while(trained, lambda: keeper._writer._thread.is_alive())
    keeper.wait()
    written = sum(times)
    until = time.perf_counter() + written / 1e3
    times_alone, cpu_alone = steps_while(trained, lambda: time.perf_counter() < until)
    alone, mean = statistics.mean(times_alone), statistics.mean(times)
    lost = (mean - alone) * len(times)
    return alone, cpu_alone, mean, cpu, mean / alone, cpu / cpu_alone, lost, written, max(times)


def steps_while(trained, goes_on):
    """Return the ms of each step as long as it goes on, and the ms of the thread at work in one of them."""
    times, cpu = [], time.thread_time()
    while True:
        wait()
        began = time.perf_counter()
        trained.step()
        wait()
        times.append(1e3 * (time.perf_counter() - began))
        if not goes_on():
            return times, 1e3 * (time.thread_time() - cpu) / len(times)


# ---------------------------------------------------------------------- each step, where nothing is saved


def report_steps(top, run, blocks, epochs):
    """Print what a checkpointer adds to the steps of the loop, beside the loop by hand."""
    steps = epochs * SAMPLES // BATCH
    inputs, targets = torch.randn(SAMPLES, 64, device=DEVICE), torch.randint(0, 10, (SAMPLES,), device=DEVICE)
    print(f"\na step where nothing is saved, {blocks} blocks of {steps} steps of the 64-64-10 MLP, one core, us")
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cores:
        os.sched_setaffinity(0, {max(cores)})
    print(f"{'':<42}{'wall':>8}{'its CPU':>10}{'over the loop by hand':>24}{'its CPU':>10}")
    loops = {
        "by hand": lambda: by_hand(inputs, targets, epochs),
        "fit without a checkpointer": lambda: by_fit(inputs, targets, epochs, None),
        "fit with one": lambda: by_fit(inputs, targets, epochs, idle(top, run)),
        "fit with one, interval_steps": lambda: by_fit(inputs, targets, epochs, idle(top, run, 10**9)),
    }
    took = {name: [] for name in loops}
    for block in range(blocks + 1):
        for name, loop in loops.items():
            gc.collect()
            us = loop()
            if block:
                took[name].append(us)
    for name, times in took.items():
        pairs = zip(times, took["by hand"], strict=True)
        differences = [(us[0] - hand[0], us[1] - hand[1]) for us, hand in pairs]
        wall, cpu, more_wall, more_cpu = (
            statistics.median(column) for pair in (times, differences) for column in zip(*pair, strict=True)
        )
        print(f"  {name:<40}{wall:>8.1f}{cpu:>10.1f}{more_wall:>+24.2f}{more_cpu:>+10.2f}", flush=True)
    if cores:
        os.sched_setaffinity(0, cores)


def idle(top, run, interval_steps=None):
    """Return a checkpointer that saves nothing before the end."""
    return Checkpointer(top / "steps", {}, best=False, interval=10**9, interval_steps=interval_steps, record=run)


def by_hand(inputs, targets, epochs):
    """Return microseconds a step, and those of the thread at work."""
    cpu = time.thread_time()
    wall = by_hand_selecting(inputs, targets, epochs, "off", DEVICE)
    return tuple(1e6 * took * BATCH / SAMPLES / epochs for took in (wall, time.thread_time() - cpu))


def by_fit(inputs, targets, epochs, checkpointer):
    """Return the same, from the first logging to the last one, which is before the final state is saved."""
    model, optimizer, criterion = make_parts(DEVICE)
    empty = TensorBatches(inputs[:0], targets[:0], BATCH)
    train = TensorBatches(inputs, targets, BATCH, shuffle=True)
    data = Data(train, empty, empty, "classification", (64,), 10, (), (), None, None, "")
    buffer, times = MetricsBuffer(), []

    def log(name, value, step):
        buffer.log_scalar_metric(name, value, step)
        if name == "train/lr":
            times.append((step, time.perf_counter(), time.thread_time()))

    fit(
        model,
        data,
        Loss(criterion, "classes", 10),
        optimizer,
        log=log,
        epochs=epochs,
        amp=MixedPrecision(DEVICE),
        checkpointer=checkpointer,
        val_interval=epochs,
        log_interval=LOG_INTERVAL,
    )
    first, last = times[0], times[-1]
    return tuple(1e6 * (last[which] - first[which]) / (last[0] - first[0]) for which in (1, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the training; the writing takes another")
    parser.add_argument("parts", nargs="*", metavar="PART", help="saving, beside, steps; all of them by default")
    arguments = parser.parse_args()
    parts = arguments.parts or ["saving", "beside", "steps"]
    logging.disable(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    ex = Experiment("checkpointing", base_dir=ROOT / "benchmarks", save_git_info=False)

    @ex.main
    def measure(_run):
        if "saving" in parts:
            report_saving(top, _run, arguments.turns)
        if "beside" in parts:
            report_beside(top, _run, arguments.turns)
        if "steps" in parts:
            report_steps(top, _run, arguments.blocks, arguments.epochs)

    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{DEVICE}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        ex.observers.append(FileObserver(top / "runs"))
        ex.run(options={"--capture": "no"})
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
