"""State of the pages that show and compare runs, as their URLs encode it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from starlette.datastructures import QueryParams

from sacristan.observers.record.directions import DIRECTIONS
from sacristan.runs.board.url_view import UrlView
from sacristan.runs.comparison.curves import BANDS
from sacristan.runs.comparison.panels import View
from sacristan.runs.drawing.curve import X_AXES
from sacristan.runs.errors import FilterError
from sacristan.runs.query.filters import AllOf, Filter, OneOf, Words, condition, parse_words
from sacristan.runs.query.names import full_name, short_name, split_names
from sacristan.runs.stores.settings import show
from sacristan.runs.stores.store import NEWEST_FIRST

__all__ = ["ALL", "LAYOUTS", "NONE", "TABS", "CompareView", "RunsView"]

TABS = ("config", "sources", "media", "statistics")
LAYOUTS = ("both", "table", "charts")
# Hides every run that `eye` does not name.
ALL = "*"
# Opens every section.
NONE = "-"
# Limits of what a URL may ask for.
_MAX_COLUMNS, _MAX_CONDITIONS, _MAX_PANELS, _MAX_PAGE = 60, 30, 60, 100_000
_CONDITION = re.compile(r"[=<>~]|\s(not\s+)?in\s*[\[(]", re.I)


@dataclasses.dataclass(frozen=True)
class RunsView(UrlView):
    """State of the workspace: the runs, their order and columns, and how their curves are drawn.

    Attributes:
        run: Ids or uids of the runs to show; empty for all runs.
        where: Conditions, as `sacristan ls --where` takes them.
        words: Words that texts of the runs contain.
        group: Fields with commas between; runs with equal values are shown as one row and one mean. Empty for single
            runs.
        over: Fields that vary within a group, with commas between; see `sacristan.runs.comparison.grouping`.
        sort: A field, with a `-` before it for descending order.
        column: Columns, by the short names of fields; empty for the default ones.
        page: Number of the page, from 1.
        layout: One of `LAYOUTS`.
        hide: Runs or groups whose curves are hidden; `ALL` for all but those of `eye`.
        eye: Runs or groups whose curves are shown although all others are hidden.
        panel: Pinned panels, in their order: metrics and expressions of metrics, with commas between, or charts of
            runs; see `sacristan.runs.board.charts`.
        wide: Panels that take the full width.
        closed: Sections of panels that are closed; `NONE` for no section.
        x: The horizontal axis; see `sacristan.runs.drawing.curve.curve_of`.
        smoothing: Weight of earlier points, from 0 to below 1.
        log_x, log_y: Logarithmic axes.
        joined: Whether runs are drawn with the points of the runs that they were started from.
        band: The band around the mean of a group; see `sacristan.runs.comparison.curves.mean_curve`.
        zoom: Range of the axis of all panels, in steps or seconds, with two dots between.
    """

    run: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    words: str = ""
    group: str = ""
    over: str = ""
    sort: str = NEWEST_FIRST
    column: tuple[str, ...] = ()
    page: int = 1
    layout: str = LAYOUTS[0]
    hide: tuple[str, ...] = ()
    eye: tuple[str, ...] = ()
    panel: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    closed: tuple[str, ...] = ("system",)
    x: str = "step"
    smoothing: float = 0.0
    log_x: bool = False
    log_y: bool = False
    joined: bool = False
    band: str = BANDS[0]
    zoom: str = ""

    PATH: ClassVar[str] = "/runs"
    SIZE: ClassVar[int] = 50
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"layout": LAYOUTS, "x": X_AXES, "band": BANDS}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """See `UrlView.of`; all names are short ones."""
        view = super().of(query)
        return dataclasses.replace(
            view,
            where=view.where[:_MAX_CONDITIONS],
            words=" ".join(view.words.split()),
            group=",".join(_names(view.group)),
            over=",".join(_names(view.over)),
            column=tuple(dict.fromkeys(map(_short, view.column)))[:_MAX_COLUMNS],
            panel=view.panel[:_MAX_PANELS],
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
        """True if names, conditions or words choose the runs."""
        return bool(self.run or self.where or self.words)

    @functools.cached_property
    def sort_name(self) -> str:
        """The short name of the field that sorts the runs."""
        return _short(self.sort.removeprefix("-"))

    @property
    def offset(self) -> int:
        """Number of runs on the pages before this one."""
        return (self.page - 1) * self.SIZE

    def of_all(self, path: str) -> str:
        """Return a URL for all runs of the view, on all pages."""
        return type(self)(self.run, self.where, self.words, self.group, self.over, self.sort).url(path)

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
        """The fields that define groups."""
        return _names(self.group)

    @property
    def fields_over(self) -> tuple[str, ...]:
        """The fields that vary within a group."""
        return _names(self.over) if self.group else ()

    def of_group(self, values: Mapping[str, Any]) -> str:
        """Return the URL of the runs of one group, given the values that they share by field.

        It is empty if a condition, whose value may be shortened, would match other runs.
        """
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
        return "".join(f"&{name}={value}" for name, value in pairs)

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
    """State of the page that compares runs.

    Attributes:
        run: Ids or uids; without any, `where` chooses the runs.
        where: Conditions, as `sacristan ls --where` takes them.
        tab: One of `TABS`.
        by, over: Fields that define groups, and fields that vary within them, with commas between.
        field: The field that groups are compared by.
        mode: The better direction, `max` or `min`; empty for the recorded one.
        first, second: The two runs whose sources are compared; empty for the first two.
        file: The source that is compared.
        everything: Whether to show equal config entries as well.
    """

    run: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    tab: str = TABS[0]
    by: str = ""
    over: str = ""
    field: str = ""
    mode: str = ""
    first: str = ""
    second: str = ""
    file: str = ""
    everything: bool = False

    PATH: ClassVar[str] = "/compare"
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"tab": TABS, "mode": DIRECTIONS}

    @property
    def fields_by(self) -> tuple[str, ...]:
        """The fields that define the groups."""
        return _names(self.by)

    @property
    def fields_over(self) -> tuple[str, ...]:
        """The fields that vary within a group."""
        return _names(self.over)


def _short(name: str) -> str:
    return short_name(full_name(name))


def _names(text: str) -> tuple[str, ...]:
    return tuple(split_names(text))
