"""Plans to reproduce a past run: its code restored, its environment compared, and the process that runs it again.

Nothing runs before `carry_out`:

    with planned(Record(store.get("3")), Tolerance()) as plan:
        done = carry_out(plan)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sacristan.observers.record.files import open_regular, relative_path
from sacristan.observers.record.identity import (
    EXPECT_DATA_VARIABLE,
    EXPECT_RESOURCES_VARIABLE,
    PARENT_VARIABLE,
    RECORD_TO_VARIABLE,
    RESUME_VARIABLE,
    USED_ARTIFACTS_VARIABLE,
)
from sacristan.runs.errors import DamagedError, LaunchError, RunNotFoundError, StoreError, naming_os_errors
from sacristan.runs.query import mappings_in
from sacristan.runs.rerun import RESUME_SETTING, Record, check_whole
from sacristan.runs.rerun.environment import Environment, compare_environment
from sacristan.runs.rerun.launching import OBSERVERS, Launch, check_passwords_alone, recorded_launch
from sacristan.runs.rerun.restoring import Restored, restore
from sacristan.runs.rerun.resuming import kept_start
from sacristan.runs.rerun.verdict import Tolerance
from sacristan.runs.stores import HELD

RESTORED, IN_PLACE = "restored", "in place"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan to reproduce a run."""

    record: Record
    tolerance: Tolerance
    restored: Restored | None  # its code; None to run today's
    script: Path
    environment: Environment
    launch: Launch
    record_to: Path  # the folder of runs that the process records into
    is_staged: bool  # whether the new run is then copied from there into the store
    own_store: Path  # the folder of runs for the new run where the store cannot be written to
    is_read_only: bool  # whether the store is known to be one of those
    notes: tuple[str, ...]

    @property
    def mode(self) -> str:
        """`restored` for the run's own sources, `in place` for today's."""
        return IN_PLACE if self.restored is None else RESTORED


@contextlib.contextmanager
def planned(
    record: Record,
    tolerance: Tolerance,
    *,
    in_place: bool = False,
    keep: Path | None = None,
    settings: Sequence[str] = (),
) -> Iterator[Plan]:
    """Restore a run's code and plan how to run it; nothing runs yet. The restored code is removed with the block.

    The new run goes into the same store. With `in_place`, today's sources run instead; `keep` is an empty folder to
    restore into, which stays. `settings` are URLs that were recorded without their passwords.
    """
    tolerance.check(record.run)
    _check_ended(record)
    check_whole(record)
    if record.script_start is None:
        check_passwords_alone(record, settings)
    own_store = (keep or Path(f"reproduce-{record.id}")).absolute() / "runs"
    with _working_folder(keep) as folder:
        yield _plan(record, tolerance, folder, own_store, settings, in_place=in_place)


def _plan(
    record: Record, tolerance: Tolerance, folder: Path, own_store: Path, settings: Sequence[str], *, in_place: bool
) -> Plan:
    """Return the plan of a run, with its code restored below `folder`."""
    start, notes = _start(record)
    config = folder / "config.json"
    config.write_text(record.config_text)
    restored = None if in_place else restore(record, folder / "code")
    script = _script_of_today(record) if restored is None else restored.script
    resource_notes, changed_resources = _compare_resources(record, restored)
    notes += [*(restored.notes if restored else ()), *resource_notes, *_moved_artifacts(record)]
    target, is_read_only = _target(record, in_place=in_place)
    if is_read_only:
        notes.append(f"{record.store.where} cannot be written to: the new run goes into {own_store}")
    record_to = target or folder / "record"
    record_to.mkdir(exist_ok=True)
    # Code beside the experiment in its repository is restored too, and may be imported from there.
    search = [] if restored is None else [restored.folder]
    takes_options = record.script_start is None and (target is None or record.is_of_lab)
    launch = recorded_launch(
        record,
        script=script,
        config=config,
        # The setting would resume any unfinished run there is; this one starts from the beginning.
        updates=[*settings, *([f"{RESUME_SETTING}={start!r}"] if record.starts_from else [])],
        options=[f"--file_storage={record_to}"] if takes_options else [],
        environment=_variables(record, record_to, changed_resources),
        without=[*OBSERVERS, "--enforce_clean"],
        search=search,
    )
    return Plan(
        record=record,
        tolerance=tolerance,
        restored=restored,
        script=script,
        environment=compare_environment(record, [script.parents[len(record.mainfile.parts) - 1], *search]),
        launch=launch,
        record_to=record_to,
        is_staged=target is None,
        own_store=own_store,
        is_read_only=is_read_only,
        notes=(*notes, *launch.notes),
    )


def _variables(record: Record, record_to: Path, changed_resources: dict[str, str]) -> dict[str, str]:
    return {
        **record.flags,
        RECORD_TO_VARIABLE: str(record_to),
        RESUME_VARIABLE: "",
        PARENT_VARIABLE: record.run.uid or "",
        EXPECT_DATA_VARIABLE: record.fingerprint or "",
        EXPECT_RESOURCES_VARIABLE: json.dumps(changed_resources) if changed_resources else "",
        USED_ARTIFACTS_VARIABLE: json.dumps(used) if (used := _used_artifacts(record)) else "",
    }


