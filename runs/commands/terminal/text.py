"""Lines of text: colours on a terminal only, and nothing that a terminal would obey."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "harmless", "is_coloured", "is_terminal", "print_text", "print_to_stderr", "print_unified"]

# What a terminal obeys (controls of ASCII and of Latin-1), what turns the order of a line round, what ends a line, and
# what is no character at all.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def harmless(text: str) -> str:
    r"""Return a text with all that a terminal would obey made visible: `\x1b` for the escape character."""
    return _HARMFUL.sub(lambda match: _SHORT.get(match[0]) or _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal() -> bool:
    """Tell whether what is printed goes to a terminal."""
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """Tell whether it may be coloured; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(text: str, style: str = "") -> None:
    """Print one line, made harmless."""
    text = harmless(text)
    if style and is_coloured():
        from rich.text import Text

        console().print(Text(text, style), soft_wrap=True)
    else:
        print(text)


def print_unified(text: str) -> None:
    """Print a unified diff."""
    for line in text.splitlines():
        print_text(f"  {line}", _DIFF_STYLES.get(line[:1], ""))


def print_to_stderr(text: str) -> None:
    """Print one line to stderr, made harmless."""
    with contextlib.suppress(OSError):  # it is full, and there is nowhere else to say so
        print(harmless(text), file=sys.stderr)


@functools.cache
def console() -> Console:
    """Return what prints in colours; of what it gets, nothing is read as markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
