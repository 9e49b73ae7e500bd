"""`Capture`: what a script parses and logs with other libraries, passed on to its run.

Adapters, the modules in `parsers` and `loggers`, are attached to a library when the script imports it; a library that
the script never imports costs nothing. An adapter has

    attach(module, capture)     wraps functions of the library, which tell `capture` what they were called with
    stand_in(capture)           optional; makes a module to import instead of the library, unless `--also` names it
    prepare(capture)            optional; is called before the script imports the library
    LACKS                       optional; what it does not record, by name, for the docs

and knows the run through the methods of `Capture` alone. It never raises into the script, and never changes what the
library returns.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import wrapt
from sacred.utils import SacredInterrupt

from sacristan.configs.packages import entry_points
from sacristan.experiments.running import LabRun
from sacristan.experiments.running.logged_values import Numbers
from sacristan.experiments.scripts.loggers import LOGGERS
from sacristan.experiments.scripts.parsers import PARSERS
from sacristan.observers.errors import ArtifactError, MediaError, MetricError
from sacristan.observers.media.kinds import Media

if TYPE_CHECKING:
    from importlib.abc import Loader

    from sacristan.experiments.scripts.tracked_run import TrackedRun
else:
    Loader = object  # importing the module takes 3 ms

_log = logging.getLogger(__name__)

ENTRY_POINTS = "sacristan.loggers"
_PROCESSES = {"multiprocessing.spawn": "sacristan.experiments.scripts.in_spawned"}
# Of a number, step and value are noted, to find those that two libraries log.
NUMBERS = (float, int)
# What a capture knows of the current run alone.
_OF_A_RUN = (
    "_calls",
    "_warned",
    "_named",
    "_last",
    "quick",
    "_has_settings",
    "_is_left",
    "_passed_on",
    "_held",
    "before_first_log",
)


class Jobs(Protocol):
    """Has a run for each of the jobs that a script starts one after another."""

    def begin(self, args: Sequence[str]) -> None:
        """Begin the run of a job, which the script does alone when it is started with `args`."""

    def end(self, error: BaseException | None) -> None:
        """End the run of the job, with the error that ended the job."""


class Capture:
    """Passes on what adapters tell to the run that is being recorded; without one, it is lost.

    All methods may be called at any time, from any thread, and raise nothing but what ends a trial of a sweep. `also`
    are libraries that also do their own work, even if that reaches a server; see `lets`. `before_first_log` is
    called before the first point, and `jobs` begins a run for each job that the script starts. A run of an experiment,
    which a library logs in as well, makes it a guest (`is_guest`). A module stands in for those in `stood_in`.

    `quick` has, by library and call, while no other library logs and all is passed on at once, where to note step and
    value of a number by name, and the function that logs them. It is for calls that take microseconds.
    """

    def __init__(self) -> None:
        self.run: LabRun | None = None
        self.also: Collection[str] = ()
        self.jobs: Jobs | None = None
        self._noting = threading.Lock()
        self.stood_in: set[str] = set()
        # Whether the run is that of the parent process, which has spawned this one.
        self.is_child = False
        self._attached: set[str] = set()
        self._has_others = False
        self._forget()

    def _forget(self) -> None:
        self._calls: dict[str, set[str]] = {}
        self._warned: set[tuple[str, str]] = set()
        # Libraries that people have been told of.
        self._named: set[str] = set()
        # By library and metric: the last step, and the value or all values of that call.
        self._last: dict[str, dict[str, tuple[Any, Any]]] = {}
        self.quick: dict[tuple[str, str], tuple[dict[str, tuple[Any, Any]], Callable[[str, Any, Any], None]]] = {}
        self._has_settings = False
        self.is_guest = self._is_left = self._stands_in = False
        # Of an experiment: metrics that are passed on, and the first point of each other one.
        self._passed_on: set[str] = set()
        self._held: dict[str, tuple[Any, Any, tuple[str, str]]] = {}
        self.before_first_log: Callable[[], None] | None = None

    def begin(self, run: LabRun | None, also: Collection[str] = ()) -> None:
        """Pass on to this run, and attach all adapters; None logs nothing, and reaches no server either."""
        self._forget()
        self.run, self.also, self._stands_in = run, also, True
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder(self))
        # A child leaves its own children alone: without a guard in the script they fail as ever, with no frame of ours.
        self._attach_all({**PARSERS, **LOGGERS, **({} if self.is_child else _PROCESSES)})

    @contextlib.contextmanager
    def of_experiment(self, run: LabRun) -> Iterator[None]:
        """Pass on what an experiment logs with libraries in the block, unless it logs that itself, too."""
        if self.run is not None and not self.is_guest:
            told("this script runs an experiment, which has a record of its own; python SCRIPT gives that alone")
        before = {name: getattr(self, name) for name in ("run", "is_guest", "_stands_in", *_OF_A_RUN)}
        self._forget()
        self.run, self.is_guest = run, True
        self._attach_all(LOGGERS)
        try:
            yield
        finally:
            if not self._logs_itself():
                for name, held in self._held.items():
                    self._log_one(run, name, *held)
            for name, value in before.items():
                setattr(self, name, value)

    def _logs_itself(self) -> bool:
        """Return whether the run has metrics that came by no library."""
        return self.run is not None and not self._passed_on >= self.run.position()["metrics"].keys()

    def _is_left_out(self, name: str, value: Any, step: Any, source: tuple[str, str]) -> bool:
        """Return whether a point of an experiment waits, as each metric's first does, or the run logs that itself."""
        if name in self._passed_on:
            return False
        if self._is_left or self._logs_itself():
            self._is_left = True
            self._held.clear()
            libraries = ", ".join(sorted(self._calls))
            self._warn("", "itself", f"this experiment logs its metrics itself; those of {libraries} are not recorded")
            return True
        if name not in self._held:
            self._held[name] = (value, step, source)
            return True
        first = self._held.pop(name)
        self._passed_on.add(name)
        if self.run is not None:
            self._log_one(self.run, name, *first)
        return False

    def _log_one(self, run: LabRun, name: str, value: Any, step: Any, source: tuple[str, str]) -> None:
        """Log a point; warn, once, if it is no metric."""
        try:
            run.log_scalar(name, value, step)
        except MetricError as error:
            self.reject(name, error, source)

    @property
    def begins_no_runs(self) -> bool:
        """Whether libraries log into an existing run, an experiment's or the parent process's, and start none."""
        return self.is_guest or self.is_child

    def lets(self, library: str) -> bool:
        """Return whether a library does its own work, too: it was named by `--also`, or no script is recorded here."""
        return self.is_guest or not self._stands_in or library in self.also

    def start_run(self, **options: Any) -> TrackedRun | None:
        """Return the run that a library begins, see `sacristan.init`; None where there is nothing to record."""
        from sacristan.experiments.scripts import tracking

        if self.run is None or self.begins_no_runs:
            return None
        before = tracking.current_run()
        run = tracking.init(**options)
        if run is not before and run.lab_run is not None:
            self._calls, self._last, self.quick = {}, {}, {}
            self.run, self._stands_in = run.lab_run, True
        return run

    def end(self) -> None:
        """Pass on nothing any more; the libraries stay wrapped."""
        self.run, self._stands_in, self.quick = None, False, {}

    def attach_others(self) -> None:
        """Attach the adapters that other packages bring, once."""
        if not self._has_others:
            self._has_others = True
            self._attach_all(entry_points(ENTRY_POINTS))

    def _attach_all(self, adapters: Mapping[str, str]) -> None:
        for library, adapter in adapters.items():
            if library not in self._attached:
                self._attached.add(library)
                wrapt.register_post_import_hook(functools.partial(self._attach, adapter), library)

    def _attach(self, adapter: str, module: ModuleType) -> None:
        if module.__name__ in self.stood_in:
            return
        try:
            name, _, function = adapter.partition(":")
            attach = getattr(importlib.import_module(name), function or "attach", None)
            if attach is not None:
                attach(module, self)
        except Exception as error:
            self._warn(module.__name__, "attach", f"{module.__name__} cannot be watched ({_text(error)})")

    # ------------------------------------------------------------------ what adapters tell

    def log(self, values: Mapping[str, Any], step: Any = None, *, library: str, call: str) -> None:
        """Log metrics; a value that another library has logged under the same name and step is kept once."""
        run = self.run
        if run is None:
            return
        if library not in self._calls or call not in self._calls[library]:
            self._note(library, call)
        for name, value in self._new_ones(values, step, library).items():
            if not (self.is_guest and self._is_left_out(name, value, step, (library, call))):
                self._log_one(run, name, value, step, (library, call))

    def reject(self, name: str, error: MetricError, source: tuple[str, str]) -> None:
        """Warn, once, of a value that is no metric; `source` is library and call."""
        self._warn(source[0], f"{source[1]} {name}", str(error))

    def log_scalar(self, name: str, value: Any, step: Any, source: tuple[str, str]) -> None:
        """Log one metric, as `log` does, of a caller that looks at `quick` first; `source` is library and call."""
        (library, call), quick, run = source, self.quick, self.run
        self.log({name: value}, step, library=library, call=call)
        if run is not None and self._last.keys() == {library} and not self.is_guest:
            quick[source] = self._last[library], run.log_number  # not of a later run, or if another library logs by now

    def log_quickly(self, values: Mapping[str, Any], step: Any, *, library: str, call: str) -> Mapping[str, Any]:
        """Log metrics, as `log` does, that are plain numbers and were logged before; return the others."""
        run = self.run
        if run is None or self.is_guest:
            return values
        if library not in self._calls or call not in self._calls[library]:
            self._note(library, call)
        return run.log_quickly(self._new_ones(values, step, library), step)

    def _new_ones(self, values: Mapping[str, Any], step: Any, library: str) -> Mapping[str, Any]:
        """Return the values that no other library has just logged as well, and remember those that are numbers."""
        own = self._last.get(library)
        if own is None:
            own = self._last[library] = {}
            self.quick = {}
        if len(self._last) > 1 and step is not None:
            values = self._without_repeated(values, step, library)
        if type(values) is Numbers:
            own.update(dict.fromkeys(values, (step, values)))
        else:
            for name, value in values.items():
                if isinstance(value, NUMBERS):
                    own[name] = step, value
        return values

    def _without_repeated(self, values: Mapping[str, Any], step: Any, library: str) -> Mapping[str, Any]:
        for other, points in list(self._last.items()):
            repeated = {
                name: value
                for name, value in values.items()
                if (last := points.get(name)) is not None
                and (last[0] == step and isinstance(value, NUMBERS))
                and (last[1][name] if isinstance(last[1], dict) else last[1]) == value
                and other != library
            }
            for name in repeated:
                points.pop(name, None)
                self._last[library][name] = step, repeated
                said = f"{name} is logged with {other} and {library}; equal points are recorded once"
                self._warn(name, "repeated", said)
            if repeated:
                values = {name: value for name, value in values.items() if name not in repeated}
        return values

    def config(self, values: Any, typed: Iterable[str] = (), *, library: str, call: str) -> None:
        """Add settings of a mapping, namespace or dataclass; `typed` are dotted names."""
        if self.run is None or self.is_guest:
            return
        fields = values if isinstance(values, Mapping) else vars(values)
        self._note(library, call, silent=True)
        if not self._has_settings:  # the words of the command line, which stood for them
            self._has_settings = True
            self.run.config.pop("args", None)
        self.run.update_config({str(name): value for name, value in fields.items()}, typed)

    def media(self, name: str, make: Callable[[], Media] | Media, step: Any = None, *, library: str, call: str) -> None:
        """Log an image, a table, ...; `make` returns it, or is it."""
        if self.run is None or (self.is_guest and self._logs_itself()):
            return
        self._note(library, call)
        try:
            self.run.log_media(name, make if isinstance(make, Media) else make(), step)
        except (MediaError, MetricError) as error:
            self._warn(library, f"{call} {name}", str(error))

    def artifact(self, path: str | Path, name: str | None = None, *, library: str, call: str) -> None:
        """Keep a file as an artifact of the run."""
        if self.run is None or (self.is_guest and self._logs_itself()):
            return
        self._note(library, call)
        try:
            self.run.add_artifact(str(path), name)
        except (ArtifactError, OSError) as error:
            self._warn(library, f"{call} {path}", str(error))

    def unknown(self, library: str, call: str) -> None:
        """Warn, once, that a call of the script is not recorded."""
        if self.run is not None:
            self._warn(library, call, f"{library}: {call} is not recorded")

    @contextlib.contextmanager
    def guarded(self, library: str, call: str) -> Iterator[None]:
        """Keep errors of the block from the script, and name the call with its error once, as `unknown` does."""
        try:
            yield
        except SacredInterrupt:
            raise
        except Exception as error:  # whatever objects of the script raise
            self.unknown(library, f"{call} ({_text(error)})")

    # ------------------------------------------------------------------ what people are told

    def _note(self, library: str, call: str, *, silent: bool = False) -> None:
        """Note in the record that a call of a library is recorded; say so at its first."""
        with self._noting:
            calls = self._calls.setdefault(library, set())
            if call in calls or self.run is None:
                return
            is_first, step = not silent and library not in self._named, None
            calls.add(call)
            if is_first:
                self._named.add(library)
                step, self.before_first_log = self.before_first_log, None
        if is_first:
            told(f"recording what the script logs with {library}")
        if step is not None:
            step()
        self.run.info.setdefault("captured", {})[library] = sorted(calls)

    def _warn(self, library: str, call: str, text: str) -> None:
        if (library, call) not in self._warned:
            self._warned.add((library, call))
            told(text)


