"""Replay the last recorded steps of a run from an earlier state, and compare the points."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sacristan.observers.record.identity import RECORD_TO_VARIABLE
from sacristan.observers.record.points import Series
from sacristan.observers.record.points.intact_points import read_metrics
from sacristan.observers.record.schema import CONFIG
from sacristan.runs.errors import LaunchError
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.launching import OBSERVERS, Launch, recorded_launch, started
from sacristan.runs.rerun.resuming import kept_start, start_setting, states_of, with_folder
from sacristan.runs.stores import Run

_LOOK_EVERY_S = 0.2


@dataclasses.dataclass(frozen=True)
class Replay:
    """A comparison of replayed points, those of steps after `after`, up to `until`, with the recorded ones.

    `state` names the file that it started from; empty for the start of the run. `first` has metric, step, recorded and
    replayed value of the first point that differs; None if all are equal bit for bit.
    """

    state: str
    after: int
    until: int
    num_points: int
    num_metrics: int
    first: tuple[str, int | float, float, float | None] | None

    @property
    def text(self) -> str:
        """The verdict in a line."""
        where = f"steps {self.after + 1} to {self.until}, replayed from {self.state or 'the beginning'}"
        if self.first is None:
            return f"IDENTICAL: {self.num_points} points of {self.num_metrics} metrics, {where}"
        metric, step, recorded, replayed = self.first
        return f"DIVERGED: {metric} at step {step} was {recorded!r}, replayed {replayed!r} ({where})"


def replay(run: Run, num_steps: int, settings: Sequence[str] = ()) -> Replay:
    """Replay at least the last `num_steps` recorded steps of a run in a separate process, and compare the points.

    The record stays as it is. The process is ended after the last step. Of a run in a database, the folder that it was
    recorded in is replayed. Without a good state before those steps, this raises LaunchError.
    """
    run, folder = with_folder(run)
    recorded = _series(folder)
    until = max((int(series.steps.max()) for series in recorded.values()), default=0)
    if not until:
        raise LaunchError(f"run {run.id} has recorded no steps that could be replayed")
    after, state = _state_before(run, until, num_steps) if num_steps < until else (0, None)
    path = kept_start(run) if state is None else state
    record = Record(run)
    with tempfile.TemporaryDirectory(prefix="runs-") as name:
        launch = recorded_launch(
            record,
            config=folder / CONFIG,
            updates=[*settings, *([] if path is None else [start_setting(path)])],
            environment={**record.flags, RECORD_TO_VARIABLE: name},
            # No other store may take it for a run.
            without=OBSERVERS,
        )
        replayed = _run_until(launch, Path(name), until)
    return compare_points(recorded, replayed, after, "" if state is None else state.name, until)


def _state_before(run: Run, until: int, num_steps: int) -> tuple[int, Path]:
    """Return step and file of the newest good state from before the last `num_steps` steps up to `until`."""
    states = [(s.step, s.path) for s in states_of(run, check=True) if not s.fault and s.step is not None]
    newest = next(((step, path) for step, path in states if step <= until - num_steps), None)
    if newest is None:
        most = until - min((step for step, _ in states), default=until)
        allowed = f"its oldest one allows --verify {most}, and " if most > 0 else ""
        raise LaunchError(
            f"run {run.id} has no good state from before its last {num_steps} recorded steps; {allowed}"
            f"--verify {until} replays all of it"
        )
    return newest


def _series(folder: Path) -> dict[str, Series]:
    metrics = read_metrics(folder).items()
    return {name: series for name, series in metrics if len(series) and not name.startswith("system/")}


def _run_until(launch: Launch, base: Path, until: int) -> dict[str, Series]:
    """Start a process that records below `base`, end it once it has recorded step `until`, and return its metrics."""
    output = base / "output.txt"
    with output.open("wb") as stream, started(launch, stream.fileno()) as process:
        while process.poll() is None and _last_step(base / "1") <= until:
            time.sleep(_LOOK_EVERY_S)
    # Without a further step, or the end of the process, metrics of the last step might be missing.
    if _last_step(base / "1") < until + (process.returncode != 0):
        lines = output.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise LaunchError(f"the replay ended with exit code {process.returncode} before step {until}: {lines[-1]}")
    return _series(base / "1")


def _last_step(folder: Path) -> int:
    """Return the greatest step that a run has recorded; -1 for none."""
    metrics = _series(folder).values() if folder.is_dir() else ()
    return max((int(series.steps.max()) for series in metrics), default=-1)


def compare_points(
    recorded: dict[str, Series], replayed: dict[str, Series], after: int, state: str, until: int
) -> Replay:
    """Compare the points of steps after `after`, up to `until`, bit for bit.

    A metric without points there in one of the two, such as one with steps of another kind, is left out. A metric that
    the replay did not log at all differs. `state` names the file that the replay started from. If there is nothing to
    compare, this raises LaunchError.
    """
    num_points, num_metrics = 0, 0
    different: list[tuple[float, str, float, float | None]] = []
    for name, series in sorted(recorded.items()):
        old = _between(series, after, until)
        new = _between(replayed[name], after, until) if name in replayed else np.empty((0, 2))
        if not len(old) or (name in replayed and not len(new)):
            continue
        if name in replayed:
            num_points, num_metrics = num_points + len(old), num_metrics + 1
        if (pair := _first_different(old, new)) is not None:
            different.append((pair[0], name, *pair[1:]))
    if not num_points and not different:
        raise LaunchError(f"there are no points of steps {after + 1} to {until} to compare")
    first = None
    if different:
        step, name, value, other = min(different, key=lambda entry: entry[:2])
        first = (name, int(step) if float(step).is_integer() else step, value, other)
    return Replay(state, after, until, num_points, num_metrics, first)


def _first_different(old: np.ndarray, new: np.ndarray) -> tuple[float, float, float | None] | None:
    """Return step, recorded and replayed value of the first row of `old` that differs in `new`; None without one."""
    for place, (step, value) in enumerate(old.tolist()):
        other_step, other = new[place].tolist() if place < len(new) else (step, None)
        if step != other_step:
            return step, value, None
        if other is None or not (value == other or (math.isnan(value) and math.isnan(other))):
            return step, value, other
    return None


def _between(series: Series, after: int, until: int) -> np.ndarray:
    """Return steps and values (n, 2) of the points in a range."""
    chosen = (series.steps > after) & (series.steps <= until)
    return np.stack([series.steps[chosen].astype(np.float64), series.values[chosen]], -1)
