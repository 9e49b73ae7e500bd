"""Ingredient `export`: models and predictions as files for other programs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ConfigError, ModelError
from sacristan.ingredients.ranks.group import current

if TYPE_CHECKING:
    from torch import nn

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.deployment import OutputDifference
    from sacristan.ingredients.losses import Loss

__all__ = ["export_model", "ingredient"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("export", is_tool=True)


@ingredient.config
def config() -> None:
    # format of the command export: onnx (extra onnx), or pt2, for torch.export.load
    format: Literal["onnx", "pt2"] = "onnx"
    # output file, such as model.onnx; None for the artifact model.onnx or model.pt2 of the command's own run
    path: str | None = None
    # replace an existing file
    overwrite = False
    # include the preparation: take unnormalised inputs, and return a regression's values in the targets' unit
    preparation = False
    # largest accepted difference from the model, as a share of the largest output
    tolerance = 1e-4
    # batches of the test part on which file and model are compared
    num_batches = 8
    # format of the command predict: csv, parquet (extra parquet), npz
    predictions: Literal["csv", "parquet", "npz"] = "csv"


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject a tolerance or a number of batches out of range."""
    if not config.tolerance >= 0:
        raise ConfigError(f"export.tolerance: got {config.tolerance}, expected 0 or more")
    if config.num_batches < 1:
        raise ConfigError(f"export.num_batches: got {config.num_batches}, expected at least 1")


@ingredient.capture
def export_model(
    model: nn.Module, data: Data, loss: Loss, origin: Mapping[str, Any], config: Map, run: Any, _config: Map
) -> float:
    """Export a model as configured, and return the largest absolute difference of the file's outputs from the model's.

    The content is compared with the model on the test part before it is written. The log and `info.export` report the
    file and the difference. The command `export` of `exp.py` is an example.

    Args:
        model: The model with its weights.
        data: The data, from `data.make_test_data`.
        loss: The loss, which says how outputs are read.
        origin: The origin of the weights, from `checkpoint.load_model`.
        config: The run's whole config.
        run: The run.

    Raises:
        ModelError: If the model cannot be exported, or the file's outputs differ too much from the model's.
        DataError: If there is no sample to compare on.
    """
    _check_exportable(config, preparation=_config.preparation)
    from sacristan.ingredients.deployment import describe

    described = describe(data, loss.kind, loss.num_outputs, preparation=_config.preparation)
    metadata = {**origin, "experiment": run.experiment_info["name"], **described}
    file, num_bytes, difference = _write(model, data, metadata, run, _config)
    figures = {"absolute": difference.absolute, "relative": difference.relative, "samples": difference.num_samples}
    run.info["export"] = {"file": file, "format": _config.format, "bytes": num_bytes, "difference": figures}
    _log.info(
        "exported to %s, %.2f MB; its outputs on %d samples differ by %.2g from the model's, %.2g of the largest",
        _config.path or f"the artifact {file}",
        num_bytes / 1e6,
        difference.num_samples,
        difference.absolute,
        difference.relative,
    )
    return difference.absolute


def _check_exportable(config: Map, *, preparation: bool) -> None:
    if current().size > 1:
        raise ModelError("export: takes one process; start it without torchrun")
    if config.get("checkpoint", {}).get("dtype", "float32") != "float32":
        raise ModelError(
            "export: files are in float32; leave out checkpoint.dtype, and cast the file if it is to be smaller"
        )
    if preparation and config.get("data", {}).get("transforms"):
        raise ModelError(
            "export.preparation: data.transforms are not part of the file, which would take images from before them; "
            "use export.preparation=False"
        )


def _write(
    model: nn.Module, data: Data, metadata: Mapping[str, Any], run: Any, config: Map
) -> tuple[str, int, OutputDifference]:
    """Write the file to the configured path, or as an artifact; return its name, its size and its difference."""
    from sacristan.ingredients.deployment import FORMATS, check_path, export

    options = {name: config[name] for name in ("format", "preparation", "tolerance", "num_batches")}
    if config.path is not None:
        path = Path(config.path)
        check_path(path, config.format, overwrite=config.overwrite)
        difference = export(model, data, path, metadata, **options)
        return config.path, path.stat().st_size, difference
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        path = Path(folder) / f"model{FORMATS[config.format]}"
        difference = export(model, data, path, metadata, **options)
        run.add_artifact(path)
        return path.name, path.stat().st_size, difference
