"""Past runs started again from Python, as processes that this one waits for: resumed, forked, reproduced."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from runs.errors import LaunchError
from runs.rerun.judging import check_tolerance
from runs.rerun.launching import Launch, run_launch
from runs.rerun.planning import planned
from runs.rerun.record import is_written_by
from runs.rerun.reproducing import Reproduction, carry_out
from runs.rerun.resuming import changed_sources, fork_launch, resume_launch
from runs.rerun.states import with_folder
from runs.rerun.verdict import Tolerance
from runs.rerun.wording import end_text
from runs.stores.run import Run
from runs.stores.store import Store

__all__ = ["fork", "reproduce", "resume"]

_log = logging.getLogger(__name__)


def resume(run: Run, options: Sequence[str] = (), *, settings: Sequence[str] = (), output: int | None = None) -> Run:
    """Resume a run that was cut off, in its own record, from its newest good state, and wait until it ends.

    The experiment runs as a process of its own, as `python -m runs resume` starts it, with today's sources; what is not
    as it was is logged as a warning. Ctrl-C interrupts it, as it would on a terminal.

    Args:
        run: A run that was killed, interrupted or failed. It may be one of a database; its states are in the folder
            that it was recorded in, which must be on this machine.
        options: Options of the experiment's command line, in the place of the recorded ones, such as
            `["-m", "mongodb://user:password@host/lab"]`.
        settings: What its config was recorded without: URLs with their passwords, such as
            `["db.url=postgresql://user:password@host/lab"]`.
        output: File descriptor for all that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The run as it is when the process has ended: COMPLETED, or FAILED, or INTERRUPTED once more.

    Raises:
        LaunchError: If it is running, has completed, keeps no states, or its process ended without resuming it.
        StoreError: If its record cannot be read.

    Example:
        with open_store("my_runs") as store:
            run = resume(store.get(3))
            print(run.status, run.result)
    """
    recorded, _ = with_folder(run)
    changed = changed_sources(recorded)
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

    The new run is recorded beside the run that it starts from, and has it for its parent.

    Args:
        run: A run with states, completed or not, in the folder that it was recorded in or in a database.
        settings: What changes, as behind `with` on the command line: `["lr=1e-4", "epochs=20"]`, or named configs.
        options: Options of the experiment's command line, in the place of the recorded ones.
        state: Which of its states, such as `step-000000120.pt`; by default the newest good one.
        without: Recorded options that are left away, such as `["tensorboard", "comment"]`.
        output: File descriptor for all that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The new run, in the folder of runs that it is recorded in, as it is when the process has ended.

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
    found = [child for child in recorded.children() if child.id not in before and is_written_by(child, pid)]
    if not found:
        raise LaunchError(f"run {run.id} was not forked: its process recorded no run, and ended with {end_text(code)}")
    return recorded.store.get(found[0].id)


def reproduce(
    run: Run,
    tolerance: Tolerance | None = None,
    *,
    in_place: bool = False,
    keep: str | Path | None = None,
    settings: Sequence[str] = (),
    output: int | None = None,
) -> Reproduction:
    """Run a past run again from its record, wait until it ends, and judge whether the same came out.

    Its sources are restored into a folder of their own, and its command is run there with its config. The new run goes
    into the same store with the old one as its parent, and the verdict is noted with both.

    Args:
        run: A run that has ended.
        tolerance: How far metrics and the result may be from the recorded ones; by default a thousandth.
        in_place: Whether today's sources are taken in the place of the recorded ones.
        keep: An empty folder to restore the sources into, which stays; by default a temporary one.
        settings: What its config was recorded without, see `resume`.
        output: File descriptor for all that the process prints; None leaves stdout and stderr as they are.

    Returns:
        The verdict and the new run, and what differs in sources and environment.

    Raises:
        LaunchError: If it could not be run: its sources or data are not there or not the same, its process did not
            start, or it failed or was interrupted where the old one was not.
        RunsError: If the tolerance names a metric that the run does not have.
        StoreError: If the store cannot be read or written.

    Example:
        with open_store("my_runs") as store:
            done = reproduce(store.get(1), Tolerance(rtol=1e-6))
            print(done.verdict.text, done.run.id)
    """
    tolerance = tolerance or Tolerance()
    check_tolerance(run, tolerance)
    store = cast(Store, run.store)  # a run knows no more of it than the protocol
    folder = None if keep is None else Path(keep)
    with planned(run, store, in_place=in_place, keep=folder, settings=settings) as plan:
        for note in (*plan.notes, *plan.environment.notes):
            _log.warning("%s", note)
        return carry_out(plan, tolerance, output)


def _start(launch: Launch, output: int | None) -> tuple[int, int]:
    for note in launch.notes:
        _log.warning("%s", note)
    return run_launch(launch, output)
