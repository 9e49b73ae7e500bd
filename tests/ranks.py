"""Trainings by several processes, for tests: ranks started as `torchrun` would, without it, and an experiment."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.processes import PIPE, Process

__all__ = ["EXPERIMENT", "started_ranks", "wait_for_all", "write_experiment"]

# An experiment whose ranks may die: RANK:STEP:HOW in FAULT says which one, after which step, and how; only in the first
# attempt of a launcher. Without a setting, Sacred draws its seed.
EXPERIMENT = '''"""A training by some ranks."""

import ctypes
import os
import resource
import signal

from sacristan.experiments import Callback, Experiment, loop, results, supervised
from sacristan.ingredients import checkpoint, data, device

ex = Experiment("ranked", ingredients=supervised.ingredients())


class Fault(Callback):
    def __init__(self):
        rank, step, self.how = os.environ.get("FAULT", "0:0:none").split(":")
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        self.is_here = os.environ.get("RANK") == rank and is_first
        self.step = int(step)

    def after_step(self, trainer):
        if self.is_here and trainer.place.step == self.step:
            if self.how == "raise":
                raise ValueError("boom")
            if self.how == "terminate":  # as C++ code does that cannot go on
                ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
            if self.how == "drift":
                next(trainer.model.parameters()).data.view(-1)[0] += 1e-6
                return
            if self.how == "full":  # no file may grow to the size of a state
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
                return
            os.kill(os.getpid(), getattr(signal, self.how))


@ex.main
def main(_config, _run, seed):
    where = device.make_device(seed)
    print("hello from", os.environ.get("RANK"))
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    criterion, network, precision = supervised._build(batches, where, seed, _config)
    supervised.train(_run, _config, network, batches, criterion, precision, callbacks=[Fault()])
    _run.info["predicted"] = loop.predict(network, batches.test, criterion, precision)["predictions"].tolist()
    return results.report_test(_run, loop.evaluate(network, batches.test, criterion, precision), criterion)


if __name__ == "__main__":
    ex.run_commandline()
'''


def write_experiment(folder: Path) -> Path:
    """Write the experiment into a folder, and return its file."""
    path = folder / "ranked.py"
    path.write_text(EXPERIMENT)
    return path


@contextlib.contextmanager
def started_ranks(
    words: Sequence[str | Path],
    cwd: Path,
    num: int = 2,
    environ: Mapping[str, str] | None = None,
    own: Sequence[Sequence[str]] = ((), ()),
) -> Iterator[list[Process]]:
    """Start a Python script in some processes that meet as ranks, without a launcher.

    Args:
        words: The script and its arguments.
        cwd: The folder to start in.
        num: Number of ranks.
        environ: Further variables.
        own: Further arguments of each rank.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Process(
                    [sys.executable, *map(str, words), *own[rank]],
                    cwd=cwd,
                    env={**os.environ, **meeting, **(environ or {}), "RANK": str(rank)},
                    stdout=PIPE,
                    stderr=PIPE,
                    text=True,
                )
            )
            for rank in range(num)
        ]


def wait_for_all(ranks: Sequence[Process], timeout_s: float = 120) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of each rank."""
    found = []
    for rank in ranks:
        output, errors = rank.communicate(timeout=timeout_s)
        found.append((rank.returncode, output, errors))
    return found
