"""The predictions of a model as a file of the run: csv, Parquet or npz."""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingredients.config.construct import require
from ingredients.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from experiments.running.lab_run import LabRun
    from ingredients.datasets.batches import Data

__all__ = ["record_predictions"]


def record_predictions(run: LabRun, predicted: Mapping[str, Tensor], data: Data, format: str = "csv") -> int:
    """Record predictions as the artifact `predictions.csv`, `.parquet` or `.npz`, and return their number.

    The columns of a table, with a row for each sample of `data.test`, in order:

        file or index   the sample: its file, or its place in the source (in its part, if the source has parts)
        target          only if there are targets; empty where one is missing or unknown to the model
        prediction      the class, or the value in the targets' own unit
        p(CLASS), ...   the probability of each class

    Of several labels or values, there is a column for each: `target_NAME`, `prediction_NAME`. An npz has the arrays
    `file` or `index`, `target`, `prediction`, `probabilities` and `classes`; classes are numbers in them, -1 for a
    missing target. A class for each pixel is always an npz, with the arrays `prediction` and `target`, (N, H, W), and
    the names.

    Args:
        run: The run.
        predicted: From `loop.predict` on the test part.
        data: The data.
        format: `csv`, `parquet` or `npz`.

    Raises:
        DataError: If there is nothing to predict.
        MissingDependencyError: If Parquet needs the extra `parquet`, which is not installed.
    """
    if not predicted:
        raise DataError(
            "there is no test part to predict; train with data.test_fraction above 0, or predict other data"
        )
    predictions = predicted["predictions"]
    if data.task == "custom":
        raise DataError(
            f"the predictions for data of the task {data.task} are no table; write the results of `loop.predict` in "
            "your own experiment"
        )
    if predictions.ndim > 2 or (predictions.ndim == 2 and data.task == "segmentation"):
        format = "npz"
    write = {"csv": _write_csv, "parquet": _write_parquet, "npz": _write_npz}[format]
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        path = Path(folder) / f"predictions.{format}"
        write(path, predicted, data)
        run.add_artifact(path)
    return len(predictions)


def _write_csv(path: Path, predicted: Mapping[str, Tensor], data: Data) -> None:
    columns = _table(predicted, data, lambda value: f"{value:.6g}")
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_parquet(path: Path, predicted: Mapping[str, Tensor], data: Data) -> None:
    arrow = require("pyarrow", "parquet", "export.predictions=parquet")
    parquet = require("pyarrow.parquet", "parquet", "export.predictions=parquet")
    parquet.write_table(arrow.table(_table(predicted, data, float)), path)


def _write_npz(path: Path, predicted: Mapping[str, Tensor], data: Data) -> None:
    import numpy as np

    name, names = _names(predicted, data)
    arrays: dict[str, Any] = {name: np.array(names), "prediction": predicted["predictions"].numpy()}
    if data.has_targets:
        arrays["target"] = predicted["targets"].numpy()
    if "probabilities" in predicted:
        arrays["probabilities"] = predicted["probabilities"].numpy()
    if data.classes:
        arrays["classes"] = np.array(data.classes)
    np.savez_compressed(path, **arrays)


def _names(predicted: Mapping[str, Tensor], data: Data) -> tuple[str, list]:
    names = list(data.test_names) or list(range(len(predicted["predictions"])))
    return "file" if isinstance(names[0], str) else "index", names


def _table(predicted: Mapping[str, Tensor], data: Data, probability: Callable[[float], Any]) -> dict[str, list]:
    """Return the columns of a table, with None for a missing target."""
    name, names = _names(predicted, data)
    columns: dict[str, list] = {name: names}
    if data.has_targets:
        columns |= _columns("target", predicted["targets"], data)
    columns |= _columns("prediction", predicted["predictions"], data)
    for position, label in enumerate(data.classes if "probabilities" in predicted else ()):
        columns[f"p({label})"] = list(map(probability, predicted["probabilities"][:, position].tolist()))
    return columns


def _columns(name: str, values: Tensor, data: Data) -> dict[str, list]:
    if values.ndim == 1:
        return {name: [None if value < 0 else data.classes[value] for value in values.tolist()]}
    kept = data.preparation.target_names if data.preparation is not None else None
    labels: Sequence[Any] = data.classes or kept or range(values.shape[1])
    shown = [[None if _is_missing(value, data) else value for value in column] for column in values.T.tolist()]
    if len(shown) == 1 and not data.classes:
        return {name: shown[0]}
    return {f"{name}_{label}": column for label, column in zip(labels, shown, strict=True)}


def _is_missing(value: float, data: Data) -> bool:
    """Tell whether a number stands for a missing target; see `Data.has_targets`."""
    return math.isnan(value) if data.task == "regression" else value < 0
