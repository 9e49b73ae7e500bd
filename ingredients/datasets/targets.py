"""Targets as numbers: which task they are for, labels by the names of their classes, and what is refused."""

from __future__ import annotations

import logging

import numpy as np

from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source, Task
from ingredients.datasets.whole_numbers import tell_merged
from ingredients.errors import DataError

__all__ = ["UNKNOWN", "VOID", "known_targets", "resolve_task"]

_log = logging.getLogger(__name__)

# What whole numbers are taken for, by the dimensions of all targets.
_TASKS: dict[int, Task] = {1: "classification", 2: "multilabel"}
# What places of dense targets have that belong to no class; as labels they are `VOID`, which losses of torch ignore.
_NO_CLASS = 255
VOID = -100

# The label of a sample that has none, or one that the model does not know; values that are not there are NaN.
UNKNOWN = -1


def resolve_task(source: Source, task: Task, num_classes: int | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    """Return the task, the targets as numbers, and the names of the classes.

    A target of text, bools or ints is a class, one of floats a number; a matrix of zeros and ones is a set of labels;
    an array of ints for each sample, such as (height, width), has a class for each of its places.

    Raises:
        DataError: If the targets do not fit the task, are missing, or are labels out of range.
    """
    if source.is_structured:
        return "custom", *_free_labels(source)
    targets = source.targets
    if targets is None:
        raise DataError("data.target: there are no targets to train on; add them")
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
        task = "regression" if targets.dtype.kind == "f" else _TASKS.get(targets.ndim, "segmentation")
    if task == "segmentation":
        return task, *_dense_labels(targets, source.classes, num_classes)
    if task == "classification":
        return task, *_labels(targets, source.classes, num_classes)
    if targets.dtype.kind not in "biuf":
        raise DataError(f"data.task={task}: got targets of text, expected numbers; use data.task=classification")
    tell_merged(targets, "data.target")
    matrix = targets.astype(np.float32).reshape(len(targets), -1)
    if task == "multilabel":
        if not np.isin(matrix, (0, 1)).all():
            raise DataError("data.task=multilabel: got targets other than 0 and 1; use data.task=regression")
        return task, matrix, source.classes or source.target_names or tuple(map(str, range(matrix.shape[1])))
    return task, matrix, ()


def _free_labels(source: Source) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels and classes of samples of any structure; 0 and no classes where they have no labels."""
    if source.targets is None:
        return np.zeros(source.num_samples, np.int64), source.classes or ()
    values, labels = np.unique(source.targets, return_inverse=True)
    if source.classes is not None and source.targets.dtype.kind in "biu":
        return source.targets.astype(np.int64), source.classes
    return labels.astype(np.int64).reshape(-1), tuple(map(_class_name, values))


def _dense_labels(
    targets: np.ndarray, classes: tuple[str, ...] | None, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a class for each place; 255 and negative numbers, which stand for none, become `VOID`."""
    if targets.dtype.kind not in "biu" or targets.ndim < 2:
        raise DataError(
            f"data.task=segmentation: got targets of type {targets.dtype} and shape {targets.shape}, expected a whole "
            "number for each place, such as (samples, height, width)"
        )
    is_void = (targets < 0) | (targets == _NO_CLASS)
    highest = int(np.max(targets, initial=0, where=~is_void))
    count = num_classes or (len(classes) if classes else max(highest + 1, 2))
    if highest >= count:
        raise DataError(
            f"data.num_classes: label out of range: got {highest}, expected 0 to {count - 1}, or 255 for no class; "
            "correct the targets, or data.num_classes"
        )
    names = classes or ()
    labels = np.where(is_void, np.int16(VOID), targets.astype(np.int16))
    return labels, (*names[:count], *map(str, range(len(names), count)))


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
    return labels.astype(np.int64).reshape(-1), tuple(map(_class_name, values))


def _class_name(value: object) -> str:
    """Return what a class is called by its label; a whole number as an int, though gaps in a column make it a float."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def known_targets(source: Source, trained: Preparation, where: str, *, needed: bool) -> np.ndarray:
    """Return targets of other data, in the form that a model was trained on, and in their own unit.

    Classes are told by their names, so that some may be missing. Unless targets are needed, all may be missing:
    then a label is UNKNOWN, as it is of a class that the model does not know, and a value is NaN.

    Args:
        source: The data.
        trained: What the data of the model were prepared by.
        where: The setting that names the data, for messages.
        needed: Whether every sample has to have a target that the model knows.

    Returns:
        int64 (samples,) for classification, int16 for segmentation, else float32 (samples, outputs).

    Raises:
        DataError: If the targets do not fit those that the model was trained on.
    """
    if source.is_structured:
        return _free_labels(source)[0]
    if source.targets is None:
        shape = (source.num_samples, trained.num_targets)
        if trained.task == "segmentation":
            return np.full((shape[0], *trained.input_shape[1:]), VOID, np.int16)
        if trained.task == "classification":
            return np.full(shape[0], UNKNOWN, np.int64)
        return np.full(shape, np.nan if trained.task == "regression" else UNKNOWN, np.float32)
    if trained.task == "classification":
        return _known_labels(source, trained, where, needed=needed)
    if trained.task == "segmentation":
        return _dense_labels(source.targets, trained.classes, None)[0]
    return _known_values(source.targets, trained, where, needed=needed)


def _known_labels(source: Source, trained: Preparation, where: str, *, needed: bool) -> np.ndarray:
    targets = np.asarray(source.targets)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise DataError(f"{where}: got targets of shape {targets.shape}, expected one label per sample")
    is_there = np.array([value is not None and value == value for value in targets.tolist()], bool)
    if needed and not is_there.all():
        raise DataError(f"{where}: {(~is_there).sum()} of the {len(targets)} labels are missing; remove those samples")
    there = targets[is_there]
    if there.dtype.kind == "O":
        there = np.array([_class_name(value) for value in there], str)
    values, inverse = np.unique(there, return_inverse=True)
    names = [_name_of(value, source.classes) for value in values]
    unknown = [name for name in names if name not in trained.classes]
    if unknown:
        many = ", ..." if len(unknown) > 10 else ""
        text = f"{where}: the checkpoint knows no class {', '.join(unknown[:10])}{many}; its classes are " + ", ".join(
            trained.classes[:10]
        )
        if needed:
            raise DataError(f"{text}{', ...' if len(trained.classes) > 10 else ''}; rename or remove them")
        _log.warning("%s; such targets are left out", text)
    numbers = np.array(
        [trained.classes.index(name) if name in trained.classes else UNKNOWN for name in names], np.int64
    )
    labels = np.full(len(targets), UNKNOWN, np.int64)
    labels[is_there] = numbers[inverse.reshape(-1)]
    return labels


def _name_of(value: object, classes: tuple[str, ...] | None) -> str:
    """Return the name of the class that a label stands for, by the data's own list of them if there is one."""
    if classes is not None and isinstance(value, np.integer) and 0 <= value < len(classes):
        return classes[int(value)]
    return _class_name(value)


def _known_values(targets: np.ndarray, trained: Preparation, where: str, *, needed: bool) -> np.ndarray:
    try:
        matrix = targets.astype(np.float32).reshape(len(targets), -1)
    except ValueError as error:
        raise DataError(f"{where}: got targets of text, expected numbers as the checkpoint was trained on") from error
    if matrix.shape[1] != trained.num_targets:
        raise DataError(
            f"{where}: got {matrix.shape[1]} targets a sample, expected {trained.num_targets} as the checkpoint was "
            "trained on"
        )
    is_good = np.isfinite(matrix) if trained.task == "regression" else np.isin(matrix, (0, 1))
    if needed and not is_good.all():
        expected = "numbers" if trained.task == "regression" else "0 or 1"
        raise DataError(
            f"{where}: {(~is_good).sum()} of the {matrix.size} targets are not {expected}; correct or remove them"
        )
    return np.where(is_good, matrix, np.nan if trained.task == "regression" else UNKNOWN).astype(np.float32)
