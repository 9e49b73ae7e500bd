"""Processes that resume a run in its own record, or fork a new run from one of its states.

Both are ready to start:

    launch = resume_launch(store.get("3"))  # the same run, in the same record
    launch = fork_launch(store.get("3"), ["lr=1e-4"])  # a new run, from a state of that one
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from observers.record.identity import (
    EXPECT_DATA_VARIABLE,
    PARENT_VARIABLE,
    RECORD_TO_VARIABLE,
    RESUME_VARIABLE,
    START_VARIABLE,
)
from observers.record.schema import CONFIG
from runs.errors import LaunchError
from runs.rerun.launching import Launch, check_passwords_alone, dropped_options, recorded_launch
from runs.rerun.record import Record, check_has_config, is_content_of
from runs.rerun.states import chosen_state, start_setting, with_folder
from runs.stores.run import HELD, Run

__all__ = ["changed_sources", "fork_launch", "resume_launch", "start_launch"]


def resume_launch(
    run: Run, options: Sequence[str] = (), settings: Sequence[str] = (), script: Path | None = None
) -> Launch:
    """Return the process that resumes a run in its own record, from its newest good state or, without one, the start.

    Args:
        run: The run; of a run in a database, the folder that it was recorded in is resumed.
        options: Options of the experiment's command line, such as `-m URL`, which replace those of the record.
        settings: URLs that were recorded without their passwords, as behind `with`.
        script: The experiment's main file, by default that of the record.

    Raises:
        LaunchError: If the run is running, has completed, keeps no states, or its folder is not on this machine.
        StoreError: If the record cannot be read.
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

    Args:
        run: The run.
        settings: URLs that were recorded without their passwords.
        options: Options for its command line, behind the recorded ones.
        is_fetched: Whether its folder was just copied from a database to this machine.

    Raises:
        LaunchError: If it cannot be started here.
        StoreError: If its record cannot be read.
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

    Args:
        run: The run; of a run in a database, the folder that it was recorded in is forked.
        settings: Settings and recipes, as behind `with`.
        options: Options of the experiment's command line, which replace those of the record.
        state: The file of the state, or its name, by default the newest good one.
        without: Options of the record to leave out, such as `tensorboard`.
        prints_config: Whether to print the config instead.

    Raises:
        LaunchError: If there is no such state, no good one, or no such option in the record.
        StoreError: If the record cannot be read.
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
    """Return the names of recorded sources that are missing in the experiment's folder, or have another content now.

    Args:
        record: The record of the run; without its folder on this machine, there is nothing to compare.
    """
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
            f"python -m runs fork {run.id} with epochs=..."
        )
    if status == "PRUNED":
        raise LaunchError(
            f"run {run.id} is PRUNED: its sweep ended it; to start a separate run from its newest state: "
            f"python -m runs fork {run.id}"
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
