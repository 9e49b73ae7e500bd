"""What reads runs back: `open_store`, and the command line `python -m runs`."""

from __future__ import annotations

from typing import Any

__all__ = ["open_store"]


def __getattr__(name: str) -> Any:
    if name == "open_store":
        from runs.store import open_store

        return open_store
    raise AttributeError(f"module 'runs' has no attribute {name!r}")
