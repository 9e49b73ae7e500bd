"""Find the earlier run that a process resumes: the one it was started for, or the unfinished one of its config."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacred.utils import get_by_dotted_path, iterate_flattened, join_paths

from sacristan.configs.map import abbreviated
from sacristan.configs.slurm import job_id, requeue
from sacristan.experiments.running.signals import SAVED_CODE, Terminated
from sacristan.ingredients.errors import ConfigError, DataError
from sacristan.ingredients.ranks import World
from sacristan.observers.errors import ResumeError
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record import identity
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.folders import as_number
from sacristan.observers.record.json_text import load_json, parse_json
from sacristan.observers.record.schema import CONFIG, INFO, RUN

_log = logging.getLogger(__name__)

_SETTING = "checkpoint.resume"
_REQUEUE = "checkpoint.requeue"
# Runs that are searched for an unfinished one which lacks entries.
_MOST_OLDER = 100
# Statuses of runs that have nothing to resume, or that another process is working on.
_NOT_UNFINISHED = ("COMPLETED", "COMPLETED_WITH_LOSS", "PRUNED", "QUEUED", "HELD", "COPYING", "REMOVING")


def folder_to_start() -> Path | None:
    """Return the folder of the queued run to start, once: processes of the run must not start it again."""
    named = os.environ.pop(identity.START_VARIABLE, None)
    return None if named is None else _folder_of_run(identity.START_VARIABLE, named)


def forget_folders() -> None:
    """Remove the folders of the runs to start or resume, meant for rank 0 alone, from the environment."""
    for name in (identity.START_VARIABLE, identity.RESUME_VARIABLE):
        os.environ.pop(name, None)


def _folder_of_run(variable: str, named: str) -> Path:
    if not (Path(named) / RUN).is_file():
        raise ConfigError(f"{variable}: got {named!r}, expected the folder of a run, such as my_runs/3")
    return Path(named)


def folder_to_resume(
    run: Any,
    aliases: Mapping[str, str],
    default_command: str | None,
    *,
    legacy_defaults: Mapping[str, Any],
    has_ingredient: bool = True,
    world: World | None = None,
) -> Path | None:
    """Return the folder of the record that a run, which has not started, continues; None for a new record.

    That is the folder in SACRISTAN_RESUME, which is removed from the environment. Otherwise, with
    `checkpoint.resume=auto`, it is the newest unfinished run of the same experiment, config and parent in the folders
    that `run` is recorded in. When a launcher restarts its ranks, they resume the run that the same launch has begun,
    whatever the setting. Commands other than the default one, such as one that evaluates a model, ignore the setting.

    Settings and ingredients added since the other run do not make its config another one while they are at what they
    meant before (`legacy_defaults`). If the setting is a state of another run, `run.meta_info` gets that run's uid as
    `started_from`. `has_ingredient` means that the ingredient `checkpoint` wrote the states, so they can be checked.
    """
    named = os.environ.pop(identity.RESUME_VARIABLE, None)
    if named is not None:
        return _folder_of_run(identity.RESUME_VARIABLE, named)
    if _command(run) != default_command:
        return None
    setting = get_by_dotted_path(run.config, _SETTING)
    ignored = {_SETTING, _REQUEUE, *(name for name, target in aliases.items() if target == _SETTING)}

    if world is not None and world.restarts and has_ingredient and not run.unobserved:
        newest = _newest(_folders(run), _Criteria(run, ignored, legacy_defaults), world.launch)
        if newest is not None:
            _log.info("restart %d of the processes: resuming %s", world.restarts, newest)
            return newest
    if setting == "auto":
        return _resumed_by_itself(run, ignored, legacy_defaults)
    if setting is not None:
        _check_state(setting, run, has_ingredient=has_ingredient)
        _note_origin(run.meta_info, Path(setting))
    return None


def _folders(run: Any) -> list[Path]:
    return [Path(observer.basedir) for observer in run.observers if isinstance(observer, FileObserver)]


def _resumed_by_itself(run: Any, ignored: Collection[str], legacy_defaults: Mapping[str, Any]) -> Path | None:
    """Return the unfinished run that `resume=auto` continues; None if there is none."""
    folders = _folders(run)
    if run.unobserved or not folders:
        _log.warning("resume=auto: this run is recorded in no folder, so there is nothing to resume")
        return None
    criteria = _Criteria(run, ignored, legacy_defaults)
    newest = _newest(folders, criteria)
    _log.info("resume=auto: %s", "nothing to resume, a new run starts" if newest is None else f"resuming {newest}")
    if newest is None:
        _warn_of_older(folders, criteria)
    return newest


def _newest(folders: Sequence[Path], criteria: _Criteria, launch: str | None = None) -> Path | None:
    return next((run for folder in folders for run in _unfinished(folder, criteria, launch)), None)


def _warn_of_older(folders: Sequence[Path], criteria: _Criteria) -> None:
    """Warn of an unfinished run that is not resumed as its record lacks entries, which were added since then."""
    for folder in itertools.islice(itertools.chain.from_iterable(map(_runs_in, folders)), _MOST_OLDER):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            record = load_json(folder / RUN)
            if not criteria.are_met_by(record) or is_living(folder, record):
                continue
            if entries := criteria.lacked_by(folder / CONFIG):
                names = [name.rpartition(".")[2] for name in entries]
                _log.warning(
                    "resume=auto: %s is unfinished, but recorded before there was %s. If these values are how it has "
                    "behaved, write config.legacy(%s) below the scope, and it is resumed; `sacristan resume %s` "
                    "resumes it in any case",
                    folder,
                    abbreviated([f"{name}={value!r}" for name, value in entries.items()], 5),
                    ", ".join(f"{name}={value!r}" for name, value in zip(names[:2], entries.values(), strict=False)),
                    folder.name,
                )
                return


def _check_state(setting: str, run: Any, *, has_ingredient: bool) -> None:
    """Reject a file whose state the run cannot start from."""
    if not Path(setting).is_file():
        raise ConfigError(
            f"{_SETTING}: got {setting!r}, expected auto, or a checkpoint such as my_runs/3/checkpoints/last.pt"
        )
    if has_ingredient:
        from sacristan.experiments.running.starting_state import check_start

        check_start(Path(setting), run.config, run.legacy_defaults)


def _note_origin(meta_info: dict[str, Any], state: Path) -> None:
    """Record the run whose state this run starts from as `started_from`, unless a parent is given."""
    if meta_info.get("parent") or os.environ.get(identity.PARENT_VARIABLE):
        return
    for folder in state.absolute().parents[1:3]:  # a fork keeps its own start one folder deeper
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if identity.is_uid(uid := load_json(folder / RUN)["uid"]):
                meta_info["started_from"] = uid
                return


class _Criteria:
    """What must be equal for a run to be resumed: `identity`, and the config apart from `ignored` entries."""

    def __init__(self, run: Any, ignored: Collection[str], legacy_defaults: Mapping[str, Any]) -> None:
        parent = run.meta_info.get("parent", os.environ.get(identity.PARENT_VARIABLE) or None)
        self.identity = (run.experiment_info["name"], _command(run), parent)
        self._ignored, self._legacy_defaults = ignored, json.loads(json.dumps(plain(legacy_defaults)))
        config = json.loads(json.dumps(plain(run.config)))
        self._config = _with(config, ignored, None)
        settings = (None, "auto", get_by_dotted_path(config, _SETTING))
        missing = object()
        self._most_bytes = max(len(json.dumps(_with(config, ignored, value), indent=2)) for value in settings)
        self._lines = [
            f"{json.dumps(name.rpartition('.')[2])[1:]}: {json.dumps(value)}".encode()
            for name, value in iterate_flattened(self._config)
            if not isinstance(value, list | dict)
            and name not in ignored
            and get_by_dotted_path(self._legacy_defaults, name, missing) != value
        ]

    def are_met_by(self, record: Mapping[str, Any]) -> bool:
        """Return whether a recorded run is an unfinished one of this experiment, command and parent."""
        parent = None if "started_from" in record["meta"] else record.get("parent")
        # A run that another one has started, such as a reproduction, is resumed by that one's alone.
        theirs = (record["experiment"]["name"], record["command"], parent)
        return theirs == self.identity and record["status"] not in _NOT_UNFINISHED

    def lacked_by(self, path: Path) -> dict[str, Any]:
        """Return the entries of the run that a recorded config lacks, by dotted name; none if it differs otherwise."""
        if not isinstance(document := load_json(path), dict):
            return {}
        from sacristan.ingredients.config.scope import completed

        recorded = _with(completed(document, self._config, self._legacy_defaults), self._ignored, None)
        theirs, mine = dict(iterate_flattened(recorded)), dict(iterate_flattened(self._config))
        lacked = {name: value for name, value in mine.items() if name not in theirs}
        return lacked if {**theirs, **lacked} == mine else {}

    def is_of(self, path: Path) -> bool:
        """Return whether a recorded config is that of the run; `OSError` or `ValueError` if it cannot be read."""
        # Its size, and the lines it must contain, rule out nearly all others without parsing.
        if path.stat().st_size > self._most_bytes:
            return False
        content = read_regular(path)
        if not content.rstrip().endswith(b"}"):
            raise ValueError(f"got {len(content)} bytes that do not end with }}, expected a JSON object")
        if not all(line in content for line in self._lines):
            return False
        from sacristan.ingredients.config.scope import completed

        recorded = completed(parse_json(content), self._config, self._legacy_defaults)
        recorded = _with(recorded, self._ignored, None)
        return json.dumps(recorded, sort_keys=True) == json.dumps(self._config, sort_keys=True)


def _runs_in(base: Path) -> list[Path]:
    """Return the folders of runs in a folder, newest first."""
    entries = os.scandir(base) if base.is_dir() else ()
    numbers = sorted(filter(None, (as_number(entry.name) for entry in entries)), reverse=True)
    return [base / str(number) for number in numbers]


def _unfinished(base: Path, criteria: _Criteria, launch: str | None = None) -> Iterator[Path]:
    """Yield the folders of unfinished runs that meet the criteria, newest first; with `launch`, only its own."""
    for folder in _runs_in(base):
        try:
            record = _record_of(folder, criteria, launch)
            if record is None:
                continue
            if is_living(folder, record):
                _log.warning("resume=auto: %s is skipped, because a process is working on it", folder)
                continue
            yield folder
        except FileNotFoundError as error:
            _log.debug("%s: skipped, it is not a run yet, or no longer one (%s)", folder, error)
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning(
                "resume=auto: %s may be of this config, but is skipped, because it cannot be read (%s: %s); "
                "mend or remove it",
                folder,
                type(error).__name__,
                error,
            )


def _record_of(folder: Path, criteria: _Criteria, launch: str | None) -> dict[str, Any] | None:
    """Return an unfinished run's record that meets the criteria, or None; raise if it cannot be read."""
    damage = None
    try:
        if not criteria.is_of(folder / CONFIG):
            return None
    except (OSError, ValueError) as error:
        damage = error
    record = load_json(folder / RUN)
    if not criteria.are_met_by(record):
        return None
    if launch is not None and record["meta"].get("ranks", {}).get("launch") != launch:
        return None
    if damage is not None:
        raise ValueError(f"{CONFIG}: {getattr(damage, 'strerror', None) or damage}") from damage
    return record


