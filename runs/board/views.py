"""State of the pages that show and compare runs, as their URLs encode it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from sacristan.observers.record.directions import DIRECTIONS
from sacristan.runs.comparison.curves import BANDS
from sacristan.runs.comparison.panels import View
from sacristan.runs.errors import FilterError, PlotError
from sacristan.runs.query import full_name, short_name, split_names
from sacristan.runs.query.filters import AllOf, Filter, OneOf, Words, condition, parse_words
from sacristan.runs.query.texts import count_text
from sacristan.runs.stores import NEWEST_FIRST
from sacristan.runs.stores.settings import show

# Set for each request.
root: ContextVar[str] = ContextVar("root", default="")
# Least and greatest number of fields of each kind.
_NUM_FIELDS = {"scatter": (2, 3), "parallel": (2, 20), "importances": (1, 20), "histogram": (1, 1)}
_EXAMPLES = {
    "scatter": "scatter(lr, result)",
    "parallel": "parallel(lr, width, result)",
    "importances": "importances(result)",
    "histogram": "histogram(result)",
}
_CHART = re.compile(rf"\s*({'|'.join(_NUM_FIELDS)})\((.*)\)\s*", re.DOTALL)
TABS = ("config", "sources", "media", "statistics")
LAYOUTS = ("both", "table", "charts")
# Hides every run that `eye` does not name.
ALL = "*"
# Opens every section.
NONE = "-"
# Limits of what a URL may ask for.
_MAX_COLUMNS, _MAX_CONDITIONS, _MAX_PANELS, _MAX_PAGE = 60, 30, 60, 100_000
# What JavaScript's encodeURIComponent leaves as it is.
_UNQUOTED = "!~*'()"
_CONDITION = re.compile(r"[=<>~]|\s(not\s+)?in\s*[\[(]", re.I)


def rooted(path: str) -> str:
    """Return the URL of a page of the current request's store, from its path on a board of one store."""
    return root.get() + path


@dataclasses.dataclass(frozen=True)
class UrlView:
    """State of a page: each field is a parameter of its URL. A tuple repeats the parameter, a default omits it."""

    PATH: ClassVar[str]
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Return the state that a URL encodes; invalid values are ignored."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            texts = [text for text in query.getlist(field.name) if text.strip()]
            if texts and texts[-1] in cls.CHOICES.get(field.name, texts):
                values[field.name] = _value(texts, field.default)
        return cls(**{name: value for name, value in values.items() if value is not None})

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return the parameters of the URL, except those of the fields in `without`."""
        pairs: list[tuple[str, str]] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in without:
                continue
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.name, _text(one)) for one in values]
        return pairs

    def url(self, path: str = "", **changes: Any) -> str:
        """Return the URL of this state with some fields changed; `path` is another page with the same parameters."""
        pairs = dataclasses.replace(self, **changes).pairs()
        return rooted(path or self.PATH) + (f"?{urlencode(pairs)}" if pairs else "")


def _text(value: Any) -> str:
    return "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def _value(texts: list[str], default: Any) -> Any:
    """Convert the texts of a URL to the type of a field's default; None if they are invalid."""
    if isinstance(default, tuple):
        return tuple(dict.fromkeys(texts))
    text = texts[-1]
    if isinstance(default, bool):
        return text == "1"
    if isinstance(default, int | float):
        try:
            return type(default)(text[:20])
        except ValueError:
            return None
    return text


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of runs."""

    kind: str  # `scatter`, `parallel`, `importances` or `histogram`
    # Short names of fields. Scatter: x, y and the one that colours; importances: the result, then the settings, or none
    # for those in which the runs differ.
    fields: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Parse a panel such as `histogram(val/loss.min)`; return None for a panel of curves."""
        match = _CHART.fullmatch(text)
        if match is None:
            return None
        kind, names = match.groups()
        fields = tuple(short_name(full_name(name)) for name in split_names(names))
        least, most = _NUM_FIELDS[kind]
        if not least <= len(fields) <= most:
            expected = f"{least} to {most}" if most > least else str(least)
            raise PlotError(
                f"{kind}: got {count_text(len(fields), 'field')}, expected {expected}, such as {_EXAMPLES[kind]}"
            )
        return cls(kind, fields)


