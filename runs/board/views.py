"""State of the pages that list and compare runs, as their URLs encode it."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from observers.record.directions import DIRECTIONS
from runs.comparison.curves import BANDS
from runs.comparison.panels import View
from runs.drawing.curve import X_AXES
from runs.errors import FilterError
from runs.query.filters import AllOf, Filter, Words, condition, parse_words
from runs.query.names import full_name, short_name
from runs.stores.store import NEWEST_FIRST

__all__ = ["TABS", "CompareView", "RunsView"]

TABS = ("curves", "config", "sources", "media", "statistics")
# Limits of what a URL may ask for.
_MAX_COLUMNS, _MAX_CONDITIONS, _MAX_PAGE = 60, 30, 100_000
_CONDITION = re.compile(r"[=<>~]|\s(not\s+)?in\s*[\[(]", re.I)


@dataclasses.dataclass(frozen=True)
class _UrlView:
    """State of a page: each field is a parameter of its URL. A tuple repeats the parameter, a default omits it."""

    PATH: ClassVar[str]
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Return the state that a URL encodes; invalid values are ignored.

        Args:
            query: The parameters of the URL.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            texts = [text for text in query.getlist(field.name) if text.strip()]
            if texts and texts[-1] in cls.CHOICES.get(field.name, texts):
                values[field.name] = _value(texts, field.default)
        return cls(**{name: value for name, value in values.items() if value is not None})

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return the parameters of the URL.

        Args:
            without: Names of parameters to leave out.
        """
        pairs: list[tuple[str, str]] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in without:
                continue
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.name, _text(one)) for one in values]
        return pairs

    def url(self, path: str = "", **changes: Any) -> str:
        """Return the URL of this state, or of a changed one.

        Args:
            path: Another page that takes the same parameters.
            changes: Fields with their new values.
        """
        pairs = dataclasses.replace(self, **changes).pairs()
        return (path or self.PATH) + (f"?{urlencode(pairs)}" if pairs else "")


def _text(value: Any) -> str:
    return "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def _value(texts: list[str], default: Any) -> Any:
    """Return a field from the texts of a URL, of the type of its default; None for an invalid one."""
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
class RunsView(_UrlView):
    """State of the page of runs: the runs, their order and columns.

    Attributes:
        where: Conditions, as `runs ls --where` takes them.
        words: Words that texts of the runs contain.
        group: A field; runs with equal values are shown as one row. Empty for single runs.
        sort: A field, with a `-` before it for descending order.
        column: Columns, by the short names of fields; empty for the usual ones.
        page: Number of the page, from 1.
    """

    where: tuple[str, ...] = ()
    words: str = ""
    group: str = ""
    sort: str = NEWEST_FIRST
    column: tuple[str, ...] = ()
    page: int = 1

    PATH: ClassVar[str] = "/runs"
    SIZE: ClassVar[int] = 50

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """See `_UrlView.of`; all names are short ones."""
        view = super().of(query)
        return dataclasses.replace(
            view,
            where=view.where[:_MAX_CONDITIONS],
            words=" ".join(view.words.split()),
            group=view.group.strip(),
            column=tuple(dict.fromkeys(map(_short, view.column)))[:_MAX_COLUMNS],
            page=view.page if 0 < view.page <= _MAX_PAGE else 1,
        )

    def adding(self, text: str) -> Self:
        """Return the state with something that was typed.

        Args:
            text: A condition, or words to search for; an empty text changes nothing.
        """
        text = text.strip()
        if not text:
            return self
        if _CONDITION.search(text):
            return dataclasses.replace(self, where=tuple(dict.fromkeys((*self.where, text))), page=1)
        return dataclasses.replace(self, words=text, page=1)

    @functools.cached_property
    def tree(self) -> Filter:
        """The filter of the runs, parsed once.

        Raises:
            FilterError: If a condition is invalid.
        """
        words: list[Filter] = [Words(self.words)] if self.words else []
        return AllOf((*map(parse_words, self.where), *words))

    @property
    def is_filtered(self) -> bool:
        """True if conditions or words choose the runs."""
        return bool(self.where or self.words)

    @functools.cached_property
    def sort_name(self) -> str:
        """The short name of the field that sorts the runs."""
        return _short(self.sort.removeprefix("-"))

    @property
    def offset(self) -> int:
        """Number of runs on the pages before this one."""
        return (self.page - 1) * self.SIZE

    def without(self, index: int) -> str:
        """Return the URL without one of the conditions.

        Args:
            index: Its place in `where`.
        """
        return self.url(where=self.where[:index] + self.where[index + 1 :], page=1)

    def sorted_by(self, name: str) -> str:
        """Return the URL of a click on the head of a column: in descending order first, then in ascending order.

        Args:
            name: The column.
        """
        return self.url(sort=name if self.sort == f"-{name}" else f"-{name}", page=1)

    def direction(self, name: str) -> str:
        """Return the order of a column, as `aria-sort` has it; empty for one that does not sort the runs.

        Args:
            name: The column, by its short name.
        """
        if self.sort_name != name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    def of_group(self, label: str, value: Any) -> str:
        """Return the URL of the runs of one group.

        Args:
            label: The condition that the group is shown as.
            value: The value that its runs share.

        Returns:
            The URL; empty if the condition, which may be shortened, means other runs.
        """
        try:
            is_exact = parse_words(label) == condition(self.group, "==", value)
        except FilterError:
            return ""
        return self.url(where=(*self.where, label), group="", page=1) if is_exact else ""


