"""The path below which the pages of a store lie: `/s/NAME` on a board of several stores, else nothing."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["root", "rooted"]

# Set for each request.
root: ContextVar[str] = ContextVar("root", default="")


def rooted(path: str) -> str:
    """Return the URL of a page of the current request's store, from its path on a board of one store."""
    return root.get() + path
