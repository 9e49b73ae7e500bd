"""Ingredient `checkpoint`: which states of a training are saved, and which is loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map, to_plain
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import CheckpointError, ConfigError
from sacristan.ingredients.ranks.group import current
from sacristan.observers.record.object_names import named

if TYPE_CHECKING:
    from torch import nn

    from sacristan.ingredients.checkpoints import Checkpointer
    from sacristan.ingredients.datasets.fitted import Preparation
    from sacristan.ingredients.datasets.splitting import Split
    from sacristan.ingredients.losses import Loss

__all__ = ["ingredient", "load_model", "load_preparation", "load_split", "make_checkpointer"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("checkpoint")


@ingredient.config
def config() -> None:
    # keep the weights of the best epoch, by training.monitor, as checkpoints/best.pt
    best = True
    # keep the newest state of the whole training as checkpoints/last.pt
    last = True
    # epochs between saves of the newest state
    interval = 1
    # optimizer steps between saves of the newest state inside an epoch; None saves at its end only
    interval_steps: int | None = None
    # number of newest states to keep, at least 2 in case one is damaged; older ones are checkpoints/step-N.pt
    keep = 2
    # what to resume: auto (the unfinished run with the same config, if there is one), or another run's checkpoint
    resume: str | None = None
    # with resume=auto, in a job of Slurm: queue the job again if a signal other than Ctrl-C ends the run
    requeue = False
    # checkpoint for evaluate, predict and export: PATH.pt, run:ID (its best weights), run:ID@last, artifact:NAME:ALIAS
    path: str | None = None
    # type of weights and computation in evaluate and predict: float16 and bfloat16 take half the memory
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"


config.legacy(last=False)  # an experiment without this ingredient saves no states


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject a damaged checkpoint, and a job that would start over; only commands that load one need it to exist."""
    if config.requeue and config.resume != "auto":
        raise ConfigError(
            f"checkpoint.requeue: got True with checkpoint.resume={config.resume}, so that the queued job would not "
            "resume this run; write checkpoint.resume=auto as well"
        )
    if config.path is not None and Path(config.path).expanduser().is_file():
        from sacristan.ingredients.checkpoints.files import load_checkpoint

        load_checkpoint(Path(config.path).expanduser())


@ingredient.capture
def make_checkpointer(folder: Path, config: Map, _config: Map, run: Any = None, _run: Any = None) -> Checkpointer:
    """Return the object that saves checkpoints of a training into `folder`/checkpoints, and resumes it from there.

    A second training of the same run has `checkpoints-2`, and so on.

    Args:
        folder: The run's folder.
        config: The run's config, kept in each checkpoint.
        run: The run, a `LabRun`. Without it nothing is resumed, and signals end the run at once.

    Raises:
        CheckpointError: If a number is out of range.

    Example:
        with run_folder(_run) as folder:
            keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
            opt = optimizer.make_optimizer(network, criterion)
            loop.fit(network, batches, criterion, opt, checkpointer=keeper, log=_run.log_scalar, **training)
            keeper.restore_best(network)
    """
    from sacristan.ingredients.checkpoints import Checkpointer

    options = {name: value for name, value in _config.items() if name not in ("path", "resume", "requeue", "dtype")}
    options["legacy_defaults"] = _legacy_defaults(_run)
    start = None if _config.resume in (None, "auto") else Path(_config.resume)
    if run is None:
        return Checkpointer(Path(folder) / "checkpoints", to_plain(config), start=start, **options)
    number = run.count_training()
    name = "checkpoints" if number == 1 else f"checkpoints-{number}"
    return Checkpointer(
        Path(folder) / name,
        to_plain(config),
        start=start if number == 1 else None,
        resume=run.is_resumed,
        record=run,
        **options,
    )


