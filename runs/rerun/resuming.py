"""Resume a run in its own record, or fork a new run from one of its saved states.

launch = resume_launch(store.get("3"))  # the same run, in the same record
launch = fork_launch(store.get("3"), ["lr=1e-4"])  # a new run, from a state of that one
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from sacristan.observers.record.identity import (
    EXPECT_DATA_VARIABLE,
    FORK_VARIABLE,
    PARENT_VARIABLE,
    RECORD_TO_VARIABLE,
    RESUME_VARIABLE,
    START_VARIABLE,
)
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.redaction import typed_command
from sacristan.observers.record.schema import CONFIG, RUN
from sacristan.observers.record.sealed_zip import check_seal, read_note
from sacristan.runs.errors import LaunchError, RunsError
from sacristan.runs.rerun import RESUME_SETTING, Record, check_has_config, is_content_of, is_written_by
from sacristan.runs.rerun.launching import (
    Launch,
    check_passwords_alone,
    dropped_options,
    end_text,
    recorded_launch,
    run_launch,
)
from sacristan.runs.stores import HELD, Run
from sacristan.runs.stores.opening import open_store

_log = logging.getLogger(__name__)


def resume(run: Run, options: Sequence[str] = (), *, settings: Sequence[str] = (), output: int | None = None) -> Run:
    """Resume a run that was cut off, in its own record, from its newest good state, and wait until it ends.

    The experiment runs as its own process, as `sacristan resume` starts it, with today's sources. Changes since
    the run was recorded are logged as warnings. Ctrl-C interrupts the experiment, as on a terminal.

    Args:
        run: A run that was killed, interrupted or failed. A run of a database needs the folder that it was recorded in,
            which holds its states, on this machine.
        options: Options of the experiment's command line that replace the recorded ones, such as
            `["-m", "mongodb://user:password@host/lab"]`.
        settings: URLs that the config was recorded without the passwords of, such as
            `["db.url=postgresql://user:password@host/lab"]`.
        output: File descriptor for everything that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The run after its process has ended: COMPLETED, FAILED or INTERRUPTED.

    Raises:
        LaunchError: If the run is running, has completed, keeps no states, or its process ended without resuming it.
        StoreError: If its record cannot be read.

    Example:
        with open_store("my_runs") as store:
            run = resume(store.get(3))
            print(run.status, run.result)
    """
    recorded, _ = with_folder(run)
    changed = changed_sources(Record(recorded))
    if changed:
        _log.warning("sources of run %s have changed since it was recorded: %s", run.id, ", ".join(changed))
    pid, code = _run(resume_launch(recorded, options, settings), output)
    if not is_written_by(recorded.store.get(recorded.id), pid):
        raise LaunchError(f"run {run.id} was not resumed: its process ended with {end_text(code)}; see what it printed")
    return run.store.get(run.id)


def fork(
    run: Run,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    *,
    state: str | Path | None = None,
    without: Sequence[str] = (),
    output: int | None = None,
) -> Run:
    """Start a new run from a state of a run, with a changed config, and wait until it ends.

    The new run is recorded beside its parent, the run that it starts from.

    Args:
        run: A run with states, completed or not, in the folder that it was recorded in or in a database.
        settings: Changes, as after `with` on the command line: `["lr=1e-4", "epochs=20"]`, or named configs.
        options: Options of the experiment's command line that replace the recorded ones.
        state: The state, such as `step-000000120.pt`; by default the newest good one.
        without: Recorded options to leave out, such as `["tensorboard", "comment"]`.
        output: File descriptor for everything that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The new run, in the folder of runs that it is recorded in, after its process has ended.

    Raises:
        LaunchError: If there is no such state or no good one, or the process recorded no run.
        StoreError: If the record cannot be read.

    Example:
        with open_store("my_runs") as store:
            longer = fork(store.get(3), ["epochs=20"])
            print(longer.id, longer.parent.id, longer.result)
    """
    recorded, _ = with_folder(run)
    before = {child.id for child in recorded.children()}
    launch = fork_launch(recorded, settings, options, None if state is None else Path(state), without)
    pid, code = _run(launch, output)
    # Others may fork the same run at the same time.
    children = [child for child in recorded.children() if child.id not in before and is_written_by(child, pid)]
    if not children:
        raise LaunchError(f"run {run.id} was not forked: its process recorded no run, and ended with {end_text(code)}")
    return recorded.store.get(children[0].id)


def _run(launch: Launch, output: int | None) -> tuple[int, int]:
    for note in launch.notes:
        _log.warning("%s", note)
    return run_launch(launch, output)


# ---------------------------------------------------------------------- launches


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
    """Return how a queued run is started in its own record, whose folder may just have been fetched from a database."""
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
    if Record(run).script_start is not None:
        return _fork_of_script(run, folder, settings, options, state)
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


def _fork_of_script(
    run: Run, folder: Path, settings: Sequence[str], words: Sequence[str], state: Path | None
) -> Launch:
    """Return the process of a new run of a script with more words, from a state if the run keeps any."""
    environment = {RECORD_TO_VARIABLE: str(folder.parent.absolute()), PARENT_VARIABLE: run.uid or ""}
    notes = []
    if state is not None or states_of(run):
        environment[FORK_VARIABLE] = str(chosen_state(run, state).path.absolute())
    else:
        notes = [f"run {run.id} keeps no states of its training, so the new run starts from the beginning"]
    launch = recorded_launch(
        Record(run), config=folder / CONFIG, updates=settings, options=words, environment=environment
    )
    return dataclasses.replace(launch, notes=(*notes, *launch.notes))


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
    if status.startswith("COMPLETED") and Record(run).script_start is not None:
        raise LaunchError(f"run {run.id} is {status}: nothing is left to do")
    if status.startswith("COMPLETED"):
        raise LaunchError(
            f"run {run.id} is {status}: nothing is left to do; to continue from its end with other settings: "
            f"{typed_command(run.store.where, 'fork', run.id)} with epochs=..."
        )
    if status == "PRUNED":
        raise LaunchError(
            f"run {run.id} is PRUNED: its sweep ended it; to start a separate run from its newest state: "
            f"{typed_command(run.store.where, 'fork', run.id)}"
        )
    if status in ("QUEUED", HELD) or not run.is_whole:
        raise LaunchError(f"run {run.id} is {status}: it has nothing to resume from")


def _check_keeps_states(run: Run) -> None:
    check_has_config(run)
    start = Record(run).script_start
    if start is not None and not states_of(run):
        raise LaunchError(
            f"run {run.id} keeps no states of its training: its script does not call run.checkpoint; start it again: "
            f"{start.text}"
        )
    if start is not None:
        return
    if run.get("config.checkpoint") is None:
        raise LaunchError(
            f"run {run.id} keeps no states of its training: its experiment has no ingredient checkpoint; start it again"
        )
    if run.get("config.checkpoint.last") is False:
        raise LaunchError(f"run {run.id} kept no states of its training: it has checkpoint.last=False; start it again")


# ---------------------------------------------------------------------- saved states


@dataclasses.dataclass(frozen=True)
class State:
    """A state of a training on disk: the optimizer steps before it, None if unknown, and what is damaged."""

    path: Path
    step: int | None
    fault: str = ""


def with_folder(run: Run) -> tuple[Run, Path]:
    """Return a run as recorded in its own folder on this machine, where its states are, and that folder."""
    if run.uid is None:
        raise LaunchError(
            f"run {run.id} was recorded by stock Sacred, which keeps no states to resume from; reproduce it"
        )
    original = _with_states(run)
    if original is None or original.folder is None:
        where = f"{run.document.get('folder') or 'no folder'} on {run.host or 'a machine without a name'}"
        raise LaunchError(f"run {run.id} was recorded in {where}, which holds its states; continue there")
    return original, original.folder


def _with_states(run: Run) -> Run | None:
    """Return the run as recorded in the folder of its states, the first one of a run that is recorded in several."""
    original = run.original()
    other = None if original is None else original.document.get("states_folder")
    if not isinstance(other, str) or original is None or not (Path(other) / RUN).is_file():
        return original
    with contextlib.suppress(RunsError):  # a folder without a readable record is another one
        first = open_store(Path(other).parent).get(Path(other).name)
        return first if first.uid == original.uid else original
    return original


def states_of(run: Run, *, check: bool = False) -> list[State]:
    """Return the states of a run's last training here, newest first; `check` reads whole files for damage."""
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
    """Return a run's own copy of the state that it started from, as that may be replaced; None without one."""
    setting = run.get(f"config.{RESUME_SETTING}")
    original = _with_states(run)
    if original is None or original.folder is None or setting in (None, "auto"):
        return None
    path = original.folder / "checkpoints" / "start" / Path(str(setting)).name
    return path if path.is_file() else None


def start_setting(path: Path) -> str:
    """Return the setting that starts a run from a state, which must be of the first training of its run."""
    if path.absolute().parent.name.startswith("checkpoints-"):
        raise LaunchError(
            f"{path}: is a state of a later training of its run, and a new run would start its first one from it; a "
            "run of several trainings can be resumed, but not forked or verified"
        )
    return f"{RESUME_SETTING}={str(path.absolute())!r}"
