"""Processes that `multiprocessing` spawns: what they log with other libraries goes into the run of their parent.

A spawned process is a new Python, which receives the functions to call. With them it receives a finder that waits until
a logging library is imported, since most such processes, as workers of loaders, log nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from sacristan.experiments.scripts.capturing import Capture, capture
from sacristan.experiments.scripts.loggers import LOGGERS
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.file.recording import recording_of
from sacristan.observers.record import run_clock
from sacristan.observers.record.points.point_log import ChildPoint, ChildPoints

# What the new process executes first, when it may not find the lab yet.
_FINDER = """
import sys

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name not in libraries:
            return None
        sys.meta_path.remove(Finder)
        try:
            from sacristan.experiments.scripts.in_spawned import begin
        except ImportError:
            return None
        begin(place, also)
        import importlib.util
        return importlib.util.find_spec(name)

sys.meta_path.insert(0, Finder)
"""


def attach(module: Any, capture: Capture) -> None:
    """Give each process that is spawned from now on the place of the run."""
    prepare = module.get_preparation_data

    @functools.wraps(prepare)
    def prepare_with_run(name: str) -> dict[str, Any]:
        return {**prepare(name), "sacristan": _Beginning(_place_of(capture.run), capture.also)}

    module.get_preparation_data = prepare_with_run


class _Beginning:
    """Executes `_FINDER` in the process that unpickles it."""

    def __init__(self, place: tuple[str, float] | None, also: Collection[str]) -> None:
        self._names = {"place": place, "also": list(also), "libraries": list(LOGGERS)}

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (_FINDER, self._names)


def _place_of(run: Any) -> tuple[str, float] | None:
    """Return the folder and the start of a run, which its children send points to; None if nothing is recorded."""
    recording = None if run is None else recording_of(run.uid)
    if recording is None:
        return None
    run.before_fork()
    return str(recording.folder.absolute()), recording.start.timestamp()


def begin(place: tuple[str, float] | None, also: Collection[str]) -> None:
    """Pass on to the run of the parent from now on."""
    capture.is_child = True
    capture.begin(None if place is None else RunOfParent(place), also)  # type: ignore[arg-type]  # what it needs of one


class RunOfParent:
    """The run that the parent records, as a spawned process sees it: it takes numbers alone."""

    def __init__(self, place: tuple[str, float]) -> None:
        folder, self._start = place
        self.info: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self._points = ChildPoints(Path(folder))
        self._points.after_fork()

    def log_scalar(self, name: str, value: Any, step: Any = None) -> None:
        """Send a number to the parent."""
        try:
            number, at = float(value), None if step is None else float(step)
        except (TypeError, ValueError) as error:
            raise MetricError(f"{name}: got {value!r} at step {step!r}, expected numbers") from error
        whole = int(at) if at is not None and at.is_integer() else at
        try:
            self._points.add(ChildPoint(name, whole, number, run_clock.now() - self._start))
        except OSError as error:
            raise MetricError(f"{name}: the run of the parent process takes no more points ({error})") from error

    log_number = log_scalar

    def log_quickly(self, values: Mapping[str, Any], step: Any = None) -> Mapping[str, Any]:
        """Take nothing on the quick way."""
        return values

    def log(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Send numbers to the parent."""
        for name, value in values.items():
            self.log_scalar(name, value, step)

    def update_config(self, *_: Any) -> None:
        """Leave the config as the parent has it."""

    def reject(self, name: str, *_: Any) -> NoReturn:
        raise MediaError(f"{name}: a process that multiprocessing has spawned logs numbers alone")

    log_media = add_artifact = reject
