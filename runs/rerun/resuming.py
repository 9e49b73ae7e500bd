"""Processes that resume a run in its own record, or fork a new run from one of its states.

Both are ready to start:

    launch = resume_launch(store.get("3"))  # the same run, in the same record
    launch = fork_launch(store.get("3"), ["lr=1e-4"])  # a new run, from a state of that one
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sacristan.observers.record.identity import (
    EXPECT_DATA_VARIABLE,
    PARENT_VARIABLE,
    RECORD_TO_VARIABLE,
    RESUME_VARIABLE,
    START_VARIABLE,
)
from sacristan.observers.record.schema import CONFIG
from sacristan.runs.errors import LaunchError
from sacristan.runs.rerun.launching import Launch, check_passwords_alone, dropped_options, recorded_launch
from sacristan.runs.rerun.record import Record, check_has_config, is_content_of
from sacristan.runs.rerun.states import chosen_state, start_setting, with_folder
from sacristan.runs.stores.run import HELD, Run

__all__ = ["changed_sources", "fork_launch", "resume_launch", "start_launch"]


def resume_launch(
    run: Run, options: Sequence[str] = (), settings: Sequence[str] = (), script: Path | None = None
) -> Launch:
    """Return the process that resumes a run in its own record, from its newest good state or, without one, the start.

    Of a run in a database, the folder that it was recorded in is resumed. `options` such as `-m URL` replace those of
    the record. A run that is running, has completed, keeps no states or has no folder on this machine raises
    LaunchError.
    """
    run, folder = with_folder(run)
    _check_unfinished(run)
    _check_keeps_states(run)
    record = Record(run)
    check_passwords_alone(record, settings)
    environment = {**record.flags, RESUME_VARIABLE: str(folder.absolute())}
    if run.document.get("parent") or run.document.get("folder") != str(folder.absolute()):
        # The experiment would record elsewhere by default: the run is a fork, or was moved.
        environment[RECORD_TO_VARIABLE] = str(folder.parent.absolute())
    if record.fingerprint is not None:
        environment[EXPECT_DATA_VARIABLE] = record.fingerprint
    config = folder / CONFIG
    return recorded_launch(
        record, script=script, config=config, updates=settings, options=options, environment=environment
    )


def start_launch(run: Run, settings: Sequence[str], options: Sequence[str], *, is_fetched: bool = False) -> Launch:
    """Return how a queued run is started in its own record.

    `is_fetched` means that its folder was just copied from a database to this machine.
    """
    check_has_config(run)
    folder, environment = run.folder, {}
    if folder is not None:
        environment[START_VARIABLE] = str(folder.absolute())
        if is_fetched or run.document.get("folder") != str(folder.absolute()):
            environment[RECORD_TO_VARIABLE] = str(folder.parent.absolute())
    if is_fetched and folder is not None:
        options = [f"--file_storage={folder.parent.absolute()}", *options]
    config = (folder or Path()) / CONFIG
    return recorded_launch(Record(run), config=config, updates=settings, options=options, environment=environment)


def fork_launch(
    run: Run,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    state: Path | None = None,
    without: Sequence[str] = (),
    *,
    prints_config: bool = False,
) -> Launch:
    """Return the process of a new run that starts from a state of `run`, its parent, with a changed config.

    Of a run in a database, the folder that it was recorded in is forked. `settings` may contain recipes; `options`
    replace those of the record, and `without` leaves recorded ones out, such as `tensorboard`. The state is the newest
    good one if none is given. With `prints_config`, the process prints the config instead.
    """
    run, folder = with_folder(run)
    _check_keeps_states(run)
    updates = [*settings, start_setting(chosen_state(run, state).path)]
    environment = {RECORD_TO_VARIABLE: str(folder.parent.absolute()), PARENT_VARIABLE: run.uid or ""}
    record = Record(run)
    return recorded_launch(
        record,
        config=folder / CONFIG,
        updates=updates,
        options=options,
        environment=environment,
        without=dropped_options(record, without),
        prints_config=prints_config,
    )


def changed_sources(record: Record) -> list[str]:
    """Return the recorded sources that are missing or changed in the experiment's folder; none if that is not here."""
    base = record.base
    if base is None or not base.is_dir():
        return []
    return [name for name, content in sorted(record.sources.items()) if not is_content_of(base / name, content)]


def _check_unfinished(run: Run) -> None:
    status = run.status
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; it can be resumed when it has ended")
    if status.startswith("COMPLETED"):
        raise LaunchError(
            f"run {run.id} is {status}: nothing is left to do; to continue from its end with other settings: "
            f"sacristan fork {run.id} with epochs=..."
        )
    if status == "PRUNED":
        raise LaunchError(
            f"run {run.id} is PRUNED: its sweep ended it; to start a separate run from its newest state: "
            f"sacristan fork {run.id}"
        )
    if status in ("QUEUED", HELD) or not run.is_whole:
        raise LaunchError(f"run {run.id} is {status}: it has nothing to resume from")


def _check_keeps_states(run: Run) -> None:
    check_has_config(run)
    if run.get("config.checkpoint") is None:
        raise LaunchError(
            f"run {run.id} keeps no states of its training: its experiment has no ingredient checkpoint; start it again"
        )
    if run.get("config.checkpoint.last") is False:
        raise LaunchError(f"run {run.id} kept no states of its training: it has checkpoint.last=False; start it again")
