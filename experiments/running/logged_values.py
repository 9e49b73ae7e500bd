"""Names, values and steps as they are logged, made into what a record holds, or refused where they are logged."""

from __future__ import annotations

import math
import operator
import reprlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacred

from observers.errors import MetricError

__all__ = ["as_name", "as_number", "as_step", "caller", "check_countable", "located"]

# Frames in here are not the caller's.
_OURS = (str(Path(__file__).parent), str(Path(sacred.__file__).parent))
# NumPy's kinds of what is no number: complex, times, objects, texts.
_NO_NUMBERS = frozenset("cmMOSU")
_LAST_STEP = 2**63 - 1


def as_name(name: Any) -> str:
    """Return the name of a metric.

    Raises:
        MetricError: If it is no string, or empty.
    """
    if not isinstance(name, str):
        raise MetricError(f"got the name {_shown(name)}, expected a string such as 'train/loss'")
    if not name:
        raise MetricError("got an empty name, expected one such as 'train/loss'")
    return str(name)


def as_number(value: Any) -> float | int | Callable[[], float]:
    """Return a value as a number; of one on a GPU, what fetches it later, so that nothing waits for the device.

    Numbers are those of Python and NumPy, tensors and arrays with one element, and what else can be made a float. NaN
    and infinities are numbers.

    Raises:
        MetricError: If it is no number, or more than one.
    """
    if hasattr(value, "detach"):
        _check_single(value, value.numel())
        if value.is_complex():
            raise MetricError(f"got a complex tensor ({value.dtype}), expected a real number, such as its .abs()")
        value = value.detach()
        if value.is_meta:
            raise MetricError("got a tensor on the device meta, which has no value; log one that was computed")
        if value.device.type != "cpu":
            return value.clone().item
        return value.item()
    if hasattr(value, "item") and hasattr(value, "dtype"):
        _check_single(value, value.size)
        if getattr(value.dtype, "kind", "f") in _NO_NUMBERS:
            raise MetricError(f"got an array of {value.dtype}, expected a number")
        value = value.item()
    if isinstance(value, float | int):
        return value
    if isinstance(value, str | bytes | None) or not hasattr(type(value), "__float__"):
        raise MetricError(f"got {_shown(value)}, expected a number")
    try:
        return float(value)
    except Exception as error:
        raise MetricError(f"got {_shown(value)}, which cannot be made a float ({type(error).__name__})") from error


def _check_single(value: Any, size: int) -> None:
    if size != 1:
        shape = tuple(value.shape)
        advice = "log its mean, or each entry under a name of its own" if size else "log it only when there is one"
        raise MetricError(f"got a {type(value).__name__} of shape {shape}, expected one number; {advice}")


def as_step(step: Any) -> int | float | None:
    """Return a step as an int of 64 bits, or as a float that is finite; None stays.

    Raises:
        MetricError: If it is no number, not finite, beyond 64 bits, or more than one number.
    """
    if step is None or type(step) is int:
        number = step
    elif hasattr(step, "numel") or (hasattr(step, "item") and hasattr(step, "dtype")):
        _check_single(step, step.numel() if hasattr(step, "numel") else step.size)
        number = step.item()
    else:
        number = step
    if number is not None and not isinstance(number, float):
        try:
            number = int(operator.index(number))
        except TypeError:
            raise MetricError(
                f"got the step {_shown(step)}, expected an integer, a finite float, or None to count"
            ) from None
    if isinstance(number, float) and not math.isfinite(number):
        raise MetricError(f"got the step {number}, expected an integer, a finite float, or None to count")
    if isinstance(number, int) and not -(2**63) <= number <= _LAST_STEP:
        raise MetricError("got a step beyond 64 bits, expected one from -2**63 to 2**63 - 1")
    return float(number) if isinstance(number, float) else number


def check_countable(last: int | float) -> None:
    """Check that a step can be counted on from the last one.

    Raises:
        MetricError: If that is the greatest integer of 64 bits.
    """
    if isinstance(last, int) and last >= _LAST_STEP:
        raise MetricError("got no step, and the last one is 2**63 - 1, which none comes after; give a step")


def located(problem: object, call: str, name: Any = None) -> str:
    """Return what is wrong with the call that it comes from: its function, the name given to it, file and line."""
    given = f"({reprlib.repr(name)})" if isinstance(name, str) else ""
    return f"{call}{given} in {caller()}: {problem}"


def caller() -> str:
    """Return file and line from which the lab was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def _shown(value: Any) -> str:
    """Return a value as a message shows it: short, and also of an object that has no text."""
    if value is None:
        return "None"
    try:
        text = reprlib.repr(value)
    except Exception:
        text = ""
    return f"{text} ({type(value).__name__})".lstrip()
