"""Values that not every store holds as they are: lone surrogates, and integers of any length.

MongoDB has integers of 64 bits, and decimals of 34 digits. So that a question gets one answer everywhere, integers of
more than 34 digits are texts to questions, in folders as in databases.
"""

from __future__ import annotations

__all__ = ["is_large", "is_text_only", "storable_integer", "storable_text"]

_DIGITS = 34
_BOUND = 10**_DIGITS


def is_large(value: int) -> bool:
    """Tell whether an integer has more than 64 bits."""
    return not -(2**63) <= value < 2**63


def is_text_only(value: int) -> bool:
    """Tell whether an integer has more digits than a decimal of MongoDB."""
    return not -_BOUND < value < _BOUND


def storable_integer(value: int) -> str:
    """Return an integer of any length as text; one that Python refuses to write in digits, in hexadecimal ones."""
    return f"{value:#x}" if value.bit_length() > 10_000 else str(value)


def storable_text(text: str) -> str:
    """Return `text` as UTF-8 holds it: lone surrogates are written out by their numbers."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
