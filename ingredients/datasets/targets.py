"""Targets as numbers: infer the task, name the classes, and reject targets that do not fit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from sacristan.configs.map import abbreviated
from sacristan.ingredients.datasets.samples import Source, Task
from sacristan.ingredients.datasets.source_checks import exact_floats
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.fitted import Preparation

_log = logging.getLogger(__name__)

# The task of integer targets, by their number of dimensions; more than 2 are a segmentation.
_TASKS: dict[int, Task] = {1: "classification", 2: "multilabel"}
# Dense targets of no class; they become `VOID`, which torch's losses ignore.
_NO_CLASS = 255
VOID = -100

# The label of a sample without one, or with one that the model does not know; missing values are NaN.
UNKNOWN = -1

# Labels and names of their classes.
_Labels = tuple[np.ndarray, tuple[str, ...]]


def resolve_task(source: Source, task: Task, num_classes: int | None) -> tuple[str, np.ndarray, tuple[str, ...]]:
    """Infer the task and convert the targets to numbers; return the task, the targets and the class names.

    Text, bools and ints are classes, floats are numbers to regress, a matrix of zeros and ones is multilabel, and an
    array of ints per sample, such as (height, width), is a segmentation. Structured samples have the task `custom`.
    """
    if source.is_structured:
        return "custom", *_free_labels(source)
    targets = _checked(source.targets)
    if task == "auto":
        task = "regression" if targets.dtype.kind == "f" else _TASKS.get(targets.ndim, "segmentation")
    if task == "segmentation":
        return task, *_dense_labels(targets, source.classes, num_classes)
    if task == "classification":
        return task, *_labels(targets, source.classes, num_classes)
    if targets.dtype.kind not in "biuf":
        raise DataError(f"data.task={task}: got targets of text, expected numbers; use data.task=classification")
    matrix = exact_floats(targets).reshape(len(targets), -1)
    if task == "regression":
        return task, matrix, ()
    if not np.isin(matrix, (0, 1)).all():
        raise DataError("data.task=multilabel: got targets other than 0 and 1; use data.task=regression")
    return task, matrix, source.classes or source.target_names or tuple(map(str, range(matrix.shape[1])))


def _checked(targets: np.ndarray | None) -> np.ndarray:
    """Return targets without a second dimension of 1 and without missing values."""
    if targets is None:
        raise DataError("data.target: there are no targets to train on; add them")
    if targets.dtype.kind not in "biufUSO":
        raise DataError(f"data.target: got targets of type {targets.dtype}, expected numbers or text")
    if targets.dtype.kind == "O":
        _refuse_bad(sum(value is None or value != value for value in targets.flat), targets, "missing")
        targets = targets.astype(str)
    targets = _flat(targets)
    if targets.dtype.kind == "f":
        _refuse_bad(int((~np.isfinite(targets)).sum()), targets, "NaN or infinite")
    return targets


def _refuse_bad(count: int, targets: np.ndarray, fault: str) -> None:
    if count:
        raise DataError(f"data.target: {count} of the {targets.size} targets are {fault}; remove those samples")


def _flat(targets: np.ndarray) -> np.ndarray:
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _free_labels(source: Source) -> _Labels:
    """Return labels and classes of samples of any structure; 0 and no classes without labels."""
    if source.targets is None:
        return np.zeros(source.num_samples, np.int64), source.classes or ()
    if source.classes is not None and source.targets.dtype.kind in "biu":
        return source.targets.astype(np.int64), source.classes
    return _numbered(source.targets)


def _numbered(targets: np.ndarray) -> _Labels:
    """Number the distinct targets in order."""
    values, labels = np.unique(targets, return_inverse=True)
    return labels.astype(np.int64).reshape(-1), tuple(map(class_name, values))


def _class_names(classes: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    """Return `count` names of classes: the known ones, then numbers."""
    names = classes or ()
    return (*names[:count], *map(str, range(len(names), count)))


def _dense_labels(targets: np.ndarray, classes: tuple[str, ...] | None, num_classes: int | None) -> _Labels:
    """Return a class for each place; 255 and negative numbers become `VOID`."""
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
    return np.where(is_void, np.int16(VOID), targets.astype(np.int16)), _class_names(classes, count)


def _labels(targets: np.ndarray, classes: tuple[str, ...] | None, num_classes: int | None) -> _Labels:
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
    count = num_classes or len(classes or ())
    if count and targets.dtype.kind in "biuf":
        _check_range(targets, count)
        return targets.astype(np.int64), _class_names(classes, count)
    labels, names = _numbered(targets)
    _check_count(targets, names, num_classes)
    return labels, names


def _check_count(targets: np.ndarray, names: tuple[str, ...], num_classes: int | None) -> None:
    if len(names) > 100 and len(names) > len(targets) / 2 and targets.dtype.kind in "iuf":
        raise DataError(
            f"data.task: got {len(names)} labels in {len(targets)} samples; if they are numbers, use "
            "data.task=regression"
        )
    if num_classes is not None and len(names) != num_classes:
        raise DataError(
            f"data.num_classes: got {num_classes}, but there are {len(names)} classes: {abbreviated(names)}; correct "
            "one of them"
        )


def _check_range(labels: np.ndarray, count: int) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= count))
    if len(bad):
        raise DataError(
            f"data.num_classes: label out of range: sample {bad[0]} has label {labels[bad[0]]}, expected 0 to"
            f" {count - 1} ({len(bad)} such samples); correct them, or data.num_classes"
        )


def class_name(value: object) -> str:
    """Return the name of a class by its label; an integer as an int, though missing values make a column float."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def known_targets(source: Source, trained: Preparation, where: str, *, needed: bool) -> np.ndarray:
    """Convert the targets of other data as for a trained model, regression targets in their own unit.

    Classes are matched by name, so other data may lack some. int64 (samples,) for classification, int16 for
    segmentation, else floats (samples, outputs), see `exact_floats`. Without `needed`, missing and unknown labels are
    `UNKNOWN`, missing numbers NaN.
    """
    if source.is_structured:
        return _free_labels(source)[0]
    if source.targets is None:
        return _no_targets(source.num_samples, trained)
    if trained.task == "classification":
        return _known_labels(source.targets, source.classes, trained.classes, where, needed=needed)
    if trained.task == "segmentation":
        return _dense_labels(source.targets, trained.classes, None)[0]
    return _known_values(source.targets, trained, where, needed=needed)


