"""JSON of a record: parsing it, and values that some stores cannot hold.

JSON nested too deep for readers is rejected. MongoDB has integers of 64 bits, and decimals of 34 digits. So that a
query has the same answer in every store, queries treat integers of more than 34 digits as texts, in folders as well.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import read_regular

# Nested lists and objects. Readers are recursive, and a level takes up to three of Python's 1,000 frames. Python's own
# parser stops at 1,000 levels in 3.11, and at many more in later versions.
MAX_LEVELS = 200
# Info, result, config and metadata are truncated here when they are written, which leaves room for the document.
MAX_NOTED_LEVELS = 180


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise ValueError if it is not JSON, or nested more than `MAX_LEVELS` deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        too_deep = True
    else:
        brackets = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
        too_deep = brackets > MAX_LEVELS and is_deeper(value, MAX_LEVELS)
    if too_deep:
        raise ValueError(f"lists and objects are nested more than {MAX_LEVELS} levels deep")
    return value


def load_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_regular(path))


def is_deeper(value: Any, num_levels: int) -> bool:
    """Tell whether lists and dicts are nested deeper than some number of levels; a value may contain itself."""
    level = [value]
    for _ in range(num_levels + 1):
        level = [item for item in level if isinstance(item, dict | list | tuple)]
        if not level:
            return False
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        # Each object once, because a list that contains itself twice has endless levels.
        level = list({id(child): child for child in children}.values())
    return True


# ---------------------------------------------------------------------- values that some stores cannot hold

_DIGITS = 34
_BOUND = 10**_DIGITS
# Python writes and reads no longer integers by default.
MAX_DIGITS = 4300
_BITS_A_DIGIT = math.log2(10)


def as_text(value: Any) -> str:
    """Return the text of any value; huge ints become hexadecimal, and what has no text `<TYPE>`."""
    try:
        return str(value)
    except Exception:
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"


def is_large(value: int) -> bool:
    """Tell whether an integer needs more than BSON's 64 bits: MongoDB has it as a decimal, or as text."""
    return not -(2**63) <= value < 2**63


def is_text_only(value: int) -> bool:
    """Tell whether an integer has more digits than a decimal of MongoDB, so that queries treat it as a text."""
    return not -_BOUND < value < _BOUND


def is_unwritable(value: int) -> bool:
    """Tell whether Python, this one or another, may reject an integer's digits (`sys.get_int_max_str_digits`)."""
    # Python's limit is always at least 640 digits.
    if value.bit_length() < 2000:
        return False
    return value.bit_length() > _BITS_A_DIGIT * min(sys.get_int_max_str_digits() or MAX_DIGITS, MAX_DIGITS)


def storable_integer(value: int) -> str:
    """Return an integer as text, in hexadecimal if it has more digits than Python writes."""
    return f"{value:#x}" if is_unwritable(value) else str(value)


def storable_text(text: str) -> str:
    """Return a text as UTF-8 can hold it: lone surrogates, as of file names, become backslash escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
