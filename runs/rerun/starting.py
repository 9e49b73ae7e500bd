"""Resume, fork and reproduce past runs from Python, as processes that this one waits for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from sacristan.runs.errors import LaunchError
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.planning import planned
from sacristan.runs.rerun.processes import end_text, run_launch
from sacristan.runs.rerun.record import Record, is_written_by
from sacristan.runs.rerun.reproducing import Reproduction, carry_out
from sacristan.runs.rerun.resuming import changed_sources, fork_launch, resume_launch
from sacristan.runs.rerun.states import with_folder
from sacristan.runs.rerun.verdict import Tolerance
from sacristan.runs.stores.run import Run

__all__ = ["fork", "reproduce", "resume"]

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
    pid, code = _start(resume_launch(recorded, options, settings), output)
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
        settings: Changes, as behind `with` on the command line: `["lr=1e-4", "epochs=20"]`, or named configs.
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
    pid, code = _start(launch, output)
    # Others may fork the same run at the same time.
    children = [child for child in recorded.children() if child.id not in before and is_written_by(child, pid)]
    if not children:
        raise LaunchError(f"run {run.id} was not forked: its process recorded no run, and ended with {end_text(code)}")
    return recorded.store.get(children[0].id)


def reproduce(
    run: Run,
    tolerance: Tolerance | None = None,
    *,
    in_place: bool = False,
    keep: str | Path | None = None,
    settings: Sequence[str] = (),
    output: int | None = None,
) -> Reproduction:
    """Run a past run again from its record, wait until it ends, and compare it with the original.

    The sources are restored into a separate folder, and the command runs there with the recorded config. The new run
    goes into the same store with the old one as its parent, and the verdict is noted with both.

    Args:
        run: A run that has ended.
        tolerance: Allowed distance of metrics and the result from the recorded ones; by default a thousandth.
        in_place: Whether to run today's sources instead of the recorded ones.
        keep: An empty folder to restore the sources into, which stays; by default a temporary one.
        settings: URLs that the config was recorded without the passwords of, see `resume`.
        output: File descriptor for everything that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The verdict, the new run, and the differences in sources and environment.

    Raises:
        LaunchError: If the sources or data are missing or differ, or the process did not start, was interrupted, or
            failed where the old one did not.
        RunsError: If the tolerance names a metric that the run lacks.
        StoreError: If the store cannot be read or written.

    Example:
        with open_store("my_runs") as store:
            done = reproduce(store.get(1), Tolerance(rtol=1e-6))
            print(done.verdict.text, done.run.id)
    """
    record = Record(run.store.get(run.id))  # it may have changed since it was read
    folder = None if keep is None else Path(keep)
    with planned(record, tolerance or Tolerance(), in_place=in_place, keep=folder, settings=settings) as plan:
        _warn(plan.notes)
        _warn(plan.environment.notes)
        return carry_out(plan, output)


def _start(launch: Launch, output: int | None) -> tuple[int, int]:
    _warn(launch.notes)
    return run_launch(launch, output)


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        _log.warning("%s", sentence)
