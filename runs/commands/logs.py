"""`log`: what a run wrote to its terminal."""

from __future__ import annotations

import argparse
import codecs
import re
import sys
import time
from typing import TYPE_CHECKING

from runs.commands.arguments import Commands, add_command, add_json, add_run, open_given
from runs.commands.terminal import harmless, is_coloured, is_terminal, print_json

if TYPE_CHECKING:
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = ["Sieve", "add_parser"]

_POLL_S = 0.5
_EPILOG = """To a terminal goes what is harmless: text, colours, and the returns of progress bars. To a file or a pipe
goes the output byte for byte."""

# A sequence that moves the cursor, names the window, or asks the terminal a question; and one that only colours.
_SEQUENCE = re.compile(
    "(?P<colour>\x1b\\[[0-9;:]*m)|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)"
    "|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\\\`-~]"
)
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)$")
_MAX_HELD = 4096


class Sieve:
    """Makes output harmless for a terminal, piece by piece.

    Args:
        colours: Whether colours are kept.
    """

    def __init__(self, *, colours: bool = True) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_coloured = False

    def take(self, data: bytes, *, is_last: bool = False) -> str:
        """Return what may be written after more output; what may yet become a sequence is held back."""
        text = self._held + self._decoder.decode(data, is_last)
        self._held = ""
        match = _UNFINISHED.search(text)
        if match and not is_last and len(match[0]) < _MAX_HELD:
            text, self._held = text[: match.start()], match[0]
        return self._clean(text) + ("\x1b[0m" if is_last and self._is_coloured else "")

    def _clean(self, text: str) -> str:
        parts = []
        end = 0
        for match in _SEQUENCE.finditer(text):
            parts.append(_visible(text[end : match.start()]))
            end = match.end()
            if match["colour"] and self._colours:
                self._is_coloured = True
                parts.append(match[0])
        return "".join([*parts, _visible(text[end:])])


def _visible(text: str) -> str:
    # A line's end, a tab, and what progress bars go back with.
    return "".join(part if part in "\n\t\r" else harmless(part) for part in re.split("([\n\t\r])", text) if part)


def add_parser(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "log", "print what a run wrote to its terminal", _log, epilog=_EPILOG)
    add_run(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--follow", action="store_true", help="go on until the run ends, or Ctrl-C")
    add_json(group)


def _log(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        if arguments.json:
            print_json({"id": run.id, "uid": run.uid, "status": run.status, "output": run.output})
            return 0
        sieve = Sieve(colours=is_coloured()) if is_terminal() else None
        try:
            if arguments.follow:
                _follow(store, run, sieve)
            else:
                _write(run.read_output()[0], sieve)
        finally:
            _write(b"", sieve, is_last=True)
    return 0


def _follow(store: Store, run: Run, sieve: Sieve | None) -> None:
    """Write output as it comes, until the run has ended."""
    position = 0
    while True:
        # Looked at before the output, so that what comes last is read.
        now = store.get(run.id)
        is_over = now.status not in ("RUNNING", "QUEUED")
        data, position = now.read_output(position)
        _write(data, sieve)
        if is_over:
            return
        time.sleep(_POLL_S)


def _write(data: bytes, sieve: Sieve | None, *, is_last: bool = False) -> None:
    sys.stdout.flush()
    if sieve is not None:
        sys.stdout.write(sieve.take(data, is_last=is_last))
    elif data:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
