"""Writing the metrics of any run in the layout of `sacristan.observers.record.schema`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.record.points.intact_points import entries_of
from sacristan.observers.record.points.points import POINT, TICKS_PER_S, Series, summarize
from sacristan.observers.record.schema import MAX_SACRED_POINTS, NAMES, POINTS, SACRED_METRICS, SUMMARY, SUMS
from sacristan.runs.query.times import without_zone
from sacristan.runs.stores.run import Run

__all__ = ["write_metrics", "write_series"]


def write_metrics(run: Run, folder: Path) -> None:
    """Write all metrics of a run; see `write_series`."""
    names = run.logged_metrics  # curves in `info` are copied with it

    def each() -> Iterator[tuple[str, Series]]:
        for number, name in enumerate(names):
            run.store.tell(f"metrics of run {run.id}", number, len(names))
            yield name, run.metric(name)
        run.store.tell(f"metrics of run {run.id}", len(names), len(names))

    if names:
        write_series(folder, each(), without_zone(run.start_time) or datetime(1970, 1, 1))


def write_series(folder: Path, each_series: Iterable[tuple[str, Series]], start: datetime) -> None:
    """Write metrics into a run's folder, up to `MAX_SACRED_POINTS` points in Sacred's form as well.

    `start` is in UTC without a time zone.
    """
    rows: list[dict[str, Any]] = []
    sacred: dict[str, dict[str, list[Any]]] = {}
    summary: dict[str, Mapping[str, Any]] = {}
    total = 0
    with (folder / POINTS).open("wb") as points, (folder / SUMS).open("wb") as sums:
        for number, (name, series) in enumerate(each_series):
            rows.append(_name_row(number, name, series))
            data = _as_points(series, number).tobytes()
            points.write(data)
            sums.write(entries_of(data, total))
            total += len(series)
            if len(series):
                summary[name] = summarize(series.values, series.steps)
            if total <= MAX_SACRED_POINTS:
                sacred[name] = _as_sacred(series, start)
    (folder / NAMES).write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (folder / SUMMARY).write_text(json.dumps(summary, indent=2))
    if 0 < total <= MAX_SACRED_POINTS:
        (folder / SACRED_METRICS).write_text(json.dumps(sacred))  # many times quicker than indented


def _name_row(number: int, name: str, series: Series) -> dict[str, Any]:
    row = {"id": number, "name": name}
    return {**row, "steps": "float"} if series.steps.dtype == np.float64 else row


def _as_points(series: Series, number: int) -> np.ndarray:
    """Return the points of a metric as an array (n,) of `POINT`."""
    points = np.zeros(len(series), POINT)
    points["metric"] = number
    ticks = np.rint(np.nan_to_num(series.times) * TICKS_PER_S)
    points["time"] = np.clip(ticks, 0, 2**32 - 1).astype(np.uint32)
    points["step"] = series.steps.view("<i8") if series.steps.dtype == np.float64 else series.steps
    points["value"] = series.values
    return points


def _as_sacred(series: Series, start: datetime) -> dict[str, list[Any]]:
    stamps = [(start + timedelta(seconds=seconds)).isoformat() for seconds in np.nan_to_num(series.times).tolist()]
    return {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