def is_chart(text: str) -> bool:
    """Tell whether a panel is a chart of runs, even an invalid one."""
    return _CHART.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True)
class RunsView(UrlView):
    """State of the workspace: the runs, their order and columns, and how their curves are drawn."""

    run: tuple[str, ...] = ()  # ids or uids; empty for all runs
    where: tuple[str, ...] = ()  # conditions, as `sacristan ls --where` takes them
    words: str = ""  # words that texts of the runs contain
    # Fields that define groups, and fields that vary within them, with commas between.
    group: str = ""
    over: str = ""
    sort: str = NEWEST_FIRST  # a field, with a `-` before it for descending order
    column: tuple[str, ...] = ()  # short names of fields; empty for the default ones
    page: int = 1
    layout: str = LAYOUTS[0]
    hide: tuple[str, ...] = ()  # runs or groups whose curves are hidden; `ALL` for all but those of `eye`
    eye: tuple[str, ...] = ()
    # Pinned panels: metrics and expressions of metrics, with commas between, or charts (see `Chart`).
    panel: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()  # panels that take the full width
    closed: tuple[str, ...] = ("system",)  # sections of panels that are closed; `NONE` for no section
    # See `sacristan.runs.comparison.panels.View`.
    x: str = "step"
    smoothing: float = 0.0
    log_x: bool = False
    log_y: bool = False
    joined: bool = False  # whether runs are drawn with the points of the runs that they were started from
    band: str = BANDS[0]
    zoom: str = ""  # range of the axis of all panels, in steps or seconds, with two dots between
    colour: str = ""  # short name of the field that colours runs and groups; empty for colours that tell them apart
    # Ranges of y, each with the name of its panel: `0..5 train/loss`, of which either end may be missing.
    y: tuple[str, ...] = ()
    ignore_outliers: bool = False  # whether y shows the values that are no outliers only
    legend: tuple[str, ...] = ()  # panels that show a legend; `ALL` for the one of all panels

    PATH: ClassVar[str] = "/runs"
    SIZE: ClassVar[int] = 50
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"layout": LAYOUTS, "band": BANDS}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        view = super().of(query)
        return dataclasses.replace(
            view,
            where=view.where[:_MAX_CONDITIONS],
            words=" ".join(view.words.split()),
            group=",".join(_names(view.group)),
            over=",".join(_names(view.over)),
            column=tuple(dict.fromkeys(map(_short, view.column)))[:_MAX_COLUMNS],
            panel=view.panel[:_MAX_PANELS],
            colour=_short(view.colour.strip()) if view.colour.strip() else "",
            y=view.y[:_MAX_PANELS],
            legend=view.legend[:_MAX_PANELS],
            page=view.page if 0 < view.page <= _MAX_PAGE else 1,
            smoothing=view.smoothing if 0 <= view.smoothing < 1 else 0.0,
        )

    def adding(self, text: str) -> Self:
        """Return the state with a typed condition, or with words to search for; an empty text changes nothing."""
        text = text.strip()
        if not text:
            return self
        if _CONDITION.search(text):
            return dataclasses.replace(self, where=tuple(dict.fromkeys((*self.where, text))), page=1)
        return dataclasses.replace(self, words=text, page=1)

    @functools.cached_property
    def tree(self) -> Filter:
        """The filter of the runs, parsed once. An invalid condition raises FilterError."""
        parts: list[Filter] = [*map(parse_words, self.where), *([Words(self.words)] if self.words else [])]
        if self.run:
            parts.append(OneOf(tuple(condition(name, "in", list(self.run)) for name in ("id", "uid"))))
        return AllOf(tuple(parts))

    @property
    def is_filtered(self) -> bool:
        return bool(self.run or self.where or self.words)

    @functools.cached_property
    def sort_name(self) -> str:
        return _short(self.sort.removeprefix("-"))

    @property
    def offset(self) -> int:
        return (self.page - 1) * self.SIZE

    def of_all(self, path: str) -> str:
        """Return a URL for all runs of the view, on all pages."""
        names = ("run", "where", "words", "group", "over", "sort", "colour")
        return type(self)(**{name: getattr(self, name) for name in names}).url(path)

    def without(self, index: int) -> str:
        """Return the URL without the condition at this index of `where`."""
        return self.url(where=self.where[:index] + self.where[index + 1 :], page=1)

    def toggling(self, text: str) -> str:
        """Return the URL that adds a condition, or removes it if the view has it."""
        if text in self.where:
            return self.without(self.where.index(text))
        return self.url(where=(*self.where, text), page=1)

    def sorted_by(self, name: str) -> str:
        """Return the URL for a click on a column's heading: descending order first, then ascending."""
        return self.url(sort=name if self.sort == f"-{name}" else f"-{name}", page=1)

    def direction(self, name: str) -> str:
        """Return the order of a column (short name) for `aria-sort`; empty for one that does not sort the runs."""
        if self.sort_name != name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    @property
    def fields_by(self) -> tuple[str, ...]:
        return _names(self.group)

    @property
    def fields_over(self) -> tuple[str, ...]:
        return _names(self.over) if self.group else ()

    def of_group(self, values: Mapping[str, Any]) -> str:
        """Return the URL of the runs of one group; empty if a condition on shortened values would match others."""
        texts = [f"{name}={show(value)}" for name, value in values.items()]
        try:
            exact = [condition(name, "==", value) for name, value in values.items()]
            if list(map(parse_words, texts)) != exact:
                return ""
        except FilterError:
            return ""
        return self.url(where=(*self.where, *texts), group="", over="", hide=(), eye=(), page=1)

    def shows(self, key: str) -> bool:
        """Tell whether the curves of a run (by id) or group (by label) are shown."""
        return key in self.eye if ALL in self.hide else key not in self.hide

    @property
    def settings(self) -> str:
        """The part of a panel's URL that the chart form adds, as workspace.js writes it."""
        names = ("x", "smoothing", "log_x", "log_y", "joined", "band")
        pairs = dataclasses.replace(type(self)(), **{name: getattr(self, name) for name in names}).pairs()
        return "".join(f"&{name}={quote(value, safe=_UNQUOTED)}" for name, value in pairs)

    def plot(self, num_points: int, between: tuple[float | None, float | None] = (None, None)) -> View:
        """Return how to draw the curves, with at most `num_points` each; None is an open end of the axis."""
        return View(
            self.fields_by,
            self.fields_over,
            self.x,
            self.smoothing,
            self.band,
            log_y=self.log_y,
            num_points=num_points,
            between=between,
            joined=self.joined and not self.group,
            log_x=self.log_x and self.x != "wall",
        )


@dataclasses.dataclass(frozen=True)
class CompareView(UrlView):
    """State of the page that compares runs."""

    run: tuple[str, ...] = ()  # ids or uids; without any, `where` chooses the runs
    where: tuple[str, ...] = ()
    tab: str = TABS[0]
    # Fields that define groups, and fields that vary within them, with commas between.
    by: str = ""
    over: str = ""
    field: str = ""  # the field that groups are compared by
    mode: str = ""  # the better direction, `max` or `min`; empty for the recorded one
    # The two runs whose source `file` is compared; empty for the first two.
    first: str = ""
    second: str = ""
    file: str = ""
    everything: bool = False  # whether to show equal config entries as well

    PATH: ClassVar[str] = "/compare"
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"tab": TABS, "mode": DIRECTIONS}

    @property
    def fields_by(self) -> tuple[str, ...]:
        return _names(self.by)

    @property
    def fields_over(self) -> tuple[str, ...]:
        return _names(self.over)


def _short(name: str) -> str:
    return short_name(full_name(name))


def _names(text: str) -> tuple[str, ...]:
    return tuple(split_names(text))
