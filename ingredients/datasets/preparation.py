"""From a source to data that can be trained on: checked, split, normalised, fingerprinted. All numpy, no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingredients.config.seed import global_stream, numpy_stream
from ingredients.datasets.sources import TEST, TRAIN, VAL, Source, Task
from ingredients.errors import DataError

__all__ = ["Prepared", "describe", "fingerprint", "prepare", "resolve_task", "split"]

SPLITS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Data ready for batching.

    Attributes:
        inputs: Array (samples, *shape), normalised, or a map-style dataset that is normalised when read.
        targets: int64 (samples,) for classification, else float32 (samples, outputs), normalised for regression.
        indices: Indices of the samples of `train`, `val` and `test`.
        task: classification, regression or multilabel.
        classes: Names of the classes; empty for regression.
        mean, std: What the inputs are normalised by, shaped to broadcast with one input; None for no normalising.
        target_mean, target_std: The same for regression targets, float32 (outputs,).
        fingerprint: SHA-256 of the content, before splitting and normalising.
    """

    inputs: Any
    targets: np.ndarray
    indices: dict[str, np.ndarray]
    task: str
    classes: tuple[str, ...]
    mean: np.ndarray | None
    std: np.ndarray | None
    target_mean: np.ndarray | None
    target_std: np.ndarray | None
    fingerprint: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        if isinstance(self.inputs, np.ndarray):
            return self.inputs.shape[1:]
        with global_stream(0, "fingerprint"):
            return tuple(self.inputs[0][0].shape)


