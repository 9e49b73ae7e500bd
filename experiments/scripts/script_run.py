"""`ScriptRun`: a run whose code is not a function, but whatever happens between its start and its end."""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sacred.config import create_captured_function
from sacred.config.config_summary import ConfigSummary
from sacred.dependencies import Source, get_digest
from sacred.stdout_capturing import get_stdcapturer
from sacred.utils import SacredInterrupt

from sacristan.configs.packages import find_package, version
from sacristan.experiments.running import LabRun
from sacristan.experiments.running.captured_output import capturing_in_order
from sacristan.experiments.running.main_file import MainFile, module_of
from sacristan.experiments.running.resuming import folder_to_start
from sacristan.experiments.running.trial import take_trial
from sacristan.experiments.scripts.in_children import place_in_launch
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.record.identity import RESUME_VARIABLE
from sacristan.observers.record.redaction import hide_passwords, redact

MODE_VARIABLE, STORE_VARIABLE = "SACRISTAN_MODE", "SACRISTAN_STORE"
# The one line of a run's log that is no warning and yet shows; and those of Sacred that are, and do not.
_SHOWN, _HIDDEN = "Recorded in", ("Aborted after", "Failed after")


class ScriptRun(LabRun):
    """A run of a script: an ordinary `LabRun` that records a block instead of calling a main function."""

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the run around a block: `KeyboardInterrupt` makes it INTERRUPTED, an error or exit code FAILED."""
        if self._trial is not None:
            self._trial.wait_for_begin()
        self.observers = sorted(self.observers, key=lambda observer: -observer.priority)
        with capturing_in_order(keeps_terminals=True):
            _, capture = get_stdcapturer(self.capture_mode if self.observers else "no")
            try:
                with capture() as self._output_file:
                    self._emit_started()
                    self._start_heartbeat()
                    with _completing():
                        yield
                    self._stop_time()
                    self._get_captured_output()
                self._stop_heartbeat()
                self._emit_completed(self.result)
            except (SacredInterrupt, KeyboardInterrupt) as end:
                self._stop_heartbeat()
                self._emit_interrupted(getattr(end, "STATUS", "INTERRUPTED"))
                raise
            except BaseException as error:
                self._stop_heartbeat()
                trace = error.__traceback__
                self._emit_failed(type(error), error, trace.tb_next if trace is not None else None)
                raise
            finally:
                self._warn_about_failed_observers()
                self._wait_for_observers()

    def enqueue(self) -> None:
        """Record it as one that waits to be started."""
        self.observers = sorted(self.observers, key=lambda observer: -observer.priority)
        self._emit_queued()
        self._wait_for_observers()

    def hold_signal_back(self, number: int) -> None:
        """Note a signal that ends the run once its step is done; it may have ended the workers of a loader as well."""
        self._signals.pass_over_workers()
        self.hold_back(number)


@contextlib.contextmanager
def _completing() -> Iterator[None]:
    """End the block without an error after `sys.exit(0)`."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def make_run(
    name: str | None,
    config: Mapping[str, Any],
    *,
    record_to: str | Path | None = "my_runs",
    script: Mapping[str, Any] | None = None,
    resume: Path | None = None,
    meta: Mapping[str, Any] | None = None,
) -> ScriptRun:
    """Return a run of the program that is `__main__`, which has not started.

    `SACRISTAN_STORE` may name another folder than `record_to`, or a MongoDB. `script` says how the program was started,
    see `script_of`. `resume` is a record to continue, by default that in `SACRISTAN_RESUME`. Raises DestinationError
    for an invalid store, and ResumeError if the record cannot be continued.
    """
    _mark_warnings()
    names = vars(sys.modules["__main__"])
    main_file = MainFile(names)
    stem = None if main_file.path is None else Path(main_file.path).stem
    module = (main_file.module or "").removesuffix(".__main__")
    name = name or (module or stem or "notebook").rpartition(".")[2]
    mainfile = None if main_file.path is None else _source(main_file.path)
    script_alone: Any = _ScriptAlone(name, main_file, mainfile)
    run = ScriptRun(script_alone, script_alone, trial=take_trial())
    run.update_config(config)
    run.system_metrics_s = 15.0
    run.meta_info |= {
        "command": "main",
        "options": {},
        "named_configs": [],
        **run.meta_info,
        "script": {**(script_of(names) if script is None else script), **_process_note()},
        **(meta or {}),
    }
    info = main_file.provenance(script_alone)
    name_of_main = info["mainfile"]
    if mainfile and name_of_main and name_of_main not in dict(info["sources"]):  # a script that is not called `.py`
        info["sources"].append((name_of_main, mainfile.digest))
    run.experiment_info |= info
    run.executed_cells = main_file.executed_cells()
    run.observers = _observers(record_to)
    run.recorders = tuple(run.observers)
    if (queued := folder_to_start()) is not None:
        run.meta_info["queued"] = str(queued)
    resume = resume or _folder_in_environment()
    if resume is not None:
        run.resume(resume)
    return run


