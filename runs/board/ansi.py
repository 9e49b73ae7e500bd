"""Terminal output as HTML: its text and colours, with lines as a terminal would leave them."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

__all__ = ["to_html"]

# A sequence that colours, and any other, which is passed over.
_SEQUENCE = re.compile(
    "\x1b\\[(?P<codes>[0-9;:]{0,64})m|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)?"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def to_html(text: str) -> Markup:
    """Convert terminal output to HTML: keep its colours as classes of spans, and drop all other control sequences.

    A line that was overwritten, as by a progress bar, appears in its last state.
    """
    text = "\n".join(map(_last_state, text.split("\n")))
    parts: list[Markup] = []
    style = _Style()
    end = 0
    for match in _SEQUENCE.finditer(text):
        parts.append(_span(text[end : match.start()], style))
        end = match.end()
        if match["codes"] is not None:
            style.take(match["codes"])
    parts.append(_span(text[end:], style))
    return Markup("").join(parts)


def _last_state(line: str) -> str:
    """Return what a terminal would show of a line that a progress bar has overwritten."""
    states = [state for state in line.split("\r") if state]
    return states[-1] if states else ""


def _span(text: str, style: _Style) -> Markup:
    text = _CONTROLS.sub("\ufffd", text)
    names = style.classes()
    if not text or not names:
        return escape(text)
    return Markup('<span class="{}">{}</span>').format(names, text)


class _Style:
    """The colours that apply from here on."""

    def __init__(self) -> None:
        self._front = self._back = ""
        self._marks: set[str] = set()

    def classes(self) -> str:
        return " ".join(filter(None, (self._front, self._back, *sorted(self._marks))))

    def take(self, codes: str) -> None:
        numbers = [int(code[:4]) if code else 0 for code in re.split("[;:]", codes)]
        while numbers:
            code = numbers.pop(0)
            if code == 0:
                self.__init__()  # type: ignore[misc]  # back to the beginning
            elif code in (1, 2, 3, 4):
                self._marks.add({1: "bold", 2: "faint", 3: "italic", 4: "underline"}[code])
            elif code in (22, 23, 24):
                self._marks -= {22: {"bold", "faint"}, 23: {"italic"}, 24: {"underline"}}[code]
            elif code in (38, 48):
                # One of 256 colours, or any; shown in the nearest of eight is more than nothing, which they get.
                del numbers[: 2 if numbers[:1] == [5] else 4]
            elif code in (39, 49):
                self._front, self._back = ("", self._back) if code == 39 else (self._front, "")
            elif 30 <= code % 60 <= 37:
                self._front = f"fg-{_COLOURS[code % 10]}"
            elif code // 10 in (4, 10) and code % 10 < 8:
                self._back = f"bg-{_COLOURS[code % 10]}"
