"""`parse_json`: parses the JSON of a record, and rejects nesting too deep for readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sacristan.observers.record.regular_file import read_regular

__all__ = ["MAX_LEVELS", "MAX_NOTED_LEVELS", "is_deeper", "load_json", "parse_json"]

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
