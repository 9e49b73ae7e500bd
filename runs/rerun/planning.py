"""Planning to reproduce a past run: its code restored, and how its command is started again with its config."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from observers.record.identity import (
    EXPECT_DATA_VARIABLE,
    EXPECT_RESOURCES_VARIABLE,
    PARENT_VARIABLE,
    RECORD_TO_VARIABLE,
    RESUME_VARIABLE,
)
from observers.record.regular_file import open_regular
from observers.record.safe_paths import relative_path
from runs.errors import DamagedError, LaunchError, StoreError
from runs.rerun.environment import Environment, compare_environment
from runs.rerun.launching import OBSERVERS, Launch, check_passwords_alone, recorded_launch
from runs.rerun.libraries import with_libraries
from runs.rerun.record import RESUME_SETTING, Record, read_record
from runs.rerun.restoring import Restored, restore
from runs.rerun.states import kept_start
from runs.stores.content import Content
from runs.stores.run import HELD, Run
from runs.stores.store import Store

__all__ = ["IN_PLACE", "RESTORED", "Plan", "planned"]

RESTORED, IN_PLACE = "restored", "in place"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run is going to be reproduced.

    Attributes:
        run: The run.
        store: Where it lies, and where the new run goes.
        mode: `restored` for its own sources, `in place` for today's.
        restored: Its code; None in place.
        script: The experiment's main file.
        environment: Differences from the recorded one.
        launch: The process.
        record_to: The folder that the process records below.
        is_staged: Whether the new run goes from there into the store.
        own_store: The folder of runs that the new run goes into where the store cannot be written to.
        is_read_only: Whether that is known already.
        notes: What could not be taken over, a sentence each.
    """

    run: Run
    store: Store
    mode: str
    restored: Restored | None
    script: Path
    environment: Environment
    launch: Launch
    record_to: Path
    is_staged: bool
    own_store: Path
    is_read_only: bool
    notes: tuple[str, ...]


@contextlib.contextmanager
def planned(
    run: Run, store: Store, *, in_place: bool = False, keep: Path | None = None, settings: Sequence[str] = ()
) -> Iterator[Plan]:
    """Restore a run's code and give how it is to be started; nothing runs yet. The restored code goes in the end.

    Args:
        run: The run.
        store: Where it lies, and where the new run goes.
        in_place: Whether today's sources are taken in the place of its own.
        keep: An empty folder to restore into, which stays.
        settings: Settings whose URLs were recorded without their passwords, as behind `with`.

    Raises:
        LaunchError: If it cannot be reproduced.
        StoreError: If its record cannot be read.
    """
    run = store.get(run.id)
    _refuse(run)
    record = read_record(run)
    check_passwords_alone(record, settings)
    with contextlib.ExitStack() as stack:
        own_store = (keep or Path(f"reproduce-{run.id}")).absolute() / "runs"
        yield _plan(record, store, _working_folder(keep, stack), own_store, settings, in_place=in_place)


def _plan(
    record: Record, store: Store, folder: Path, own_store: Path, settings: Sequence[str], *, in_place: bool
) -> Plan:
    """Return the plan of a run, with its code restored below `folder`."""
    start, notes = _start(record)
    config = folder / "config.json"
    config.write_text(json.dumps(record.run.config.to_dict(), indent=2))
    restored = None if in_place else restore(record, folder / "code")
    script = restored.script if restored is not None else _script_of_today(record)
    notes += [] if restored is None else restored.notes
    there, resources = _compare_resources(record, restored)
    notes += there
    is_read_only = store.recording_folder is not None and not _is_writable(store.recording_folder)
    if is_read_only:
        notes.append(f"{store.where} cannot be written to: the new run goes into {own_store}")
    record_to, is_staged = _place_for_record(record, None if is_read_only else store, folder, in_place=in_place)
    launch = recorded_launch(
        record,
        script=script,
        config=config,
        # Where the setting would resume whatever unfinished run there is, the run begins anew.
        updates=[*settings, *([f"{RESUME_SETTING}={start!r}"] if record.starts_from else [])],
        options=[f"--file_storage={record_to}"] if is_staged or record.is_of_lab else [],
        environment=_environment(record, record_to, resources),
        without=[*OBSERVERS, "--enforce_clean"],
        # What lies beside the experiment in its repository is restored, too, and may be imported from there.
        search=[] if restored is None else [restored.folder],
    )
    mode = IN_PLACE if restored is None else RESTORED
    search = [script.parents[len(record.mainfile.parts) - 1], *([restored.folder] if restored else [])]
    environment = with_libraries(compare_environment(record), record, search)
    return Plan(
        record.run,
        store,
        mode,
        restored,
        script,
        environment,
        launch,
        record_to,
        is_staged,
        own_store,
        is_read_only,
        (*notes, *launch.notes),
    )


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _refuse(run: Run) -> None:
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; reproduce it when it has ended")
    if run.status in ("QUEUED", HELD):
        raise LaunchError(
            f"run {run.id} is {run.status.lower()} and was never started: there is nothing to compare with"
        )
    if not run.is_whole:
        raise LaunchError(f"run {run.id} is not whole: it says {run.status}; repeat what was interrupted")


