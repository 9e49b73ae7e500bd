"""Find the known name nearest to a mistyped one, and ask whether it was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar known name, or None; a single name with the same last part comes first."""
    names = list(names)
    same_leaf = [other for other in names if other.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(same_leaf) == 1:
        return same_leaf[0]
    likeness, other = max(((_likeness(name, other), other) for other in names), default=(0.0, None))
    return other if likeness >= 0.7 else None


def _likeness(name: str, other: str) -> float:
    parts, other_parts = name.split("."), other.split(".")
    if len(parts) == len(other_parts):
        # Every part must be similar: a shared group says little about which of its entries was meant.
        each = [_part_likeness(a, b) for a, b in zip(parts, other_parts, strict=True)]
        return sum(each) / len(each) if min(each) >= 0.5 else 0.0
    whole = _ratio(name, other) if len(parts) == 1 else 0.0
    return max(whole, 0.95 * _part_likeness(parts[-1], other_parts[-1]))


def _part_likeness(a: str, b: str) -> float:
    return max(_ratio(a, b), 0.8 if len(a) > 2 and (b.startswith(a) or b.endswith(a)) else 0.0)


def _ratio(a: str, b: str) -> float:
    a, b = a.lower(), b.lower()
    import difflib

    # Swapped letters are the commonest slip, and would count as two differences.
    return 0.95 if a != b and sorted(a) == sorted(b) else difflib.SequenceMatcher(None, a, b).ratio()


def suggestion(name: str, names: Iterable[str], otherwise: str | None = None, form: Callable[[str], str] = str) -> str:
    """Return a question for the nearest dotted name, in a form; `otherwise`, or the known names, if none is near."""
    names = list(names)
    near = nearest(name, names)
    return question([] if near is None else [form(near)], _listing(names) if otherwise is None else otherwise)


def word_suggestion(word: str, names: Iterable[str], otherwise: str | None = None, most: int = 1) -> str:
    """Return a question for the nearest words, in any case; `otherwise`, or the known words, if none is near."""
    import difflib

    names = list(names)
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(word.lower(), by_lower, most)
    return question([by_lower[other] for other in near], _listing(names) if otherwise is None else otherwise)


def question(near: Sequence[str], otherwise: str) -> str:
    """Return a question for names, such as `did you mean a, b or c?`; `otherwise` if there are none."""
    if not near:
        return otherwise
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def _listing(names: Iterable[str]) -> str:
    return f"there are: {', '.join(names) or 'none'}"


def misspelt(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that a name differs from by a slip; None for a known name, and for one that may be new."""
    import difflib

    names = list(names)
    near = [] if name in names else difflib.get_close_matches(name, names, n=1, cutoff=0.88)
    return near[0] if near else None
