"""The results of a run: test metrics, good and bad cases, the graph of the model, predictions as a file."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.training.cases import cases_table
from experiments.training.predictions import record_predictions
from observers.media.kinds import Image
from observers.media.table import Table
from observers.record.directions import note_better

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from experiments.running.lab_run import LabRun
    from experiments.training.speed import Speed
    from ingredients.datasets.batches import Batches, Data
    from ingredients.losses.building import Loss

__all__ = [
    "announce",
    "measured_speed",
    "record_graph",
    "record_predictions",
    "report_cases",
    "report_speed",
    "report_test",
]

_log = logging.getLogger(__name__)


def announce(config: Mapping[str, Any], model: nn.Module, data: Data, device: torch.device) -> None:
    """Log one line about the data, the model and the device of a run.

    Args:
        config: The run's whole config; `data.path`, `data.name` and `model.name` are shown.
        model: The model, for the number of its parameters.
        data: The data, for the samples of each part.
        device: The device of both.
    """
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
    """Record the speed of a training as `info.speed`.

    Args:
        run: The run.
        speed: From the result of `loop.fit`; None, if this session took no step, keeps the figures of an earlier one.
    """
    if speed is not None:
        run.info["speed"] = speed.figures


@contextlib.contextmanager
def measured_speed(run: LabRun, batches: Batches) -> Iterator[None]:
    """Time an evaluation in a `with` block, and report samples per second in the log and in `info.speed`.

    Args:
        run: The run.
        batches: The batches that the block evaluates; nothing is reported if they hold no samples.
    """
    start = time.perf_counter()
    yield
    per_s = batches.num_samples / (time.perf_counter() - start)
    if batches.num_samples:
        run.info["speed"] = {"samples_per_s": per_s}
        _log.info("measured at %s samples/s", f"{per_s:,.0f}")


def report_test(run: LabRun, metrics: Mapping[str, float], loss: Loss) -> float | None:
    """Record test metrics as `info.test`, and the confusion matrices of `metrics.use` as tables and pictures.

    Args:
        run: The run.
        metrics: From `loop.evaluate` on the test part.
        loss: The loss, which names the main metric.

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
        run: The run.
        predicted: From `loop.predict` on the test part.
        data: The data.
        loss: The loss.
    """
    table = cases_table(data, predicted, ignore_index=getattr(loss.module, "ignore_index", None))
    if table is not None:
        run.log_media("test/cases", table)


def record_graph(run: LabRun, model: nn.Module, data: Data) -> None:
    """Pass the graph of a model to the observers that draw it, such as TensorBoard's; without any it costs nothing.

    Args:
        run: The run.
        model: The model; it computes one sample of zeros.
        data: The data, for the shape and type of its inputs.
    """
    import torch

    sample = torch.zeros(1, *data.input_shape, dtype=data.input_dtype, device=next(model.parameters()).device)
    run.log_graph(model, sample)
