"""A failed run on the terminal: the user's lines, without those of the lab and of Sacred that lead to them."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import sacred
import wrapt

__all__ = ["format_failure"]

_LAB = Path(__file__).parents[2]
# Not all of `experiments` and `ingredients`: people put files of their own beside ours.
_OURS = (
    *(_LAB / "experiments" / name for name in ("running", "training", "experiment.py")),
    *(path.parent for path in (_LAB / "ingredients").glob("*/__init__.py")),
    *(_LAB / name for name in ("configs", "observers")),
    *(Path(package.__path__[0]) for package in (sacred, wrapt)),
)
_BEGINNINGS = tuple(str(path) if path.suffix else f"{path}{os.sep}" for path in _OURS)


def format_failure(error: BaseException) -> str:
    """Return a traceback without the lines of the lab and of Sacred, but for the last where the error was raised there.

    A last line says how many were left out.
    """
    whole = traceback.TracebackException.from_exception(error)
    num_hidden = _hide(whole, set())
    text = "".join(whole.format()).rstrip("\n")
    if not num_hidden:
        return text
    lines = "1 line" if num_hidden == 1 else f"{num_hidden} lines"
    return f"{text}\n({lines} of the lab and of Sacred left out; --debug shows them)"


def _hide(part: traceback.TracebackException | None, seen: set[int]) -> int:
    """Take the lines of the lab out of a traceback, and of those that it came from; return how many there were."""
    if part is None or id(part) in seen:
        return 0
    seen.add(id(part))
    before = len(part.stack)
    kept = [frame for frame in part.stack if not frame.filename.startswith(_BEGINNINGS)]
    if part.stack and (not kept or part.stack[-1] is not kept[-1]):
        kept.append(part.stack[-1])
    part.stack[:] = kept
    inner = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return before - len(kept) + sum(_hide(other, seen) for other in inner)
