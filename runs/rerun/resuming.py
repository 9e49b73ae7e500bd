"""Runs that go on: which of them can, from which states, and how they are started again.

launch = resume_launch(store.get("3"))          # the same run, in the same record
launch = fork_launch(store.get("3"), ["lr=1e-4"])  # a new run, from a state of that one
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from observers.record.identity import EXPECT_DATA_VARIABLE, PARENT_VARIABLE, RECORD_TO_VARIABLE, RESUME_VARIABLE
from observers.record.schema import CONFIG
from observers.record.sealed_zip import SealError, check_seal, read_note
from runs.errors import LaunchError, StoreError
from runs.rerun.launching import Launch, recorded_launch, recorded_switches
from runs.stores.run import Run

__all__ = [
    "RESUME_SETTING",
    "State",
    "changed_sources",
    "fork_launch",
    "resume_launch",
    "start_of",
    "start_setting",
    "states_of",
    "with_folder",
]

# What an experiment starts from.
RESUME_SETTING = "checkpoint.resume"


@dataclasses.dataclass(frozen=True)
class State:
    """A state of a training on disk.

    Attributes:
        path: The file.
        step: The optimizer steps done by then; None where its end does not tell.
        fault: What is wrong with the file, in a few words; empty for nothing.
    """

    path: Path
    step: int | None
    fault: str = ""


def with_folder(run: Run) -> Run:
    """Return the run in the folder that it was recorded in, where its states are; of one in a database, by its record.

    Raises:
        LaunchError: If stock Sacred recorded it, or the folder is not on this machine.
    """
    if run.uid is None:
        raise LaunchError(
            f"run {run.id} was recorded by stock Sacred, which keeps no states to go on from; reproduce it"
        )
    found = run.original()
    if found is not None:
        return found
    where = f"{run.document.get('folder') or 'no folder'} on {run.host or 'a machine without a name'}"
    raise LaunchError(f"run {run.id} was recorded in {where}, and its states are only there; go on from there")


def states_of(run: Run, *, check: bool = False) -> list[State]:
    """Return the states of a run's last training, the newest first.

    Args:
        run: The run.
        check: Whether to read all of each file and look for damage.
    """
    folders = sorted(run.folder.glob("checkpoints-*"), key=lambda path: (len(path.name), path.name))
    folder = (folders or [run.folder / "checkpoints"])[-1]
    paths = [folder / "last.pt", *sorted(folder.glob("step-*.pt"), reverse=True)]
    return [_state(path, check) for path in paths if path.is_file()]


def _state(path: Path, check: bool) -> State:
    try:
        note = json.loads(check_seal(path) if check else read_note(path))
        return State(path, note.get("step"))
    except (OSError, SealError, ValueError, AttributeError) as error:
        return State(path, None, str(error))


def changed_sources(run: Run) -> list[str]:
    """Return the names of the run's sources that are gone from its experiment's folder, or have another content now."""
    base = run["experiment.base_dir"]
    if not isinstance(base, str) or not Path(base).is_dir():
        return []
    changed = []
    for name, content in sorted(run.sources.items()):
        try:
            if (Path(base) / name).read_bytes() != content.read():
                changed.append(name)
        except (OSError, StoreError):
            changed.append(name)
    return changed


def resume_launch(run: Run, options: Sequence[str] = ()) -> Launch:
    """Return how a run goes on in its own record, from its newest good state; from its beginning if it has none.

    Args:
        run: The run, in the folder that it was recorded in.
        options: Options of the experiment's command line, such as `-m URL`, behind those of the record.

    Raises:
        LaunchError: If it runs, has come to its end, or keeps no states.
    """
    _check_unfinished(run)
    _check_keeps_states(run)
    environment = {**recorded_switches(run), RESUME_VARIABLE: str(run.folder.absolute())}
    if run.document.get("parent") or run.document.get("folder") != str(run.folder.absolute()):
        # It may lie elsewhere than its experiment records by itself: told to, as a fork is, or moved since.
        environment[RECORD_TO_VARIABLE] = str(run.folder.parent.absolute())
    fingerprint = run["info.data.fingerprint"]
    if isinstance(fingerprint, str):
        environment[EXPECT_DATA_VARIABLE] = fingerprint
    return recorded_launch(run, config=run.folder / CONFIG, options=options, environment=environment)


def fork_launch(
    run: Run, updates: Sequence[str] = (), options: Sequence[str] = (), state: Path | None = None
) -> Launch:
    """Return how a new run starts from a state of `run`, with a changed config; `run` is its parent.

    Args:
        run: The run, in the folder that it was recorded in.
        updates: Settings and recipes, as behind `with`.
        options: Options of the experiment's command line.
        state: The state, by default the newest good one.

    Raises:
        LaunchError: If there is no such state, or none that is good.
    """
    _check_keeps_states(run)
    path = _chosen(run, state)
    environment = {RECORD_TO_VARIABLE: str(run.folder.parent.absolute()), PARENT_VARIABLE: run.uid}
    updates = [*updates, start_setting(path)]
    return recorded_launch(run, config=run.folder / CONFIG, updates=updates, options=options, environment=environment)


def start_of(run: Run) -> Path | None:
    """Return the state of another run that a run started from, as it kept it itself; None if it did not.

    Where the other run has it, there may be a newer one by now.
    """
    setting = run[f"config.{RESUME_SETTING}"]
    original = run.original()
    if original is None or original.folder is None or setting in (None, "auto"):
        return None
    path = original.folder / "checkpoints" / "start" / Path(str(setting)).name
    return path if path.is_file() else None


def start_setting(path: Path) -> str:
    """Return the setting that lets a run start from a state.

    Raises:
        LaunchError: If it is one of a second training of its run, as the setting is about the first.
    """
    if path.absolute().parent.name.startswith("checkpoints-"):
        raise LaunchError(
            f"{path}: is a state of a later training of its run, and a new run would start its first one from it; a "
            "run of several trainings can be resumed, but neither forked nor verified"
        )
    return f"{RESUME_SETTING}={str(path.absolute())!r}"


def _chosen(run: Run, path: Path | None) -> Path:
    states = states_of(run, check=True)
    names = ", ".join(state.path.name for state in states if not state.fault) or "none"
    if path is not None:
        state = next((state for state in states if path in (state.path, Path(state.path.name))), None)
        if state is None:
            raise LaunchError(f"run {run.id} has no state {path}; good ones are: {names}")
        if state.fault:
            raise LaunchError(f"{state.path}: is damaged: {state.fault}; good ones are: {names}")
        return state.path
    good = [state.path for state in states if not state.fault]
    if not good:
        faults = "; ".join(f"{state.path.name}: {state.fault}" for state in states)
        raise LaunchError(f"run {run.id} has no good state to start from{f' ({faults})' if faults else ''}")
    return good[0]


def _check_unfinished(run: Run) -> None:
    status = run.status
    if run.is_living:
        raise LaunchError(f"run {run.id} is running; it can go on when it has ended")
    if status.startswith("COMPLETED"):
        raise LaunchError(
            f"run {run.id} is {status}: nothing of it is left to do; to go on from its end with other settings: fork "
            f"{run.id} with epochs=..."
        )
    if status in ("QUEUED", "COPYING", "REMOVING"):
        raise LaunchError(f"run {run.id} is {status}: it has nothing to go on from")


def _check_keeps_states(run: Run) -> None:
    if run["config.checkpoint"] is None:
        raise LaunchError(
            f"run {run.id} keeps no states of its training: its experiment has no ingredient checkpoint; start it anew"
        )
    if run["config.checkpoint.last"] is False:
        raise LaunchError(f"run {run.id} kept no states of its training: it has checkpoint.last=False; start it anew")
