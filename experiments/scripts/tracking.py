"""`init`: starts the run of a script, in three lines; and the functions that log into the run that it has started.

    import sacristan

    run = sacristan.init(config=vars(args), name="mnist")
    run.log({"loss": loss})

The names are those of W&B, so that `import sacristan as wandb` records a script that was written for it.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sacred.utils import iterate_flattened

from sacristan.experiments.running.added_settings import as_setting, merge
from sacristan.experiments.running.main_file import is_notebook
from sacristan.experiments.running.resuming import is_living, is_unfinished
from sacristan.experiments.scripts.script_run import STORE_VARIABLE, script_of
from sacristan.experiments.scripts.settings import as_settings
from sacristan.experiments.scripts.tracked_run import TrackedRun, as_tags
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.folders import as_number
from sacristan.observers.record.identity import PARENT_VARIABLE, RESUME_VARIABLE
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.schema import CONFIG, NOTES, RUN, read_json_if_whole

if TYPE_CHECKING:
    from sacristan.experiments.running import LabRun
    from sacristan.experiments.scripts.session import Session

_log = logging.getLogger(__name__)


# Functions of the run that `init` has started, which `sacristan` has under the same names.
FUNCTIONS = (
    "alert", "define_metric", "finish", "log", "log_artifact", "log_model", "save", "unwatch", "use_artifact",
    "use_model", "watch",
)  # fmt: skip
_MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")

_runs: list[TrackedRun] = []
# Sessions of whole scripts, which their first `init` has got.
_adopted: list[Session] = []


def init(
    project: str | None = None,
    config: Any = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    id: str | None = None,
    resume: bool | str | None = None,
    mode: str | None = None,
    dir: str | Path | None = None,
    reinit: bool | str | None = None,
    config_include_keys: Sequence[str] | None = None,
    config_exclude_keys: Sequence[str] | None = None,
    **options: Any,
) -> TrackedRun:
    """Start a run of this script, and record it until it is finished, or the process ends.

        run = sacristan.init(config=vars(args), name="mnist")
        with sacristan.init(config={"lr": 0.1}) as run:
            run.log({"loss": 0.5})

    The run is COMPLETED when it is finished or the process ends well, FAILED with its traceback after an exception,
    INTERRUPTED after a signal; a process that is killed leaves it DEAD, with every point. In the processes of a launch,
    such as `torchrun` or `srun`, the first one records, and what the others log is ignored.

    Args:
        project: The name of the experiment; by default that of the script.
        config: The settings: a dict, the result of argparse, a dataclass, or the path of a YAML or JSON file. In a
            trial of a sweep, the sweep's settings that the script has not parsed take their place.
        name: The name of the run.
        notes: A note on it.
        tags: Its tags; other characters than letters, digits, `_` and `-` become hyphens.
        group: Kept in its info.
        job_type: Kept in its info.
        id: Identifies it, so that a later start of the script with `resume` continues the record.
        resume: `auto` continues the newest unfinished run of the same script, settings and name, if there is one;
            `allow` or True the run of `id`, if there is one; `must` rejects an `id` that no run has, `never` one that a
            run has.
        mode: `disabled` records nothing; others, such as `offline`, record as ever. By default that of the variable
            `SACRISTAN_MODE`.
        dir: The folder in which `my_runs`, the folder of runs, is, as `wandb` would be; by default the working folder.
            The variable `SACRISTAN_STORE` names another folder of runs, or a MongoDB.
        reinit: What to do if there is a run that has not ended: `finish_previous` or True ends it, `return_previous`
            returns it. By default, a notebook ends it, and a script gets it.
        config_include_keys: The settings to take; by default all.
        config_exclude_keys: Settings to leave out.
        **options: W&B's other ones, such as `entity`, `settings` and `save_code`, without a meaning.

    Returns:
        The run.

    Raises:
        ConfigError: If an argument is invalid, or `resume` and `id` do not allow a run.
        ObserversError: If the run cannot be recorded or resumed.
    """
    from sacristan.experiments.scripts.script_run import MODE_VARIABLE

    mode = mode or os.environ.get(MODE_VARIABLE) or "online"
    if mode not in _MODES:
        raise ConfigError(f"init: got mode={mode!r}, expected one of {', '.join(_MODES)}")
    previous = current_run()
    if previous is not None and not _ends_previous(reinit):
        _log.warning("init: %r has not ended, and is returned; finish it first, or give reinit=True", previous)
        return previous
    if previous is not None:
        previous.finish()
    settings = _included(as_settings(config), config_include_keys, config_exclude_keys)
    details: dict[str, Any] = {"project": project, "group": group, "job_type": job_type, "id": id}
    described = {"display_name": name or "", "note": notes or "", "tags": as_tags(tags)}
    if mode == "disabled" or _is_silent():
        run = TrackedRun(None, config=settings, notes=described, on_finish=_forget, **details)
    else:
        run = _recorded(settings, described, details, resume, dir)
    _runs.append(run)
    return run


def _included(
    settings: Mapping[str, Any], include: Sequence[str] | None, exclude: Sequence[str] | None
) -> dict[str, Any]:
    names = [name for name in settings if (include is None or name in include) and name not in (exclude or ())]
    return {name: settings[name] for name in names}


def _recorded(
    settings: Mapping[str, Any],
    described: Mapping[str, Any],
    details: Mapping[str, Any],
    resume: bool | str | None,
    folder: str | Path | None,
) -> TrackedRun:
    from sacristan.experiments.scripts.session import Session, active_session

    session = active_session()
    if session is not None and session not in _adopted:
        _adopted.append(session)
        if settings:
            session.run.config.pop("args", None)  # the words of the command line, which stood for them
        return _tracked(session, settings, described, details, is_adopted=True)
    if session is not None:  # the script's next run
        session.end()

    record_to = Path(folder or "", "my_runs")
    name, id = details["project"], details["id"]
    found = _folder_to_continue(record_to, name, settings, described["display_name"], id, resume)
    meta = {"notes": described, **({} if id is None else {"id": id})}
    session = Session.begin(name, settings, record_to=record_to, resume=found, meta=meta)
    return _tracked(session, settings, described, details)


def _tracked(
    session: Session,
    settings: Mapping[str, Any],
    described: Mapping[str, Any],
    details: Mapping[str, Any],
    *,
    is_adopted: bool = False,
) -> TrackedRun:
    named = ("group", "job_type", *(("project",) if is_adopted else ()))
    session.run.info.update({key: details[key] for key in named if details[key]})
    of_trial = _settings_of_trial(session.run)
    session.run.update_config(settings)
    session.run.update_config(of_trial, typed=of_trial)
    config = {**session.run.config, **settings}
    if of_trial:
        config = {name: copy.deepcopy(value) if isinstance(value, dict) else value for name, value in config.items()}
        merge(config, of_trial)
    options = {**details, "notes": described, "is_adopted": is_adopted, "locked": of_trial}
    run = TrackedRun(session, config=config, on_finish=_forget, **options)
    if is_adopted:
        run.describe(**described)
    return run


def _settings_of_trial(run: LabRun) -> dict[str, Any]:
    """Return the settings that a sweep tries in this run, by dotted name, without those that the script has parsed."""
    parsed = {name.replace("-", "_") for name, _ in iterate_flattened(run.config)}
    tried = (run.meta_info.get("sweep") or {}).get("parameters") or {}
    return {name: value for name, value in tried.items() if name.replace("-", "_") not in parsed}


def _forget(run: TrackedRun) -> None:
    if run in _runs:
        _runs.remove(run)


def _is_silent() -> bool:
    """Return whether this process is a rank of a launch, such as Lightning's, that does not record."""
    from sacristan.experiments.scripts.in_children import place_in_launch
    from sacristan.experiments.scripts.session import active_session

    if os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
        return True
    rank, _, _ = place_in_launch()
    return bool(rank or (active_session() is None and _connected_rank()))


