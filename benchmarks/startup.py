"""Cost of recording at the start of a run: whole processes, the lab's Experiment against Sacred's, side by side.

    python benchmarks/startup.py [--pairs 15] [--no-torch]

One script in one lab, of which a single file differs: `kit.py` says whose Experiment, Ingredient and observers are
meant. The lab is a git repository with uncommitted changes that holds a copy of this project, so that both look at the
same files; the script imports ten ingredients of three entries each, and torch before anything else, as a training has
it by then (`--no-torch` leaves it out). Sacred's look at git starts git for each source, so it is measured with and
without (`save_git_info=False`); the difference is taken from the quicker one. The processes take turns, so that what
else the machine does falls on all.

"main" is the time from the start of the process to the first line of the main function, "its CPU" the CPU time of the
process until then, with its threads and without the programs it starts; "from torch" begins after the import of
torch, which is the same for all; "whole" and "its CPU" are the process to its end, with an empty main function and
with the programs. The difference is the median over pairs, and the mark is 300 ms to main. On a machine with other
load, trust the CPU time. The rows of MongoDB need the extra `mongod`.

`exp.py` is the project's own, started in the same copy: its time to main, by what it is spent on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MARK_MS = 300
NUM_PARTS = 10

_OURS = """
from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient
from sacristan.observers import FileObserver

def observe(ex, url):
    ex.observers.append(FileObserver("my_runs"))
    if url:
        from sacristan.observers import MongoObserver

        ex.observers.append(MongoObserver(url, "ours"))
"""
_STOCK = """
import warnings
warnings.filterwarnings("ignore")
import functools
import sacred
from sacred.observers import FileStorageObserver, MongoObserver

Experiment = functools.partial(sacred.Experiment, save_git_info={git})
Ingredient = functools.partial(sacred.Ingredient, save_git_info={git})

def observe(ex, url):
    # With both, Sacred's folders take their numbers from the database.
    ex.observers.append(FileStorageObserver("stock_runs_mongo" if url else "stock_runs"))
    if url:
        ex.observers.append(MongoObserver(url=url, db_name="stock"))
"""
KITS = {
    "sacred": _STOCK.format(git=True),
    "sacred, no git": _STOCK.format(git=False),
    "sacristan": _OURS,
}
PEER = "sacred, no git"
OURS = "sacristan"

_PART = '''"""Part {number} of the lab."""

from kit import Ingredient

ingredient = Ingredient("part{number}")


@ingredient.config
def config():
    # a size
    size = {number}
    # a name
    name = "part"
    # a rate, 0 to 1
    rate = 0.5


@ingredient.capture
def make_part(size, name, rate):
    return size, name, rate
'''
_SCRIPT = """
import json, os, sys, time
{torch}
ready = time.monotonic(), time.process_time()
from kit import Experiment, observe
{imports}

ex = Experiment("startup", ingredients=[{parts}])
observe(ex, os.environ.get("STARTUP_URL"))


@ex.config
def config():
    # learning rate
    lr = 0.1


@ex.automain
def main():
    at = time.monotonic(), time.process_time()
    with open(os.environ["STARTUP_TIMES"], "w") as stream:
        json.dump([ready, at], stream)
"""
# Stands in for the command line of exp.py, and ends the process where its main function would begin.
_SPLIT = """
import json, os, runpy, sys, time
sys.path[0] = os.getcwd()
times = {}

def after(name, owner, method):
    function = getattr(owner, method)
    def noted(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        finally:
            note(name)
    setattr(owner, method, noted)

def before(name, owner, method):
    function = getattr(owner, method)
    def noted(*args, **kwargs):
        note(name)
        return function(*args, **kwargs)
    setattr(owner, method, noted)

def note(name):
    times[name] = time.monotonic(), time.process_time()
    if name == "recording":
        with open(os.environ["STARTUP_TIMES"], "w") as stream:
            json.dump(times, stream)
        os._exit(0)

note("interpreter")
import sacristan.experiments
before("imports", sacristan.experiments.Experiment, "run_commandline")
before("config", sacristan.experiments.running.main_file.MainFile, "provenance")
after("recording", sacristan.experiments.running.LabRun, "_execute_pre_run_hooks")
sys.argv = ["exp.py"]
runpy.run_path("exp.py", run_name="__main__")
"""
PHASES = ("interpreter", "imports", "config", "recording")


def make_labs(top, with_torch):
    """Make a lab for each kit: a copy of the project with uncommitted changes, and the script; return their folders."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    labs = {}
    for kit, text in KITS.items():
        lab = labs[kit] = top / kit.replace(", ", "-").replace(" ", "-")
        for name in names.decode().split("\0"):
            if (ROOT / name).is_file():
                (lab / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, lab / name)
        write_script(lab, text, with_torch)
        author = ["-c", "user.name=lab", "-c", "user.email=lab@localhost"]
        for arguments in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "All"]):
            subprocess.run(["git", *arguments], cwd=lab, check=True)
        for number in range(3):
            with (lab / f"part{number}.py").open("a") as stream:
                stream.write("\n# a change that is not committed\n")
        (lab / "notes.md").write_text("An untracked file.\n")
    return labs


