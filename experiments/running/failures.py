"""The end of a command line by an error: its message and exit code, or a traceback of the user's own lines."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import sacred
import wrapt

from sacristan.configs.standard_streams import OutputError
from sacristan.experiments.running.next_steps import resume_command
from sacristan.experiments.running.signals import Terminated
from sacristan.experiments.running.trial import Pruned
from sacristan.ingredients.errors import LabError, RankError, TrainingError
from sacristan.observers.errors import ObserversError

__all__ = ["ending_of", "format_failure", "is_refusal"]

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
    """Return the message and the exit code with which an error ends the command line.

    The message may be empty; it names the rank, except rank 0. None if Sacred shows the error, or nobody does. `folder`
    is that of the record, if any.
    """
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
    return f"{lead}{saved}" + ("" if folder is None else f"; resume with: {resume_command(folder)}")


def format_failure(error: BaseException) -> str:
    """Return the traceback of an error without the lines of the lab and of Sacred.

    The last line stays where the error was raised there. A line at the end counts those left out.
    """
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
