"""Cost of recording a script: its start and its calls, by `sacristan run`, `sacristan.init`, and other libraries.

    python benchmarks/scripts.py [--rounds 9] [--values 20] [--only start,calls]

Whole processes of small scripts take turns, so that what else the machine does falls on all. The libraries, this one
too, are those that are installed; one that is not is left out, with a line. An editable install starts later than a
wheel: it asks git for its own state, too. The peers are wandb (offline), mlflow (SQLite), aim, trackio and TensorBoard.

"start" is a script that does nothing, and one that starts and finishes a run: milliseconds above `python` of the empty
script, wall and CPU (user and system, of the process and the programs that it starts); the minimum over rounds. The
marks: `sacristan run` 150 ms, `sacristan.init` 100 ms.

"calls" is the time that a call takes the caller: microseconds of CPU of its thread and of wall time, in the quickest of
20 blocks of 25 calls of each process, the median over rounds. One call logs `--values` numbers; TensorBoard and aim
take one number a call. "caught" is the whole call under `sacristan run`. "added" is what catching adds to a call of
TensorBoard: in one process, 200 blocks of the writer's own calls and of caught ones take turns, and the median of their
differences counts. The marks: `run.log` of 20 values 10 us, what catching adds to `add_scalar` 3 us, a caught
`wandb.log` a tenth of wandb's own. On a machine with other load, trust the CPU time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MARKS_MS = {"sacristan run, empty": 150, "sacristan.init": 100}
NUM_BLOCKS, BLOCK = 20, 25


class Library(NamedTuple):
    """A logging library.

    Attributes:
        needs: The package that it is in.
        begin: Code that starts a run.
        log: Code that logs `values` at `step`.
        end: Code that finishes the run.
    """

    needs: str
    begin: str
    log: str
    end: str


_EACH = "for name, value in values.items():\n            "
LIBRARIES = {
    "sacristan": Library(
        "sacristan", "import sacristan\nrun = sacristan.init()", "run.log(values, step)", "run.finish()"
    ),
    "wandb": Library(
        "wandb", 'import wandb\nrun = wandb.init(mode="offline")', "wandb.log(values, step=step)", "run.finish()"
    ),
    "mlflow": Library(
        "mlflow",
        'import mlflow\nmlflow.set_tracking_uri("sqlite:///mlflow.db")\nmlflow.start_run()',
        "mlflow.log_metrics(values, step=step)",
        "mlflow.end_run()",
    ),
    "aim": Library(
        "aim",
        'import aim\nrun = aim.Run(repo=".", log_system_params=False)',
        _EACH + "run.track(value, name=name, step=step)",
        "run.close()",
    ),
    "trackio": Library(
        "trackio", 'import trackio\ntrackio.init(project="p")', "trackio.log(values, step=step)", "trackio.finish()"
    ),
    "tensorboard": Library(
        "tensorboard",
        'from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter("events")',
        _EACH + "writer.add_scalar(name, value, step)",
        "writer.close()",
    ),
}
# Numbers in a call, of libraries that take one at a time.
ONE_A_CALL = ("aim", "tensorboard")

LOOP = """
import json, sys, time

values = {{f"train/metric_{{number}}": 0.5 for number in range({num_values})}}
{begin}


def block(first):
    wall, own = time.perf_counter(), time.thread_time()
    for step in range(first, first + {block}):
        {log}
    return (time.thread_time() - own) / {block} * 1e6, (time.perf_counter() - wall) / {block} * 1e6


times = [block(number * {block}) for number in range({num_blocks})]
{end}
with open("times.json", "w") as stream:
    json.dump([min(own for own, _ in times), min(wall for _, wall in times)], stream)
"""

# Blocks of the writer's own calls and of caught ones take turns; writes how much longer the latter take.
TURNS = """
import json, statistics, time
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("events")
caught = SummaryWriter.add_scalar
own = caught.__wrapped__


def block(add_scalar, first):
    wall, thread = time.perf_counter(), time.thread_time()
    for step in range(first, first + {block}):
        add_scalar(writer, "train/metric", 0.5, step)
    return (time.thread_time() - thread) / {block} * 1e6, (time.perf_counter() - wall) / {block} * 1e6


added = []
for first in range(0, {num_turns} * 2 * {block}, 2 * {block}):
    before, after = block(own, first), block(caught, first + {block})
    added.append((after[0] - before[0], after[1] - before[1]))
with open("times.json", "w") as stream:
    json.dump([statistics.median(column) for column in zip(*added)], stream)
