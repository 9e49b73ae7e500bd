"""What a run leaves as its outcome: the test metrics, good and bad cases, the model's graph, predictions as a file."""

from __future__ import annotations

import csv
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.training.cases import cases_table
from ingredients.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from experiments.running.lab_run import LabRun
    from ingredients.datasets.batches import Data
    from ingredients.losses.building import Loss

__all__ = ["record_graph", "record_predictions", "report_cases", "report_test"]

_log = logging.getLogger(__name__)


def report_test(run: LabRun, metrics: Mapping[str, float], loss: Loss) -> float | None:
    """Record test metrics in the run's info, and return the one that counts: accuracy, or r2.

    Returns None, and says so, if there was no test part.
    """
    if not metrics:
        _log.warning("there is no test part to measure; set data.test_fraction above 0")
        return None
    run.info["test"] = dict(metrics)
    _log.info("test  %s", "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    return metrics[loss.metric]


def report_cases(run: LabRun, found: Mapping[str, Tensor], data: Data, loss: Loss) -> None:
    """Log the table `test/cases`: where the model is wrong, unsure and right, or has the greatest and smallest errors.

    Args:
        run: A run of the lab.
        found: What `loop.predict` made of the test part.
        data: The data.
        loss: The loss.
    """
    table = cases_table(data, found, ignore_index=getattr(loss.module, "ignore_index", None))
    if table is not None:
        run.log_media("test/cases", table)


def record_graph(run: LabRun, model: nn.Module, data: Data) -> None:
    """Give the model's graph to the observers that draw it; without any it costs nothing."""
    import torch

    sample = torch.zeros(1, *data.input_shape, device=next(model.parameters()).device)
    run.log_graph(model, sample)


def record_predictions(run: LabRun, found: Mapping[str, Tensor], classes: Sequence[str]) -> int:
    """Record predictions as the artifact `predictions.csv`, and return their number.

    Its columns: `target` and `prediction` (of several outputs `target_0`, ...; of classes their names), then a
    probability for each class, in the order of the test part.

    Raises:
        DataError: If there is nothing to predict.
    """
    if not found:
        raise DataError("there is no test part to predict; set data.test_fraction above 0")
    columns = _columns("target", found["targets"], classes) | _columns("prediction", found["predictions"], classes)
    for position, name in enumerate(classes if "probabilities" in found else ()):
        columns[f"p({name})"] = [f"{value:.6g}" for value in found["probabilities"][:, position].tolist()]
    with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
        path = Path(folder) / "predictions.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        run.add_artifact(path)
    return len(found["targets"])


def _columns(name: str, values: Tensor, classes: Sequence[str]) -> dict[str, list]:
    if values.ndim == 1:
        return {name: [classes[value] for value in values.tolist()] if classes else values.tolist()}
    if values.shape[1] == 1:
        return {name: values[:, 0].tolist()}
    labels = classes or range(values.shape[1])
    return {f"{name}_{label}": values[:, position].tolist() for position, label in enumerate(labels)}
