"""Regular expressions of conditions, in one dialect over every store: RE2's.

The time it takes grows with the length of the text, whatever the expression. So there are no back-references, and
nothing looks ahead or behind; the rest is written as in Python. `$` is the end of the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from observers.record.storable import storable_text

__all__ = ["check_pattern", "is_found"]


def check_pattern(pattern: str) -> None:
    """Check a regular expression.

    Raises:
        ValueError: If it is none; the message is the reason.
    """
    _searcher(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Tell whether a regular expression finds something in a text."""
    return _searcher(pattern)(storable_text(text).encode()) is not None


@functools.lru_cache(maxsize=64)
def _searcher(pattern: str) -> Callable[[bytes], object]:
    import re2  # lists without such a condition do without it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(storable_text(pattern).encode(), options).search
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
