"""Checks of what a spec says. Each failure is one sentence: where, what was got, what was expected."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runs.errors import SweepError

__all__ = [
    "check_choice",
    "check_integer",
    "check_keys",
    "check_list",
    "check_mapping",
    "check_number",
    "check_text",
    "identity",
    "listing",
    "nearest",
    "plain",
    "shown",
]


def shown(value: Any) -> str:
    """Return a value as messages have it, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listing(words: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that `name` was most likely meant to be, if any."""
    found = difflib.get_close_matches(name.lower(), list(known), 1)
    return found[0] if found else None


def identity(value: Any) -> str:
    """Return the same text for the same value: 1 and 1.0 are, as in wandb's grids; 1 and True are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def plain(where: str, value: Any) -> Any:
    """Return a copy of a value with nothing in it but what JSON holds.

    Raises:
        SweepError: If there is something else, such as one of YAML's dates, or nan.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                place = f"{where}: " if where else ""
                raise SweepError(f"{place}got the key {key!r} ({type(key).__name__}), expected text; quote it")
        return {str(key): plain(f"{where}.{key}" if where else key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(f"{where}[{position}]", item) for position, item in enumerate(value)]
    if hasattr(value, "item"):  # numpy's numbers
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        raise SweepError(f"{where}: got nan, expected a number that equals itself; None stands for nothing")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SweepError(f"{where}: got {value} ({type(value).__name__}), expected a number or text; quote it for text")


def check_keys(where: str, document: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse keys that are not among `known`.

    Args:
        where: The path of the document; empty for the whole.
        document: What is looked at.
        known: The keys that there are.
        what: Whose keys these are, such as `a sweep`.
    """
    for key in document:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
            raise SweepError(f"{f'{where}.' if where else ''}{key}: is no key of {what}; {hint}")


def check_mapping(where: str, value: Any, example: str) -> Mapping[str, Any]:
    """Return a mapping, which must not be empty."""
    if not isinstance(value, Mapping) or not value:
        raise SweepError(f"{where}: got {shown(value)}, expected a mapping such as {example}")
    return value


def check_list(where: str, value: Any, example: str) -> list[Any]:
    """Return a list, which must not be empty."""
    if not isinstance(value, list) or not value:
        raise SweepError(f"{where}: got {shown(value)}, expected a list such as {example}")
    return value


def check_text(where: str, value: Any, what: str = "text") -> str:
    """Return a text, which must not be empty."""
    if not isinstance(value, str) or not value.strip():
        raise SweepError(f"{where}: got {shown(value)}, expected {what}")
    return value


def check_choice(where: str, value: Any, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        near = nearest(value, choices) if isinstance(value, str) else None
        hint = f"; did you mean {near}?" if near else ""
        raise SweepError(f"{where}: got {shown(value)}, expected {listing(choices)}{hint}")
    return value


def check_number(where: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> int | float:
    """Return a finite number; a text that reads like one is none."""
    expected = "a number"
    if above > -math.inf or least > -math.inf:
        expected += f" above {above:g}" if above > -math.inf else f" of at least {least:g}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= above or value < least:
        raise SweepError(f"{where}: got {shown(value)}, expected {expected}")
    return value


def check_integer(where: str, value: Any, *, least: int) -> int:
    """Return an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SweepError(f"{where}: got {shown(value)}, expected an integer of at least {least}")
    return value
