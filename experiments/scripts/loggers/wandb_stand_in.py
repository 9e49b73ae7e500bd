"""`wandb`, for scripts that import it under `sacristan run`: the drop-in of `sacristan.init`, which ends no training.

The module stands in for W&B's, whether that is installed or not: no account, no network, no folder `wandb`. The first
`init` gets the run of the script, and each further one, after a `finish`, a run of its own. Names that the drop-in does
not have can be called, warn once, and do nothing.
"""

from __future__ import annotations

import datetime
import enum
import functools
import importlib.machinery
import os
import secrets
import string
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from sacred.utils import SacredInterrupt

from sacristan.experiments.running.logged_values import as_numbers
from sacristan.experiments.scripts import tracking
from sacristan.experiments.scripts.artifact import Artifact
from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.loggers.mirroring import mirror
from sacristan.experiments.scripts.loggers.wandb_objects import MEDIA, LenientArtifact, Nothing, callback_class
from sacristan.experiments.scripts.settings import Settings
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.observers.media.kinds import Media

LACKS = ("plot", "Object3D", "Molecule", "Api", "sweep", "agent", "boxes and masks of images")

# Variables of W&B, by the argument of `init` that they stand for.
_VARIABLES = {
    "project": "WANDB_PROJECT", "name": "WANDB_NAME", "notes": "WANDB_NOTES", "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_JOB_TYPE", "id": "WANDB_RUN_ID", "resume": "WANDB_RESUME",
}  # fmt: skip
_SUBMODULES = ("errors", "util", "sdk", "wandb_run", "plot", "data_types", "integration", "apis", "proto", "docker")


class Error(Exception):
    """The base class of W&B's errors, which scripts may catch."""


class AlertLevel(enum.Enum):
    """W&B's levels of alerts."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class _Sink:
    """Takes what a run logs, as a `LabRun` does, and passes it to the capture, which knows what others have logged."""

    def __init__(self, capture: Capture, library: str) -> None:
        self._capture, self._library = capture, library

    @property
    def info(self) -> dict[str, Any]:
        return {} if self._capture.run is None else self._capture.run.info

    def log_quickly(self, values: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
        return self._capture.log_quickly(values, step, library=self._library, call="log")

    def log(self, values: Mapping[str, Any], step: Any) -> None:
        media = {name: value for name, value in values.items() if isinstance(value, Media)}
        numbers = values if not media else {name: value for name, value in values.items() if name not in media}
        if numbers:
            self._capture.log(numbers, step, library=self._library, call="log")
        for name, medium in media.items():
            if not getattr(medium, "is_left_out", False):
                self._capture.media(name, medium, step, library=self._library, call="log")


class _Run:
    """The run as scripts for W&B know it: `TrackedRun`, and nothing of it raises what W&B's would not."""

    def __init__(self, run: TrackedRun, module: StandIn) -> None:
        vars(self)["_run"], vars(self)["_module"] = run, module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(TrackedRun, name) and name not in vars(self._run):
            return Nothing(f"run.{name}", self._module._unknown)
        if name == "log" and tracking.current_run() in (self._run, None):
            return self._module.log
        value = getattr(self._run, name)
        return self._module._safe(value, f"run.{name}") if callable(value) and name != "config" else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("name", "notes", "tags"):
            setattr(self._run, name, value)

    # Facts of a run without a server and a sweep of W&B's.
    entity, mode, offline, starting_step = "", "offline", True, 0
    project_url = sweep_id = sweep_url = None

    @property
    def start_time(self) -> float:
        """When it started, in seconds since 1970."""
        start = None if self._run.lab_run is None else self._run.lab_run.start_time
        return time.time() if start is None else start.replace(tzinfo=datetime.UTC).timestamp()

    def get_url(self) -> str | None:
        """Return the address of its folder; None if it has none."""
        return self._run.url

    def project_name(self) -> str:
        """Return its project."""
        return self._run.project or ""

    @property
    def dir(self) -> str:
        """A folder for files of the script, in that of the record."""
        if self._run.folder is None:
            return self._run.dir
        folder = self._run.folder.absolute() / "files"
        folder.mkdir(exist_ok=True)
        return str(folder)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._run.__exit__(kind, error, trace)


