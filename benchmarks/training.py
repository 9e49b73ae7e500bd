"""The lab's loop beside Lightning, ignite, Accelerate, skorch and loops by hand: time a step, and peak memory.

    python benchmarks/training.py [--models mlp cnn vit gpt] [--dtypes off bfloat16] [--blocks 11] [--threads 1]

Every row trains the same model from the same weights on the same data in memory, with AdamW, shuffled, without
validation. The libraries read them by a DataLoader, as their users do, and have their logging, bars and checkpoints
switched off; `fit` logs as a run does, every 50 steps.

Blocks of the loops alternate, each time in another order, so that what else the machine does falls on all. A step is
timed between two calls of the model, so that setting up counts for nobody, and the ends of epochs for everybody. Ratios
are the median, over the blocks, of the ratio to the loop by hand that slices tensors. Peak memory is that of a process
that trains one row, the library's import included. A library that is not installed is left out.

The allocator of glibc keeps what is freed, for every row. As it comes, it gives the end of the heap back to the kernel
and takes it again within a step, 40 to 400 page faults of each: by how the heap lies, and no doing of a loop.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import importlib
import json
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(LAB))

# As the lab lets threads wait, and before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.experiments.training.loop import fit
from sacristan.ingredients.datasets.batches import Data, TensorBatches
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.models.networks import CNN, GPT, MLP, ViT
from sacristan.ingredients.precision import MixedPrecision

VOCABULARY, CONTEXT = 96, 64


class TokenLoss(nn.Module):
    """Cross-entropy of the token that follows each: scores (B, T, V), tokens (B, T)."""

    def forward(self, scores, tokens):
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


@dataclasses.dataclass
class Work:
    """A model, its data and how long it is trained.

    Attributes:
        make: Makes the model.
        batch: Samples in a batch.
        steps: Batches in an epoch.
        epochs: Epochs in a block; the first one warms up.
    """

    make: Callable[[], nn.Module]
    batch: int
    steps: int
    epochs: int

    def data(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        samples = self.batch * self.steps
        if self.make is make_gpt:
            text = torch.randint(0, VOCABULARY, (samples, CONTEXT + 1))
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        return torch.randn(samples, 1, 8, 8), torch.randint(0, 10, (samples,))


def make_gpt():
    return GPT((CONTEXT,), VOCABULARY, width=64, depth=2, heads=2)


WORK = {
    "mlp": Work(lambda: MLP((1, 8, 8), 10), batch=64, steps=100, epochs=6),
    "cnn": Work(lambda: CNN((1, 8, 8), 10), batch=64, steps=10, epochs=4),
    "vit": Work(lambda: ViT((1, 8, 8), 10), batch=64, steps=10, epochs=4),
    "gpt": Work(make_gpt, batch=16, steps=10, epochs=4),
}


class Meter:
    """Takes the time from the first call of the model after the first epoch to its last one, in training mode."""

    def __init__(self, model: nn.Module, work: Work) -> None:
        self.num_calls = 0
        self.first, self.last = work.steps, work.steps * work.epochs - 1
        model.register_forward_pre_hook(self)

    def __call__(self, model, _):
        if not model.training:  # `fit` looks at the outputs of some zeros first
            return
        if self.num_calls == self.first:
            self.start = time.perf_counter(), time.process_time()
        elif self.num_calls == self.last:
            self.end = time.perf_counter(), time.process_time()
        self.num_calls += 1

    def us_a_step(self) -> tuple[float, float]:
        """Return the wall and CPU time of a step, in microseconds."""
        if self.num_calls != self.last + 1:
            raise RuntimeError(f"the model was called {self.num_calls} times, expected {self.last + 1}")
        steps = (self.last - self.first) / 1e6
        return tuple((end - start) / steps for start, end in zip(self.start, self.end, strict=True))


@dataclasses.dataclass
class Parts:
    """The arguments of every loop."""

    model: nn.Module
    criterion: nn.Module
    inputs: Tensor
    targets: Tensor
    work: Work
    dtype: str

    def optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loader(self):
        return DataLoader(TensorDataset(self.inputs, self.targets), self.work.batch, shuffle=True)

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16) if self.dtype == "bfloat16" else contextlib.nullcontext()


# ---------------------------------------------------------------------- the loops


def by_hand(parts):
    """The loop that slices tensors."""
    model, criterion, optimizer = parts.model.train(), parts.criterion, parts.optimizer()
    for _ in range(parts.work.epochs):
        for chosen in torch.randperm(len(parts.targets)).split(parts.work.batch):
            with parts.autocast():
                loss = criterion(model(parts.inputs[chosen]), parts.targets[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def by_hand_with_loader(parts):
    """The same with a DataLoader."""
    model, criterion, optimizer, loader = parts.model.train(), parts.criterion, parts.optimizer(), parts.loader()
    for _ in range(parts.work.epochs):
        for inputs, targets in loader:
            with parts.autocast():
                loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def by_fit(parts):
    train = TensorBatches(parts.inputs, parts.targets, parts.work.batch, shuffle=True)
    empty = TensorBatches(parts.inputs[:0], parts.targets[:0], parts.work.batch)
    shape = tuple(parts.inputs.shape[1:])
    data = Data(train, empty, empty, "classification", shape, 10, (), (), None, None, "")
    fit(
        parts.model,
        data,
        task_of(parts),
        parts.optimizer(),
        log=MetricsBuffer().log_scalar_metric,
        epochs=parts.work.epochs,
        amp=MixedPrecision(torch.device("cpu"), parts.dtype),
    )


def task_of(parts):
    """Return the loss as `fit` takes it: of classes, or of a task with targets of its own kind."""
    if not isinstance(parts.criterion, TokenLoss):
        return Loss(parts.criterion, "classes", 10)
    from sacristan.experiments.training import Task

    class NextToken(Task):
        def loss(self, model, batch):
            tokens, following = batch
            return parts.criterion(model(tokens), following)

    return NextToken()


def by_lightning(parts):
    lightning = importlib.import_module("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = parts.model

        def training_step(self, batch, index):
            inputs, targets = batch
            return parts.criterion(self.model(inputs), targets)

        def configure_optimizers(self):
            return parts.optimizer()

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=parts.work.epochs,
        precision="bf16-mixed" if parts.dtype == "bfloat16" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), parts.loader())


def by_ignite(parts):
    engine = importlib.import_module("ignite.engine")
    model, criterion, optimizer = parts.model, parts.criterion, parts.optimizer()

    def step(_, batch):
        model.train()
        optimizer.zero_grad()
        inputs, targets = batch
        with parts.autocast():
            loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()  # as ignite's own create_supervised_trainer does

    engine.Engine(step).run(parts.loader(), max_epochs=parts.work.epochs)


def by_accelerate(parts):
    accelerate = importlib.import_module("accelerate")
    precision = "bf16" if parts.dtype == "bfloat16" else "no"
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    model, optimizer, loader = accelerator.prepare(parts.model, parts.optimizer(), parts.loader())
    model.train()
    for _ in range(parts.work.epochs):
        for inputs, targets in loader:
            with accelerator.autocast():
                loss = parts.criterion(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    importlib.import_module("accelerate.state").AcceleratorState._reset_state(reset_partial_state=True)


def by_skorch(parts):
    skorch = importlib.import_module("skorch")

    class Net(skorch.NeuralNet):
        def train_step_single(self, batch, **fit_params):
            with parts.autocast():
                return super().train_step_single(batch, **fit_params)

    net = Net(
        parts.model,
        criterion=type(parts.criterion),
        optimizer=torch.optim.AdamW,
        lr=1e-3,
        max_epochs=parts.work.epochs,
        batch_size=parts.work.batch,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks="disable",
        verbose=0,
    )
    net.fit(parts.inputs, parts.targets)


# By row: the loop, and the library that it needs.
LOOPS = {
    "by hand, slices": (by_hand, "torch"),
    "by hand, DataLoader": (by_hand_with_loader, "torch"),
    "sacristan": (by_fit, "experiments"),
    "ignite": (by_ignite, "ignite"),
    "skorch": (by_skorch, "skorch"),
    "accelerate": (by_accelerate, "accelerate"),
    "lightning": (by_lightning, "lightning"),
}
BASE = "by hand, slices"


# ---------------------------------------------------------------------- measuring


def train(row: str, name: str, dtype: str) -> tuple[float, float]:
    """Train one block, and return the wall and CPU time of a step."""
    work = WORK[name]
    inputs, targets = work.data()
    torch.manual_seed(0)
    model = work.make()
    meter = Meter(model, work)
    criterion = TokenLoss() if name == "gpt" else nn.CrossEntropyLoss()
    LOOPS[row][0](Parts(model, criterion, inputs, targets, work, dtype))
    return meter.us_a_step()


def peak_mib() -> float:
    """Return the most memory that this process had at once."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def peak_of(row: str, name: str, dtype: str, threads: int) -> float:
    """Return the peak memory of a process that trains one block."""
    command = [sys.executable, __file__, "--peak", row, name, dtype, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(rows: list[str], name: str, dtype: str, blocks: int) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each block of each row."""
    took = {row: [] for row in rows}
    for block in range(blocks + 1):
        for row in random.Random(block).sample(rows, len(rows)):
            gc.collect()
            times = train(row, name, dtype)
            if block:  # the first one warms up
                took[row].append(times)
    return took


def report(took: dict[str, list[tuple[float, float]]], name: str, dtype: str, threads: int, peaks: bool) -> None:
    """Print the table of one model and dtype."""
    print(f"\n{name + ', ' + dtype:<22}{'wall':>10}{'CPU':>10}{'x wall':>9}{'x CPU':>9}" + f"{'peak MiB':>11}" * peaks)
    for row, times in took.items():
        wall, cpu = (statistics.median(each) for each in zip(*times, strict=True))
        ratios = (
            statistics.median(mine[kind] / base[kind] for mine, base in zip(times, took[BASE], strict=True))
            for kind in (0, 1)
        )
        shown = "".join(f"{ratio:>9.3f}" for ratio in ratios)
        peak = f"{peak_of(row, name, dtype, threads):>11.0f}" if peaks else ""
        print(f"{row:<22}{wall:>10,.0f}{cpu:>10,.0f}{shown}{peak}", flush=True)


def keep_memory():
    """Let glibc keep what is freed, up to 512 MiB, and map nothing below 32 MiB by itself."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-1, 512 * 2**20)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD


def quieten():
    """Let libraries say nothing between the tables."""
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger(name).propagate = False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--dtypes", nargs="+", choices=("off", "bfloat16"), default=["off", "bfloat16"])
    parser.add_argument("--rows", nargs="+", choices=LOOPS, default=list(LOOPS), metavar="ROW")
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-peaks", action="store_true", help="leave out the peak memory, a process for each row")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    if options.peak:
        train(*options.peak)
        print(peak_mib())
        return
    if options.threads == 1 and hasattr(os, "sched_setaffinity"):
        # One core, so that moving between cores is no part of the difference.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = [BASE]
    for row in options.rows:
        try:
            importlib.import_module(LOOPS[row][1])
        except ImportError:
            print(f"{row}: {LOOPS[row][1]} is not installed, left out")
        else:
            rows += [row] if row != BASE else []
    quieten()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads, "
        f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}; us a step, medians of {options.blocks} blocks; "
        f"x is the ratio to {BASE}"
    )
    for name in options.models:
        for dtype in options.dtypes:
            report(compare(rows, name, dtype, options.blocks), name, dtype, options.threads, not options.no_peaks)


if __name__ == "__main__":
    main()
