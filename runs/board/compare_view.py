"""State of the page that compares runs, as its URL encodes it."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from observers.record.directions import DIRECTIONS
from runs.comparison.curves import BANDS
from runs.comparison.panels import View
from runs.drawing.curve import X_AXES

__all__ = ["TABS", "CompareView"]

TABS = ("curves", "config", "sources", "media", "statistics")


@dataclasses.dataclass(frozen=True)
class CompareView:
    """Selection of runs and of their comparison; a page of it is a URL that others can open.

    Attributes:
        run: Ids or uids; if there are none, `where` chooses.
        where: Conditions, as `runs ls --where` takes them.
        tab: One of `TABS`.
        metric: Metrics whose curves are drawn; empty for the first ones there are.
        x: What curves are drawn over; see `runs.drawing.curve.curve_of`.
        smoothing: Weight of earlier points, from 0 to below 1.
        log_x, log_y: Logarithmic axes.
        by, over: Fields that make groups, and fields of a repetition, with commas between.
        band: Around the means of groups; see `runs.comparison.curves.mean_curve`.
        field: What groups are compared by.
        mode: Which way that is better: `max`, `min`, or empty for what the runs record.
        first, second: The two runs whose sources are compared; empty for the first two.
        file: The source that is compared.
        everything: Whether entries of the config that are equal are shown, too.
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

    @classmethod
    def of(cls, query: QueryParams) -> CompareView:
        """Return what a URL asks for; what makes no sense is as if it were not there."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            given = [value for value in query.getlist(field.name) if value.strip()]
            if not given:
                continue
            if isinstance(field.default, tuple):
                found[field.name] = tuple(dict.fromkeys(given))
            elif isinstance(field.default, bool):
                found[field.name] = given[-1] == "1"
            elif isinstance(field.default, float):
                found[field.name] = _weight(given[-1])
            else:
                found[field.name] = given[-1]
        for name, choices in (("tab", TABS), ("x", X_AXES), ("band", BANDS), ("mode", DIRECTIONS)):
            if found.get(name) not in choices:
                found.pop(name, None)
        return cls(**found)

    def url(self, path: str = "/compare", **changes: Any) -> str:
        """Return the URL of this view, or of one that is otherwise."""
        return f"{path}?{urlencode(list(dataclasses.replace(self, **changes).pairs()))}"

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return the fields of the URL that are not at their defaults, but for some."""
        found: list[tuple[str, str]] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in without:
                continue
            if isinstance(value, tuple):
                found += [(field.name, one) for one in value]
            else:
                found.append(
                    (field.name, "1" if value is True else f"{value:g}" if field.name == "smoothing" else value)
                )
        return found

    @property
    def fields_by(self) -> tuple[str, ...]:
        """The fields that define groups."""
        return _names(self.by)

    @property
    def fields_over(self) -> tuple[str, ...]:
        """The fields of a repetition."""
        return _names(self.over)

    def plot(self, num_points: int, between: tuple[float | None, float | None] = (None, None)) -> View:
        """Return how curves are drawn, of a range of the axis at most so many points each."""
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


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _weight(text: str) -> float:
    try:
        weight = float(text[:20])
    except ValueError:
        return 0.0
    return weight if 0 <= weight < 1 else 0.0
