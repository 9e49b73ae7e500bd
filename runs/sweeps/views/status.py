"""Status of a sweep: finished, running, pruned and failed points, the best so far, and the remaining time."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runs.errors import SweepError
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.spec import Spec, read_spec
from runs.sweeps.study.home import Home
from runs.sweeps.study.study import Point, Study
from runs.sweeps.study.trial_runs import setting_text

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["Status", "Watcher", "check_not_all_failed", "command_line", "parameters_text", "say", "status_lines"]

_SHOWN = 8


def say(line: str) -> None:
    """Print a line, into a pipe at once, too."""
    print(line, flush=True)  # noqa: T201 - the terminal is whom it is for


@dataclasses.dataclass(frozen=True)
class Status:
    """Status of a sweep.

    Attributes:
        id: The sweep's.
        limit: How many points there are at most; None without an end.
        points: All that were taken, by number.
        running: Numbers of those that an agent is at.
        abandoned: Numbers of those whose agents have died.
        num_agents: Agents that are alive.
        is_stopped: Whether no more are to be taken.
        best: The best that has come to its end; several with several objectives, none of which another one beats.
        left_s: Seconds that the rest takes, as it went so far; None as long as nobody knows.
    """

    id: str
    limit: int | None
    points: dict[int, Point]
    running: tuple[int, ...]
    abandoned: tuple[int, ...]
    num_agents: int
    is_stopped: bool
    best: tuple[Point, ...]
    left_s: float | None

    def count(self, state: str) -> int:
        """Return how many points have ended in a state."""
        return sum(point.state == state for point in self.points.values())

    @property
    def num_finished(self) -> int:
        """Number of points that have ended, in any way."""
        return sum(point.is_finished for point in self.points.values())

    @property
    def is_done(self) -> bool:
        """True if every point is finished."""
        return self.limit is not None and self.num_finished >= self.limit


class Watcher:
    """Looks at a sweep again and again.

    Args:
        home: Where it lives.
        is_read_only: Whether the study is only read, which must be there then.
        storage: Where the study is; None for where the sweep says.
    """

    def __init__(self, home: Home, *, is_read_only: bool = False, storage: BaseStorage | None = None) -> None:
        self.home = home
        self.definition: Definition = home.definition()
        self.spec: Spec = read_spec(self.definition.spec)
        self.study = Study(home, self.definition, self.spec, is_read_only=is_read_only, storage=storage)

    def limit(self) -> int | None:
        """Return how many points there are at most."""
        given = [self.spec.size, self.spec.run_cap, self.definition.count]
        return min((number for number in given if number is not None), default=None)

    def look(self) -> Status:
        """Return how it stands."""
        points = self.study.points()
        unfinished = [number for number, point in points.items() if not point.is_finished]
        living = self.home.living_agents()
        claims = self.home.last_claims(unfinished)
        running = tuple(number for number in unfinished if number in claims and claims[number].agent in living)
        abandoned = tuple(number for number in unfinished if number not in running)
        took = [point.duration_s for point in points.values() if point.duration_s and "same_as" not in point.notes]
        definition = self.home.definition()
        if definition != self.definition:  # whose limit may have changed meanwhile
            self.definition, self.spec = definition, read_spec(definition.spec)
        limit = self.limit()
        left_s = None
        if took and limit is not None and living:
            left = limit - sum(point.is_finished for point in points.values())
            left_s = left * statistics.median(took) / len(living)
        best = best_points(points, self.spec)
        return Status(self.home.id, limit, points, running, abandoned, len(living), self.home.is_stopped, best, left_s)


def best_points(points: dict[int, Point], spec: Spec) -> tuple[Point, ...]:
    """Return the points that no other one beats, of those that break no constraint; of one objective the first one."""
    signs = [1 if objective.goal == "minimize" else -1 for objective in spec.objectives]
    if not signs:
        return ()
    complete = [point for point in points.values() if point.state == "COMPLETE" and point.values and point.is_feasible]
    costs = {point.number: [s * v for s, v in zip(signs, point.values, strict=True)] for point in complete}
    if len(signs) == 1:
        return tuple(sorted(complete, key=lambda point: (costs[point.number], point.number))[:1])

    def is_beaten(point: Point) -> bool:
        mine = costs[point.number]
        return any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in costs.values())

    return tuple(point for point in complete if not is_beaten(point))


def check_not_all_failed(status: Status, folder: Path) -> None:
    """Refuse to call a sweep done all of whose trials have failed.

    Args:
        status: How the sweep stands.
        folder: Where its runs have printed to.

    Raises:
        SweepError: If they have.
    """
    if not status.num_finished or status.running or status.count("FAIL") < status.num_finished:
        return
    last = status.points[max(status.points)]
    count = f"all {status.num_finished} trials have" if status.num_finished > 1 else "the one trial has"
    raise SweepError(
        f"sweep {status.id}: {count} failed: {last.notes.get('reason', 'unknown')}; what runs printed is in {folder}"
    )


def parameters_text(point: Point) -> str:
    """Return a point's settings as behind `with`."""
    return " ".join(f"{key}={setting_text(value)}" for key, value in point.parameters.items())


def command_line(definition: Definition, point: Point) -> str:
    """Return the command that runs a point again."""
    import shlex

    how = ["-m", definition.module] if definition.module else [definition.script]
    settings = [f"{key}={setting_text(value)}" for key, value in point.parameters.items()]
    return shlex.join(["python", *how, "with", *definition.settings, *settings])


def status_lines(status: Status, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines to show.

    Args:
        status: How the sweep stands.
        names: Of the objectives.
    """
    of = "" if status.limit is None else f" of {status.limit}"
    parts = [f"sweep {status.id}: {status.num_finished}{of} done"]
    parts += [f"{len(status.running)} running"] if status.running else []
    parts += [f"{len(status.abandoned)} interrupted"] if status.abandoned else []
    for state, word in (("PRUNED", "pruned"), ("FAIL", "failed")):
        if count := status.count(state):
            parts.append(f"{count} {word}")
    if status.left_s is not None and not status.is_done:
        parts.append(f"about {_duration(status.left_s)} left")
    if status.is_stopped:
        parts.append("stopped")
    yield ", ".join(parts)
    for point in status.best[:_SHOWN]:
        values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, point.values, strict=True))
        yield f"best: trial {point.number}, {values}: {parameters_text(point)}"
    for number in status.running[:_SHOWN]:
        point = status.points[number]
        last = f", {point.reports[max(point.reports)]:.6g}" if point.reports else ""
        yield f"running: trial {number}{last}: {parameters_text(point)}"
    failed = [point for point in status.points.values() if point.state == "FAIL"]
    if failed:
        yield f"last failure: trial {failed[-1].number}: {failed[-1].notes.get('reason', 'unknown')}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
