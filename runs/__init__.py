"""What reads runs back: `open_store`, `incense`, and the command line `python -m runs`."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {"incense": "runs.stores.incense_loader", "open_store": "runs.stores.opening"}

__all__ = ["incense", "open_store"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'runs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