def _connected_rank() -> int:
    """Return the rank by which torch has connected this process, by whatever launcher."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_connected = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed.get_rank() if is_connected else 0


def _ends_previous(reinit: bool | str | None) -> bool:
    if reinit in (None, "default"):
        return is_notebook()
    return reinit in (True, "finish_previous", "create_new")


def current_run() -> TrackedRun | None:
    """Return the run that `init` has started last and that has not ended; None if there is none."""
    while _runs and _runs[-1].has_ended:
        _runs.pop()
    return _runs[-1] if _runs else None


def _of_run(name: str) -> Any:
    """Return the function `name` of the current run, as `sacristan.log`; it asks for the run when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is None:
            if name == "finish":
                return None
            raise ConfigError(f"sacristan.{name}: there is no run; start one first: sacristan.init()")
        return getattr(run, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Call `{name}` of the run that `init` has started; see `TrackedRun.{name}`."
    return call


alert = _of_run("alert")
define_metric = _of_run("define_metric")
finish = _of_run("finish")
log = _of_run("log")
log_artifact = _of_run("log_artifact")
log_model = _of_run("log_model")
save = _of_run("save")
unwatch = _of_run("unwatch")
use_artifact = _of_run("use_artifact")
use_model = _of_run("use_model")
watch = _of_run("watch")


def value_of_run(name: str) -> Any:
    """Return the current run, its config or its summary, as `sacristan.run`, `sacristan.config`."""
    run = current_run()
    if name == "run":
        return run
    return _NoRun(name) if run is None else getattr(run, name)


class _NoRun:
    """The config or the summary before there is a run."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def _reject(self, *args: Any) -> NoReturn:
        raise ConfigError(f"sacristan.{self._name}: there is no run; start one first: sacristan.init()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._reject()

    __setattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = __len__ = _reject


# ---------------------------------------------------------------------- the record to continue

_WAYS = (None, False, True, "auto", "allow", "must", "never")


def _folder_to_continue(
    record_to: str | Path,
    name: str | None,
    settings: Mapping[str, Any],
    display_name: str,
    id: str | None,
    resume: bool | str | None,
) -> Path | None:
    """Return the folder of the record to continue: that of its `id`, or the newest unfinished; None for a new run."""
    if resume not in _WAYS:
        raise ConfigError(f"init: got resume={resume!r}, expected auto, allow, must, never, True or False")
    if os.environ.get(PARENT_VARIABLE) or RESUME_VARIABLE in os.environ:  # its record is chosen already
        return None
    if resume in (None, False) or (id is None and resume == "never"):
        return None
    base = _folder_of_runs(record_to)
    if id is None and resume != "auto":
        raise ConfigError(f"init: got resume={resume!r} without an id; give the run's id, or write resume='auto'")
    if id is not None:
        return _of_id(base, id, resume)
    criteria = _Criteria(name, settings, display_name)
    found = next((folder for folder, record in _recorded_runs(base) if criteria.fit(folder, record)), None)
    _log.info("resume='auto': %s", "a new run starts" if found is None else f"continuing {found}")
    return found


def _folder_of_runs(record_to: str | Path) -> Path:
    store = os.environ.get(STORE_VARIABLE, "")
    return Path(record_to if "://" in store or not store else store)


def _of_id(base: Path, id: str, resume: bool | str | None) -> Path | None:
    named = [
        (folder, record) for folder, record in _recorded_runs(base) if id in (record["meta"].get("id"), record["uid"])
    ]
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


def _recorded_runs(base: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
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
    """Criteria of `resume="auto"`: the script, its arguments, the settings and the name of the run."""

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
