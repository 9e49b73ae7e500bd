"""Exporting runs to other trackers; see `sacristan.runs.transfer.targets.target`."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

from sacristan.configs.installation import missing_package
from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import FilterError, MissingExtraError, RunsError, StoreAwayError
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.targets.target import Target, TargetModule, key_of, state_of

__all__ = ["TARGETS", "ExportedRun", "export_to", "target_of"]

# The module of each kind.
TARGETS = {"tensorboard": "event_folders", "mlflow": "mlflow_client", "wandb": "wandb_folders"}


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

    Exporting again adds nothing, and completes what was interrupted.

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
    target = target_of(kind).open_target(str(output))
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


def target_of(kind: str) -> TargetModule:
    """Return the writer of a kind of tracker; MissingExtraError means that its package is not installed."""
    module = cast(TargetModule, importlib.import_module(f"{__name__}.{TARGETS[kind]}"))
    for name in module.NEEDS:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(missing_package(f"export to {kind} needs", name, kind))
    return module
