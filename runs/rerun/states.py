"""States of a run's training on disk: where they are, which of them are good, and how another run starts from one."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from observers.record.json_text import parse_json
from observers.record.schema import RUN
from observers.record.sealed_zip import check_seal, read_note
from runs.errors import LaunchError, RunsError
from runs.rerun.record import RESUME_SETTING
from runs.stores.folders.store import FolderStore
from runs.stores.run import Run

__all__ = ["State", "chosen_state", "kept_start", "start_setting", "states_of", "with_folder"]


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


def with_folder(run: Run) -> tuple[Run, Path]:
    """Return the run as the folder has it that it was recorded in, where its states are, and that folder.

    Raises:
        LaunchError: If stock Sacred recorded it, or the folder is not on this machine.
    """
    if run.uid is None:
        raise LaunchError(
            f"run {run.id} was recorded by stock Sacred, which keeps no states to resume from; reproduce it"
        )
    found = _with_states(run)
    if found is None or found.folder is None:
        where = f"{run.document.get('folder') or 'no folder'} on {run.host or 'a machine without a name'}"
        raise LaunchError(f"run {run.id} was recorded in {where}, and its states are only there; go on from there")
    return found, found.folder


def _with_states(run: Run) -> Run | None:
    """Return the run as the folder has it that its states are in; of one recorded in several, that is the first."""
    found = run.original()
    other = None if found is None else found.document.get("states_folder")
    if not isinstance(other, str) or found is None or not (Path(other) / RUN).is_file():
        return found
    with contextlib.suppress(RunsError):  # a folder without a readable record is not that of the run
        first = FolderStore(Path(other).parent).get(Path(other).name)
        return first if first.uid == found.uid else found
    return found


def states_of(run: Run, *, check: bool = False) -> list[State]:
    """Return the states of a run's last training, the newest first.

    Args:
        run: The run; none are found of one whose folder is not on this machine.
        check: Whether to read all of each file and look for damage.
    """
    original = _with_states(run)
    if original is None or original.folder is None:
        return []
    folders = sorted(original.folder.glob("checkpoints-*"), key=lambda path: (len(path.name), path.name))
    folder = (folders or [original.folder / "checkpoints"])[-1]
    paths = [folder / "last.pt", *sorted(folder.glob("step-*.pt"), reverse=True)]
    return [_state(path, check) for path in paths if path.is_file()]


def _state(path: Path, check: bool) -> State:
    try:
        note = parse_json(check_seal(path) if check else read_note(path))
        return State(path, note.get("step"))
    except (OSError, ValueError, AttributeError) as error:  # SealError is a ValueError
        return State(path, None, str(error))


def chosen_state(run: Run, path: Path | None = None) -> State:
    """Return the state of a run that is in `path`, or its newest good one.

    Raises:
        LaunchError: If there is no such state, or it is damaged.
    """
    states = states_of(run, check=True)
    names = ", ".join(state.path.name for state in states if not state.fault) or "none"
    if path is not None:
        state = next((state for state in states if path in (state.path, Path(state.path.name))), None)
        if state is None:
            raise LaunchError(f"run {run.id} has no state {path}; good ones are: {names}")
        if state.fault:
            raise LaunchError(f"{state.path}: is damaged: {state.fault}; good ones are: {names}")
        return state
    good = [state for state in states if not state.fault]
    if not good:
        faults = "; ".join(f"{state.path.name}: {state.fault}" for state in states)
        raise LaunchError(f"run {run.id} has no good state to start from{f' ({faults})' if faults else ''}")
    return good[0]


def kept_start(run: Run) -> Path | None:
    """Return the state of another run that a run started from, as it kept it itself; None if it did not.

    Where the other run has it, there may be a newer one by now.
    """
    setting = run.get(f"config.{RESUME_SETTING}")
    original = _with_states(run)
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