def _used_artifacts(record: Record) -> dict[str, str]:
    """Return the versions that a run used by names that move, as `net:champion`: `net@DIGEST`."""
    entries = mappings_in(record.run["artifacts_used"])
    return {str(entry["reference"]): f"{entry['name']}@{entry['digest']}" for entry in entries if "reference" in entry}


def _moved_artifacts(record: Record) -> Iterator[str]:
    """Yield a note for each version that a run used by a name that names another one now."""
    for reference, used in _used_artifacts(record).items():
        with contextlib.suppress(StoreError, RunNotFoundError):
            now, version = (record.store.aliases.resolve(each) for each in (reference, used))
            if now.digest != version.digest:
                yield f"{reference} is v{version.version}, as in run {record.id}; it names v{now.version} now"


def _target(record: Record, *, in_place: bool) -> tuple[Path | None, bool]:
    """Return the store's folder if the process can record there, and whether it is known to be read-only."""
    folder = record.store.recording_folder
    is_effective = os.access in os.supports_effective_ids
    is_read_only = folder is not None and not os.access(folder, os.W_OK, effective_ids=is_effective)
    return folder if not is_read_only and _records_where_told(record, in_place=in_place) else None, is_read_only


def _check_ended(record: Record) -> None:
    run = record.run
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; reproduce it when it has ended")
    if run.status in ("QUEUED", HELD):
        raise LaunchError(
            f"run {run.id} is {run.status.lower()} and was never started: there is nothing to compare with"
        )
    if not run.is_whole:
        raise LaunchError(f"run {run.id} is incomplete: its status is {run.status}; repeat the interrupted command")


@contextlib.contextmanager
def _working_folder(keep: Path | None) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        with naming_os_errors(f"{keep or 'a temporary folder'} cannot be made", kind=LaunchError):
            if keep is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reproduce-")))
            else:
                folder = keep
                folder.mkdir(parents=True, exist_ok=True)
                if any(folder.iterdir()):
                    raise LaunchError(f"{keep} is not empty; give another folder to --keep")
        yield folder.resolve()


def _start(record: Record) -> tuple[str | None, list[str]]:
    """Return the state of another run that a run started from, or None, and notes; LaunchError if the state is gone."""
    setting = record.starts_from
    if setting is None or setting == "auto":  # which might find another unfinished run now
        return None, []
    kept = kept_start(record.run)
    if kept is not None:
        return str(kept.absolute()), []
    if not ((record.cwd or Path()) / setting).is_file():
        raise LaunchError(f"run {record.id} started from the state {setting}, which does not exist; restore it")
    return setting, [f"it is unknown whether {setting}, which the run started from, is still what it was"]


def _script_of_today(record: Record) -> Path:
    places = [record.base or Path(), Path.cwd()]
    for place in places:
        if (place / record.mainfile).is_file():
            return (place / record.mainfile).absolute()
    raise LaunchError(
        f"{record.mainfile} is neither in {places[0]} nor in {places[1]}; start this in the folder of the experiment"
    )


def _records_where_told(record: Record, *, in_place: bool) -> bool:
    """Tell whether the process records where `RECORD_TO_VARIABLE` says, as stock Sacred and older sources do not."""
    document = record.run.document
    return record.run.uid is not None and "copied_from" not in document and (in_place or "cwd" in document)


def _compare_resources(record: Record, restored: Restored | None) -> tuple[list[str], dict[str, str]]:
    """Return notes on changed files that the run read, and the recorded SHA-256 of each path whose content has changed.

    A file of the repository is restored as well. The experiment decides which of the two it reads, so the process is
    given the paths to reject. A file whose recorded content is nowhere raises LaunchError.
    """
    notes: list[str] = []
    changed: dict[str, str] = {}
    for content in record.resources:
        paths = [path for path in _places_of(content.name, record, restored) if path.is_file()]
        try:
            digest = content.sha256()
        except DamagedError as error:
            raise LaunchError(f"run {record.id}: its resource {error}") from error
        except (StoreError, OSError):
            notes.append(f"the record lacks the content of {content.name!r}, which the run read: it is not compared")
            continue
        others = [path for path in paths if _sha256_of(path) != digest]
        changed |= dict.fromkeys(map(str, others), digest)
        if not paths:
            notes.append(f"{content.name!r}, which the run read, does not exist")
        elif len(others) == len(paths):
            raise LaunchError(
                f"{content.name!r}, which the run read, has another content now than the recorded one (sha256 "
                f"{digest[:12]}); restore it"
            )
        elif others:
            same = next(path for path in paths if path not in others)
            notes.append(
                f"{content.name!r}, which the run read, has changed: the run is refused unless it reads {same}"
            )
    return notes, changed


def _places_of(name: str, record: Record, restored: Restored | None) -> list[Path]:
    """Return the paths of a file that the run read: restored, if it is in the experiment's folder, and as recorded."""
    path = Path(name)
    if restored is not None and record.base is not None and path.is_relative_to(record.base):
        below = relative_path(path.relative_to(record.base).as_posix())
        if below is not None:
            return [restored.base / below, path]
    return [path]


def _sha256_of(path: Path) -> str:
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