@dataclasses.dataclass(frozen=True)
class CompareView(_UrlView):
    """State of the page that compares runs.

    Attributes:
        run: Ids or uids; without any, `where` chooses the runs.
        where: Conditions, as `runs ls --where` takes them.
        tab: One of `TABS`.
        metric: Metrics whose curves are drawn; empty for the first ones.
        x: The horizontal axis; see `runs.drawing.curve.curve_of`.
        smoothing: Weight of earlier points, from 0 to below 1.
        log_x, log_y: Logarithmic axes.
        by, over: Fields that define groups, and fields that vary within them, with commas between.
        band: The band around the mean of a group; see `runs.comparison.curves.mean_curve`.
        field: The field that groups are compared by.
        mode: The better direction, `max` or `min`; empty for the recorded one.
        first, second: The two runs whose sources are compared; empty for the first two.
        file: The source that is compared.
        everything: Whether to show equal entries of the config as well.
        zoom: Range of the axis of all panels, in steps or seconds, with two dots between.
    """

    run: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    tab: str = TABS[0]
    metric: tuple[str, ...] = ()
    x: str = "step"
    smoothing: float = 0.0
    log_x: bool = False
    log_y: bool = False
    by: str = ""
    over: str = ""
    band: str = BANDS[0]
    field: str = ""
    mode: str = ""
    first: str = ""
    second: str = ""
    file: str = ""
    everything: bool = False
    zoom: str = ""

    PATH: ClassVar[str] = "/compare"
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"tab": TABS, "x": X_AXES, "band": BANDS, "mode": DIRECTIONS}

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """See `_UrlView.of`."""
        view = super().of(query)
        return view if 0 <= view.smoothing < 1 else dataclasses.replace(view, smoothing=0.0)

    @property
    def fields_by(self) -> tuple[str, ...]:
        """The fields that define groups."""
        return _names(self.by)

    @property
    def fields_over(self) -> tuple[str, ...]:
        """The fields that vary within a group."""
        return _names(self.over)

    def plot(self, num_points: int, between: tuple[float | None, float | None] = (None, None)) -> View:
        """Return how to draw the curves.

        Args:
            num_points: The maximum number of points of a curve.
            between: The range of the axis; None for an open end.
        """
        return View(
            self.fields_by,
            self.fields_over if self.by else (),
            self.x,
            self.smoothing,
            self.band,
            log_y=self.log_y,
            num_points=num_points,
            between=between,
        )


def _short(name: str) -> str:
    return short_name(full_name(name))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
