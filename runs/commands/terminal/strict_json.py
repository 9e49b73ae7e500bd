"""Documents as strict JSON, which has no NaN and no infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["print_json", "strict"]


def strict(value: Any) -> Any:
    """Return a document as strict JSON can hold it; what is no finite number becomes a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a document as strict JSON, in ASCII."""
    indent = None if in_one_line else 2
    print(json.dumps(strict(value), indent=indent, allow_nan=False), flush=in_one_line)