def write_script(lab, kit, with_torch):
    (lab / "kit.py").write_text(kit)
    parts = [f"part{number}" for number in range(NUM_PARTS)]
    for number, part in enumerate(parts):
        (lab / f"{part}.py").write_text(_PART.format(number=number))
    script = _SCRIPT.format(
        torch="import torch" if with_torch else "",
        imports=f"import {', '.join(parts)}",
        parts=", ".join(f"{part}.ingredient" for part in parts),
    )
    (lab / "start.py").write_text(script)


def run_once(lab, command, url=None):
    """Run a process; return what it noted, its beginning, and wall and CPU seconds of the whole."""
    times = lab.parent / "times.json"
    environment = {**os.environ, "STARTUP_TIMES": str(times)}
    environment.pop("PYTHONPATH", None)  # the copy is what runs
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles all modules
    if url:
        environment["STARTUP_URL"] = url
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=lab, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.monotonic()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{errors.decode()}")
    return json.loads(times.read_bytes()), began, ended - began, usage.ru_utime + usage.ru_stime


def measure(lab, url):
    """Return milliseconds by column."""
    (ready, at), began, wall, cpu = run_once(lab, ["start.py"], url)
    columns = (at[0] - began, at[1], at[0] - ready[0], at[1] - ready[1], wall, cpu)
    return [1e3 * seconds for seconds in columns]


def take_turns(labs, pairs, url=None):
    """Return the milliseconds of each process, by kit."""
    found = {kit: [] for kit in labs}
    for turn in range(-1, pairs):
        for kit, lab in labs.items():
            row = measure(lab, url)
            if turn >= 0:  # the first one compiles, and makes the folders
                found[kit].append(row)
    return found


def report(title, found):
    print(f"{title:<38}{'main':>8}{'its CPU':>9}{'from torch':>12}{'its CPU':>9}{'whole':>9}{'its CPU':>9}")
    for kit, rows in found.items():
        print_row(kit, map(statistics.median, zip(*rows, strict=True)))
    pairs = zip(found[OURS], found[PEER], strict=True)
    differences = [[ours - theirs for ours, theirs in zip(*pair, strict=True)] for pair in pairs]
    print_row(f"{OURS} - ({PEER})", map(statistics.median, zip(*differences, strict=True)), "+")
    wall, cpu = (sorted(row[column] for row in differences) for column in (2, 3))
    for name, values in (("wall", wall), ("CPU", cpu)):
        print(
            f"  to main, from torch, {name}: {statistics.median(values):+.0f} ms, of the pairs {values[0]:+.0f} to "
            f"{values[-1]:+.0f}; the mark is +{MARK_MS}",
            flush=True,
        )


def print_row(name, row, sign=""):
    widths = (8, 9, 12, 9, 9, 9)
    print(f"{name:<38}" + "".join(f"{value:{sign}{width}.0f}" for value, width in zip(row, widths, strict=True)))


def report_exp(lab, pairs):
    rows = []
    for turn in range(-1, pairs):
        times, began, _, _ = run_once(lab, ["-c", _SPLIT])
        walls, cpus = [began, *(times[phase][0] for phase in PHASES)], [0.0, *(times[phase][1] for phase in PHASES)]
        if turn >= 0:
            rows.append(
                [1e3 * (later - earlier) for marks in (walls, cpus) for earlier, later in itertools.pairwise(marks)]
            )
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    print(f"{'exp.py to main':<38}{'wall':>8}{'CPU':>9}")
    for number, phase in enumerate(PHASES):
        print(f"  {phase:<36}{medians[number]:>8.0f}{medians[number + len(PHASES)]:>9.0f}")
    print(f"{'  in all':<38}{sum(medians[: len(PHASES)]):>8.0f}{sum(medians[len(PHASES) :]):>9.0f}")


@contextlib.contextmanager
def server(folder) -> Iterator[str | None]:
    """Give the URL of a MongoDB, or say why there is none."""
    from sacristan.runs.errors import ServerError
    from sacristan.runs.work.mongod import Mongod

    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(Mongod(folder, 0)).url
        except ServerError as error:
            print(error)
            url = None
        yield url


def report_import(lab, num_turns):
    """Print the time of `import sacristan` above that of the interpreter, as whole processes that take turns."""
    times = {"pass": [], "import sacristan": []}
    for statement in [*times] * num_turns:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], cwd=lab, check=True)
        times[statement].append((time.perf_counter() - begin) * 1000)
    alone, imported = (statistics.median(each) for each in times.values())
    print(f"import sacristan: {imported - alone:.1f} ms above the interpreter, {alone:.0f} ms; the mark is 20 ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--no-torch", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        labs = make_labs(Path(name), not arguments.no_torch)
        print(f"{os.cpu_count()} cores, load {load:.1f}, Python {sys.version.split()[0]}, {arguments.pairs} turns, ms")
        report("files", take_turns(labs, arguments.pairs))
        with server(Path(name) / "mongod") as url:
            if url is not None:
                report("files and MongoDB", take_turns(labs, arguments.pairs, url))
        report_exp(labs[OURS], arguments.pairs)
        report_import(labs[OURS], arguments.pairs)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