def _no_targets(count: int, trained: Preparation) -> np.ndarray:
    if trained.task == "segmentation":
        return np.full((count, *trained.input_shape[1:]), VOID, np.int16)
    if trained.task == "classification":
        return np.full(count, UNKNOWN, np.int64)
    return np.full((count, trained.num_targets), np.nan if trained.task == "regression" else UNKNOWN, np.float32)


def _known_labels(
    targets: np.ndarray, classes: tuple[str, ...] | None, trained_classes: tuple[str, ...], where: str, *, needed: bool
) -> np.ndarray:
    targets = _flat(np.asarray(targets))
    if targets.ndim != 1:
        raise DataError(f"{where}: got targets of shape {targets.shape}, expected one label per sample")
    present = np.array([value is not None and value == value for value in targets.tolist()], bool)
    if needed and not present.all():
        raise DataError(f"{where}: {(~present).sum()} of the {len(targets)} labels are missing; remove those samples")
    values = targets[present]
    if values.dtype.kind == "O":
        values = np.array(list(map(class_name, values)), str)
    distinct, inverse = np.unique(values, return_inverse=True)
    names = [_name_of(value, classes) for value in distinct]
    _check_known(names, trained_classes, where, needed=needed)
    codes = {name: code for code, name in enumerate(trained_classes)}
    numbers = np.array([codes.get(name, UNKNOWN) for name in names], np.int64)
    labels = np.full(len(targets), UNKNOWN, np.int64)
    labels[present] = numbers[inverse.reshape(-1)]
    return labels


def _check_known(names: list[str], classes: tuple[str, ...], where: str, *, needed: bool) -> None:
    unknown = [name for name in names if name not in classes]
    if unknown:
        text = f"{where}: the checkpoint knows no class {abbreviated(unknown)}; its classes are {abbreviated(classes)}"
        if needed:
            raise DataError(f"{text}; rename or remove them")
        _log.warning("%s; such targets are left out", text)


def _name_of(value: object, classes: tuple[str, ...] | None) -> str:
    """Return the name of the class of a label, from the data's own list of classes if there is one."""
    if classes is not None and isinstance(value, np.integer) and 0 <= value < len(classes):
        return classes[int(value)]
    return class_name(value)


def _known_values(targets: np.ndarray, trained: Preparation, where: str, *, needed: bool) -> np.ndarray:
    try:
        matrix = exact_floats(np.asarray(targets, float)).reshape(len(targets), -1)
    except ValueError as error:
        raise DataError(f"{where}: got targets of text, expected numbers as the checkpoint was trained on") from error
    if matrix.shape[1] != trained.num_targets:
        raise DataError(
            f"{where}: got {matrix.shape[1]} targets a sample, expected {trained.num_targets} as the checkpoint was "
            "trained on"
        )
    is_regression = trained.task == "regression"
    is_good = np.isfinite(matrix) if is_regression else np.isin(matrix, (0, 1))
    if needed and not is_good.all():
        expected = "numbers" if is_regression else "0 or 1"
        raise DataError(
            f"{where}: {(~is_good).sum()} of the {matrix.size} targets are not {expected}; correct or remove them"
        )
    return np.where(is_good, matrix, matrix.dtype.type(np.nan if is_regression else UNKNOWN))
