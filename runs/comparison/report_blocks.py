r"""The blocks of a report, such as `{{curves val/loss where="lr<1e-3" x=epoch}}`: parsed by hand, and checked.

    block   "{{" kind, then words and options with blanks between "}}"; all on one line
    option  name "=" word
    word    any characters but blanks, quotes and braces; or, between double quotes, any: \" is a quote, \\ a backslash

A word never runs as code: conditions are those of `sacristan ls --where`, expressions of metrics those of a panel.
Behind them is what they show: runs in a table, single values, curves and charts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.comparison.curves import BANDS
from sacristan.runs.comparison.panels import View, make_panel
from sacristan.runs.drawing.curve import Curve, Panel
from sacristan.runs.errors import ReportError, StoreError
from sacristan.runs.query import full_name, quoted, short_name, split_names, unquoted
from sacristan.runs.query.texts import count_text, is_number, list_text
from sacristan.runs.stores import NEWEST_FIRST, Run, Store
from sacristan.runs.stores.settings import telling_settings

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
    """A block whose kind, words and options are known and of the right number."""

    kind: str
    words: tuple[str, ...] = ()  # metrics, fields, or a run and a field, as `kind` takes them
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)  # texts by name
    source: str = ""  # the block as it was written

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
    items: list[tuple[str, str]] = []
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
        items.append((match["option"] or "", word))
        place = match.end()
    return items


# Runs of a block without a limit: in a table or as curves; of means and charts.
_FEW, _MANY, _MOST_COLUMNS, _COUNTED = 20, 500, 30, 10_000
_MAX_SETTINGS = 6


@dataclasses.dataclass(frozen=True)
class RunTable:
    """Runs with their fields by column, the run first; `note` says what the table leaves out."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Run, list[Any]]]
    note: str = ""

    def is_numeric(self, place: int) -> bool:
        """Tell whether a column has numbers only, and any."""
        values = [value for _, row in self.rows if (value := row[place]) is not None]
        return bool(values) and all(map(is_number, values))


def chosen_runs(store: Store, block: Block, columns: Sequence[str] = ()) -> list[Run]:
    """Return the runs of a block, by its options run, where, sort and limit; ReportError if there are none."""
    if "run" in block.options:
        keys = split_names(block.text("run"))
        if not 0 < len(keys) <= _MANY:
            raise ReportError(f"run: got {len(keys)} runs, expected 1 to {_MANY} with commas between")
        return [run.listed() for run in store.get_all(keys)]
    is_many = block.kind in CHARTS or "group" in block.options
    limit = block.number("limit", _MANY if is_many else _FEW, 1, _MANY)
    where, sort = block.text("where") or None, block.text("sort", NEWEST_FIRST)
    runs = [run.listed() for run in store.find(where, sort, limit, columns or None)]
    if not runs:
        raise ReportError(f"no run matches {where}" if where else "there are no runs in this store yet")
    return runs


def run_table(store: Store, block: Block) -> RunTable:
    """Return the table of a block; without `columns`, it has status, result, duration and what differs."""
    names = tuple(dict.fromkeys(short_name(full_name(name)) for name in split_names(block.text("columns"))))
    if len(names) > _MOST_COLUMNS:
        raise ReportError(f"columns: got {len(names)} names, expected {_MOST_COLUMNS} at most")
    runs = chosen_runs(store, block, names)
    if not names:
        has_result = any(_fields(run, ["result"])[0] is not None for run in runs)
        names = ("status", *telling_settings(runs)[:_MAX_SETTINGS], *(["result"] if has_result else []), "duration")
        store.prefetch(runs, list(map(full_name, names)))
    elif "run" in block.options:
        for name in names:
            store.check_field(name)
        store.prefetch(runs, list(map(full_name, names)))
    rows = [(run, _fields(run, names)) for run in runs]
    return RunTable(names, rows, _left_out(store, block, len(rows)))


def _left_out(store: Store, block: Block, num: int) -> str:
    if "run" in block.options or num < block.number("limit", _FEW, 1, _MANY):
        return ""
    total = store.count(block.text("where") or None, _COUNTED)
    if total <= num:
        return ""
    return f"{num} of {'at least ' if total >= _COUNTED else ''}{total:,} runs"


def _fields(run: Run, names: Sequence[str]) -> list[Any]:
    """Return fields of a run; None for what is missing or damaged, a text for its tags."""

    def field(name: str) -> Any:
        try:
            return run.id if name == "id" else " ".join(run.tags) if name == "tags" else run.get(name)
        except StoreError:
            return None

    return [field(name) for name in names]


def value_of(store: Store, block: Block) -> tuple[Run, str, Any]:
    """Return a run, a field of it and its value: of the named run, or of the first that matches."""
    *keys, name = block.words
    if keys and ("where" in block.options or "sort" in block.options):
        raise ReportError("value got a run and conditions; choose the run by one of them")
    store.check_field(name)
    first = dataclasses.replace(block, options={**block.options, "limit": "1"})
    run = store.get(keys[0]).listed() if keys else next(iter(chosen_runs(store, first, [name])))
    short = short_name(full_name(name))
    [value] = _fields(run, [short])
    if value is None:
        raise ReportError(f"run {run.id} has no {short}")
    digits = block.number("digits", 0, 0, 15) if "digits" in block.options else 0
    return run, short, float(f"{value:.{digits}g}") if digits and isinstance(value, float) else value


def curve_panel(block: Block, runs: Sequence[Run]) -> Panel:
    """Return the curves of a block; the runs are those of `chosen_runs`."""
    title = block.title
    metrics = [title] if any(title in run.metrics for run in runs) else split_names(title)
    view = View(
        tuple(split_names(block.text("group"))),
        tuple(split_names(block.text("over"))),
        block.text("x", "step"),
        block.share("smoothing"),
        block.text("band", "interval"),
        log_y=block.flag("log_y"),
        log_x=block.flag("log_x"),
        joined=block.flag("joined"),
    )
    return make_panel(title, metrics, runs, view)


def scatter_of(table: RunTable) -> Curve | None:
    """Return points, with gaps between, for a scatter plot of the first two columns; None if they are no numbers."""
    if not (table.is_numeric(0) and table.is_numeric(1)):
        return None
    pairs = sorted(row[:2] for _, row in table.rows if row[0] is not None and row[1] is not None)
    x, y = (np.repeat(np.array([float(pair[place]) for pair in pairs]), 2) for place in (0, 1))
    y[1::2] = np.nan
    return Curve(f"{len(pairs)} runs", x, y)


def chart_table(store: Store, block: Block) -> RunTable:
    """Return the runs of a chart with their fields."""
    names = tuple(short_name(full_name(word)) for word in block.words)
    runs = chosen_runs(store, block, names)
    for name in names:
        store.check_field(name)
    table = RunTable(names, [(run, _fields(run, names)) for run in runs])
    lacking = [name for place, name in enumerate(names) if all(row[place] is None for _, row in table.rows)]
    if lacking:
        raise ReportError(f"none of these runs has {list_text(lacking)}")
    return table
