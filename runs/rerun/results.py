"""Judging the result of a reproduced run: numbers within a tolerance, all else by equality."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from runs.query.flattening import dotted
from runs.rerun.verdict import DIVERGED, IDENTICAL, RANKS, RESULT, WITHIN, Deviation, Tolerance

__all__ = ["judge_result"]


def judge_result(old: Any, new: Any, tolerance: Tolerance) -> tuple[str, list[str], list[Deviation]]:
    """Return the verdict, what is to be said of it, and the numbers that differ."""
    ours, theirs = dotted({RESULT: old}), dotted({RESULT: new})
    rtol = tolerance.rtol_of(RESULT)
    ranks = [_compare(ours.get(name), theirs.get(name), rtol, tolerance.atol) for name in {*ours, *theirs}]
    verdict = DIVERGED if ours.keys() != theirs.keys() else max(ranks, key=RANKS.index)
    sentence = f"the result differs: recorded {_short(old)}, now {_short(new)}"
    pairs = [pair for name in ours.keys() & theirs.keys() for pair in _numbers(name, ours[name], theirs[name])]
    deviations = [one for one in pairs if one.absolute and not math.isinf(rtol)]
    return verdict, [sentence] if verdict == DIVERGED else [], deviations


def _numbers(name: str, old: Any, new: Any) -> Iterator[Deviation]:
    """Yield the numbers of a result that stand in the same place."""
    if isinstance(old, list) and isinstance(new, list):
        for place, pair in enumerate(zip(old, new, strict=False)):
            yield from _numbers(f"{name}[{place}]", *pair)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old.keys() & new.keys():
            yield from _numbers(f"{name}.{key}", old[key], new[key])
    elif _is_number(old) and _is_number(new):
        yield Deviation(name, None, old, new, None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare(old: Any, new: Any, rtol: float, atol: float) -> str:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(
            (_compare(*pair, rtol, atol) for pair in zip(old, new, strict=True)), key=RANKS.index, default=IDENTICAL
        )
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        ranks = (_compare(old[key], new[key], rtol, atol) for key in old)
        return max(ranks, key=RANKS.index, default=IDENTICAL)
    if not (_is_number(old) and _is_number(new)):
        return IDENTICAL if type(old) is type(new) and old == new else DIVERGED
    if old == new or (old != old and new != new):
        return IDENTICAL
    return WITHIN if math.isinf(rtol) or abs(new - old) <= atol + rtol * abs(old) < math.inf else DIVERGED


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."
