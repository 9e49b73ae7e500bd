"""The earlier run that a process resumes: the one it was started for, or the unfinished one of the same config."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sacred.utils import get_by_dotted_path, join_paths

from experiments.running.starting_state import check_start
from ingredients.errors import ConfigError, DataError
from ingredients.ranks.world import World
from observers.file.sacred_form import plain
from observers.record.identity import (
    EXPECT_RESOURCES_VARIABLE,
    PARENT_VARIABLE,
    RESUME_VARIABLE,
    START_VARIABLE,
    is_alive,
    read_lease,
)
from observers.record.numbered_folder import as_number
from observers.record.protocols import ResumableObserver
from observers.record.regular_file import read_regular
from observers.record.schema import CONFIG, INFO, RUN

__all__ = ["check_resource", "folder_to_resume", "folder_to_start", "forget_folders", "recorded_data"]

_log = logging.getLogger(__name__)

_SETTING = "checkpoint.resume"
# These have nothing to resume, or another process is at work on them.
_NOT_UNFINISHED = ("COMPLETED", "COMPLETED_WITH_LOSS", "PRUNED", "QUEUED", "COPYING", "REMOVING")


def folder_to_start() -> Path | None:
    """Return the folder of the queued run that this process is to start; None if it starts a run of its own.

    That is what SACRISTAN_START names, which is taken out of the environment.

    Raises:
        ConfigError: If there is no such folder.
    """
    named = os.environ.pop(START_VARIABLE, None)
    return None if named is None else _folder_of_run(START_VARIABLE, named)


def forget_folders() -> None:
    """Take out of the environment what is for rank 0 alone: the folder of the run to start or to resume."""
    for name in (START_VARIABLE, RESUME_VARIABLE):
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
    has_ingredient: bool = True,
    world: World | None = None,
) -> Path | None:
    """Return the folder of the run that `run`, which has not started, is to resume; None for a run of its own.

    That is what SACRISTAN_RESUME names, which is taken out of the environment; else, with `checkpoint.resume=auto`, the
    newest unfinished run of the same experiment, config and parent in the folders that `run` is recorded in. The ranks
    of a launch that were started anew resume the run that the same launch has begun, whatever the setting. Other
    commands than the default one, such as one that evaluates what was trained, pass over the setting.

    Args:
        run: Sacred's run.
        aliases: Entries at the root by name, and what they stand for.
        default_command: Name of the experiment's main function.
        has_ingredient: Whether states are those of the ingredient `checkpoint`, which can be looked at.
        world: The ranks of the run.

    Raises:
        ConfigError: If there is no such folder, or the setting makes no sense.
        LabError: If it names a state that the run cannot start from; see `check_start`.
    """
    named = os.environ.pop(RESUME_VARIABLE, None)
    if named is not None:
        return _folder_of_run(RESUME_VARIABLE, named)
    wanted = get_by_dotted_path(run.config, _SETTING)
    folders = [Path(observer.basedir) for observer in run.observers if isinstance(observer, ResumableObserver)]
    ignored = {_SETTING, *(name for name, target in aliases.items() if target == _SETTING)}
    if world is not None and world.restarts and has_ingredient and not run.unobserved:
        if _command(run) != default_command:
            return None
        found = next((found for folder in folders for found in _unfinished(folder, run, ignored, world.launch)), None)
        if found is not None:
            _log.info("restart %d of the processes: resuming %s", world.restarts, found)
            return found
    if wanted is None or _command(run) != default_command:
        return None
    if wanted != "auto":
        if not Path(wanted).is_file():
            raise ConfigError(
                f"{_SETTING}: got {wanted!r}, expected auto, or a checkpoint such as my_runs/3/checkpoints/last.pt"
            )
        if has_ingredient:
            check_start(Path(wanted), run.config)
        return None
    if run.unobserved or not folders:
        _log.warning("resume=auto: this run is recorded in no folder, so there is nothing to resume")
        return None
    found = next((found for folder in folders for found in _unfinished(folder, run, ignored)), None)
    _log.info("resume=auto: %s", "nothing to resume, a new run starts" if found is None else f"resuming {found}")
    return found


def _unfinished(base: Path, run: Any, ignored: set[str], launch: str | None = None) -> Iterator[Path]:
    """Yield the folders of unfinished runs like `run`, the newest first; with `launch` those that it has begun."""
    if not base.is_dir():
        return
    ours, sizes = _comparable(plain(run.config), ignored), _sizes(plain(run.config), ignored)
    parent = run.meta_info.get("parent", os.environ.get(PARENT_VARIABLE) or None)
    numbers = sorted(filter(None, (as_number(entry.name) for entry in os.scandir(base))), reverse=True)
    for folder in (base / str(number) for number in numbers):
        try:
            # A look at the size spares the reading of nearly all the others.
            if (folder / CONFIG).stat().st_size not in sizes:
                continue
            if _comparable(json.loads(read_regular(folder / CONFIG)), ignored) != ours:
                continue
            record = json.loads(read_regular(folder / RUN))
            theirs = (record["experiment"]["name"], record["command"], record.get("parent"))
            # A run that another one has started, such as a reproduction, is resumed by that one's alone.
            same = theirs == (run.experiment_info["name"], _command(run), parent)
            if not same or record["status"] in _NOT_UNFINISHED:
                continue
            if launch is not None and record["meta"].get("ranks", {}).get("launch") != launch:
                continue
            if _is_living(folder, record):
                _log.warning("resume=auto: %s is passed over, because a process is at work on it", folder)
                continue
            yield folder
        except FileNotFoundError as error:
            _log.debug("%s: passed over, it is no run yet, or none any more (%s)", folder, error)
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning(
                "resume=auto: %s may be of this config, but is passed over, because it cannot be read (%s: %s); "
                "mend or remove it",
                folder,
                type(error).__name__,
                error,
            )


def recorded_data(folder: Path) -> str | None:
    """Return the fingerprint of the data that the run in `folder` was trained on, if it came so far."""
    try:
        found = json.loads(read_regular(folder / INFO))["data"]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def check_resource(path: str) -> None:
    """Refuse a file that had another content when the run that is reproduced read it; see SACRISTAN_EXPECT_RESOURCES.

    Raises:
        DataError: If it has.
    """
    expected = json.loads(os.environ.get(EXPECT_RESOURCES_VARIABLE) or "{}").get(path)
    if expected is None:
        return
    with Path(path).open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise DataError(
            f"{path}: got a file with the sha256 {found[:12]}, recorded was {expected[:12]}; put back what it was"
        )


def _command(run: Any) -> str:
    """Return the run's command as it is recorded."""
    return join_paths(run.main_function.prefix, run.main_function.signature.name)


def _is_living(folder: Path, record: Mapping[str, Any]) -> bool:
    lease = read_lease(folder)
    return record["status"] == "RUNNING" and lease is not None and is_alive(lease)


def _comparable(config: Any, ignored: set[str]) -> str:
    return json.dumps(_with(config, ignored, None), sort_keys=True)


def _sizes(config: Any, ignored: set[str]) -> set[int]:
    """Return the lengths that the file of such a config may have: with the setting, and without it."""
    return {len(json.dumps(_with(config, ignored, value), indent=2).encode()) for value in (None, "auto")}


def _with(config: Any, names: set[str], value: Any) -> Any:
    """Return a config in which the entries `names`, given by dotted names, have a value."""
    if not isinstance(config, Mapping):
        return config
    result = dict(config)
    for name in names:
        head, _, rest = name.partition(".")
        if head in result:
            result[head] = _with(result[head], {rest}, value) if rest else value
    return result
