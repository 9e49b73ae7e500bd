"""The known name that a mistyped one is most like."""

from __future__ import annotations

import difflib

__all__ = ["nearest"]


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that a mistyped one most likely stands for.

    Args:
        name: The name as typed, dotted or plain.
        known: Names that exist. One that alone has the same last part is taken, whatever its group.

    Returns:
        The name; None if none is like it.
    """
    same_leaf = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(same_leaf) == 1:
        return same_leaf[0]
    likeness, other = max(((_likeness(name, other), other) for other in known), default=(0.0, None))
    return other if likeness >= 0.6 else None


def _likeness(name: str, other: str) -> float:
    parts, other_parts = name.split("."), other.split(".")
    if len(parts) == len(other_parts):
        # Every part must be alike: a group in common says little about what was meant in it.
        each = [_part_likeness(a, b) for a, b in zip(parts, other_parts, strict=True)]
        return sum(each) / len(each) if min(each) >= 0.5 else 0.0
    whole = _ratio(name, other) if len(parts) == 1 else 0.0
    return max(whole, 0.95 * _ratio(parts[-1], other_parts[-1]))


def _part_likeness(a: str, b: str) -> float:
    return max(_ratio(a, b), 0.8 if a and b.startswith(a) else 0.0)


def _ratio(a: str, b: str) -> float:
    a, b = a.lower(), b.lower()
    # Swapped letters are the commonest slip, and would count as two differences.
    return 0.95 if a != b and sorted(a) == sorted(b) else difflib.SequenceMatcher(None, a, b).ratio()
