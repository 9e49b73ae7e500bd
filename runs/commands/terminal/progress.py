"""Progress of long work."""

from __future__ import annotations

import sys

from runs.commands.terminal.text import harmless

__all__ = ["Progress"]


class Progress:
    """Says on the terminal how far long work is; the line goes when it is done, and never comes if that is at once."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say that `done` of `total` is done."""
        if not sys.stderr.isatty() or (done >= total and not self._is_shown):
            return
        self._is_shown = done < total
        line = f"{harmless(what)}: {done:,} of {total:,}" if self._is_shown else ""
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()
