"""Regular expressions in filters: RE2's dialect in every store.

RE2 searches in time linear in the text, whatever the pattern. It has no back-references and no lookaround; otherwise
patterns are written as in Python. `$` matches only at the end of the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sacristan.observers.record.json_text import storable_text

__all__ = ["check_pattern", "is_found"]


def check_pattern(pattern: str) -> None:
    """Check that a regular expression in RE2's syntax compiles, else raise ValueError with RE2's reason.

    The last 64 expressions stay compiled.
    """
    _searcher(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Tell whether a regular expression that `check_pattern` accepts matches anywhere in a text.

    Lone surrogates are searched in the form in which stores hold them.
    """
    return _searcher(pattern)(storable_text(text).encode()) is not None


@functools.lru_cache(maxsize=64)
def _searcher(pattern: str) -> Callable[[bytes], object]:
    import re2  # only filters with `~` load it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(storable_text(pattern).encode(), options).search
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
