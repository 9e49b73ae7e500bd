"""The state of a sweep as people see it: counts of points, the best so far, and the time left.

It is shown on the terminal, beside the runs of a store by the board, and in messages about the end of a sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sacristan.runs.errors import MissingExtraError, SweepError, needing_extra
from sacristan.runs.query import SWEEP
from sacristan.runs.stores import Run, Store
from sacristan.runs.sweeps import Definition, setting_words
from sacristan.runs.sweeps.spec import Spec, spec_of
from sacristan.runs.sweeps.study import Point, Study
from sacristan.runs.sweeps.study.home import Home, Place, own_storage
from sacristan.runs.sweeps.study.samplers import without_experimental_warnings
from sacristan.runs.sweeps.views.study_view import make_study_view
from sacristan.runs.work.watching import Notice, RecentRuns

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = [
    "Digests",
    "SeenSweep",
    "Status",
    "SweepReader",
    "Watcher",
    "check_not_all_failed",
    "display",
    "importances_of",
    "read_definitions",
    "say",
    "say_all",
    "status_lines",
]

_SHOWN = 8


def say(line: str) -> None:
    """Print a line and flush it, so that a pipe shows it at once."""
    print(line, flush=True)  # noqa: T201 - a message for the terminal


def say_all(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        say(line)


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a sweep: its points by number, and the numbers of the running ones and of those whose agents died.

    With several objectives, `best` has all points that no other point beats. `left_s` is None if unknown.
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
        """Count the points in a state, one of those of `Point.state`."""
        return sum(point.state == state for point in self.points.values())

    @property
    def num_finished(self) -> int:
        """Number of points that have ended, in any state."""
        return sum(point.is_finished for point in self.points.values())

    @property
    def is_done(self) -> bool:
        """True if every point is finished."""
        return self.limit is not None and self.num_finished >= self.limit


class Watcher:
    """Reads the state of a sweep repeatedly, later only news of the study; `is_read_only` never changes it."""

    def __init__(self, home: Home, *, is_read_only: bool = False, storage: BaseStorage | None = None) -> None:
        self.home = home
        definition = home.definition()
        self.study = Study(home, definition, spec_of(definition), is_read_only=is_read_only, storage=storage)

    @property
    def definition(self) -> Definition:
        return self.study.definition

    @property
    def spec(self) -> Spec:
        return self.study.spec

    def look(self) -> Status:
        points = self.study.points()
        unfinished = [number for number, point in points.items() if not point.is_finished]
        living = self.home.living_agents()
        claims = self.home.last_claims(unfinished)
        running = tuple(number for number in unfinished if number in claims and claims[number].owner in living)
        abandoned = tuple(number for number in unfinished if number not in running)
        self.study.renew()
        limit = self.spec.limit(self.definition.count)
        left_s = None if limit is None else _left_s(points, limit, len(living))
        best = best_points(points, self.spec)
        return Status(self.home.id, limit, points, running, abandoned, len(living), self.home.is_stopped, best, left_s)


def _left_s(points: dict[int, Point], limit: int, num_agents: int) -> float | None:
    durations = [point.duration_s for point in points.values() if point.duration_s and "same_as" not in point.notes]
    if not durations or not num_agents:
        return None
    left = limit - sum(point.is_finished for point in points.values())
    return left * statistics.median(durations) / num_agents


def best_points(points: dict[int, Point], spec: Spec) -> tuple[Point, ...]:
    """Return the best completed point that meets all constraints; with several objectives, all that no other beats."""
    signs = [1 if objective.goal == "minimize" else -1 for objective in spec.objectives]
    if not signs:
        return ()
    complete = [point for point in points.values() if point.state == "COMPLETE" and point.values and point.is_feasible]
    costs = {point.number: list(map(operator.mul, signs, point.values)) for point in complete}
    if len(signs) == 1:
        return tuple(sorted(complete, key=lambda point: (costs[point.number], point.number))[:1])

    return tuple(point for point in complete if not _is_beaten(costs[point.number], costs.values()))


def _is_beaten(costs: list[float], others: Iterable[list[float]]) -> bool:
    return any(all(a <= b for a, b in zip(other, costs, strict=True)) and other != costs for other in others)


def check_not_all_failed(status: Status, folder: Path, retry: str) -> None:
    """Reject a sweep if all trials have failed and none runs; name `folder`, their output, and `retry`, an option."""
    if not status.num_finished or status.running or status.count("FAIL") < status.num_finished:
        return
    last = status.points[max(status.points)]
    count = f"all {status.num_finished} trials have" if status.num_finished > 1 else "the one trial has"
    raise SweepError(
        f"sweep {status.id}: {count} failed: {last.notes.get('reason', 'unknown')}; what runs printed is in {folder}; "
        f"to run them again once the cause is fixed: {retry}"
    )


def parameters_text(point: Point) -> str:
    """Return a point's active parameters as settings for the command line: `lr=0.1 optimizer.name=SGD`."""
    return " ".join(setting_words(point.parameters))


