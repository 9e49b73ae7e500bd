"""Values that some stores cannot hold: lone surrogates, and integers of any length.

MongoDB has integers of 64 bits, and decimals of 34 digits. So that a query has the same answer in every store, queries
treat integers of more than 34 digits as texts, in folders as well.
"""

from __future__ import annotations

import math
import sys
from typing import Any

__all__ = ["MAX_DIGITS", "as_text", "is_large", "is_text_only", "is_unwritable", "storable_integer", "storable_text"]

_DIGITS = 34
_BOUND = 10**_DIGITS
# Python writes and reads no longer integers by default.
MAX_DIGITS = 4300
_BITS_A_DIGIT = math.log2(10)


def as_text(value: Any) -> str:
    """Return the text of any value; this never raises.

    An int with more digits than Python writes becomes hexadecimal, and an object whose `__str__` raises becomes the
    name of its type in angle brackets.
    """
    try:
        return str(value)
    except Exception:
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"


def is_large(value: int) -> bool:
    """Tell whether an integer needs more than 64 bits, which BSON's integers have.

    MongoDB holds a large one as a decimal, unless it is `is_text_only`.
    """
    return not -(2**63) <= value < 2**63


def is_text_only(value: int) -> bool:
    """Tell whether an integer has more digits than a decimal of MongoDB, so that queries treat it as a text."""
    return not -_BOUND < value < _BOUND


def is_unwritable(value: int) -> bool:
    """Tell whether an integer has more digits than Python writes and reads.

    The limit is that of the interpreter, `sys.get_int_max_str_digits`, but at most `MAX_DIGITS`, so that other
    interpreters can read the record.
    """
    # Python's limit is always at least 640 digits.
    if value.bit_length() < 2000:
        return False
    return value.bit_length() > _BITS_A_DIGIT * min(sys.get_int_max_str_digits() or MAX_DIGITS, MAX_DIGITS)


def storable_integer(value: int) -> str:
    """Return an integer as text, in hexadecimal if it has more digits than Python writes."""
    return f"{value:#x}" if is_unwritable(value) else str(value)


def storable_text(text: str) -> str:
    """Return a text as UTF-8 can hold it.

    Lone surrogates, such as from file names with invalid bytes, become backslash escapes of their numbers.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
