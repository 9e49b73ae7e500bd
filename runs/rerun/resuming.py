"""Resuming runs in their own record, and forking new ones from their states: how the process is started.

launch = resume_launch(store.get("3"))          # the same run, in the same record
launch = fork_launch(store.get("3"), ["lr=1e-4"])  # a new run, from a state of that one
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from observers.record.identity import EXPECT_DATA_VARIABLE, PARENT_VARIABLE, RECORD_TO_VARIABLE, RESUME_VARIABLE
from observers.record.regular_file import read_regular
from observers.record.schema import CONFIG
from runs.errors import LaunchError, StoreError
from runs.rerun.launching import Launch, check_passwords_alone, dropped_options, recorded_launch
from runs.rerun.record import read_record
from runs.rerun.states import chosen_state, start_setting, with_folder
from runs.stores.run import HELD, Run

__all__ = ["changed_sources", "fork_launch", "resume_launch"]


def resume_launch(
    run: Run, options: Sequence[str] = (), settings: Sequence[str] = (), script: Path | None = None
) -> Launch:
    """Return how a run is resumed in its own record, from its newest good state; from its beginning if it has none.

    Args:
        run: The run; of one in a database, the folder that it was recorded in is taken.
        options: Options of the experiment's command line, such as `-m URL`, behind those of the record.
        settings: Settings whose URLs were recorded without their passwords, as behind `with`.
        script: The experiment's main file, by default the one that the record names.

    Raises:
        LaunchError: If it runs, has come to its end, keeps no states, or its folder is not on this machine.
        StoreError: If its record cannot be read.
    """
    run, folder = with_folder(run)
    _check_unfinished(run)
    _check_keeps_states(run)
    record = read_record(run)
    check_passwords_alone(record, settings)
    environment = {**record.flags, RESUME_VARIABLE: str(folder.absolute())}
    if run.document.get("parent") or run.document.get("folder") != str(folder.absolute()):
        # It may lie elsewhere than its experiment records by itself: told to, as a fork is, or moved since.
        environment[RECORD_TO_VARIABLE] = str(folder.parent.absolute())
    if record.fingerprint is not None:
        environment[EXPECT_DATA_VARIABLE] = record.fingerprint
    config = folder / CONFIG
    return recorded_launch(
        record, script=script, config=config, updates=settings, options=options, environment=environment
    )


def fork_launch(
    run: Run,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    state: Path | None = None,
    without: Sequence[str] = (),
    *,
    prints_config: bool = False,
) -> Launch:
    """Return how a new run starts from a state of `run`, with a changed config; `run` is its parent.

    Args:
        run: The run; of one in a database, the folder that it was recorded in is taken.
        settings: Settings and recipes, as behind `with`.
        options: Options of the experiment's command line.
        state: The file of the state, or its name, by default the newest good one.
        without: Options of the record that are left away, such as `tensorboard`.
        prints_config: Whether its config is printed instead.

    Raises:
        LaunchError: If there is no such state, or none that is good, or no such option in the record.
        StoreError: If its record cannot be read.
    """
    run, folder = with_folder(run)
    _check_keeps_states(run)
    updates = [*settings, start_setting(chosen_state(run, state).path)]
    environment = {RECORD_TO_VARIABLE: str(folder.parent.absolute()), PARENT_VARIABLE: run.uid or ""}
    record = read_record(run)
    return recorded_launch(
        record,
        config=folder / CONFIG,
        updates=updates,
        options=options,
        environment=environment,
        without=dropped_options(record, without),
        prints_config=prints_config,
    )


def changed_sources(run: Run) -> list[str]:
    """Return the names of the run's sources that are gone from its experiment's folder, or have another content now."""
    base = read_record(run).base
    if base is None or not base.is_dir():
        return []
    changed = []
    for name, content in sorted(run.sources.items()):
        try:
            if read_regular(base / name) != content.read():
                changed.append(name)
        except (OSError, StoreError):
            changed.append(name)
    return changed


def _check_unfinished(run: Run) -> None:
    status = run.status
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; it can be resumed when it has ended")
    if status.startswith("COMPLETED"):
        raise LaunchError(
            f"run {run.id} is {status}: nothing of it is left to do; to go on from its end with other settings: fork "
            f"{run.id} with epochs=..."
        )
    if status == "PRUNED":
        raise LaunchError(
            f"run {run.id} is PRUNED: its sweep ended it; for a run of its own from its newest state: fork {run.id}"
        )
    if status in ("QUEUED", HELD) or not run.is_whole:
        raise LaunchError(f"run {run.id} is {status}: it has nothing to resume from")


def _check_keeps_states(run: Run) -> None:
    if run.get("config.checkpoint") is None:
        raise LaunchError(
            f"run {run.id} keeps no states of its training: its experiment has no ingredient checkpoint; start it anew"
        )
    if run.get("config.checkpoint.last") is False:
        raise LaunchError(f"run {run.id} kept no states of its training: it has checkpoint.last=False; start it anew")