"""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a script, whose libraries write nothing outside of its folder."""
    own = {"HOME": str(home), "WANDB_SILENT": "true", "WANDB_MODE": "offline", "TRACKIO_DIR": str(home / "trackio")}
    found = {**os.environ, **own}
    found.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles the modules that have changed
    return found


def run_once(code: str, *, recorded: bool) -> tuple[float, float, list[float]]:
    """Run a script in a folder of its own; return CPU and wall time in seconds, and the times that it has written."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        Path(folder, "train.py").write_text(code)
        words = [sys.executable, *(["-m", "sacristan", "run"] if recorded else []), "train.py"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(words, cwd=folder, env=environment(Path(folder)), capture_output=True, text=True)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"a script failed:\n{code}\n{done.stderr}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times = Path(folder, "times.json")
        return cpu, wall, json.loads(times.read_text()) if times.exists() else []


def measure_start(libraries: Mapping[str, Library], rounds: int) -> None:
    """Print what starting a script costs, above `python` of an empty one."""
    scripts = {"python": ("", False), "sacristan run, empty": ("", True)}
    for name, library in libraries.items():
        label = "sacristan.init" if name == "sacristan" else name
        scripts[label] = (f"{library.begin}\n{library.end}\n", False)
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in scripts}
    for _ in range(rounds):
        for label, (code, recorded) in scripts.items():
            times[label].append(run_once(code, recorded=recorded)[:2])
    cpu, wall = ({label: min(each[at] for each in times[label]) * 1e3 for label in scripts} for at in (0, 1))
    print(f"\nstart, ms above python ({cpu['python']:.0f} CPU, {wall['python']:.0f} wall)")
    print(f"{'':24}{'CPU':>10}{'wall':>10}{'mark':>10}")
    for label in list(scripts)[1:]:
        above = [f"{value[label] - value['python']:.0f}" for value in (cpu, wall)]
        print(f"{label:24}{above[0]:>10}{above[1]:>10}{MARKS_MS.get(label, ''):>10}")


def measure_calls(libraries: Mapping[str, Library], rounds: int, num_values: int) -> None:
    """Print what a call costs, by each library alone, and what `sacristan run` makes of it where it catches it."""

    def code_of(library: Library, count: int) -> str:
        sizes = {"num_values": count, "block": BLOCK, "num_blocks": NUM_BLOCKS}
        return LOOP.format(**library._asdict(), **sizes)

    ways: dict[str, tuple[str, bool]] = {}
    for name, library in libraries.items():
        count = 1 if name in ONE_A_CALL else num_values
        ways[name] = (code_of(library, count), False)
        if name in ("wandb", "tensorboard"):
            ways[f"{name}, caught"] = (code_of(library, count), True)
        if name == "tensorboard":
            ways["add_scalar, added"] = (TURNS.format(block=BLOCK, num_turns=10 * NUM_BLOCKS), True)
    times: dict[str, list[list[float]]] = {label: [] for label in ways}
    for _ in range(rounds):
        for label, (code, recorded) in ways.items():
            times[label].append(run_once(code, recorded=recorded)[2])
    medians = {
        label: [statistics.median(column) for column in zip(*rows, strict=True)] for label, rows in times.items()
    }
    print(f"\ncalls, us ({num_values} values each; one: {', '.join(ONE_A_CALL)})")
    print(f"{'':24}{'CPU':>10}{'wall':>10}")
    for label, (own, wall) in medians.items():
        print(f"{label:24}{own:>10.1f}{wall:>10.1f}")
    if "tensorboard" in medians:
        print(f"catching add_scalar adds {medians['add_scalar, added'][0]:.1f} us of CPU (mark: 3)")
    if "wandb" in medians:
        share = medians["wandb, caught"][0] / medians["wandb"][0]
        print(f"a caught wandb.log takes {share:.2f} of wandb's own CPU (mark: 0.10)")


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--values", type=int, default=20, help="numbers in a call")
    parser.add_argument("--only", default="start,calls", help="parts to measure")
    options = parser.parse_args()
    found = {name: each for name, each in LIBRARIES.items() if importlib.util.find_spec(each.needs)}
    for name in LIBRARIES.keys() - found.keys():
        print(f"{name} is not installed, and left out")
    print(f"load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}")
    if "start" in options.only:
        measure_start(found, options.rounds)
    if "calls" in options.only:
        measure_calls(found, options.rounds, options.values)


if __name__ == "__main__":
    main()
