"""The text form of filters: `optimizer.lr<1e-3`, `model.name~^re`, `lr in (0.1, 0.2)`, `lr=1 and seed=2 or lr=2`."""

from __future__ import annotations

import ast
import re
from typing import Any

from sacristan.runs.errors import FilterError
from sacristan.runs.query.conditions import AllOf, Filter, Not, OneOf, condition
from sacristan.runs.query.names import QUOTED

__all__ = ["parse_words"]

# A word of a name; one between backticks may hold anything.
_WORD = rf"(?:{QUOTED}|[^\s=<>!~`])+"
_WORDS = re.compile(rf"\s*(?P<name>{_WORD}(?:\s+{_WORD})*?)\s*(?P<operator>==|!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.S)
_OPEN_NAME = re.compile(rf"(?:{QUOTED}|[^=<>!~`])*`(?:[^`]|``)*")
# A second condition after the first.
_MORE = re.compile(r"""^[^"'\[({]*(&&|\|\||,)\s*[^\s=<>!~,]+\s*(==|!=|<=|>=|=|<|>|~)""", re.I)
_IN = re.compile(rf"\s*(?P<name>{_WORD})\s+(?P<not>not\s+)?in\s*(?P<values>[\[(].*[\])])\s*", re.S | re.I)
# Where another condition may begin.
_NEXT = rf"\s+(?=(?:{QUOTED}|[^\s=<>!~,\"'`])+(\s*(==|!=|<=|>=|=|<|>|~)|\s+(not\s+)?in\s*[\[(]))"
_OR, _AND = re.compile(rf"\s+or{_NEXT}", re.I), re.compile(rf"\s+and{_NEXT}", re.I)

_NAMED = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan"), "inf": float("inf")}
# Errors of `ast.literal_eval`.
_NO_LITERAL = (ValueError, SyntaxError, MemoryError, RecursionError)


def parse_words(text: str) -> Filter:
    """Parse the text form of a filter.

    It is one condition, such as `optimizer.lr<1e-3` or `lr in (0.1, 0.2)`, or several joined by `and` and `or`, of
    which `and` binds closer. Values are Python literals; anything else is a text.
    """
    parts = tuple(map(_all_of, _split(_OR, text)))
    return parts[0] if len(parts) == 1 else OneOf(parts)


def _all_of(text: str) -> Filter:
    parts = tuple(map(_one_condition, _split(_AND, text)))
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _split(between: re.Pattern[str], text: str) -> list[str]:
    parts, start = [], 0
    for match in between.finditer(text):
        if _is_closed(text[start : match.start()]):
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _is_closed(text: str) -> bool:
    """Tell whether a condition may end here: not in a quoted name, nor in quotes or brackets that open its value."""
    if _OPEN_NAME.fullmatch(text):
        return False
    match = _WORDS.fullmatch(text)
    value = match["value"].strip() if match is not None else ""
    if not value or value[0] not in "\"'[({":
        return True
    try:
        ast.literal_eval(value)
    except _NO_LITERAL:
        return value[-1] in "\"'])}" and len(value) > 1
    return True


def _one_condition(text: str) -> Filter:
    match = _IN.fullmatch(text)
    if match is not None:
        values = condition(match["name"], "in", _bracketed(match["values"]))
        return Not(values) if match["not"] else values
    match = _WORDS.fullmatch(text)
    if match is None:
        raise FilterError(
            f"got the condition {text!r}, expected NAME, one of = != < <= > >= ~, and a value; put a name with spaces, "
            "commas or operators between backticks"
        )
    operator = match["operator"]
    if operator != "~" and re.match("[=<>!]", match["value"]):
        raise FilterError(
            f"got the condition {text!r}, expected one of = != < <= > >= ~ between name and value; quote a text that "
            f"begins like this: {match['name']}{match['operator']}'\"...\"'"
        )
    if operator not in ("=", "==", "!=") and not match["value"].strip():
        raise FilterError(f"got the condition {text!r}, expected a value after the {operator}")
    if _MORE.search(match["value"]):
        raise FilterError(
            f"got {text!r}, expected conditions joined by `and` or `or`; quote a text: "
            f"{match['name']}{match['operator']}'\"...\"'"
        )
    return condition(match["name"], operator, match["value"] if operator == "~" else _literal(match["value"]))


def _bracketed(text: str) -> list[Any]:
    """Return the values between brackets, where words need no quotes."""
    try:
        value = ast.literal_eval(f"[{text.strip()[1:-1]}]")
    except _NO_LITERAL:
        return [_literal(word) for word in text.strip()[1:-1].split(",") if word.strip()]
    return list(value)


def _literal(text: str) -> Any:
    text = text.strip()
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    try:
        value = ast.literal_eval(text)
    except _NO_LITERAL:
        return text
    return value if value is None or isinstance(value, bool | int | float | str | list | tuple | dict) else text