def _working_folder(keep: Path | None, stack: contextlib.ExitStack) -> Path:
    try:
        if keep is None:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reproduce-"))).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise LaunchError(f"{keep} is not empty; give another folder to --keep")
    except OSError as error:
        raise LaunchError(f"{keep or 'a temporary folder'} cannot be made ({error.strerror})") from error
    return keep.resolve()


def _start(record: Record) -> tuple[str | None, list[str]]:
    """Return the state of another run that a run started from, or None, and what is to be said of it.

    Raises:
        LaunchError: If it is not there.
    """
    setting = record.starts_from
    if setting is None or setting == "auto":  # which may not find another unfinished run now
        return None, []
    kept = kept_start(record.run)
    if kept is not None:
        return str(kept.absolute()), []
    if not ((record.cwd or Path()) / setting).is_file():
        raise LaunchError(f"run {record.run.id} started from the state {setting}, which is not there; put it back")
    return setting, [f"it cannot be told whether {setting}, which the run started from, is still what it was"]


def _script_of_today(record: Record) -> Path:
    places = [record.base or Path(), Path.cwd()]
    for place in places:
        if (place / record.mainfile).is_file():
            return (place / record.mainfile).absolute()
    raise LaunchError(
        f"{record.mainfile} is neither in {places[0]} nor in {places[1]}; start this in the folder of the experiment"
    )


def _place_for_record(record: Record, store: Store | None, folder: Path, *, in_place: bool) -> tuple[Path, bool]:
    """Return the folder that the process is to record below, and whether the run goes from there into a store."""
    # Sources from before a record said `cwd`, and stock Sacred, do not look at the variable.
    document = record.run.document
    is_heard = record.run.uid is not None and "copied_from" not in document and (in_place or "cwd" in document)
    if store is not None and store.recording_folder is not None and is_heard:
        return store.recording_folder, False
    staging = folder / "record"
    staging.mkdir()
    return staging, True


def _environment(record: Record, record_to: Path, resources: Mapping[str, str]) -> dict[str, str]:
    return {
        **record.flags,
        RECORD_TO_VARIABLE: str(record_to),
        RESUME_VARIABLE: "",
        PARENT_VARIABLE: record.run.uid or "",
        EXPECT_DATA_VARIABLE: record.fingerprint or "",
        EXPECT_RESOURCES_VARIABLE: json.dumps(resources) if resources else "",
    }


def _compare_resources(record: Record, restored: Restored | None) -> tuple[list[str], dict[str, str]]:
    """Compare the files that the run read with what they are now.

    A file of the repository is restored, too. Which of the two is read is up to the experiment, so the process is told
    what to refuse.

    Returns:
        What is to be said of them, and the recorded SHA-256 of each path that has another content now.

    Raises:
        LaunchError: If one has its recorded content nowhere.
    """
    notes: list[str] = []
    changed: dict[str, str] = {}
    for content in record.run.stored("resources"):
        there = [Path(content.name)]
        if restored is not None and record.base is not None and Path(content.name).is_relative_to(record.base):
            path = relative_path(Path(content.name).relative_to(record.base).as_posix())
            if path is not None:
                there.insert(0, restored.base / path)
        found = [path for path in there if path.is_file()]
        try:
            recorded = content.sha256()
        except DamagedError as error:
            raise LaunchError(f"run {record.run.id}: its resource {error}") from error
        except (StoreError, OSError):
            notes.append(
                f"the content of {content.name!r}, which the run read, is not in its record: it is not compared"
            )
            continue
        others = [path for path in found if _content_of(path).sha256() != recorded]
        changed |= dict.fromkeys(map(str, others), recorded)
        if not found:
            notes.append(f"{content.name!r}, which the run read, is not there")
        elif len(others) == len(found):
            raise LaunchError(
                f"{content.name!r}, which the run read, has another content now than the recorded one (sha256 "
                f"{recorded[:12]}); put back what it was"
            )
        elif others:
            same = next(path for path in found if path not in others)
            notes.append(
                f"{content.name!r}, which the run read, has changed: the run is refused unless it reads {same}"
            )
    return notes, changed


def _content_of(path: Path) -> Content:
    return Content(path.name, lambda: open_regular(path))
