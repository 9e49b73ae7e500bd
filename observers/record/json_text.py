"""`parse_json`: the JSON of a record, no deeper than its readers can walk."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MAX_LEVELS", "MAX_NOTED_LEVELS", "is_deeper", "parse_json"]

# Lists and objects within each other. Readers walk them by recursion, and a level takes up to three of Python's 1,000
# frames. Python's own parser stops at 1,000 levels in 3.11, and at many more in later versions.
MAX_LEVELS = 200
# A run's info, result, config and metadata are cut here when they are written, with room for the document around them.
MAX_NOTED_LEVELS = 180


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is not JSON, or nested more than `MAX_LEVELS` deep.
    """
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


def is_deeper(value: Any, num_levels: int) -> bool:
    """Tell whether lists and dicts are nested more than `num_levels` deep in a value."""
    level = [value]
    for _ in range(num_levels + 1):
        level = [item for item in level if isinstance(item, dict | list | tuple)]
        if not level:
            return False
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        # What stands in many places is looked at once: a list that holds itself twice has no end of levels.
        level = list({id(child): child for child in children}.values())
    return True