class _ScriptAlone:
    """What a run asks of its experiment and its config, of a script, which has no ingredients, scopes and commands."""

    observers = additional_host_info = pre_run_hooks = post_run_hooks = ()
    captured_out_filter = None

    def __init__(self, name: str, main_file: MainFile, mainfile: Source | None) -> None:
        self.path = name
        self.base_dir = str(main_file.base_dir.absolute())
        self.mainfile = mainfile
        self.values: dict[str, Any] = {}
        self.changes = ConfigSummary()
        self.legacy_defaults: dict[str, Any] = {}
        self.function = create_captured_function(main)
        self.root_logger = self.run_logger = _quiet_logger()

    def traverse_ingredients(self) -> tuple[()]:
        """Return no ingredients."""
        return ()

    def get_experiment_info(self) -> dict[str, Any]:
        """Return what Sacred does, without what `MainFile.provenance` adds."""
        packages = filter(None, map(find_package, ("numpy", "sacred")))
        dependencies = [f"{package.name}=={package.version}" for package in packages]
        return {
            "name": self.path,
            "base_dir": self.base_dir,
            "dependencies": [*dependencies, f"sacristan=={version()}"],
        }


def is_disabled() -> bool:
    """Return whether the environment asks that nothing is recorded."""
    return os.environ.get(MODE_VARIABLE) == "disabled"


def make_main(**names: Any) -> ModuleType:
    """Put a new module in the place of `__main__`; the old one lives on."""
    global _main_before
    _main_before = sys.modules["__main__"]
    found = ModuleType("__main__")
    vars(found).update({"__annotations__": {}, "__builtins__": builtins, "__package__": None, **names})
    sys.modules["__main__"] = found
    return found


_main_before: ModuleType


def main() -> None:
    """Name the command of the run, whose code is the script."""


def _source(path: str) -> Source:
    """Return a file as Sacred describes sources; its own way rejects scripts that are not called `.py`."""
    path = str(Path(path).absolute())
    return Source(path, get_digest(path), None, None, None)


def script_of(names: Mapping[str, Any], argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return how a program was started, from its globals: `kind` (file, module or notebook), `program` and `args`."""
    module, path = module_of(names), MainFile(names).path
    kind = "module" if module else "file" if path else "notebook"
    argv = sys.argv if argv is None else argv
    if kind == "file" and Path(argv[0]).is_file() and Path(argv[0]).samefile(str(path)):
        path = argv[0]  # as it was typed
    args = argv[1:] if path or module else ()
    return {"kind": kind, "program": module or path or "", "args": [hide_passwords(redact(word)) for word in args]}


def _process_note() -> dict[str, Any]:
    """Return what its own command does not show of how the process was started."""
    note: dict[str, Any] = {}
    _, size, _ = place_in_launch()
    if size > 1:
        note["num_processes"] = size
        if (per_node := os.environ.get("LOCAL_WORLD_SIZE", "")).isdecimal():  # set by torchrun
            note["per_node"] = int(per_node)
    with contextlib.suppress(OSError):  # it may be closed
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISREG(mode):
            note["reads_pipe"] = True
    return note


def _observers(record_to: str | Path | None) -> list[Any]:
    """Return the observers of a run: a folder, and the MongoDB that `SACRISTAN_STORE` names."""
    store = os.environ.get(STORE_VARIABLE, "")
    if not store.startswith(("mongodb://", "mongodb+srv://")):
        return [] if record_to is None else [FileObserver(store or record_to)]
    from sacristan.observers.mongo import parse_mongo_option
    from sacristan.observers.mongo.observer import MongoObserver

    folder = [] if record_to is None else [FileObserver(record_to)]
    return [*folder, MongoObserver(**parse_mongo_option(store, STORE_VARIABLE))]


def _folder_in_environment() -> Path | None:
    named = os.environ.pop(RESUME_VARIABLE, None)
    return None if named is None else Path(named)


def _quiet_logger() -> logging.Logger:
    """Return a logger for the run's own lines, apart from the script's logging, which it leaves as it is."""
    logger = logging.Logger("sacristan", logging.INFO)
    logger.addHandler(_printing(_is_shown))
    return logger


def _mark_warnings() -> None:
    """Have the lab's warnings begin as its other lines do, unless the script handles logs itself."""
    logger = logging.getLogger("sacristan")
    if not logger.handlers:
        logger.addHandler(_printing(lambda record: not logging.root.handlers and record.levelno >= logging.WARNING))


def _printing(shows: Callable[[logging.LogRecord], bool]) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sacristan: %(message)s"))
    handler.addFilter(shows)
    return handler


def _is_shown(record: logging.LogRecord) -> bool:
    text = str(record.msg)
    return text.startswith(_SHOWN) or (record.levelno > logging.INFO and not text.startswith(_HIDDEN))
