"""Gain of further devices and their settings: two processes beside one, precision, compiling, and waits.

    python benchmarks/devices.py                 all tables that this machine can fill
    python benchmarks/devices.py scaling         one of them

`scaling`: samples a second of `fit` on a CPU-bound MLP, whose batch two ranks share, beside one process and beside a
loop written by hand around torch's DistributedDataParallel; each process has one thread. The three alternate, block by
block.

`checkpointing` and `compile`: time and memory of a training step of a residual network and of a vision transformer with
`model.gradient_checkpointing`, and with `model.compile`, against none, on the GPU if there is one; the same as
`memory_and_speed.py` has of more settings.

`precision`: microseconds a step of `fit` in float32, float16 (on a GPU alone) and bfloat16, as it is and compiled, on
the GPU if there is one; there also how often the loop waits for it between logged values, as
`torch.cuda.set_sync_debug_mode` tells.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.memory_and_speed import compare
from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.experiments.training.callbacks import Callback
from sacristan.experiments.training.loop import fit
from sacristan.ingredients.config.seed import torch_stream
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.epochs import TensorBatches
from sacristan.ingredients.losses import Loss
from sacristan.ingredients.precision import MixedPrecision
from sacristan.ingredients.ranks import Notices, world_of
from sacristan.ingredients.ranks.group import current, join, leave

WIDTH, BATCH, CLASSES = 512, 4096, 10
OPTIONS = {
    "backend": "auto",
    "sync_batch_norm": False,
    "find_unused_parameters": False,
    "check_weights": True,
    "timeout_s": 300.0,
    "shard": False,
}
LOOPS = ("fit, one process", "fit, two ranks", "by hand, two ranks")
# Steps before those that count.
WARM_UP = 20


def make_parts(device):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    model = nn.Sequential(*layers).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()


def make_data(steps, device):
    inputs, targets = torch.randn(BATCH * 8, WIDTH), torch.randint(0, CLASSES, (BATCH * 8,))
    ranks = current()
    samples = {"epoch_samples": steps * BATCH, "ranks": ranks, "least": ranks.size}
    train = TensorBatches(inputs.to(device), targets.to(device), BATCH, shuffle=True, **samples)
    empty = TensorBatches(inputs[:0].to(device), targets[:0].to(device), BATCH)
    return Data(train, empty, empty, "classification", (WIDTH,), CLASSES, (), (), None, None, "")


def samples_per_s(steps):
    """Return what `fit` trains in a second."""
    device = torch.device("cpu")
    model, optimizer, criterion = make_parts(device)
    loss, log = Loss(criterion, "classes", CLASSES), MetricsBuffer().log_scalar_metric
    for count in (WARM_UP, steps):
        result = fit(model, make_data(count, device), loss, optimizer, log=log, epochs=1)
    return result.speed.samples / result.speed.train_s


def samples_per_s_by_hand(steps):
    """Return the same of the loop that a careful person would write for two ranks."""
    ranks = current()
    model, optimizer, criterion = make_parts(torch.device("cpu"))
    model = nn.parallel.DistributedDataParallel(model)
    batches = make_data(8, torch.device("cpu")).train
    inputs, targets, share = batches.inputs, batches.targets, BATCH // ranks.size
    for count in (WARM_UP, steps):
        start = time.perf_counter()
        for step in range(count):
            if step % 8 == 0:
                order = torch.randperm(len(targets), generator=torch_stream(0, "shuffle", step))
            first = step % 8 * BATCH + ranks.rank * share
            chosen = order[first : first + share]
            criterion(model(inputs.index_select(0, chosen)), targets.index_select(0, chosen)).backward()
            optimizer.step()
            optimizer.zero_grad()
        took = time.perf_counter() - start
    return steps * BATCH / took


def work(loop, steps):
    """Be one process of a loop, and print what rank 0 measured."""
    torch.set_num_threads(1)
    world = world_of()
    if world.size > 1:
        join(Notices(world), OPTIONS)
    found = samples_per_s_by_hand(steps) if loop == LOOPS[2] else samples_per_s(steps)
    if world.rank == 0:
        print(json.dumps(found))
    leave(well=True)


def start(loop, steps):
    """Start the processes of a loop, and return what rank 0 measured."""
    size = 1 if loop == LOOPS[0] else 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--work", loop, "--steps", str(steps)]
    started = [
        subprocess.Popen(command, env={**os.environ, **meeting, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{loop}: a process failed; see above")
    return json.loads(outputs[0])


def scaling(arguments):
    print(f"\nscaling: {BATCH} samples a batch, {arguments.steps} steps, medians of {arguments.blocks} blocks")
    found = {loop: [] for loop in LOOPS}
    for _ in range(arguments.blocks):
        for loop, rates in found.items():
            rates.append(start(loop, arguments.steps))
    print(f"{'':<22}{'samples/s':>12}{'x one process':>16}")
    for loop, rates in found.items():
        ratios = [rate / alone for rate, alone in zip(rates, found[LOOPS[0]], strict=True)]
        print(f"{loop:<22}{statistics.median(rates):>12,.0f}{statistics.median(ratios):>16.2f}")


class Waits(Callback):
    """Times the steps after the first ones, and lets torch warn of those that wait for a GPU."""

    def __init__(self, is_cuda):
        self.is_cuda = is_cuda

    def after_step(self, trainer):
        if trainer.place.step == WARM_UP:
            if self.is_cuda:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("warn")
            self.began = time.perf_counter()

    def after_epoch(self, trainer):
        if self.is_cuda:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
        self.took = time.perf_counter() - self.began


def timed_steps(device, dtype, compiled, steps):
    """Return the seconds of a step, and how often a step waited for the GPU."""
    model, optimizer, criterion = make_parts(device)
    amp, waits = MixedPrecision(device, dtype), Waits(device.type == "cuda")
    log, loss = MetricsBuffer().log_scalar_metric, Loss(criterion, "classes", CLASSES)
    trained = torch.compile(model) if compiled else model
    options = {"amp": amp, "log": log, "epochs": 1, "log_interval": 10 * steps, "callbacks": [waits]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(trained, make_data(WARM_UP + steps, device), loss, optimizer, **options)
    # The last step is logged, for which the device is waited for.
    num_waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in said)
    return waits.took / steps, num_waits


def precision(arguments):
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if is_cuda else "cpu")
    name = torch.cuda.get_device_name() if is_cuda else "CPU"
    print(f"\nprecision: {name}, {arguments.steps} steps, medians of {arguments.blocks} blocks")
    print(f"{'':<24}{'us a step':>12}{'x float32':>12}" + f"{'waits in all':>14}" * is_cuda)
    usual = None
    for compiled in (False, True):
        for dtype in (
            ("off", "float16", "bfloat16") if is_cuda else ("off", "bfloat16")
        ):  # a CPU takes ten times as long
            found = [timed_steps(device, dtype, compiled, arguments.steps) for _ in range(arguments.blocks)]
            step_s = statistics.median(seconds for seconds, _ in found)
            usual = usual or step_s
            name = f"{'float32' if dtype == 'off' else dtype}{', compiled' if compiled else ''}"
            print(f"{name:<24}{1e6 * step_s:>12.1f}{step_s / usual:>12.2f}" + f"{found[-1][1]:>14}" * is_cuda)


def checkpointing(arguments):
    show_setting("model.gradient_checkpointing", arguments)


def compiling(arguments):
    show_setting("model.compile", arguments)


def show_setting(name, arguments):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"\n{name}: medians of {arguments.setting_steps} steps")
    compare(device, batch=arguments.setting_batch, steps=arguments.setting_steps, names=[name])


TABLES = {"scaling": scaling, "checkpointing": checkpointing, "compile": compiling, "precision": precision}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; by default all")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--setting-steps", type=int, default=10, help="of the tables checkpointing and compile")
    parser.add_argument("--setting-batch", type=int, default=32, help="of the same")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.steps)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    unknown = [name for name in arguments.tables if name not in TABLES]
    if unknown:
        parser.error(f"got {', '.join(unknown)}, expected of {', '.join(TABLES)}")
    for name in arguments.tables or TABLES:
        TABLES[name](arguments)


if __name__ == "__main__":
    main()
