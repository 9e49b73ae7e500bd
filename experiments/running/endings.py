"""The end of a run on the terminal: message, traceback and exit code of an error, or the commands to type next."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

import sacred
import wrapt

from sacristan.configs.standard_streams import OutputError
from sacristan.experiments.running.captured_output import terminal
from sacristan.experiments.running.main_file import module_of
from sacristan.experiments.running.signals import Terminated
from sacristan.experiments.running.trial import Pruned
from sacristan.ingredients.errors import LabError, RankError, TrainingError
from sacristan.observers.errors import ObserversError
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.record.files import shown_path
from sacristan.observers.record.identity import RECORD_TO_VARIABLE
from sacristan.observers.record.schema import CONFIG

_LAB = Path(__file__).parents[2]
# Not all of `experiments` and `ingredients`: people put files of their own beside ours.
_OURS = (
    *(_LAB / "experiments" / name for name in ("running", "training", "experiment.py")),
    *(path.parent for path in (_LAB / "ingredients").glob("*/__init__.py")),
    *(_LAB / name for name in ("configs", "observers")),
    *(Path(package.__path__[0]) for package in (sacred, wrapt)),
)
_BEGINNINGS = tuple(str(path) if path.suffix else f"{path}{os.sep}" for path in _OURS)


def ending_of(error: BaseException, folder: Path | None, rank: int, *, debug: bool) -> tuple[str, int] | None:
    """Return message and exit code for an error, with the rank unless it is 0; None if Sacred shows it, or nobody."""
    which = f"rank {rank}: " if rank else ""
    if isinstance(error, Terminated):
        return f"{which}interrupted ({error.signal}){_way_on(folder, error.step, '; ')}", error.code
    if isinstance(error, KeyboardInterrupt):
        return f"{which}interrupted (Ctrl-C){_way_on(folder, lead='; ')}", 130
    if isinstance(error, Pruned):
        return f"{which}{error}", 0
    if isinstance(error, OutputError):
        return "", error.code  # `Experiment.run_commandline` prints it
    if debug or not isinstance(error, Exception):
        return None
    if isinstance(error, LabError | ObserversError):
        return f"{which}error: {error}", 1
    # Sacred's own errors say whether they are shown without a traceback.
    if not getattr(error, "print_traceback", True) or getattr(error, "print_usage", False):
        return None
    return f"{format_failure(error)}{_way_on(folder, lead=chr(10))}", 1


def is_refusal(error: BaseException) -> bool:
    """Return whether the error that ended a run means that the lab rejected its settings or data."""
    return isinstance(error, LabError) and not isinstance(error, TrainingError | RankError)


def _way_on(folder: Path | None, step: int | None = None, lead: str = "") -> str:
    """Return how to resume from the newest state, after the text `lead`; empty if there is no state."""
    if step is None and (folder is None or not (folder / "checkpoints" / "last.pt").is_file()):
        return ""
    saved = "a state of the training is saved" if step is None else f"the state after step {step} is saved"
    return f"{lead}{saved}" + ("" if folder is None else f"; resume with: {_runs_command('resume', folder)}")


def format_failure(error: BaseException) -> str:
    """Return a traceback without the lab's and Sacred's lines, but where it was raised; the last line counts them."""
    whole = traceback.TracebackException.from_exception(error)
    num_hidden = _hide(whole, set())
    text = "".join(whole.format()).rstrip("\n")
    if not num_hidden:
        return text
    lines = "1 line" if num_hidden == 1 else f"{num_hidden} lines"
    return f"{text}\n({lines} of the lab and of Sacred left out; --debug shows them)"


def _hide(part: traceback.TracebackException | None, seen: set[int]) -> int:
    """Remove the lab's lines from a traceback and those of its causes, and return how many."""
    if part is None or id(part) in seen:
        return 0
    seen.add(id(part))
    before = len(part.stack)
    kept = [frame for frame in part.stack if not frame.filename.startswith(_BEGINNINGS)]
    last = part.stack[-1:]
    part.stack[:] = kept if kept[-1:] == last else kept + last
    inner = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return before - len(part.stack) + sum(_hide(other, seen) for other in inner)


# ---------------------------------------------------------------------- commands to type next

# The entries of `meta_info` that name what has started a run, unless a person did.
_STARTERS = ("parent", "queued", "sweep")


def show_next_steps(run: Any, commands: Collection[str]) -> None:
    """Show what to type after a training, on a terminal; not in CI, in runs of sweeps, or above INFO."""
    stream = terminal()
    folder = next((each.place for each in run.observers if isinstance(each, FileObserver)), None)
    if stream is None or folder is None or not _is_for_a_person(run):
        return
    steps = _next_steps(run, Path(folder), commands)
    *first, last = steps
    intent = f"{', '.join(first)} or {last}" if first else last
    print(f"Next, {intent}:", *(f"  {command}" for command in steps.values()), sep="\n", file=stream, flush=True)


def _is_for_a_person(run: Any) -> bool:
    is_watched = sys.stdout.isatty() and not os.environ.get("CI") and run.run_logger.isEnabledFor(logging.INFO)
    return is_watched and not any(name in run.meta_info for name in _STARTERS)


def _next_steps(run: Any, folder: Path, commands: Collection[str]) -> dict[str, str]:
    """Return the commands by purpose."""
    steps = {"look at the run": _runs_command("show", folder)}
    if importlib.util.find_spec("plotly") is not None:
        steps["open the board"] = _runs_command("board", folder, names_run=False)
    program, best = _program(), folder / "checkpoints" / "best.pt"
    if program is not None and "evaluate" in commands and best.is_file():
        is_usual = RECORD_TO_VARIABLE not in os.environ and "--file_storage" not in run.launch_options
        source = f"run:{folder.name}" if is_usual else str(best)
        words = ["evaluate", "with", str(folder / CONFIG), f"checkpoint.path={source}"]
        steps["evaluate its best weights"] = f"{program} {shlex.join(words)}"
    return steps


def _runs_command(command: str, folder: Path, *, names_run: bool = True) -> str:
    usual = os.environ.get("SACRISTAN_STORE") or "my_runs"
    store = Path(shown_path(folder.absolute().parent))
    where = [] if Path(usual).absolute() == store.absolute() else ["--store", str(store)]
    program = "sacristan" if _is_found("sacristan") else f"{_python()} -m sacristan"
    return f"{program} {shlex.join([*where, command, *([folder.name] if names_run else [])])}"


def _python() -> str:
    return "python" if _is_found("python") else shlex.quote(sys.orig_argv[0] or sys.executable)


def _is_found(program: str) -> bool:
    """Return whether a shell finds the program of this environment by its name."""
    path = shutil.which(program)
    return path is not None and Path(path).absolute().parent == Path(sys.executable).absolute().parent


def _program() -> str | None:
    """Return the command that starts the experiment again; None if no file or module started it."""
    main = vars(sys.modules["__main__"])
    module, path = module_of(main), main.get("__file__")
    if module is not None:
        return f"{_python()} -m {module}"
    return None if path is None else f"{_python()} {shlex.quote(shown_path(Path(path).absolute()))}"