class StandIn(ModuleType):
    """A module that scripts import instead of a library with the names of W&B.

    Args:
        library: The name of the library.
        capture: Where its calls are passed on to.
    """

    def __init__(self, library: str, capture: Capture) -> None:
        super().__init__(library, __doc__)
        self.__path__: list[str] = []
        self._library, self._capture, self._sink = library, capture, _Sink(capture, library)
        self.Error: type[Exception] = Error
        self.AlertLevel, self.Run = AlertLevel, _Run
        for name, kind in MEDIA.items():
            setattr(self, name, type(name, (kind,), {"_unknown": self._unknown}))
        adding = ("add", "add_dir", "add_file", "add_reference")
        safe = {name: self._safe(getattr(LenientArtifact, name), f"Artifact.{name}") for name in adding}
        self.Artifact = type("Artifact", (LenientArtifact,), {"_unknown": self._unknown, **safe})
        for name in tracking.FUNCTIONS:
            if not hasattr(type(self), name):
                setattr(self, name, self._safe(functools.partial(self._call, name), name))

    @property
    def run(self) -> _Run | None:
        run = tracking.current_run()
        return None if run is None else _Run(run, self)

    @property
    def config(self) -> Any:
        run = tracking.current_run()
        return Settings(self._pass_on) if run is None else run.config

    @config.setter
    def config(self, values: Any) -> None:
        """Take settings that a script assigns, which W&B would lose."""
        self.config.update(values)

    @property
    def summary(self) -> Any:
        run = tracking.current_run()
        return {} if run is None else run.summary

    def _pass_on(self, values: Mapping[str, Any]) -> None:
        self._capture.config(values, library=self._library, call="config")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, self._unknown)

    def _unknown(self, call: str) -> None:
        self._capture.unknown(self._library, call)

    def _safe(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function that warns, once, instead of raising what W&B's would not."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (SacredInterrupt, self.Error, OSError, TypeError):
                raise
            except Exception as error:
                self._unknown(f"{name} ({type(error).__name__}: {error})")
                return None

        return call

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        run = tracking.current_run()
        if run is None:
            if name == "finish":
                return None
            raise self.Error(f"You must call {self._library}.init() before {self._library}.{name}()")
        if name == "log" and "data" in kwargs:
            args = (kwargs.pop("data"), *args)
        if name == "log" and args and isinstance(args[0], (dict, Mapping)):
            values = as_numbers(args[0]) or {key: value for key, value in args[0].items() if self._can_log(value)}
            args = (values, *args[1:])
        return getattr(run, name)(*args, **kwargs)

    def _can_log(self, value: Any) -> bool:
        """Return whether a value is recorded; an object of the library's own that has no twin is named."""
        if isinstance(value, Nothing):  # named when it was made
            return False
        kind = type(value)
        if kind.__module__.partition(".")[0] != self._library:
            return True
        self._unknown(kind.__name__)
        return False

    def _begun(self, given: Mapping[str, Any]) -> _Run:
        """Return the run of the script, or its next one; in an experiment one that only counts its steps."""
        is_part = self._capture.begins_no_runs
        if is_part:
            given = {**given, "mode": "disabled"}
        before = tracking.current_run()
        run = self._capture.start_run(**given) or tracking.init(**given)
        if run is not before and (run.lab_run is not None or is_part):
            self._capture.config(dict(run.config), library=self._library, call="init")
            run.send_through(self._sink)
        return _Run(run, self)

    # ------------------------------------------------------------------ functions

    def login(self, *args: Any, **kwargs: Any) -> bool:
        """Do nothing: there is nothing to log in to."""
        return True

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    teardown = require = termsetup = setup

    def join(self, *args: Any, **kwargs: Any) -> None:
        """End the run; `finish` by its old name."""
        self.finish(*args, **kwargs)

    def termlog(self, text: str = "", *args: Any, **kwargs: Any) -> None:
        """Print a text."""
        sys.stderr.write(f"wandb: {text}\n")

    termwarn = termerror = termlog


class _Wandb(StandIn):
    """The module that scripts import as `wandb`."""

    __version__ = "0.31.0"

    def __getattr__(self, name: str) -> Any:
        if name in _SUBMODULES:
            return importlib.import_module(f"wandb.{name}")
        return super().__getattr__(name)

    def init(self, entity: Any = None, project: Any = None, dir: Any = None, **options: Any) -> _Run:
        """Return the run of the script, or its next one; see `sacristan.init`."""
        given = {"project": project, **options}
        given |= {name: os.environ.get(key) for name, key in _VARIABLES.items() if given.get(name) is None}
        if given.get("tags") is None and os.environ.get("WANDB_TAGS"):
            given["tags"] = os.environ["WANDB_TAGS"].split(",")
        is_off = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes")
        mode = "disabled" if is_off else given.pop("mode", None) or os.environ.get("WANDB_MODE")
        given["mode"] = "disabled" if mode == "disabled" else None
        if mode == "disabled" and not self._capture.is_guest:
            self._unknown("what is logged in mode disabled")
        if given["resume"] not in (True, "auto", "allow", "must", "never") or given["id"] is None:
            given["resume"] = None
        return self._begun(given)

    def sweep(self, *args: Any, **kwargs: Any) -> str:
        """Return the id of the sweep that starts this script."""
        return str(self._sweep()["id"])

    def agent(self, sweep_id: Any = None, function: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> None:
        """Call the function once, for the settings of this trial."""
        self._sweep()
        if function is not None:
            function()

    def _sweep(self) -> Mapping[str, Any]:
        run = self._capture.run
        found = None if run is None else run.meta_info.get("sweep")
        if run is not None and not found:
            raise self.Error(
                "a script that is recorded starts no sweep of W&B's; start it by sacristan sweep, with the same "
                "settings: sacristan sweep train.py --over '{lr: [0.1, 0.01]}' --metric loss"
            )
        return found or {"id": ""}


# ---------------------------------------------------------------------- submodules


class _Submodule(ModuleType):
    """`wandb.errors` and so on: classes of errors, and names that do nothing."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._warn = warn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "generate_id":
            return _generate_id
        if name.endswith("Error") or name == "Error":
            return Error
        if name == "Run":
            return _Run
        if (medium := vars(sys.modules["wandb"]).get(name)) is not None and name[0].isupper():
            return medium
        home = self.__name__.partition(".")[2]
        callback = callback_class(home, self._warn) if name == "WandbCallback" else None
        return Nothing(f"{home}.{name}", self._warn) if callback is None else callback


class _Submodules:
    """Finds the modules within `wandb`."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("wandb.") or not isinstance(sys.modules.get("wandb"), _Wandb):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]  # it is one

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Submodule(spec.name, self._warn)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a submodule is made whole."""


def _generate_id(length: int = 8) -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


def stand_in(capture: Capture) -> ModuleType:
    """Return the module to import as `wandb`."""
    module = _Wandb("wandb", capture)
    sys.meta_path.insert(0, _Submodules(module._unknown))
    return module


def _copy_of(artifact: Any) -> Artifact:
    """Return an artifact of W&B as one of the lab."""
    made = Artifact(artifact.name.partition(":")[0], artifact.type, artifact.description, artifact.metadata)
    for name, entry in artifact.manifest.entries.items():
        if entry.local_path:
            made.add_file(entry.local_path, name)
        else:
            made.add_reference(entry.ref, name)
    return made


def attach(module: Any, capture: Capture) -> None:
    """Watch the library, which does its own work."""
    sdk: Any = {name: importlib.import_module(f"wandb.sdk.wandb_{name}") for name in ("config", "run", "summary")}
    Run, Config, Summary = sdk["run"].Run, sdk["config"].Config, sdk["summary"].Summary  # noqa: N806 - classes
    own = _Wandb("wandb", capture)
    calls = {"log": "_log", **{name: name for name in ("define_metric", "finish", "alert", "save")}}
    mirror(module, Run, own, calls)
    Run.log_artifact = watched(Run.log_artifact, lambda _, run, *args, **options: take_artifact(*args, **options))
    init = module.init

    @functools.wraps(init)
    def begin(*args: Any, **options: Any) -> Any:
        run = init(*args, **options)
        take_config(None, run.config)  # also that of files, variables and a sweep
        return run

    def take_config(_: Any, config: Any, *__: Any, **___: Any) -> None:
        if module.run is not None and module.run.config is config:
            own.config.update(config.as_dict())

    def take_artifact(artifact: Any, *args: Any, **options: Any) -> None:
        if type(artifact) is module.Artifact:  # those of subclasses are the library's own
            artifact = _copy_of(artifact)
        elif isinstance(artifact, module.Artifact):
            return
        own.log_artifact(artifact, *args, **options)

    def take_summary(_: Any, summary: Any, values: Mapping[str, Any]) -> None:
        if module.run is not None and module.run.summary is summary:
            own.summary.update(values)

    module.init = begin
    for name in ("__setitem__", "update", "setdefaults"):
        setattr(Config, name, watched(getattr(Config, name), take_config))
    Config.__setattr__ = Config.__setitem__
    Summary.update = watched(Summary.update, take_summary)
