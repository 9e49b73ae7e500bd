"""The name that a mistyped one was meant to be."""

from __future__ import annotations

import difflib

__all__ = ["nearest"]


def nearest(name: str, known: list[str]) -> str | None:
    """Return the one of `known` dotted names that `name` was most likely meant to be, if any."""
    same_leaf = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(same_leaf) == 1:
        return same_leaf[0]
    scored = sorted(((_likeness(name, other), other) for other in known), reverse=True)
    return scored[0][1] if scored and scored[0][0] >= 0.6 else None


def _likeness(name: str, other: str) -> float:
    mine, theirs = name.split("."), other.split(".")
    if len(mine) == len(theirs):
        # Every part must be alike: a group in common says little about what was meant in it.
        parts = [_part_likeness(a, b) for a, b in zip(mine, theirs, strict=True)]
        return sum(parts) / len(parts) if min(parts) >= 0.5 else 0.0
    whole = _ratio(name, other) if len(mine) == 1 else 0.0
    return max(whole, 0.95 * _ratio(mine[-1], theirs[-1]))


def _part_likeness(a: str, b: str) -> float:
    return max(_ratio(a, b), 0.8 if a and b.startswith(a) else 0.0)


def _ratio(a: str, b: str) -> float:
    a, b = a.lower(), b.lower()
    # Letters that have changed places are the commonest slip, and count as two differences otherwise.
    return 0.95 if a != b and sorted(a) == sorted(b) else difflib.SequenceMatcher(None, a, b).ratio()
