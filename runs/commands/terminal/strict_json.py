"""Printing documents as strict JSON."""

from __future__ import annotations

import json
from typing import Any

from runs.query.strict_json import strict

__all__ = ["print_json"]


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a document as strict JSON, in ASCII."""
    indent = None if in_one_line else 2
    print(json.dumps(strict(value), indent=indent, allow_nan=False), flush=in_one_line)