def told(text: str) -> None:
    """Print a line of the lab among the output of a script."""
    stream = sys.stderr
    try:
        if stream is not None:
            stream.write(f"sacristan: {text}\n")
            stream.flush()
    except (OSError, ValueError):  # the terminal is gone, or the script has closed it
        pass


def watched(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Return a function of a library that, called, calls `note(result, *args, **kwargs)` as well; errors are logged."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        try:
            note(result, *args, **kwargs)
        except SacredInterrupt:
            raise
        except Exception as error:
            not_recorded(function, error)
        return result

    return call


def not_recorded(function: Callable[..., Any], error: Exception) -> None:
    """Warn, once, that calls of a library's function are not recorded, for an error of ours."""
    capture._warn(function.__qualname__, "failed", f"{function.__qualname__} is not recorded ({_text(error)})")


def _text(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class _Finder(Loader):
    """Finds modules that stand in for others; loads adapters of packages late, as finding these takes 20 ms."""

    def __init__(self, of: Capture) -> None:
        self._capture = of

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self._capture._stands_in or "." in fullname or fullname in sys.stdlib_module_names:
            return None
        self._capture.attach_others()
        if fullname not in LOGGERS:
            return None
        adapter = importlib.import_module(LOGGERS[fullname])
        if hasattr(adapter, "prepare"):
            adapter.prepare(self._capture)
        if self._capture.lets(fullname):
            return None
        return ModuleSpec(fullname, self, is_package=True) if hasattr(adapter, "stand_in") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._capture.stood_in.add(spec.name)
        return importlib.import_module(LOGGERS[spec.name]).stand_in(self._capture)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the adapter has made the module."""


# Of this process; wrapped libraries pass on to whatever run is recorded.
capture = Capture()
