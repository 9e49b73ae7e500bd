"""Filters as people type them: `optimizer.lr<1e-3`, `model.name~^re`, `lr in (0.1, 0.2)`, `lr=1 and seed=2 or lr=2`."""

from __future__ import annotations

import ast
import re
from typing import Any

from runs.errors import FilterError
from runs.query.conditions import AllOf, Filter, Not, OneOf, condition

__all__ = ["parse_words"]

_WORDS = re.compile(
    r"\s*(?P<name>[^\s=<>!~]+(?:\s+[^\s=<>!~]+)*?)\s*(?P<operator>==|!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.S
)
# A second condition behind the first.
_MORE = re.compile(r"""^[^"'\[({]*(&&|\|\||,)\s*[^\s=<>!~,]+\s*(==|!=|<=|>=|=|<|>|~)""", re.I)
_IN = re.compile(r"\s*(?P<name>[^\s=<>!~]+)\s+(?P<not>not\s+)?in\s*(?P<values>[\[(].*[\])])\s*", re.S | re.I)
# Where another condition may begin.
_NEXT = r"\s+(?=[^\s=<>!~,\"']+(\s*(==|!=|<=|>=|=|<|>|~)|\s+(not\s+)?in\s*[\[(]))"
_OR, _AND = re.compile(rf"\s+or{_NEXT}", re.I), re.compile(rf"\s+and{_NEXT}", re.I)


def parse_words(text: str) -> Filter:
    """Return the filter in a text such as `optimizer.lr<1e-3`, `model.name~^re`, `lr in (0.1, 0.2)` or `lr=1 or lr=2`.

    Values are read as Python's literals are; what is none of them is text. `and` binds closer than `or`.

    Raises:
        FilterError: If it is no condition, nor several with `and` or `or` between.
    """
    found = tuple(map(_all_of, _split(_OR, text)))
    return found[0] if len(found) == 1 else OneOf(found)


def _all_of(text: str) -> Filter:
    found = tuple(map(_one_condition, _split(_AND, text)))
    return found[0] if len(found) == 1 else AllOf(found)


def _split(between: re.Pattern[str], text: str) -> list[str]:
    parts, start = [], 0
    for match in between.finditer(text):
        if _is_closed(text[start : match.start()]):
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _is_closed(text: str) -> bool:
    """Tell whether a condition may end here: not within the quotes or brackets that its value begins with."""
    match = _WORDS.fullmatch(text)
    value = match["value"].strip() if match is not None else ""
    if not value or value[0] not in "\"'[({":
        return True
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value[-1] in "\"'])}" and len(value) > 1
    return True


def _one_condition(text: str) -> Filter:
    match = _IN.fullmatch(text)
    if match is not None:
        values = condition(match["name"], "in", _listed(match["values"]))
        return Not(values) if match["not"] else values
    match = _WORDS.fullmatch(text)
    if match is None:
        raise FilterError(f"got the condition {text!r}, expected NAME, one of = != < <= > >= ~, and a value")
    operator = {"=": "=="}.get(match["operator"], match["operator"])
    if operator != "~" and re.match("[=<>!]", match["value"]):
        raise FilterError(
            f"got the condition {text!r}, expected one of = != < <= > >= ~ between name and value; a text that begins "
            f"so is put in quotes: {match['name']}{match['operator']}'\"...\"'"
        )
    if operator not in ("==", "!=") and not match["value"].strip():
        raise FilterError(f"got the condition {text!r}, expected a value after the {operator}")
    if _MORE.search(match["value"]):
        raise FilterError(
            f"got {text!r}, expected conditions with and or or between; a text is put in quotes: "
            f"{match['name']}{match['operator']}'\"...\"'"
        )
    return condition(match["name"], operator, match["value"] if operator == "~" else _literal(match["value"]))


def _listed(text: str) -> list[Any]:
    """Return the values between brackets; words in there need no quotes."""
    try:
        value = ast.literal_eval(f"[{text.strip()[1:-1]}]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [_literal(word) for word in text.strip()[1:-1].split(",") if word.strip()]
    return list(value)


def _literal(text: str) -> Any:
    named = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan"), "inf": float("inf")}
    if text.strip().lower() in named:
        return named[text.strip().lower()]
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip()
    return value if value is None or isinstance(value, bool | int | float | str | list | tuple | dict) else text.strip()