def status_lines(status: Status, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines that show a state: counts and time left, then the best, running and failed points."""
    yield ", ".join(_counts(status))
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


def _counts(status: Status) -> Iterator[str]:
    yield f"sweep {status.id}: {status.num_finished}{'' if status.limit is None else f' of {status.limit}'} done"
    numbers = {
        "running": len(status.running),
        "interrupted": len(status.abandoned),
        "pruned": status.count("PRUNED"),
        "failed": status.count("FAIL"),
    }
    yield from (f"{number} {state}" for state, number in numbers.items() if number)
    if status.left_s is not None and not status.is_done:
        yield f"about {_duration(status.left_s)} left"
    if status.is_stopped:
        yield "stopped"


def _duration(seconds: float) -> str:
    """Return a rough duration, in one unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# ---------------------------------------------------------------------- display


@contextlib.contextmanager
def display(before: Status, watcher: Watcher) -> Iterator[Callable[[Status], None]]:
    """Yield a function that shows the status of a sweep, without lines for points that were finished in `before`."""
    names = watcher.spec.objective_names
    if not sys.stdout.isatty():
        finished = {number for number, point in before.points.items() if point.is_finished}
        yield lambda status: _show_lines(status, names, finished)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(refresh_per_second=4) as live, _logging_above():
        yield lambda status: live.update(
            Text("\n".join(status_lines(status, names)), no_wrap=True, overflow="ellipsis"), refresh=True
        )


def _show_lines(status: Status, names: tuple[str, ...], shown: set[int]) -> None:
    """Show a line for each finished point that is not known yet, and add it to the known ones."""
    for number, point in status.points.items():
        if not point.is_finished or number in shown:
            continue
        shown.add(number)
        values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, point.values, strict=False))
        state = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}[point.state]
        outcome = values if point.state != "FAIL" else point.notes.get("reason", "")
        of = "" if status.limit is None else f"/{status.limit}"
        say(f"[{len(shown)}{of}] trial {number} {state}: {outcome}  {parameters_text(point)}")


@contextlib.contextmanager
def _logging_above() -> Iterator[None]:
    """Let log lines go where stderr is redirected to: above the table, not into its lines."""
    terminal = sys.__stderr__
    streaming = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    handlers = [handler for handler in streaming if handler.stream is terminal]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)


# Sweeps whose studies are kept open.
_MAX_WATCHED = 8


@dataclasses.dataclass(frozen=True)
class SeenSweep:
    """A sweep as it was read at one moment."""

    definition: Definition
    spec: Spec
    status: Status


def read_definitions(store: Store) -> tuple[list[Definition], dict[str, str]]:
    """Return the definitions of the sweeps beside a store's runs, the newest first, and the errors of others, by id."""
    definitions, problems = [], {}
    for id in _place(store).ids():
        try:
            with _home(store, id) as home:
                definitions.append(home.definition())
        except SweepError as error:
            problems[id] = str(error)
    return sorted(definitions, key=lambda definition: str(definition.created), reverse=True), problems


