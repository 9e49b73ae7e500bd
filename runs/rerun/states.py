"""Saved states of a training: where they are, which are intact, and the setting that starts another run from one."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.schema import RUN
from sacristan.observers.record.sealed_zip import check_seal, read_note
from sacristan.runs.errors import LaunchError, RunsError
from sacristan.runs.rerun.record import RESUME_SETTING
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import Run

__all__ = ["State", "chosen_state", "kept_start", "start_setting", "states_of", "with_folder"]


@dataclasses.dataclass(frozen=True)
class State:
    """A state of a training on disk.

    Attributes:
        step: Optimizer steps before it; None if the file does not say.
        fault: The damage in a few words; empty for an intact file.
    """

    path: Path
    step: int | None
    fault: str = ""


def with_folder(run: Run) -> tuple[Run, Path]:
    """Return a run as recorded in its own folder, where its states are, and that folder.

    A run that stock Sacred recorded, or whose folder is not on this machine, raises LaunchError.
    """
    if run.uid is None:
        raise LaunchError(
            f"run {run.id} was recorded by stock Sacred, which keeps no states to resume from; reproduce it"
        )
    found = _with_states(run)
    if found is None or found.folder is None:
        where = f"{run.document.get('folder') or 'no folder'} on {run.host or 'a machine without a name'}"
        raise LaunchError(f"run {run.id} was recorded in {where}, which holds its states; continue there")
    return found, found.folder


def _with_states(run: Run) -> Run | None:
    """Return the run as recorded in the folder of its states, the first one of a run that is recorded in several."""
    found = run.original()
    other = None if found is None else found.document.get("states_folder")
    if not isinstance(other, str) or found is None or not (Path(other) / RUN).is_file():
        return found
    with contextlib.suppress(RunsError):  # a folder without a readable record is another one
        first = open_store(Path(other).parent).get(Path(other).name)
        return first if first.uid == found.uid else found
    return found


def states_of(run: Run, *, check: bool = False) -> list[State]:
    """Return the states of a run's last training, the newest first; none if its folder is not on this machine.

    With `check`, each file is read whole to find damage, instead of its end.
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
    """Return a state of a run by its file or the file's name, by default the newest good one."""
    states = states_of(run, check=True)
    good = [state for state in states if not state.fault]
    if path is not None:
        return _named_state(run, path, states, ", ".join(state.path.name for state in good) or "none")
    if not good:
        faults = "; ".join(f"{state.path.name}: {state.fault}" for state in states)
        raise LaunchError(f"run {run.id} has no good state to start from{f' ({faults})' if faults else ''}")
    return good[0]


def _named_state(run: Run, path: Path, states: list[State], good: str) -> State:
    state = next((state for state in states if path in (state.path, Path(state.path.name))), None)
    if state is None:
        raise LaunchError(f"run {run.id} has no state {path}; good ones are: {good}")
    if state.fault:
        raise LaunchError(f"{state.path}: is damaged: {state.fault}; good ones are: {good}")
    return state


def kept_start(run: Run) -> Path | None:
    """Return a run's own copy of the state that it started from; None if it has none.

    In the folder of the other run, a newer state may have replaced it.
    """
    setting = run.get(f"config.{RESUME_SETTING}")
    original = _with_states(run)
    if original is None or original.folder is None or setting in (None, "auto"):
        return None
    path = original.folder / "checkpoints" / "start" / Path(str(setting)).name
    return path if path.is_file() else None


def start_setting(path: Path) -> str:
    """Return the setting that starts a run from a state.

    A state of a later training of its run raises LaunchError, because the setting applies to the first one.
    """
    if path.absolute().parent.name.startswith("checkpoints-"):
        raise LaunchError(
            f"{path}: is a state of a later training of its run, and a new run would start its first one from it; a "
            "run of several trainings can be resumed, but not forked or verified"
        )
    return f"{RESUME_SETTING}={str(path.absolute())!r}"
