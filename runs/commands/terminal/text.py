"""Everything that commands print except tables: lines, JSON and progress; coloured on terminals only."""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sacristan.runs.query.texts import strict

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "OutputFilter",
    "Progress",
    "console",
    "harmless",
    "is_coloured",
    "is_terminal",
    "print_json",
    "print_sources",
    "print_text",
    "print_to_stderr",
    "print_unified",
]

# Controls of ASCII and of Latin-1, characters that reverse or end a line, and code points that are no characters.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
# A sequence that moves the cursor, names the window, or asks the terminal a question; and one that only colours.
_SEQUENCE = re.compile(
    "(?P<colour>\x1b\\[[0-9;:]*m)|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)"
    "|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\\\`-~]"
)
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)$")
_MAX_HELD = 4096


def harmless(text: str) -> str:
    r"""Return a text with all control characters made visible: `\x1b` for the escape character."""
    return _HARMFUL.sub(lambda match: _SHORT.get(match[0]) or _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """Tell whether stdout may be coloured; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(text: str, style: str = "") -> None:
    """Print one line, made harmless, in a style of rich such as `bold red`."""
    text = harmless(text)
    if style and is_coloured():
        from rich.text import Text

        console().print(Text(text, style), soft_wrap=True)
    else:
        print(text)


def print_unified(text: str) -> None:
    """Print a unified diff with coloured additions and removals."""
    for line in text.splitlines():
        print_text(f"  {line}", _DIFF_STYLES.get(line[:1], ""))


def print_sources(diffs: Mapping[str, str]) -> None:
    """Print how sources differ, from a unified diff by name."""
    for name, text in diffs.items():
        print_text(f"source {name}", "bold")
        print_unified(text)


def print_to_stderr(text: str) -> None:
    """Print one line to stderr, made harmless; it is lost if stderr cannot be written."""
    with contextlib.suppress(OSError):  # a full disk, which nothing else could report either
        print(harmless(text), file=sys.stderr)


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print a document as strict JSON in ASCII; see `sacristan.runs.query.texts.strict`.

    A document in one line is flushed, for readers of a stream.
    """
    indent = None if in_one_line else 2
    print(json.dumps(strict(value), indent=indent, allow_nan=False), flush=in_one_line)


class Progress:
    """A line on the terminal that shows the progress of long work and disappears when it is done."""

    def __init__(self) -> None:
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Update the line; work that is finished at once never shows one."""
        if not sys.stderr.isatty() or (done >= total and not self._is_shown):
            return
        self._is_shown = done < total
        line = f"{harmless(what)}: {done:,} of {total:,}" if self._is_shown else ""
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


@functools.cache
def console() -> Console:
    """Return the console that prints in colours; it does not interpret markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


class OutputFilter:
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
