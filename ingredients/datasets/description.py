"""A summary of data, as `data.stats` shows it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingredients.datasets.items import Sequences
from ingredients.datasets.preparation import Prepared
from ingredients.datasets.splitting import SPLITS
from ingredients.datasets.streams import Streams

__all__ = ["describe"]


def describe(prepared: Prepared) -> dict[str, Any]:
    """Return what `data.stats` shows: per split the count, shape, type, targets, mean, deviation, missing values.

    Means and deviations are those of the inputs as trained on, over all their values; samples of any structure, and
    texts, have none.
    """
    by = prepared.preparation
    return {
        "task": by.task,
        "classes": list(by.classes),
        "input_shape": list(by.input_shape),
        "dtype": by.dtype,
        "fingerprint": prepared.fingerprint,
        "splits": {name: _describe_split(prepared, index) for name, index in prepared.indices.items()}
        if not isinstance(prepared.inputs, Streams)
        else {SPLITS[code]: _described(part.length or 0) for code, part in prepared.inputs.parts.items()},
    }


def _described(count: int) -> dict[str, Any]:
    return {"count": count, "mean": math.nan, "std": math.nan, "missing": 0}


def _describe_split(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    missing, count, total, squares = 0, 0, 0.0, 0.0
    has_moments = prepared.preparation.task != "custom" and not isinstance(prepared.inputs, Sequences)
    read = index if has_moments else index[:0]
    for part in np.array_split(read, max(1, math.ceil(len(read) / 256))):
        values = prepared.values(part) if len(part) else np.zeros(0)
        good = values[np.isfinite(values)].astype(np.float64)
        missing += values.size - good.size
        count, total, squares = count + good.size, total + float(good.sum()), squares + float((good**2).sum())
    mean = total / count if count else math.nan
    std = math.sqrt(max(squares / count - mean**2, 0)) if count else math.nan
    row: dict[str, Any] = {"count": len(index), "mean": mean, "std": std, "missing": missing}
    targets, by = prepared.targets[index], prepared.preparation
    if by.task in ("classification", "segmentation", "custom"):
        if by.classes and prepared.has_targets:
            row["classes"] = np.bincount(targets[targets >= 0], minlength=len(by.classes)).tolist()
    elif by.task == "multilabel":
        row["classes"] = targets.sum(0).astype(int).tolist()
    elif len(index):
        if by.target_std is not None:
            targets = targets * by.target_std + by.target_mean
        row["targets"] = [float(targets.min()), float(targets.max())]
    return row
