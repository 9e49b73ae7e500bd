"""`wandb`, for scripts that import it under `sacristan run`: the drop-in of `sacristan.init`, which ends no training.

The module stands in for W&B's, whether that is installed or not: no account, no network, no folder `wandb`. The first
`init` gets the run of the script, and each further one, after a `finish`, a run of its own. Names that the drop-in does
not have can be called, warn once, and do nothing.
"""

from __future__ import annotations

import enum
import functools
import importlib.machinery
import os
import secrets
import string
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from sacred.utils import SacredInterrupt

from sacristan.experiments.running.logged_values import as_numbers
from sacristan.experiments.scripts import tracking
from sacristan.experiments.scripts.artifact import Artifact
from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.loggers.mirroring import mirror
from sacristan.experiments.scripts.settings import Settings
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.observers.errors import MediaError
from sacristan.observers.media import audio_and_video, kinds, table
from sacristan.observers.media.kinds import Media

__all__ = ["LACKS", "AlertLevel", "StandIn", "attach", "stand_in"]

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


class _Nothing:
    """What a name that is not here returns: it can be called, entered and iterated over, and does nothing."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn

    def __call__(self, *args: Any, **kwargs: Any) -> _Nothing:
        self._warn(self._name)
        return self

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(f"{self._name}.{name}", self._warn)

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


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
            return _Nothing(f"run.{name}", self._module._unknown)
        if name == "log":
            return self._module.log
        value = getattr(self._run, name)
        return self._module._safe(value, f"run.{name}") if callable(value) and name != "config" else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("name", "notes", "tags"):
            setattr(self._run, name, value)

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
        media = {"Image": _Image, "Table": _Table, "Histogram": _Histogram, "Audio": _Audio, "Video": _Video}
        for name, kind in {**media, "Html": _Html}.items():
            setattr(self, name, type(name, (kind,), {"_unknown": self._unknown}))
        self.Artifact = Artifact
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

    @property
    def summary(self) -> Any:
        run = tracking.current_run()
        return {} if run is None else run.summary

    def _pass_on(self, values: Mapping[str, Any]) -> None:
        self._capture.config(values, library=self._library, call="config")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, self._unknown)

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
        if isinstance(value, _Nothing):  # named when it was made
            return False
        kind = type(value)
        if kind.__module__.partition(".")[0] != self._library:
            return True
        self._unknown(kind.__name__)
        return False

    def _begun(self, given: Mapping[str, Any]) -> _Run:
        """Return the run of the script, or its next one; in an experiment one that only counts its steps."""
        if self._capture.is_guest:
            given = {**given, "mode": "disabled"}
        before = tracking.current_run()
        run = self._capture.start_run(**given) or tracking.init(**given)
        if run is not before and (run.lab_run is not None or self._capture.is_guest):
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
        if given["resume"] not in (True, "auto", "allow", "must", "never") or given["id"] is None:
            given["resume"] = None
        return self._begun(given)


# ---------------------------------------------------------------------- media


class _Lenient:
    """A medium that is left out, with a warning, where the lab cannot show it."""

    _unknown: Callable[[str], None]
    is_left_out = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*self._adapted(*args), **kwargs)
        except MediaError as error:
            self.is_left_out = True
            self._unknown(str(error))

    @staticmethod
    def _adapted(*args: Any) -> tuple[Any, ...]:
        return args


class _Image(_Lenient, kinds.Image):
    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **options: Any) -> None:
        if hasattr(data_or_path, "dtype") and hasattr(data_or_path, "shape"):
            pixels = np.asarray(data_or_path.detach().cpu() if hasattr(data_or_path, "detach") else data_or_path)
            if hasattr(data_or_path, "detach") and pixels.ndim == 3:
                pixels = np.moveaxis(pixels, 0, -1)
            # W&B casts all numbers to bytes, and drops axes of length 1.
            data_or_path = (pixels.squeeze() if pixels.ndim > 2 else pixels).astype(np.uint8)
        super().__init__(data_or_path, caption, mode, **options)


class _Table(_Lenient, table.Table):
    def _cell(self, cell: Any, number: int, place: int) -> Any:
        try:
            return super()._cell(cell, number, place)
        except MediaError:
            return str(cell)


class _Histogram(_Lenient, kinds.Histogram):
    pass


class _Audio(_Lenient, audio_and_video.Audio):
    pass


class _Video(_Lenient, audio_and_video.Video):
    pass


class _Html(_Lenient, kinds.Html):
    pass


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
        return _Nothing(f"{self.__name__.partition('.')[2]}.{name}", self._warn)


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
