"""Output of runs for a terminal: text and colours, without other control sequences."""

from __future__ import annotations

import codecs
import re

from sacristan.runs.commands.terminal.text import harmless

__all__ = ["Sieve"]

# A sequence that moves the cursor, names the window, or asks the terminal a question; and one that only colours.
_SEQUENCE = re.compile(
    "(?P<colour>\x1b\\[[0-9;:]*m)|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)"
    "|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\\\`-~]"
)
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)$")
_MAX_HELD = 4096


class Sieve:
    """Makes output harmless for a terminal, piece by piece."""

    def __init__(self, *, colours: bool = True) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_coloured = False

    def take(self, data: bytes, *, is_last: bool = False) -> str:
        """Filter the next bytes; an unfinished sequence at their end is held back for the next call."""
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
