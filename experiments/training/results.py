"""The results of a run: test metrics, good and bad cases, the graph of the model, predictions as a file."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.errors import DataError
from sacristan.observers.media.kinds import Image
from sacristan.observers.media.table import Table
from sacristan.observers.record.directions import note_better

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sacristan.experiments.running import LabRun
    from sacristan.experiments.training.progress import Speed
    from sacristan.ingredients.datasets.batches import Batches, Data
    from sacristan.ingredients.losses import Loss

__all__ = [
    "announce",
    "as_images",
    "cases_table",
    "choose_classes",
    "choose_values",
    "measured_speed",
    "record_graph",
    "record_predictions",
    "report_cases",
    "report_speed",
    "report_test",
]

_log = logging.getLogger(__name__)

NUM_CASES = 8


def announce(config: Mapping[str, Any], model: nn.Module, data: Data, device: torch.device) -> None:
    """Log one line about the data, the model and the device of a run; `config` is its whole config."""
    of_data, of_model = (config.get(name) or {} for name in ("data", "model"))
    counts = (f"{part:,} {name}" for name in ("train", "val", "test") if (part := getattr(data, name).num_samples))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    _log.info(
        "%s (%s samples%s), %s (%s parameters), %s",
        of_data.get("path") or of_data.get("name") or "data",
        ", ".join(counts),
        f"; {data.placement}" if data.placement else "",
        of_model.get("name") or type(model).__name__,
        f"{num_parameters:,}",
        device,
    )


def report_speed(run: LabRun, speed: Speed | None) -> None:
    """Record the speed of a training as `info.speed`; None, of a session without steps, keeps the figures before."""
    if speed is not None:
        run.info["speed"] = speed.figures


@contextlib.contextmanager
def measured_speed(run: LabRun, batches: Batches) -> Iterator[None]:
    """Time a `with` block that evaluates batches, and report samples per second in the log and in `info.speed`."""
    start = time.perf_counter()
    yield
    per_s = batches.num_samples / (time.perf_counter() - start)
    if batches.num_samples:
        run.info["speed"] = {"samples_per_s": per_s}
        _log.info("measured at %s samples/s", f"{per_s:,.0f}")


def report_test(run: LabRun, metrics: Mapping[str, float], loss: Loss) -> float | None:
    """Record test metrics as `info.test`, and the confusion matrices of `metrics.use` as tables and pictures.

    Args:
        metrics: From `loop.evaluate` on the test part.

    Returns:
        The main metric, accuracy or r2, as the result of the run; None, with a warning, if there is no test part.
    """
    if not metrics:
        _log.warning("there is no test part to measure; train with data.test_fraction above 0")
        return None
    run.info["test"] = dict(metrics)
    note_better(run.info, {"result": "max", loss.metric: "max"})
    _log.info("test  %s", "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    if loss.measures is not None:
        for name, matrix in loss.measures.matrices().items():
            _report_matrix(run, f"test/{name}", matrix, loss.measures.classes)
    return metrics[loss.metric]


def _report_matrix(run: LabRun, name: str, matrix: Tensor, classes: Sequence[str]) -> None:
    """Log a matrix of true by predicted classes, as a table, and as a picture whose rows are shares of a true class."""
    labels = list(classes) if len(classes) == len(matrix) else [str(number) for number in range(len(matrix))]
    rows = [[label, *row] for label, row in zip(labels, matrix.tolist(), strict=True)]
    run.log_media(name, Table(["true \\ predicted", *labels], rows))
    shares = matrix.double() / matrix.double().sum(1, keepdim=True).clamp(min=1)
    cell = max(1, 256 // len(matrix))
    picture = (255 * (1 - shares)).round().byte().repeat_interleave(cell, 0).repeat_interleave(cell, 1)
    run.log_media(f"{name}/picture", Image(picture.numpy()))


def report_cases(run: LabRun, predicted: Mapping[str, Tensor], data: Data, loss: Loss) -> None:
    """Log the table `test/cases`: where the model is wrong, unsure and right, or has the greatest and smallest errors.

    Args:
        predicted: From `loop.predict` on the test part.
    """
    table = cases_table(data, predicted, ignore_index=getattr(loss.module, "ignore_index", None))
    if table is not None:
        run.log_media("test/cases", table)


def record_graph(run: LabRun, model: nn.Module, data: Data) -> None:
    """Pass the graph of a model, which computes one sample of zeros, to the observers that draw it, if any."""
    import torch

    sample = torch.zeros(1, *data.input_shape, dtype=data.input_dtype, device=next(model.parameters()).device)
    run.log_graph(model, sample)


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
        predicted: From `loop.predict` on the test part.

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
    unknown = f"the artifact {path.name}" if run.observers else "kept nowhere, because the run is not recorded"
    _log.info("predictions of %d samples: %s", len(predictions), run.folder / path.name if run.folder else unknown)
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
    is_missing = math.isnan if data.task == "regression" else (lambda value: value < 0)  # see `Data.has_targets`
    shown = [[None if is_missing(value) else value for value in column] for column in values.T.tolist()]
    if len(shown) == 1 and not data.classes:
        return {name: shown[0]}
    return {f"{name}_{label}": column for label, column in zip(labels, shown, strict=True)}


def cases_table(
    data: Data, predicted: Mapping[str, Tensor], num: int = NUM_CASES, ignore_index: int | None = None
) -> Table | None:
    """Return the good and bad cases of the test part; None if it is empty, or samples have several labels.

    The columns are `case`, `sample` (its position in the test part), `image` (if the inputs are images, as they were
    before they were normalised), `label`, `prediction`, and of classes `probability` (of the prediction), of values
    `error` (absolute, the mean over the outputs). Of a class for each pixel `label` and `prediction` are pictures, and
    `accuracy` is the share of right pixels.

    Args:
        data: The data.
        predicted: From `loop.predict` on the test part, in its order.
        num: How many samples of each case.
        ignore_index: Samples with this label do not count.
    """
    if not predicted or data.task in ("multilabel", "custom"):
        return None
    ignored = -100 if ignore_index is None else ignore_index
    if "probabilities" not in predicted:
        chosen_cases = _of_values(predicted, num)
    elif predicted["predictions"].ndim > 1:
        chosen_cases = _of_pixels(predicted, num, ignored, len(data.classes))
    else:
        chosen_cases = _of_classes(predicted, num, ignored, data.classes)
    samples = [(case, index) for case, places in chosen_cases.cases.items() for index in places]
    images = as_images(data, [index for _, index in samples])
    rows = []
    for number, (case, index) in enumerate(samples):
        image = [] if images is None else [Image(images[number])]
        rows.append(
            [
                case,
                index,
                *image,
                *(column[index] for column in chosen_cases.columns),
                chosen_cases.scores[index].item(),
            ]
        )
    middle = [] if images is None else ["image"]
    return Table(["case", "sample", *middle, "label", "prediction", chosen_cases.name], rows)


@dataclasses.dataclass(frozen=True)
class _ChosenCases:
    """Positions by case, the scores that they are chosen by, and labels and predictions as they are shown."""

    cases: Mapping[str, list[int]]
    name: str
    scores: Tensor
    columns: tuple[Sequence[Any], Sequence[Any]]


def _of_values(predicted: Mapping[str, Tensor], num: int) -> _ChosenCases:
    labels, predictions = predicted["targets"], predicted["predictions"]
    errors = (predictions - labels).abs().mean(1)
    return _ChosenCases(choose_values(errors, num), "error", errors, (_values(labels), _values(predictions)))


def _of_pixels(predicted: Mapping[str, Tensor], num: int, ignored: int, num_classes: int) -> _ChosenCases:
    labels, predictions = predicted["targets"], predicted["predictions"]
    counted = labels != ignored
    hits = ((predictions == labels) & counted).flatten(1).sum(1)
    accuracies = hits / counted.flatten(1).sum(1).clamp(min=1)
    columns = _pictures(labels, num_classes), _pictures(predictions, num_classes)
    # The greatest error is the smallest accuracy.
    return _ChosenCases(choose_values(1 - accuracies, num), "accuracy", accuracies, columns)


def _of_classes(predicted: Mapping[str, Tensor], num: int, ignored: int, classes: Sequence[str]) -> _ChosenCases:
    labels, predictions = predicted["targets"], predicted["predictions"]
    probabilities = predicted["probabilities"].gather(1, predictions[:, None])[:, 0]
    cases = choose_classes(labels, predictions, probabilities, num, ignored)
    columns = [classes[label] for label in labels.tolist()], [classes[label] for label in predictions.tolist()]
    return _ChosenCases(cases, "probability", probabilities, columns)


def choose_classes(
    labels: Tensor, predictions: Tensor, probability: Tensor, num: int, ignore_index: int | None = None
) -> dict[str, list[int]]:
    """Return positions of the clearest mistakes, closest right guesses and clearest successes; all are (N,)."""
    counted = labels != (-100 if ignore_index is None else ignore_index)
    right = (labels == predictions) & counted
    wrong = (labels != predictions) & counted
    order = probability.argsort(stable=True)
    unsure = order[right[order]][:num]
    # A sample among the least sure is not among the surest.
    sure = order[right[order]][len(unsure) :].flip(0)[:num]
    worst = order[wrong[order]].flip(0)[:num]
    return {"wrong": worst.tolist(), "unsure": unsure.tolist(), "right": sure.tolist()}


def choose_values(error: Tensor, num: int) -> dict[str, list[int]]:
    """Return positions of the greatest (`worst`) and smallest (`best`) absolute errors (N,); none is in both."""
    order = error.argsort(stable=True)
    worst = order.flip(0)[:num]
    best = order[: len(order) - len(worst)][:num]
    return {"worst": worst.tolist(), "best": best.tolist()}


def _pictures(classes: Tensor, count: int) -> Sequence[Any]:
    """Return classes (N, H, W) as pictures: the first is black, the last white, and ignored pixels are black."""
    grey = classes.clamp(min=0).float() / max(count - 1, 1)
    return [Image(picture) if picture.ndim == 2 else "" for picture in grey]


def _values(values: Tensor) -> Sequence[Any]:
    """Return values (N, D) as numbers, or of more than one output as text."""
    rows: Iterator[list[float]] = iter(values.tolist())
    return [row[0] if len(row) == 1 else ", ".join(f"{value:.6g}" for value in row) for row in rows]


def as_images(data: Data, places: Sequence[int]) -> Tensor | None:
    """Return test inputs as images (n, C, H, W) from 0 to 1, scaled together, or None if they are none."""
    shape = data.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3, 4) or not places:
        return None
    images = data.test.inputs_at(places).float()
    if data.input_mean is not None and data.input_std is not None:
        images = images * data.input_std + data.input_mean
    low, high = images.min(), images.max()
    if low < -1e-3 or high > 1 + 1e-3:
        images = (images - low) / (high - low)
    return images.clamp(0, 1)
