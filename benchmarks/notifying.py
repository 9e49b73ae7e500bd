"""The cost of notifications: microseconds a logged step and seconds at the end of a run, with a receiver that hangs.

    python benchmarks/notifying.py

Pairs of recorded runs alternate, one without addresses and one with the address of a receiver that takes each message
and never answers. Each run logs a point a step beside a small matrix product. In the middle it has its first NaN and an
alert, and at the end it fails, so three messages are being sent. The medians of the differences count.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver


def run_once(address: str, num_steps: int) -> tuple[float, float, float]:
    """Record a run; return seconds of its steps, of its alert, and from its last step to its end."""
    os.environ["SACRISTAN_NOTIFY"] = address
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        ex = Experiment("notifying", base_dir=Path(folder), save_git_info=False, system_metrics_s=None)
        ex.observers.append(FileObserver(folder))

        @ex.main
        def main(_run):
            matrix = np.ones((64, 64), np.float32)
            start = time.perf_counter()
            for step in range(num_steps):
                matrix = matrix @ matrix / 64
                _run.log_scalar("loss", float("nan") if step == num_steps // 2 else 1.0, step)
                if step == num_steps // 2:
                    before = time.perf_counter()
                    _run.alert("look here", level="error")
                    times["alert"] = time.perf_counter() - before
            times["loop"] = time.perf_counter() - start
            times["last"] = time.perf_counter()
            raise RuntimeError("fails")

        with contextlib.suppress(RuntimeError):
            ex.run(options={"--capture": "no"})
        return times["loop"], times["alert"], time.perf_counter() - times["last"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200_000, help="steps of each run")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs")
    arguments = parser.parse_args()
    logging.disable()
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:  # the kernel connects, and nobody reads
        address = f"json://127.0.0.1:{deaf.getsockname()[1]}/"
        run_once("", arguments.steps // 10)
        pairs = [(run_once("", arguments.steps), run_once(address, arguments.steps)) for _ in range(arguments.pairs)]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {arguments.pairs} pairs of {arguments.steps:,} steps"
    )
    print(f"{'':<24}{'without':>12}{'with':>12}{'difference':>12}")
    for name, place, factor in (
        ("a step, µs", 0, 1e6 / arguments.steps), ("the alert, ms", 1, 1e3), ("end of the run, s", 2, 1.0)
    ):  # fmt: skip
        columns = [[one[side][place] * factor for one in pairs] for side in (0, 1)]
        differences = [second - first for first, second in zip(*columns, strict=True)]
        medians = [statistics.median(column) for column in (*columns, differences)]
        print(f"{name:<24}" + "".join(f"{value:>12.3f}" for value in medians))


if __name__ == "__main__":
    main()