class SweepReader:
    """Reads sweeps repeatedly, and only news of their studies; serves one of several threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The sweep that was read last is last.
        self._watchers: dict[str, Watcher] = {}

    def read(self, store: Store, id: str) -> SeenSweep:
        """Read a sweep as it is now; the store is the same in each call."""
        with self._lock, contextlib.ExitStack() as stack:
            watcher = self._watchers.pop(id, None)
            home = _place(store).home(id) if watcher is None else watcher.home
            stack.callback(home.close)
            definition = home.definition()
            if watcher is None or watcher.definition != definition:  # it was created again, or has a higher limit
                watcher = stack.enter_context(_watching(store, home, definition))
            seen = SeenSweep(watcher.definition, watcher.spec, watcher.look())
            if not definition.storage:  # a storage of the user's own is opened each time
                stack.pop_all()
                self._watchers[id] = watcher
            if len(self._watchers) > _MAX_WATCHED:
                self._watchers.pop(next(iter(self._watchers))).home.close()
            return seen

    def close(self) -> None:
        with self._lock:
            while self._watchers:
                self._watchers.popitem()[1].home.close()


def importances_of(store: Store, id: str) -> tuple[dict[str, dict[str, float]], ...]:
    """Return the importances of a `StudyView`, which takes seconds for hundreds of trials."""
    # In a study of its own, so that nobody waits for it.
    with (
        _home(store, id) as home,
        _watching(store, home, home.definition()) as watcher,
        needing_extra("sweeps", "importances"),
        without_experimental_warnings(),
    ):
        return make_study_view(watcher.study.optuna, watcher.spec).importances


@contextlib.contextmanager
def _watching(store: Store, home: Home, definition: Definition) -> Iterator[Watcher]:
    if not definition.storage:
        yield Watcher(home, is_read_only=True)
        return
    folder = store.recording_folder
    folders = [Path.cwd(), *((folder, folder.parent) if folder else ())]
    with own_storage(definition, folders) as storage:
        yield Watcher(home, is_read_only=True, storage=storage)


@contextlib.contextmanager
def _home(store: Store, id: str) -> Iterator[Home]:
    with contextlib.closing(_place(store).home(id)) as home:
        yield home


def _place(store: Store) -> Place:
    folder = store.recording_folder
    return Place(Path(), store.backend.address) if folder is None else Place(folder)


class Digests:
    """Digests of the sweeps beside the runs of a store; `tell` takes a line about a sweep that cannot be read."""

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._reader = SweepReader()
        self._problems: set[str] = set()

    def notices(self, recent: RecentRuns, known: Iterable[tuple[str, str]] = ()) -> list[Notice]:
        """Return a digest of each sweep that is done, once for each last run; keys in `known` are left out."""
        known = set(known)
        by_sweep: dict[str, list[Run]] = {}
        for run in recent.runs:
            if isinstance(sweep := run.get(SWEEP), str):
                by_sweep.setdefault(sweep, []).append(run)
        notices = []
        for id, runs in by_sweep.items():
            last = max(runs, key=lambda run: run.uid or "")
            is_open = any(run.status in ("RUNNING", "QUEUED") for run in runs)
            if is_open or not any(map(recent.ended, runs)) or (last.uid or last.id, "sweep_done") in known:
                continue
            text = self._text(id)
            if text is not None:
                notices.append(Notice(last, "sweep_done", text, "success"))
        return notices

    def _text(self, id: str) -> str | None:
        """Return the digest of a sweep; None if it is not done or cannot be read."""
        try:
            seen = self._reader.read(self._store, id)
        except (MissingExtraError, SweepError) as error:
            if str(error) not in self._problems:
                self._problems.add(str(error))
                self._tell(f"sweep {id}: {error}")
            return None
        status = seen.status
        is_over = status.is_done or (status.is_stopped and not status.running)
        return "\n".join(status_lines(status, seen.spec.objective_names)) if is_over else None

    def close(self) -> None:
        self._reader.close()
