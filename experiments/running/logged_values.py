"""Checks of the names, values and steps that are logged, with the line of the caller in each error."""

from __future__ import annotations

import math
import operator
import reprlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sacred

from sacristan.observers.errors import MetricError

# Frames in here are not the caller's.
_OURS = tuple(map(str, (Path(__file__).parent, Path(__file__).parents[1] / "scripts", Path(sacred.__file__).parent)))
# NumPy's kinds that are no numbers: complex, times, objects, texts.
_NO_NUMBERS = frozenset("cmMOSU")
_LAST_STEP = 2**63 - 1
# A float of 64 bits holds every integer up to here.
EXACT = 2**53
# Types whose values a float holds exactly; that of NumPy joins them when it is first logged.
FLOATS: set[type] = {float, bool}


def as_name(name: Any) -> str:
    """Return the name of a metric; raise `MetricError` if it is not a string, or empty."""
    if not isinstance(name, str):
        raise MetricError(f"got the name {_shown(name)}, expected a string such as 'train/loss'")
    if not name:
        raise MetricError("got an empty name, expected one such as 'train/loss'")
    return str(name)


def as_number(value: Any) -> float | int | Callable[[], float]:
    """Return a metric as a number, or a function that fetches it from a GPU later; a masked value is NaN."""
    if hasattr(value, "detach"):
        return _of_tensor(value)
    if hasattr(value, "item") and hasattr(value, "dtype"):
        _check_single(value, value.size)
        if getattr(value.dtype, "kind", "f") in _NO_NUMBERS:
            raise MetricError(f"got an array of {value.dtype}, expected a number")
        value = math.nan if _is_masked(value) else value.item()
    if isinstance(value, float | int):
        return value
    if not hasattr(type(value), "__float__"):
        raise MetricError(f"got {_shown(value)}, expected a number")
    try:
        return float(value)
    except Exception as error:
        raise MetricError(f"got {_shown(value)}, which cannot be made a float ({type(error).__name__})") from error


class Numbers(dict[str, Any]):
    """Plain numbers by name: checked once, by `as_numbers`, for all that they are passed on to."""


def as_numbers(values: Mapping[str, Any]) -> Numbers | None:
    """Return values by name if all are plain numbers, which a float holds exactly, else None."""
    if type(values) is Numbers:
        return values
    if FLOATS.issuperset(map(type, values.values())) or all(map(_is_plain, values.values())):
        return Numbers(values)
    return None


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a number that is packed without a call of Python code, and that a float holds exactly."""
    kind = type(value)
    return kind in FLOATS or (kind is int and -EXACT <= value <= EXACT)


def split_numbers(values: Mapping[str, Any]) -> tuple[Numbers, dict[str, Any]]:
    """Return the values that are plain numbers, or scalars of NumPy or of torch on the CPU, and the others."""
    numbers, others = Numbers(), {}
    for name, value in values.items():
        number = value
        if not _is_plain(value):
            try:
                number = as_number(value) if hasattr(value, "dtype") and getattr(value, "is_cpu", True) else None
            except Exception:  # of any object; whoever logs it alone says what is wrong
                number = None
            if isinstance(value, float) and type(value).__module__ == "numpy":
                FLOATS.add(type(value))
        if _is_plain(number):
            numbers[name] = number
        else:
            others[name] = value
    return numbers, others


def _of_tensor(value: Any) -> float | int | Callable[[], float]:
    _check_single(value, value.numel())
    if value.is_complex():
        raise MetricError(f"got a complex tensor ({value.dtype}), expected a real number, such as its .abs()")
    value = value.detach()
    if value.is_meta:
        raise MetricError("got a tensor on the device meta, which has no value; log one that was computed")
    return value.item() if value.device.type == "cpu" else value.clone().item


def _check_single(value: Any, size: int) -> None:
    if size != 1:
        shape = tuple(value.shape)
        advice = "log its mean, or each entry under a name of its own" if size else "log it only when there is one"
        raise MetricError(f"got a {type(value).__name__} of shape {shape}, expected one number; {advice}")


def as_step(step: Any) -> int | float | None:
    """Return the step of a metric as an int of 64 bits or a finite float; None, which counts, stays None."""
    number = _item(step)
    if number is None:
        return None
    if isinstance(number, float):
        if not math.isfinite(number):
            raise MetricError(f"got the step {number}, expected an integer, a finite float, or None to count")
        return float(number)
    try:
        number = int(operator.index(number))
    except TypeError:
        raise MetricError(
            f"got the step {_shown(step)}, expected an integer, a finite float, or None to count"
        ) from None
    if not -(2**63) <= number <= _LAST_STEP:
        raise MetricError("got a step beyond 64 bits, expected one from -2**63 to 2**63 - 1")
    return number


def _item(step: Any) -> Any:
    """Return the element of a tensor or array with one element; any other object itself."""
    if hasattr(step, "numel"):
        _check_single(step, step.numel())
        return step.item()
    if hasattr(step, "item") and hasattr(step, "dtype"):
        _check_single(step, step.size)
        return math.nan if _is_masked(step) else step.item()
    return step


def _is_masked(value: Any) -> bool:
    """Return whether the element of an array is masked; numpy's `item` returns what the memory holds."""
    mask: Any = getattr(value, "mask", None)
    return hasattr(mask, "all") and bool(mask.all())


def check_countable(last: int | float) -> None:
    """Raise `MetricError` if the last step of a metric is the greatest integer of 64 bits, so none can follow."""
    if isinstance(last, int) and last >= _LAST_STEP:
        raise MetricError("got no step, and the last one is 2**63 - 1, which none comes after; give a step")


def located(problem: object, call: str, name: Any = None) -> str:
    """Return an error message with the call that caused it: `log_scalar('loss') in train.py, line 12: PROBLEM`."""
    argument = f"({reprlib.repr(name)})" if isinstance(name, str) else ""
    return f"{call}{argument} in {caller()}: {problem}"


def caller() -> str:
    """Return the file and line that called the lab, such as `train.py, line 12`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def _shown(value: Any) -> str:
    """Return a value for a message, shortened, even if it cannot be printed."""
    if value is None:
        return "None"
    try:
        text = reprlib.repr(value)
    except Exception:
        text = ""
    return f"{text} ({type(value).__name__})".lstrip()
