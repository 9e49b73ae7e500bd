"""Overhead of `sacristan.experiments.training.loop.fit` over a loop written by hand: microseconds a step, in one run.

    python benchmarks/loop_overhead.py

The same 64-64-10 MLP, the same data in memory, the same order of batches, the same optimizer and AMP setting. Blocks of
the loops alternate, so that what else the machine does falls on all; the median of the differences counts.
`fit` logs as a run does every 50 steps, the loops by hand log nothing.

There are two loops by hand: one that cuts a batch by `inputs[chosen]`, as people write it, and one that cuts it by
`index_select`, as `fit` does, to show what the loop costs without that.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.experiments.training.loop import fit
from sacristan.ingredients.config.seed import torch_stream
from sacristan.ingredients.datasets.batches import Data, TensorBatches
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.precision import DTYPES, MixedPrecision

SAMPLES, BATCH = 12_800, 64


def make_parts(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), nn.CrossEntropyLoss()


def by_hand(inputs, targets, epochs, dtype, device, cut=Tensor.__getitem__):
    """The loop that a careful person would write for this AMP setting."""
    model, optimizer, criterion = make_parts(device)
    mixed = DTYPES[dtype]
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "float16")
    model.train()
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(targets), generator=torch_stream(0, "shuffle", epoch)).to(device)
        for first in range(0, len(targets), BATCH):
            chosen = order[first : first + BATCH]
            with torch.autocast(device.type, mixed) if mixed else contextlib.nullcontext():
                loss = criterion(model(cut(inputs, chosen)), cut(targets, chosen))
            if dtype == "float16":
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
    return wait(device, start)


def by_hand_selecting(*arguments):
    """The same with the quicker way to cut a batch."""
    return by_hand(*arguments, cut=lambda tensor, chosen: tensor.index_select(0, chosen))


def by_fit(inputs, targets, epochs, dtype, device):
    model, optimizer, criterion = make_parts(device)
    train = TensorBatches(inputs, targets, BATCH, shuffle=True)
    empty = TensorBatches(inputs[:0], targets[:0], BATCH)
    data = Data(train, empty, empty, "classification", (64,), 10, (), (), None, None, "")
    log = MetricsBuffer().log_scalar_metric
    amp = MixedPrecision(device, dtype)
    start = time.perf_counter()
    fit(model, data, Loss(criterion, "classes", 10), optimizer, log=log, epochs=epochs, amp=amp, val_interval=epochs)
    return wait(device, start)


def wait(device, start):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=31)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        # One core, so that moving between cores is no part of the difference.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    inputs, targets = torch.randn(SAMPLES, 64, device=device), torch.randint(0, 10, (SAMPLES,), device=device)
    steps = arguments.epochs * SAMPLES // BATCH
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {device}, torch {torch.__version__}")
    print(f"{arguments.blocks} blocks of {steps} steps; us a step, and the median difference from each loop by hand")
    print(f"{'amp':<10}{'fit':>8}{'by hand':>10}{'':>8}{'index_select':>14}")
    for dtype in ("off", "bfloat16", "float16"):
        took = {loop: [] for loop in (by_fit, by_hand, by_hand_selecting)}
        for block in range(arguments.blocks + 1):
            for loop, times in took.items():
                gc.collect()
                us = 1e6 * loop(inputs, targets, arguments.epochs, dtype, device) / steps
                if block:  # The first one warms up.
                    times.append(us)
        line = f"{dtype:<10}{statistics.median(took[by_fit]):>8.1f}"
        for loop in (by_hand, by_hand_selecting):
            differences = [fit_us - hand_us for fit_us, hand_us in zip(took[by_fit], took[loop], strict=True)]
            line += f"{statistics.median(took[loop]):>10.1f}{statistics.median(differences):>+8.1f}"
        print(line)


if __name__ == "__main__":
    main()
