"""Exporting runs to other trackers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import FilterError, RunsError, StoreAwayError
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.targets import TARGETS, target_of
from sacristan.runs.transfer.targets.target import Target, key_of, state_of

__all__ = ["ExportedRun", "export_to"]


@dataclasses.dataclass(frozen=True)
class ExportedRun:
    """The outcome of exporting one run.

    Attributes:
        id: Its id in the store.
        outcome: `new`; `replaced`, if an earlier export of it has changed or was cut off; `present`, if nothing has
            changed; or `failed`.
        num_points: Number of points written.
        left_out: A sentence for each part that was left out, or the reason why it failed.
    """

    id: str
    outcome: Literal["new", "replaced", "present", "failed"]
    num_points: int = 0
    left_out: tuple[str, ...] = ()


def export_to(runs: Sequence[Run], output: str | Path, kind: str, *, is_moved: bool = False) -> Iterator[ExportedRun]:
    """Write runs to another tracker, one by one, with their original times and steps; one that fails hides no others.

    Exporting again adds nothing, and completes what was interrupted. `sacristan.runs.transfer.targets` lists what each
    tracker cannot hold.

    Args:
        runs: Runs of any stores.
        output: A folder, or the address of a server.
        kind: `tensorboard`, `mlflow` or `wandb`.
        is_moved: Whether the folder will be moved, so that nothing in it may name its place.

    Yields:
        The outcome for each run.

    Raises:
        FilterError: If there is no such kind.
        ForeignError: If the output cannot be opened.
        MissingExtraError: If the package that writes it is not installed.

    Example:
        with open_store("my_runs") as store:
            for exported in export_to(store.find(), "logs", "tensorboard"):
                print(exported.id, exported.outcome, exported.left_out)
    """
    if kind not in TARGETS:
        kinds = ", ".join(TARGETS)
        hint = word_suggestion(kind, TARGETS, "choose one")
        raise FilterError(f"got the kind {kind!r}, expected one of {kinds}; {hint}")
    with target_of(kind).open_target(str(output)) as target:
        for number, run in enumerate(runs):
            run.store.tell("exporting runs", number, len(runs))
            yield _export(run, target)
        if is_moved:
            target.forget_place()


def _export(run: Run, target: Target) -> ExportedRun:
    try:
        run = run.store.get(run.id)
        key, state = key_of(run), state_of(run)
        earlier = target.find(key)
        if earlier == state:
            return ExportedRun(run.id, "present")
        num_points, left_out = target.put(run, key, state)
    except StoreAwayError:
        raise
    except RunsError as error:
        return ExportedRun(run.id, "failed", left_out=(str(error),))
    return ExportedRun(run.id, "new" if earlier is None else "replaced", num_points, tuple(left_out))