def recorded_data(folder: Path) -> str | None:
    """Return the fingerprint of the data that a run was trained on; None if it stopped before."""
    try:
        fingerprint = load_json(folder / INFO)["data"]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return fingerprint if isinstance(fingerprint, str) else None


@contextlib.contextmanager
def going_on_later(run: Any, *, owns_job: bool) -> Iterator[None]:
    """End a resumable block by a signal with the code for later; requeue the job if it `owns_job`."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not run.is_resumed and get_by_dotted_path(run.config, _SETTING) != "auto":
            raise
        end = error if isinstance(error, Terminated) else Terminated(signal.SIGINT)
        end.code = SAVED_CODE
        is_first = run.notices is None or not run.notices.world.rank
        if owns_job and get_by_dotted_path(run.config, _REQUEUE) and is_first and end.signal != "SIGINT":
            reason = requeue()
            if reason:
                _log.warning("checkpoint.requeue: the job is not queued again: %s", reason)
            else:
                _log.info("checkpoint.requeue: Slurm queues job %s again", job_id())
        raise end from error.__cause__


def check_resumable(run: Any) -> None:
    """Reject a run that is to continue or start in the folder of a record, if none of its observers can."""
    folder = run.meta_info.get("resume") or run.meta_info.get("queued")
    if folder is not None and not any(isinstance(observer, FileObserver) for observer in run.observers):
        action = "started" if "queued" in run.meta_info else "resumed"
        raise ResumeError(
            f"{folder} cannot be {action}: that is done in the folder of its record, and nothing here records in one; "
            f"attach a FileObserver (-F {Path(folder).parent}). A run in MongoDB alone cannot be resumed"
        )


def check_resource(path: str) -> None:
    """Reject a resource that changed since the run to reproduce read it; see SACRISTAN_EXPECT_RESOURCES."""
    expected = json.loads(os.environ.get(identity.EXPECT_RESOURCES_VARIABLE) or "{}").get(path)
    if expected is None:
        return
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        raise DataError(f"{path}: got a file with the sha256 {digest[:12]}, recorded was {expected[:12]}; restore it")


def _command(run: Any) -> str:
    """Return the recorded form of the run's command."""
    return join_paths(run.main_function.prefix, run.main_function.signature.name)


def is_unfinished(record: Mapping[str, Any]) -> bool:
    """Return whether a run, by its `run.json`, has something left to resume."""
    return record["status"] not in _NOT_UNFINISHED


def is_living(folder: Path, record: Mapping[str, Any]) -> bool:
    """Return whether a process is working on a run."""
    lease = identity.read_lease(folder)
    return record["status"] == "RUNNING" and lease is not None and identity.is_alive(lease)


def _with(config: Any, names: Collection[str], value: Any) -> Any:
    """Return a config with new values for some dotted names."""
    if not isinstance(config, Mapping):
        return config
    result = dict(config)
    for name in names:
        head, _, rest = name.partition(".")
        if head in result:
            result[head] = _with(result[head], {rest}, value) if rest else value
    return result
