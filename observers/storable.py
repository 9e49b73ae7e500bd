"""Values as BSON holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["storable"]


def storable(value: Any) -> Any:
    """Return `value` as BSON holds it: keys as Sacred writes them, without dots and dollars, huge ints as text."""
    if isinstance(value, Mapping):
        return {_key(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def _key(key: Any) -> str:
    text = str(key).replace(".", ",").replace("\0", "")
    return f"@{text[1:]}" if text.startswith("$") else text
