"""Joins the curves of runs that continue others to those of the runs they were started from.

An ancestor's points end before the first point of its descendant. If the descendant was started from a state such as
`step-000000120.pt`, they end at the state's step.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

import numpy as np

from sacristan.observers.record.points.points import Series
from sacristan.runs.drawing.curve import Curve, curve_of
from sacristan.runs.errors import PlotError, StoreAwayError, StoreError
from sacristan.runs.stores.prefetching import prefetch
from sacristan.runs.stores.run import Run

__all__ = ["Ancestry", "Piece", "joined_series", "run_curve"]

# Generations that are looked for.
_MAX_ANCESTORS = 20
_START = "config.checkpoint.resume"
_STATE = re.compile(r"step-(\d{1,18})\.pt")

Piece = tuple[Run, Series]
Reader = Callable[[Run], Series | None]


class Ancestry:
    """The runs that some runs were started from, found with one query a generation."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_uid: dict[str, Run] = {}
        for _, members in itertools.groupby(runs, lambda run: run.store):
            self._find(list(members))

    def _find(self, runs: list[Run]) -> None:
        for _ in range(_MAX_ANCESTORS):
            prefetch(runs, ["parent", _START, "start_time"])
            wanted = {uid for run in runs if (uid := _parent_of(run))} - self._by_uid.keys()
            if not wanted:
                return
            found = runs[0].store.find({"uid": {"$in": sorted(wanted)}})
            runs = [run.listed() for run in found]
            prefetch(runs, ["metrics"])
            self._by_uid |= {run.uid: run for run in runs if run.uid}

    def of(self, run: Run) -> Iterator[tuple[Run, Run]]:
        """Yield each ancestor of a run with the run that was started from it, the parent first."""
        seen = {run.uid}
        if not self._by_uid:
            return  # the parent of each run would be asked of the store
        while (parent := self._by_uid.get(_parent_of(run))) is not None and parent.uid not in seen:
            yield parent, run
            seen.add(parent.uid)
            run = parent

    def pieces(self, run: Run, own: Series, read: Reader) -> list[Piece]:
        """Return the pieces of a joined curve, oldest first; the run's own points are the last one.

        `read` returns the points of an ancestor, or None if it lacks the metric.
        """
        pieces = [(run, own)]
        first = float(np.min(own.steps)) if len(own) else -math.inf
        for parent, child in self.of(run):
            first = min(first, _first_step(child))
            series = _readable(parent, read)
            if series is None or not (kept := series.steps < first).any():
                continue
            parts = {name: getattr(series, name)[kept] for name in ("steps", "values", "times")}
            pieces.insert(0, (parent, dataclasses.replace(series, **parts)))
            first = float(np.min(parts["steps"]))
        return pieces


def _parent_of(run: Run) -> str:
    uid = run.get("parent")
    return uid if isinstance(uid, str) else ""  # a foreign record may hold anything


def _first_step(child: Run) -> float:
    """Return the smallest step that a run can log itself, if the name of its first state reveals it."""
    start = child.get(_START)
    state = _STATE.fullmatch(PurePath(start).name) if isinstance(start, str) else None
    return int(state[1]) + 1 if state else math.inf


def _readable(run: Run, read: Reader) -> Series | None:
    try:
        return read(run)
    except StoreAwayError:
        raise
    except StoreError:  # a damaged ancestor does not hide the run's own points
        return None


def joined_series(pieces: Sequence[Piece], *, on_wall: bool = False) -> Series:
    """Return the points of the pieces from `Ancestry.pieces` in one series.

    By default, an ancestor's last point is at 0 s, the start of the run, so that pauses between runs do not count. With
    `on_wall`, times keep their distance on the clock.
    """
    times: list[np.ndarray] = []
    start = 0.0
    for piece, series in reversed(pieces):
        if on_wall:
            start = _start_s(piece) - _start_s(pieces[-1][0])
        elif times:
            start -= float(np.max(series.times))
        times.insert(0, series.times + start)
    parts = [series for _, series in pieces]
    joined = {name: np.concatenate([getattr(one, name) for one in parts]) for name in ("steps", "values")}
    return dataclasses.replace(parts[-1], **joined, times=np.concatenate(times))


def _start_s(run: Run) -> float:
    return run.start_time.timestamp() if run.start_time else 0.0


def run_curve(pieces: Sequence[Piece], label: str, x: str) -> Curve:
    """Return the curve of one run with all points, ancestors first; `own_from` is where its own points begin.

    Raises PlotError if the axis shows epochs and the record of the run has none. For `x`, see
    `sacristan.runs.drawing.curve.curve_of`.
    """
    run, own = pieces[-1]
    epochs = None
    num_points = sum(len(series) for _, series in pieces)
    if x == "epoch":
        pieces, epochs = _with_epochs(pieces)
    series = joined_series(pieces, on_wall=x == "wall")
    curve = curve_of(series, label, x, epochs=epochs, start_s=_start_s(run))
    if num_lacking := num_points - len(series):
        left_out = {**curve.left_out, "of earlier runs, whose epochs are not known or not earlier": num_lacking}
        curve = dataclasses.replace(curve, left_out=left_out)
    if len(pieces) == 1 or not len(own):
        return curve
    positions = {"step": series.steps, "epoch": epochs, "time": series.times}.get(x, _start_s(run) + series.times)
    return dataclasses.replace(curve, own_from=float(np.min(np.asarray(positions)[-len(own) :])))


def _with_epochs(pieces: Sequence[Piece]) -> tuple[list[Piece], np.ndarray]:
    """Return the pieces whose epochs are known and do not exceed those of the next piece, and the epochs."""
    kept: list[Piece] = []
    epochs: list[np.ndarray] = []
    for run, series in reversed(pieces):
        found = run.epochs_at(series.steps)
        if found is None:
            break
        shown = found <= np.min(epochs[0]) if epochs and len(epochs[0]) else np.ones(len(found), bool)
        parts = {name: getattr(series, name)[shown] for name in ("steps", "values", "times")}
        kept.insert(0, (run, dataclasses.replace(series, **parts)))
        epochs.insert(0, found[shown])
    if not kept:
        raise PlotError(
            f"run {pieces[-1][0].id}: its record has no epochs; log a metric named epoch, or draw over steps"
        )
    return kept, np.concatenate(epochs)
