"""Find the record that a script continues: the one of its `id`, or its newest unfinished one."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sacristan.experiments.running.added_settings import as_setting
from sacristan.experiments.running.resuming import is_living, is_unfinished
from sacristan.experiments.scripts.script_run import STORE_VARIABLE, script_of
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.identity import PARENT_VARIABLE, RESUME_VARIABLE
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.run_folder import as_number
from sacristan.observers.record.schema import CONFIG, NOTES, RUN, read_json_if_whole

__all__ = ["folder_to_continue"]

_log = logging.getLogger(__name__)

_WAYS = (None, False, True, "auto", "allow", "must", "never")


def folder_to_continue(
    record_to: str | Path,
    name: str | None,
    settings: Mapping[str, Any],
    display_name: str,
    id: str | None,
    resume: bool | str | None,
) -> Path | None:
    """Return the folder of the record that a run continues, see `tracking.init`; None for a new one.

    Raises:
        ConfigError: If `resume` is invalid, or does not allow what there is.
    """
    if resume not in _WAYS:
        raise ConfigError(f"init: got resume={resume!r}, expected auto, allow, must, never, True or False")
    if os.environ.get(PARENT_VARIABLE) or RESUME_VARIABLE in os.environ:  # it is told already which record is its own
        return None
    if resume in (None, False) or (id is None and resume == "never"):
        return None
    base = _folder_of_runs(record_to)
    if id is None and resume != "auto":
        raise ConfigError(f"init: got resume={resume!r} without an id; give the run's id, or write resume='auto'")
    if id is not None:
        return _of_id(base, id, resume)
    criteria = _Criteria(name, settings, display_name)
    found = next((folder for folder, record in _runs(base) if criteria.fit(folder, record)), None)
    _log.info("resume='auto': %s", "a new run starts" if found is None else f"continuing {found}")
    return found


def _folder_of_runs(record_to: str | Path) -> Path:
    store = os.environ.get(STORE_VARIABLE, "")
    return Path(record_to if "://" in store or not store else store)


def _of_id(base: Path, id: str, resume: bool | str | None) -> Path | None:
    named = [(folder, record) for folder, record in _runs(base) if id in (record["meta"].get("id"), record["uid"])]
    if not named:
        if resume == "must":
            raise ConfigError(f"init: {base} has no run of the id {id!r}; start it with resume='allow'")
        return None
    folder, record = named[0]
    if resume == "never":
        raise ConfigError(f"init: {folder} is a run of the id {id!r} already; give another id, or resume='allow'")
    if is_living(folder, record):
        raise ConfigError(f"init: a process is working on {folder}, the run of the id {id!r}; wait for its end")
    return folder


def _runs(base: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield folder and `run.json` of each readable run, newest first."""
    numbers = (as_number(entry.name) for entry in os.scandir(base)) if base.is_dir() else ()
    for number in sorted(filter(None, numbers), reverse=True):
        folder = base / str(number)
        try:
            record = load_json(folder / RUN)
            if isinstance(record, dict) and isinstance(record["meta"], dict) and record["uid"]:
                yield folder, record
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.debug("%s: skipped, it cannot be read (%s)", folder, error)


class _Criteria:
    """What a run must have so that `resume="auto"` continues it: the script and its arguments, settings, its name."""

    def __init__(self, name: str | None, settings: Mapping[str, Any], display_name: str) -> None:
        script = script_of(vars(sys.modules["__main__"]))
        self._script = {key: script[key] for key in ("kind", "program", "args")}
        self._name = name
        self._settings = json.loads(json.dumps(plain({key: as_setting(settings[key], key) for key in settings})))
        self._display_name = display_name

    def fit(self, folder: Path, record: Mapping[str, Any]) -> bool:
        """Tell whether a run is the one, and unfinished."""
        theirs = record["meta"].get("script")
        if not isinstance(theirs, dict) or {key: theirs.get(key) for key in self._script} != self._script:
            return False
        if self._name is not None and record["experiment"]["name"] != self._name:
            return False
        if not is_unfinished(record):
            return False
        notes = read_json_if_whole(folder / NOTES) or {}
        if self._display_name and notes.get("display_name") != self._display_name:
            return False
        config = read_json_if_whole(folder / CONFIG) or {}
        if any(key not in config or config[key] != value for key, value in self._settings.items()):
            return False
        if is_living(folder, record):
            _log.warning("resume='auto': %s is skipped, because a process is working on it", folder)
            return False
        return True
