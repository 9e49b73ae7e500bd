r"""The blocks of a report, such as `{{curves val/loss where="lr<1e-3" x=epoch}}`: parsed by hand, and checked.

    block   "{{" kind, then words and options with blanks between "}}"; all on one line
    option  name "=" word
    word    any characters but blanks, quotes and braces; or, between double quotes, any: \" is a quote, \\ a backslash

A word never runs as code: conditions are those of `sacristan ls --where`, expressions of metrics those of a panel.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.comparison.curves import BANDS
from sacristan.runs.errors import ReportError
from sacristan.runs.query.names import quoted, unquoted
from sacristan.runs.query.texts import count_text

__all__ = ["CHARTS", "KINDS", "Block", "end_of_block"]

_ITEM = re.compile(r'(?:(?P<option>\w+)=)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"{}]+))(?=\s|$)')
_BLOCK = re.compile(r'\{\{(?P<inside>(?:"(?:[^"\\\n]|\\[^\n])*"|[^"{}\n])*)\}\}')
_CHOOSE = ("run", "where", "sort", "limit")
_LIMITS = (1, 500)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a block may have: the least and most words, options, and an example."""

    least: int
    most: int
    options: tuple[str, ...]
    example: str


KINDS: Mapping[str, _Kind] = {
    "runs": _Kind(
        0, 0, (*_CHOOSE, "columns"), '{{runs where="lr<1e-3" sort="-val/acc.max" columns="lr, val/acc.max" limit=10}}'
    ),
    "curves": _Kind(
        1,
        10,
        (*_CHOOSE, "group", "over", "x", "smoothing", "log_x", "log_y", "band", "joined"),
        '{{curves val/loss where="lr<1e-3" group=lr log_y=yes}}',
    ),
    "value": _Kind(1, 2, ("where", "sort", "digits"), "{{value 12 val/acc.max}}"),
    "scatter": _Kind(2, 3, (*_CHOOSE, "group"), "{{scatter lr val/loss.min}}"),
    "parallel": _Kind(2, 20, (*_CHOOSE, "group"), "{{parallel lr model.name val/loss.min}}"),
    "importances": _Kind(1, 20, (*_CHOOSE, "group"), "{{importances val/loss.min}}"),
    "histogram": _Kind(1, 1, (*_CHOOSE, "group"), "{{histogram val/loss.min group=lr}}"),
}
# Charts of runs.
CHARTS = ("scatter", "parallel", "importances", "histogram")
_CHOICES = {"band": BANDS}
_FLAGS = ("log_x", "log_y", "joined")
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


def end_of_block(text: str, start: int) -> int:
    """Return where the block that begins at `start` ends; 0 if none begins there."""
    match = _BLOCK.match(text, start)
    return match.end() if match else 0


@dataclasses.dataclass(frozen=True)
class Block:
    """A block whose kind, words and options are known and of the right number.

    Attributes:
        words: Metrics, fields, or a run and a field, as `kind` takes them.
        options: Texts by name.
        source: The block as it was written.
    """

    kind: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""

    @classmethod
    def of(cls, source: str) -> Block:
        """Parse a block with its braces; ReportError says what is wrong, and names what may have been meant."""
        match = _BLOCK.fullmatch(source.strip())
        if match is None:
            raise ReportError(f"got {source[:200]!r}, expected a block on one line, such as {KINDS['runs'].example}")
        kind, *items = list(_items(match["inside"])) or [("", "")]
        if kind[0] or kind[1] not in KINDS:
            raise ReportError(f"there is no block {kind[0] or kind[1]!r}; {word_suggestion(kind[1], KINDS)}")
        words = tuple(word.rstrip(",") for name, word in items if not name)
        block = cls(kind[1], tuple(filter(None, words)), source=source.strip())
        for name, word in items:
            if name:
                block = block._with(name, word)
        return block._checked()

    def _with(self, name: str, word: str) -> Block:
        known = KINDS[self.kind].options
        if name not in known:
            hint = word_suggestion(name, known, f"it has {', '.join(known)}")
            raise ReportError(f'{self.kind} has no option {name!r}; {hint}; a condition stands in where="..."')
        if name in self.options:
            raise ReportError(f"{self.kind} got {name} twice; join conditions by `and`, names by commas")
        return dataclasses.replace(self, options={**self.options, name: word})

    def _checked(self) -> Block:
        kind = KINDS[self.kind]
        if not kind.least <= len(self.words) <= kind.most:
            expected = f"{kind.least} to {kind.most}" if kind.most > kind.least else str(kind.least)
            number = count_text(len(self.words), "word")
            raise ReportError(f"{self.kind} got {number}, expected {expected}, such as {kind.example}")
        if "run" in self.options and "where" in self.options:
            raise ReportError(f"{self.kind} got run and where; choose runs by one of them")
        for name, choices in _CHOICES.items():
            if self.options.get(name, choices[0]) not in choices:
                got = self.options[name]
                raise ReportError(f"{name}: got {got!r}; {word_suggestion(got, choices)}")
        self.number("limit", 1, *_LIMITS)
        self.number("digits", 1, 1, 15)
        self.share("smoothing")
        for name in _FLAGS:
            self.flag(name)
        return self

    @property
    def title(self) -> str:
        """What the block shows, as panels of the board name it: `train/loss, val/loss`, `scatter(lr, val/loss.min)`."""
        if self.kind not in CHARTS:
            return ", ".join(self.words)
        return f"{self.kind}({', '.join(quoted(unquoted(word)) for word in self.words)})"

    def text(self, name: str, default: str = "") -> str:
        """Return an option as it was written."""
        return self.options.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return an option that is a whole number."""
        text = self.options.get(name, str(default))
        if not text.isdecimal() or not text.isascii() or not least <= int(text[:10]) <= most:
            raise ReportError(f"{name}: got {text!r}, expected a number from {least} to {most}")
        return int(text)

    def share(self, name: str) -> float:
        """Return an option that is a number from 0 to below 1; 0 without it."""
        text = self.options.get(name, "0")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1:
            raise ReportError(f"{name}: got {text!r}, expected a number from 0 to below 1")
        return value

    def flag(self, name: str) -> bool:
        """Return an option that is yes or no; no without it."""
        text = self.options.get(name, "no").lower()
        if text not in (*_YES, *_NO):
            raise ReportError(f"{name}: got {text!r}, expected yes or no")
        return text in _YES


def _items(text: str) -> list[tuple[str, str]]:
    """Return the words of a block, each with the name of its option, which is empty without one."""
    found: list[tuple[str, str]] = []
    place = 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        match = _ITEM.match(text, place)
        if match is None:
            raise ReportError(
                f"got {text[place:].strip()[:80]!r}, expected words and NAME=WORD; quote a word with blanks"
            )
        between: str | None = match["quoted"]
        word = match["bare"] if between is None else re.sub(r"\\(.)", r"\1", between)
        found.append((match["option"] or "", word))
        place = match.end()
    return found
