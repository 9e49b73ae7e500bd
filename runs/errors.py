"""What can go wrong when past runs are looked at.

RunsError           one clear sentence for the terminal
├── StoreError      a folder or database cannot be read or written
└── ServerError     the embedded MongoDB does not start
"""

from __future__ import annotations

__all__ = ["RunsError", "ServerError", "StoreError"]


class RunsError(Exception):
    """The root: a message for the person at the terminal, saying what to do next."""


class StoreError(RunsError):
    """A folder or database of runs cannot be read or written."""


class ServerError(RunsError):
    """The embedded MongoDB does not start."""