@ingredient.capture
def load_split(run: Any, _config: Map) -> Split | None:
    """Return the split of the data of the state that the run starts from, for `data.make_data`.

    Args:
        run: The run, a `LabRun`. If it is resumed, its own states count first.

    Returns:
        The split; None if `checkpoint.resume` names no state, or the state has no split.

    Raises:
        CheckpointError: If the state is missing or damaged.
    """
    from sacristan.ingredients.checkpoints.files import load_checkpoint, split_of
    from sacristan.ingredients.checkpoints.folder import CheckpointFolder

    if _config.resume in (None, "auto"):
        return None
    start = Path(_config.resume)
    if run.is_resumed and run.folder is not None:
        return CheckpointFolder(run.folder / "checkpoints", 1).split(start)
    return split_of(load_checkpoint(start, check=False), start)


@ingredient.capture
def load_preparation(path: str | None, _run: Any = None) -> Preparation | None:
    """Return the preparation of the data of the configured checkpoint, for `data.make_test_data`.

    Returns:
        The preparation; None, with a warning, for a checkpoint of an earlier version that lacks it.

    Raises:
        CheckpointError: If it is missing or damaged.
    """
    from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of

    where = _checkpoint(path, _run)
    preparation = preparation_of(load_checkpoint(where, check=False), where)
    if preparation is None:
        _log.warning(
            "%s was saved by an earlier version, which did not keep the preparation of its data: means, deviations, "
            "classes and the test part are computed again from the data given here",
            path,
        )
    return preparation


@ingredient.capture
def load_model(
    model: nn.Module,
    config: Map,
    path: str | None,
    loss: Loss | None = None,
    dtype: str = "float32",
    _run: Any = None,
) -> dict[str, Any]:
    """Load the weights of the configured checkpoint into a model, and those of its loss into the loss.

    Weights are cast to `checkpoint.dtype`; the model still takes and returns float32. Warns if the checkpoint lacks the
    preparation of its data, and was trained on other data, or another split of them.

    Args:
        model: Built as when the checkpoint was saved.
        config: The run's whole config, to name the settings that differ if the weights do not fit.
        loss: The loss, where its value is needed and it has parameters of its own.

    Returns:
        The origin of the weights: `checkpoint` (the file), `run` (its uid), `epoch` and `step`.

    Raises:
        CheckpointError: If it is missing, damaged, or of another model.
    """
    from sacristan.ingredients.checkpoints.files import load_weights, other_data
    from sacristan.ingredients.models.tuned import cast

    mine = named(config)
    where = _checkpoint(path, _run)
    state = load_weights(
        model, where, mine, None if loss is None else loss.module, legacy_defaults=_legacy_defaults(_run)
    )
    differing = [] if state.get("preparation") else other_data(state.get("config", {}), mine)
    if differing:
        _log.warning(
            "%s was trained with %s, so the test part here may hold samples it was trained on; "
            "take the settings of its run, with its config.json",
            path,
            ", ".join(differing),
        )
    if dtype != "float32":
        before, after = cast(model, dtype)
        _log.info("weights in %s: %.2f MB instead of %.2f", dtype, after / 1e6, before / 1e6)
        if _run is not None:
            _run.info["weights_in"] = {"dtype": dtype, "bytes": after, "float32_bytes": before}
    return {"checkpoint": str(where), **{name: state.get(name) for name in ("run", "epoch", "step")}}


def _legacy_defaults(run: Any) -> Mapping[str, Any]:
    """Return what settings meant before they existed; empty for a run of a plain `sacred.Experiment`."""
    return getattr(run, "legacy_defaults", {})


def _checkpoint(path: str | None, run: Any) -> Path:
    from sacristan.ingredients.checkpoints.files import find_weights

    if path is None:
        raise CheckpointError("checkpoint.path: got None; write checkpoint.path=my_runs/ID/checkpoints/best.pt")
    folder = None if run is None else run.folder
    # Rank 0 alone is recorded, and knows where the folder of runs is.
    return current().from_first(
        lambda: find_weights(path, None if folder is None else folder.parent, "checkpoint.path", run)
    )
