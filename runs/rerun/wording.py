"""Words for sentences about runs that are started again."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["end_text", "some"]


def some(names: Iterable[object], most: int = 5) -> str:
    """Return names for a sentence, each once, and how many more there are."""
    texts = list(dict.fromkeys(map(str, names)))
    return ", ".join(texts[:most]) + (f", and {len(texts) - most} more" if len(texts) > most else "")


def end_text(code: int) -> str:
    """Return how a process ended, by its exit code, which is negative for the signal that ended it."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