def fingerprint(source: Source) -> str:
    """Return the SHA-256 of a source's content: types, shapes and values of inputs and targets."""
    if source.digest is not None:
        return source.digest
    total = hashlib.sha256()
    targets = source.targets
    if targets.dtype.kind not in "biufS":
        targets = np.char.encode(targets.astype(str), "utf-8")
    for array in (source.inputs, targets):
        total.update(f"{array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def resolve_task(source: Source, task: Task, num_classes: int | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    """Return the task, the targets as numbers, and the names of the classes.

    A target of text, bools or ints is a class, one of floats a number; a matrix of zeros and ones is a set of labels.

    Raises:
        DataError: If the targets do not fit the task, are missing, or are labels out of range.
    """
    targets = source.targets
    if targets.dtype.kind not in "biufUSO":
        raise DataError(f"data.target: got targets of type {targets.dtype}, expected numbers or text")
    if targets.dtype.kind == "O":
        if bad := sum(value is None or value != value for value in targets.flat):
            raise DataError(f"data.target: {bad} of the {targets.size} targets are missing; remove those samples")
        targets = targets.astype(str)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        bad = int((~np.isfinite(targets)).sum())
        raise DataError(f"data.target: {bad} of the {targets.size} targets are NaN or infinite; remove those samples")
    if task == "auto":
        task = "regression" if targets.dtype.kind == "f" else "classification" if targets.ndim == 1 else "multilabel"
    if task == "classification":
        return task, *_labels(targets, source.classes, num_classes)
    if targets.dtype.kind not in "biuf":
        raise DataError(f"data.task={task}: got targets of text, expected numbers; use data.task=classification")
    matrix = targets.astype(np.float32).reshape(len(targets), -1)
    if task == "multilabel":
        if not np.isin(matrix, (0, 1)).all():
            raise DataError("data.task=multilabel: got targets other than 0 and 1; use data.task=regression")
        return task, matrix, source.classes or tuple(map(str, range(matrix.shape[1])))
    return task, matrix, ()


def _labels(
    targets: np.ndarray, classes: tuple[str, ...] | None, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    if targets.ndim != 1:
        raise DataError(
            f"data.task=classification: got targets of shape {targets.shape}, expected one label per sample"
        )
    if targets.dtype.kind == "f" and (targets != np.round(targets)).any():
        raise DataError(
            "data.task=classification: got targets with fractions, expected labels; use data.task=regression"
        )
    if num_classes is not None and num_classes < 2:
        raise DataError(f"data.num_classes: got {num_classes}, expected at least 2, or None to count them")
    count = num_classes or (len(classes) if classes else None)
    if count is not None and targets.dtype.kind in "biuf":
        bad = np.flatnonzero((targets < 0) | (targets >= count))
        if len(bad):
            raise DataError(
                f"data.num_classes: label out of range: sample {bad[0]} has label {targets[bad[0]]}, expected 0 to"
                f" {count - 1} ({len(bad)} such samples); correct them, or data.num_classes"
            )
        names = classes or ()
        return targets.astype(np.int64), (*names[:count], *map(str, range(len(names), count)))
    values, labels = np.unique(targets, return_inverse=True)
    if len(values) > 100 and len(values) > len(targets) / 2 and targets.dtype.kind in "iuf":
        raise DataError(
            f"data.task: got {len(values)} labels in {len(targets)} samples; "
            "if they are numbers, use data.task=regression"
        )
    if num_classes is not None and len(values) != num_classes:
        raise DataError(
            f"data.num_classes: got {num_classes}, but there are {len(values)} classes: "
            f"{', '.join(map(str, values[:10]))}{', ...' if len(values) > 10 else ''}; correct one of them"
        )
    return labels.astype(np.int64).reshape(-1), tuple(str(value) for value in values)


def split(
    targets: np.ndarray, part: np.ndarray | None, val_fraction: float, test_fraction: float, stratify: bool, seed: int
) -> dict[str, np.ndarray]:
    """Split samples into train, val and test, by the stream `split` of `seed`.

    Args:
        targets: Labels (samples,) to stratify by, or anything of that length.
        part: TRAIN, VAL or TEST of each sample where the source says so; what it leaves out is cut from train.
        val_fraction: Share of all samples for val, or of the train part where test is given.
        test_fraction: Share of all samples for test, unless the source has a test part.
        stratify: Whether every part gets its share of every class.
        seed: Seed of the experiment, or of the split alone.

    Returns:
        Sorted indices of each of `train`, `val` and `test`.

    Raises:
        DataError: If the fractions leave nothing to train on.
    """
    for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"data.{name}: got {fraction}, expected at least 0 and below 1")
    where = np.full(len(targets), TRAIN, np.int8) if part is None else part.copy()
    rng = numpy_stream(seed, "split")
    for code, fraction in ((TEST, test_fraction), (VAL, val_fraction)):
        if part is not None and (part == code).any():
            continue
        free = np.flatnonzero(where == TRAIN)
        # Of what is left after test, val still gets its share of the whole.
        share = fraction / (1 - test_fraction) if code == VAL and part is None else fraction
        where[_draw(free, targets, min(share, 1.0), stratify, rng)] = code
    indices = {name: np.flatnonzero(where == code) for name, code in zip(SPLITS, (TRAIN, VAL, TEST), strict=True)}
    if not len(indices["train"]):
        raise DataError(
            f"data.val_fraction, data.test_fraction: nothing is left to train on: of {len(targets)} samples, all went "
            "to val and test; lower them"
        )
    return indices


def _draw(free: np.ndarray, targets: np.ndarray, share: float, stratify: bool, rng: np.random.Generator) -> np.ndarray:
    """Draw round(share * len(free)) of `free`, class by class if asked to, largest remainders first."""
    total = round(share * len(free))
    if not stratify:
        return rng.permutation(free)[:total]
    labels, inverse = np.unique(targets[free], return_inverse=True)
    exact = np.bincount(inverse, minlength=len(labels)) * share
    quota = np.floor(exact).astype(int)
    by_remainder = np.lexsort((rng.permutation(len(labels)), -(exact - quota)))
    quota[by_remainder[: total - quota.sum()]] += 1
    return np.concatenate([rng.permutation(free[inverse == k])[: quota[k]] for k in range(len(labels))] or [free[:0]])


def prepare(source: Source, config: Any, seed: int, *, strict: bool = True) -> Prepared:
    """Check, split and normalise a source.

    Args:
        source: The raw data.
        config: The data ingredient's config.
        seed: Seed of the experiment; `config.split_seed` goes before it for the split.
        strict: Whether missing values and sets without a second class are refused; False to look at them.

    Raises:
        DataError: If the data are empty, have missing values, only one class, or targets that do not fit.
    """
    if len(source.targets) == 0:
        raise DataError(f"data.name={config['name']}: there are no samples in it; check data.path or the factory")
    content = fingerprint(source)
    task, targets, classes = resolve_task(source, config["task"], config["num_classes"])
    source = _limited(dataclasses.replace(source, targets=targets), config["limit"], seed)
    targets = source.targets
    if strict:
        _refuse_unusable(source, task, targets, config["name"])
    split_seed = seed if config["split_seed"] is None else config["split_seed"]
    stratify = config["stratify"] and task == "classification"
    indices = split(targets, source.part, config["val_fraction"], config["test_fraction"], stratify, split_seed)
    if strict and task == "classification" and len(np.unique(targets[indices["train"]])) < 2:
        raise DataError(
            f"data.name={config['name']}: the training part has one class only, expected at least two; "
            "change data.split_seed or data.stratify, or the data"
        )
    mean = std = target_mean = target_std = None
    inputs = source.inputs
    if config["normalize"] == "standard":
        with global_stream(seed, "statistics"):
            mean, std = _statistics(inputs, indices["train"])
        if source.in_memory:
            inputs = (inputs - mean) / std
    if task == "regression" and config["normalize_targets"]:
        target_mean, target_std = _statistics(targets, indices["train"])
        targets = (targets - target_mean) / target_std
    return Prepared(inputs, targets, indices, task, classes, mean, std, target_mean, target_std, content)


def _limited(source: Source, limit: int | None, seed: int) -> Source:
    """Keep a random `limit` of the samples, by the stream `limit`."""
    if limit is None or limit >= len(source.targets):
        return source
    if limit < 1:
        raise DataError(f"data.limit: got {limit}, expected at least 1, or None for all samples")
    kept = np.sort(numpy_stream(seed, "limit").permutation(len(source.targets))[:limit])
    inputs = source.inputs[kept] if source.in_memory else Subset(source.inputs, kept)
    part = None if source.part is None else source.part[kept]
    missing = None if source.missing is None else source.missing[kept]
    return dataclasses.replace(source, inputs=inputs, targets=source.targets[kept], part=part, missing=missing)


class Subset:
    """Some items of a map-style dataset."""

    def __init__(self, dataset: Any, indices: np.ndarray) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]


def _refuse_unusable(source: Source, task: str, targets: np.ndarray, name: str) -> None:
    missing, named = source.missing, ""
    if source.in_memory:
        bad = ~np.isfinite(source.inputs)
        missing = np.count_nonzero(bad.reshape(len(bad), -1), axis=1)
        if source.features is not None:
            columns = [feature for feature, column in zip(source.features, bad.any(0), strict=True) if column]
            named = f" in the columns {', '.join(columns)}"
    if missing is not None and missing.any():
        raise DataError(
            f"data.name={name}: {missing.sum()} input values are NaN or infinite, in {np.count_nonzero(missing)} of "
            f"{len(missing)} samples{named}; fill them in or remove those samples (`data.stats` counts them)"
        )
    if task == "classification" and len(np.unique(targets)) < 2:
        raise DataError(
            f"data.name={name}: all {len(targets)} samples have one class only, expected at least two; "
            "check the labels (`data.stats` counts them)"
        )


def _statistics(inputs: Any, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the training inputs: per channel of images, else per feature.

    Values that are NaN or infinite do not count. What does not vary has a deviation of 1, so that it can be divided by.
    A constant is found out exactly: sums of one float32 value are exact in float64 up to 2**29 samples.
    Blocks are merged as in Chan, Golub, LeVeque (1979), http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf
    """
    count = mean = squares = np.zeros(())
    for block in _blocks(inputs, train):
        columns = (
            np.moveaxis(block, 1, 0).reshape(block.shape[1], -1) if block.ndim == 4 else block.reshape(len(block), -1).T
        )
        good = np.isfinite(columns)
        here = good.sum(1)
        values = np.where(good, columns, 0).astype(np.float64)
        mean_here = values.sum(1) / np.maximum(here, 1)
        squares_here = (np.where(good, values - mean_here[:, None], 0) ** 2).sum(1)
        total = np.maximum(count + here, 1)
        delta = mean_here - mean
        squares = squares + squares_here + delta**2 * count * here / total
        mean = mean + delta * here / total
        count = count + here
    std = np.sqrt(squares / np.maximum(count, 1))
    std = np.where(std > 0, std, 1.0)
    shape = (-1, 1, 1) if block.ndim == 4 else block.shape[1:]
    return mean.astype(np.float32).reshape(shape), std.astype(np.float32).reshape(shape)


def _blocks(inputs: Any, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the chosen inputs as arrays (samples, *shape) of bounded size."""
    if isinstance(inputs, np.ndarray):
        yield from (inputs[part] for part in np.array_split(chosen, math.ceil(len(chosen) / 256)))
    else:
        yield from (inputs[index][0][None] for index in chosen)


def describe(prepared: Prepared) -> dict[str, Any]:
    """Return what `data.stats` shows: per split the count, shape, type, targets, mean, deviation, missing values.

    Means and deviations are those of the inputs as trained on, over all their values.
    """
    splits = {name: _describe_split(prepared, index) for name, index in prepared.indices.items()}
    return {
        "task": prepared.task,
        "classes": list(prepared.classes),
        "input_shape": list(prepared.input_shape),
        "dtype": "float32",
        "fingerprint": prepared.fingerprint,
        "splits": splits,
    }


def _describe_split(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    missing, count, total, squares = 0, 0, 0.0, 0.0
    for part in np.array_split(index, max(1, math.ceil(len(index) / 256))):
        values = _normalized(prepared, part)
        good = values[np.isfinite(values)].astype(np.float64)
        missing += values.size - good.size
        count, total, squares = count + good.size, total + float(good.sum()), squares + float((good**2).sum())
    mean = total / count if count else math.nan
    std = math.sqrt(max(squares / count - mean**2, 0)) if count else math.nan
    row: dict[str, Any] = {"count": len(index), "mean": mean, "std": std, "missing": missing}
    targets = prepared.targets[index]
    if prepared.task == "classification":
        row["classes"] = np.bincount(targets, minlength=len(prepared.classes)).tolist()
    elif prepared.task == "multilabel":
        row["classes"] = targets.sum(0).astype(int).tolist()
    elif len(index):
        if prepared.target_std is not None:
            targets = targets * prepared.target_std + prepared.target_mean
        row["targets"] = [float(targets.min()), float(targets.max())]
    return row


def _normalized(prepared: Prepared, index: np.ndarray) -> np.ndarray:
    if isinstance(prepared.inputs, np.ndarray):
        return prepared.inputs[index]
    values = np.array([prepared.inputs[i][0] for i in index]) if len(index) else np.zeros((0, *prepared.input_shape))
    return values if prepared.mean is None else (values - prepared.mean) / prepared.std
