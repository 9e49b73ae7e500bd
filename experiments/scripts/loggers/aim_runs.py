"""`aim.Run`: what it tracks, and its settings.

Unless `--also aim` is given, a class stands in for `aim.Run` that keeps nothing in a repository. Metrics and media have
the names that `sacristan import` gives those of a repository.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.loggers.open_runs import OpenRuns
from sacristan.experiments.scripts.tracked_run import as_tags
from sacristan.observers.media.kinds import Histogram, Image, Media, Text
from sacristan.observers.record.other_trackers import label_of_aim

LACKS = ("Figure", "Audio", "log_info and the like", "epoch")
_NAME = "aim"


def attach(module: Any, capture: Capture) -> None:
    """Watch the runs of the module, or runs that stand in for them."""
    calls, run = _Calls(capture), module.Run
    if not capture.lets(_NAME):
        run = type("Run", (_Run,), {"_capture": capture, "__module__": "aim"})
        for name in ("aim", "aim.sdk", "aim.sdk.run"):  # the last for integrations that are imported later
            if hasattr(sys.modules.get(name), "Run"):
                setattr(sys.modules[name], "Run", run)  # noqa: B010 - a module has no such attribute to mypy
    # A run of Aim sets further entries after that of the base class, which makes it.
    begun = sys.modules["aim.sdk.run"].BasicRun if capture.lets(_NAME) else run
    begun.__init__ = watched(begun.__init__, _without_result(calls.begin))
    for name in ("track", "set", "log_artifact", "log_artifacts", "close", "add_tag", "remove_tag"):
        setattr(run, name, watched(getattr(run, name), _without_result(getattr(calls, name))))
    run.__setitem__ = watched(run.__setitem__, _without_result(calls.set))
    for name, change in (("name", calls.rename), ("description", calls.redescribe), ("experiment", calls.move)):
        plain = getattr(run, name)
        setattr(run, name, plain.setter(watched(plain.fset, _without_result(change))))


def _without_result(note: Callable[..., None]) -> Callable[..., None]:
    return lambda _, *args, **options: note(*args, **options)


class _Calls:
    """The calls of a run, with their signatures: what each tells the record."""

    def __init__(self, capture: Capture) -> None:
        self._capture, self._runs = capture, OpenRuns(capture, _NAME)
        # Runs of which close was called: the garbage collector calls it as well.
        self._closed: set[str] = set()

    def begin(
        self, run: Any, run_hash: Any = None, *, experiment: str | None = None, read_only: bool = False, **_: Any
    ) -> None:
        if not read_only:
            self._closed.discard(run.hash)  # a run may be opened again
            self._runs.begin(run.hash, project=experiment)

    def track(
        self, run: Any, value: Any, name: str | None = None, step: Any = None, epoch: Any = None, *, context: Any = None
    ) -> None:
        part = self._runs.part(run.hash)
        if part is None:
            return
        for key, each in value.items() if isinstance(value, Mapping) and name is None else ((name, value),):
            label = part.of(label_of_aim(str(key), dict(context or {})))
            for item in each if isinstance(each, list | tuple) else (each,):
                if isinstance(item, int | float) or not hasattr(item, "storage"):
                    self._capture.log({label: item}, step, library=_NAME, call="track")
                elif (medium := _medium(item)) is not None:
                    self._capture.media(label, medium, step, library=_NAME, call="track")
                else:
                    self._capture.unknown(_NAME, f"track of {type(item).__name__}")

    def set(self, run: Any, key: Any, val: Any, strict: bool = True) -> None:
        is_own_note = val == {} if key is ... else str(key).startswith("__")
        part = None if is_own_note else self._runs.part(run.hash)
        if part is None:
            return
        is_whole = key in (..., "hparams") and isinstance(val, Mapping)
        names = key if isinstance(key, tuple) else (key,)
        names = names[1:] if names[0] == "hparams" and len(names) > 1 else names
        settings: Any = val if is_whole else {".".join(map(str, names)): val}
        self._capture.config(part.nested(settings), library=_NAME, call="set")

    def log_artifact(self, run: Any, path: Any, name: str | None = None, **_: Any) -> None:
        part = self._runs.part(run.hash)
        if part is not None:
            self._capture.artifact(path, part.of(name or Path(path).name), library=_NAME, call="log_artifact")

    def log_artifacts(self, run: Any, path: Any, name: str | None = None, **_: Any) -> None:
        folder = Path(path)
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            self.log_artifact(run, file, f"{name or folder.name}/{file.relative_to(folder).as_posix()}")

    def rename(self, run: Any, name: str) -> None:
        if (record := self._runs.record(run.hash)) is not None:
            record.name = str(name)

    def redescribe(self, run: Any, description: str) -> None:
        if (record := self._runs.record(run.hash)) is not None:
            record.notes = str(description)

    def move(self, run: Any, experiment: str) -> None:
        if (record := self._runs.record(run.hash)) is not None and record.lab_run is not None:
            record.lab_run.info["project"] = str(experiment)

    def add_tag(self, run: Any, tag: str) -> None:
        if (record := self._runs.record(run.hash)) is not None:
            record.tags = (*record.tags, str(tag))

    def remove_tag(self, run: Any, tag: str) -> None:
        if (record := self._runs.record(run.hash)) is not None:
            removed = as_tags([str(tag)])
            record.tags = tuple(each for each in record.tags if each not in removed)

    def close(self, run: Any) -> None:
        if run.hash not in self._closed:
            self._closed.add(run.hash)
            self._runs.end(run.hash)


def _medium(value: Any) -> Media | None:
    """Return a medium of Aim as one of the lab; None for kinds that it has not."""
    kind = type(value).__name__
    if kind == "Text":
        return Text(value.data)
    if kind == "Image":
        return Image(value.to_pil_image(), value.caption or None)
    if kind == "Distribution":
        return Histogram(np_histogram=value.to_np_histogram())
    return None


def _fact(name: str) -> property:
    """Return a property that keeps a fact of a run."""

    def get(run: _Run) -> Any:
        return run._facts[name]

    def set_to(run: _Run, value: Any) -> None:
        run._facts[name] = value

    return property(get, set_to)


class _Run:
    """A run as scripts for Aim know it, which keeps its settings in memory."""

    _capture: Capture
    _numbers = itertools.count(1)

    def __init__(self, run_hash: str | None = None, *, experiment: str | None = None, **options: Any) -> None:
        self.hash = run_hash or f"{next(self._numbers):024x}"
        self.active, self.read_only = True, bool(options.get("read_only"))
        self.tags: list[str] = []
        self._values: dict[Any, Any] = {}
        self._facts: dict[str, Any] = {"name": f"Run: {self.hash}", "description": None, "experiment": experiment}

    name, description, experiment = map(_fact, ("name", "description", "experiment"))

    def track(self, value: Any, name: Any = None, step: Any = None, epoch: Any = None, *, context: Any = None) -> None:
        """Do nothing."""

    def set(self, key: Any, val: Any, strict: bool = True) -> None:
        """Keep a setting, or all of them by `...`."""
        if key is ... and isinstance(val, Mapping):
            self._values = dict(val)
            return
        *outer, last = key if isinstance(key, tuple) else (key,)
        values = self._values
        for name in outer:
            values = values.setdefault(name, {})
        values[last] = val

    def __setitem__(self, key: Any, val: Any) -> None:
        _Run.set(self, key, val)

    def __getitem__(self, key: Any) -> Any:
        found: Any = self._values
        for name in () if key is ... else key if isinstance(key, tuple) else (key,):
            found = found[name]
        return found

    def get(self, key: Any, default: Any = None, *_: Any, **__: Any) -> Any:
        """Return a setting."""
        try:
            return self[key]
        except (KeyError, TypeError):
            return default

    def add_tag(self, value: str) -> None:
        """Add a tag."""
        self.tags.append(value)

    def remove_tag(self, value: str) -> None:
        """Remove a tag."""
        self.tags = [tag for tag in self.tags if tag != value]

    def log_artifact(self, path: Any, name: str | None = None, *, block: bool = False) -> None:
        """Do nothing."""

    def log_artifacts(self, path: Any, name: str | None = None, *, block: bool = False) -> None:
        """Do nothing."""

    def set_artifacts_uri(self, uri: str) -> None:
        """Do nothing: the record has the files."""

    def close(self) -> None:
        """End the run."""
        self.active = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: self._capture.unknown(_NAME, name)
