"""From a source to data that can be trained on: checked, split, normalised, fingerprinted. All numpy, no torch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingredients.config.seed import global_stream, numpy_stream
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.items import subset
from ingredients.datasets.moments import statistics
from ingredients.datasets.samples import Source, as_floats
from ingredients.datasets.splitting import SPLITS, Split
from ingredients.datasets.streams import Streams
from ingredients.datasets.targets import known_targets, resolve_task
from ingredients.datasets.texts import Texts
from ingredients.errors import DataError

__all__ = ["Prepared", "fingerprint", "prepare", "prepare_alike"]

# Samples whose bytes become floats at once.
_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Data ready for batching.

    Attributes:
        inputs: Array (samples, *shape), normalised, or of bytes, which `values` normalises, or a map-style dataset that
            is normalised when read; of the task `custom`, a dataset of samples of any structure, as they are.
        targets: int64 (samples,) for classification, int16 (samples, *places) for segmentation, else float32 (samples,
            outputs), normalised for regression; of the task `custom`, int64 labels (samples,), 0 where it has none.
        indices: Indices of the samples of `train`, `val` and `test`.
        preparation: What they were prepared by.
        fingerprint: SHA-256 of the content, before splitting and normalising.
        names: What each sample is called: its file, or its place (an int) in the source, or in that part of it.
        has_targets: Whether there were targets; without any, `targets` is -1, and NaN for regression.
        collate: What makes a batch of samples of any structure; None stacks them.
        lengths: Lengths of the sequences in the samples, (samples,); None if there are none.
        weights: How often samples are to be drawn, in proportion, (samples,); None if it is not known.
        shards: The file that each sample lies in, (samples,); None if they lie in none.
    """

    inputs: Any
    targets: np.ndarray
    indices: dict[str, np.ndarray]
    preparation: Preparation
    fingerprint: str
    names: tuple[str, ...] | tuple[int, ...]
    has_targets: bool = True
    collate: Callable[[list], Any] | None = None
    lengths: np.ndarray | None = None
    weights: np.ndarray | None = None
    shards: np.ndarray | None = None

    def values(self, indices: np.ndarray) -> np.ndarray:
        """Return inputs (samples, *shape) as a model gets them, read here and now."""
        by = self.preparation
        if isinstance(self.inputs, np.ndarray):
            return (
                _scaled(as_floats(self.inputs[indices]), by) if self.inputs.dtype == np.uint8 else self.inputs[indices]
            )
        found = [self.inputs[int(index)][0] for index in indices]
        return _scaled(np.array(found) if found else np.zeros((0, *by.input_shape)), by)


def fingerprint(source: Source) -> str:
    """Return the SHA-256 of a source's content: types, shapes and values of inputs and targets."""
    if source.digest is not None:
        return source.digest
    total = hashlib.sha256()
    targets = source.targets
    if targets is not None and targets.dtype.kind not in "biufS":
        targets = np.char.encode(targets.astype(str), "utf-8")
    for array in (source.inputs,) if targets is None else (source.inputs, targets):
        # Bytes count as the floats that they become, block by block.
        is_bytes = array is source.inputs and array.dtype == np.uint8
        total.update(f"{np.dtype(np.float32).str if is_bytes else array.dtype.str} {array.shape}".encode())
        for first in range(0, len(array), _BLOCK) if is_bytes else ():
            total.update(as_floats(array[first : first + _BLOCK]).data)
        if not is_bytes:
            total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def prepare(
    source: Source, config: Mapping[str, Any], seed: int, *, split: Split | None = None, strict: bool = True
) -> Prepared:
    """Check, split and normalise a source, to train on it.

    Args:
        source: The raw data.
        config: The data ingredient's config.
        seed: Seed of the experiment; `config.split_seed` goes before it for the split.
        split: How to draw and split them; by default as the config asks for.
        strict: Whether missing values and sets without a second class are refused; False to look at them.

    Raises:
        DataError: If the data are empty, have missing values, only one class, or targets that do not fit.
    """
    split = split or Split.of(config, seed)
    if isinstance(source.inputs, Streams):
        return _prepare_streams(source, config, split)
    _refuse_empty(source, f"data.name={config['name']}")
    content = fingerprint(source)
    _refuse_custom(source, config)
    task, targets, classes = resolve_task(source, config["task"], config["num_classes"])
    has_labels = source.targets is not None
    names = _names(source)
    source, kept = _limited(dataclasses.replace(source, targets=targets), split)
    targets = targets[kept]
    if strict:
        _refuse_unusable(source, f"data.name={config['name']}")
        _refuse_one_class(targets, task, config["name"])
    indices = split.indices(targets, source.part, _stratified_as(task, has_labels))
    if strict and task == "classification" and len(np.unique(targets[indices["train"]])) < 2:
        raise DataError(
            f"data.name={config['name']}: the training part has one class only, expected at least two; "
            "change data.split_seed or data.stratify, or the data"
        )
    vocabulary = None
    if isinstance(source.inputs, Texts):
        source = dataclasses.replace(source, inputs=source.inputs.fitted(indices["train"]))
        vocabulary = source.inputs.vocabulary
    mean = std = target_mean = target_std = None
    if config["normalize"] == "standard" and source.dtype == "float32" and not source.is_structured:
        with global_stream(split.seed, "statistics"):
            mean, std = statistics(source.inputs, indices["train"])
        if source.table is not None:
            codes = list(source.table.code_counts)
            mean[codes], std[codes] = 0, 1
    if config["normalize"] == "imagenet":
        mean, std = _of_imagenet(source, config["name"])
    if task == "regression" and config["normalize_targets"]:
        target_mean, target_std = statistics(targets, indices["train"])
    preparation = Preparation(
        task=task,
        input_shape=_input_shape(source),
        classes=classes,
        class_counts=_class_counts(targets[indices["train"]], task, len(classes)) if has_labels else (),
        features=source.features,
        target_names=source.target_names,
        mean=mean,
        std=std,
        target_mean=target_mean,
        target_std=target_std,
        num_targets=len(classes) if source.is_structured else len(classes) or targets.shape[1],
        image_size=config["image_size"] if config["name"] == "image_folder" else None,
        split=split.drawn(content, indices),
        dtype=source.dtype,
        table=source.table,
        vocabulary=vocabulary,
    )
    inputs, targets = _normalized(source, targets, preparation)
    kept_names = tuple(names[place] for place in kept.tolist())
    prepared = Prepared(inputs, targets, indices, preparation, content, kept_names, has_labels)
    return _with_side_arrays(prepared, source)


def prepare_alike(
    source: Source, trained: Preparation, config: Mapping[str, Any], seed: int, *, needs_targets: bool = True
) -> Prepared:
    """Prepare a source by what the data of a model were prepared by, to test the model on it; nothing is fitted.

    Of the data that the model was trained on that is `config.part`, as it was split then. Of others it is all of them,
    or that part if they have one of their own.

    Args:
        source: The raw data, with columns in any order.
        trained: What the data of the model were prepared by.
        config: The data ingredient's config.
        seed: Seed of the experiment, for `config.limit`.
        needs_targets: Whether each sample has to have a target that the model knows.

    Returns:
        Data whose parts `train` and `val` are empty; those asked for are `test`.

    Raises:
        DataError: If they have no samples, other inputs, missing values, or targets that the model does not know.
    """
    where = f"data.path={config['path']}" if config["path"] else f"data.name={config['name']}"
    if isinstance(source.inputs, Streams):
        if config["part"] != "test":
            raise DataError(f"data.part: got {config['part']}, but {where} is a stream, of which only test is read")
        return _prepare_streams(source, config, Split.of(config, seed))
    _refuse_empty(source, where)
    if source.in_memory and source.features and trained.features:
        order = trained.column_order(source.features, where)
        source = dataclasses.replace(source, inputs=source.inputs[:, order], features=trained.features)
    if source.is_structured != (trained.task == "custom"):
        kinds = ("samples of any structure", "inputs and targets")
        got, expected = kinds if source.is_structured else reversed(kinds)
        raise DataError(f"{where}: got {got}, expected {expected} as the checkpoint was trained on")
    if not source.is_structured:
        trained.check_shape(_input_shape(source), where)
    content = fingerprint(source)
    is_same = content == trained.split.data
    targets = known_targets(source, trained, where, needed=needs_targets)
    names, has_targets = _names(source), source.targets is not None
    stratified_as = _stratified_as(trained.task, has_targets)
    source, kept = _limited(source, trained.split if is_same else Split.of(config, seed))
    targets = targets[kept]
    _refuse_unusable(source, where)
    indices, part = {name: np.zeros(0, np.int64) for name in SPLITS}, config["part"]
    if is_same:
        drawn = trained.split.indices(targets, source.part, stratified_as)
        if trained.split.drawn(content, drawn).digest != trained.split.digest:
            raise DataError(
                f"{where}: the test part cannot be told from the samples that the checkpoint was trained on: they are "
                "drawn otherwise here; use the versions of the lab and of numpy that it was trained with"
            )
        indices["test"] = np.sort(np.concatenate([*drawn.values()])) if part == "all" else drawn[part]
    elif source.part is not None and part != "all" and (source.part == SPLITS.index(part)).any():
        indices["test"] = np.flatnonzero(source.part == SPLITS.index(part))
    else:
        indices["test"] = np.arange(source.num_samples)
    inputs, targets = _normalized(source, targets, trained)
    kept_names = tuple(names[place] for place in kept.tolist())
    prepared = Prepared(inputs, targets, indices, trained, content, kept_names, has_targets)
    return _with_side_arrays(prepared, source)


def _with_side_arrays(prepared: Prepared, source: Source) -> Prepared:
    """Return prepared data with what else is known of each sample of their source."""
    side = {name: getattr(source, name) for name in ("collate", "lengths", "weights", "shards")}
    return dataclasses.replace(prepared, **side)


def _prepare_streams(source: Source, config: Mapping[str, Any], split: Split) -> Prepared:
    """Return streams with their lengths; they cannot be split, drawn from or normalised."""
    where = f"data.name={config['name']}"
    for name, unset in (("limit", None), ("sampler", None)):
        if config[name] != unset:
            raise DataError(
                f"data.{name}: got {config[name]}, but {where} is a stream; use data.epoch_samples, or none"
            )
    streams = source.inputs.ready(config["epoch_samples"], where)
    nothing = {name: np.zeros(0, np.int64) for name in SPLITS}
    preparation = Preparation(
        "custom", (), source.classes or (), (), None, None, None, None, None, None, 0, None, split.drawn("", nothing)
    )
    preparation = dataclasses.replace(preparation, split=dataclasses.replace(preparation.split, data=source.digest))
    prepared = Prepared(streams, np.zeros(0, np.int64), nothing, preparation, fingerprint(source), (), False)
    return dataclasses.replace(prepared, collate=source.collate)


def _of_imagenet(source: Source, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of ImageNet's images from 0 to 1, as networks trained on it expect: (3, 1, 1) each."""
    shape = _input_shape(source)
    if len(shape) != 3 or shape[0] != 3 or source.is_structured:
        raise DataError(
            f"data.normalize=imagenet: data.name={name} has inputs of shape {shape}, expected images in colour (3, "
            "height, width); use data.normalize=standard"
        )
    mean, std = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32).reshape(2, 3, 1, 1)
    return mean, std


def _refuse_custom(source: Source, config: Mapping[str, Any]) -> None:
    if config["task"] == "custom" and not source.is_structured:
        raise DataError(
            f"data.task=custom: data.name={config['name']} gives inputs and targets, and no samples of any structure; "
            "leave data.task out, or write a package.module:factory"
        )


def _stratified_as(task: str, has_labels: bool) -> str:
    """Return the task that a split is drawn for: samples of any structure with labels are stratified by those."""
    return "classification" if task == "custom" and has_labels else task


def _refuse_empty(source: Source, where: str) -> None:
    if source.num_samples == 0:
        raise DataError(f"{where}: there are no samples in it; check data.path or the factory")


def _input_shape(source: Source) -> tuple[int, ...]:
    if isinstance(source.inputs, Texts):
        return source.inputs.item_shape
    if source.is_structured:
        return source.item_shape
    if source.in_memory:
        return source.inputs.shape[1:]
    with global_stream(0, "fingerprint"):
        return tuple(source.inputs[0][0].shape)


def _names(source: Source) -> tuple[str, ...] | tuple[int, ...]:
    """Return what samples are called: their own names, else their places, within their part if there are parts."""
    if source.names is not None:
        return source.names
    if source.part is None:
        return tuple(range(source.num_samples))
    places = np.zeros(source.num_samples, np.int64)
    for code in np.unique(source.part):
        places[source.part == code] = np.arange((source.part == code).sum())
    return tuple(places.tolist())


def _class_counts(targets: np.ndarray, task: str, num_classes: int) -> tuple[int, ...]:
    """Return how often each class, or label, is among the targets of the training part; of dense ones, in places."""
    if task == "regression":
        return ()
    if task == "multilabel":
        counts = targets.sum(0)
    else:
        counts = np.bincount(targets[targets >= 0], minlength=num_classes)
    return tuple(int(count) for count in counts)


def _normalized(source: Source, targets: np.ndarray, by: Preparation) -> tuple[Any, np.ndarray]:
    """Return inputs and targets, normalised; bytes, and items of a dataset, are when they are read."""
    inputs = source.inputs
    if source.in_memory and inputs.dtype != np.uint8:
        inputs = _scaled(inputs, by)
        if _is_filled(source):
            inputs = np.where(np.isnan(inputs), np.float32(0), inputs)  # the mean
    if by.target_mean is not None:
        targets = (targets - by.target_mean) / by.target_std
    return inputs, targets


def _scaled(inputs: np.ndarray, by: Preparation) -> np.ndarray:
    return inputs if by.mean is None else (inputs - by.mean) / by.std


def _limited(source: Source, split: Split) -> tuple[Source, np.ndarray]:
    """Keep a random `limit` of the samples, by the stream `limit`; return their places, too."""
    everything = np.arange(source.num_samples)
    if split.limit is None or split.limit >= source.num_samples:
        return source, everything
    if split.limit < 1:
        raise DataError(f"data.limit: got {split.limit}, expected at least 1, or None for all samples")
    kept = np.sort(numpy_stream(split.seed, "limit").permutation(source.num_samples)[: split.limit])
    arrays = {name: getattr(source, name) for name in ("targets", "part", "missing", "lengths", "weights", "shards")}
    chosen: dict[str, Any] = {name: None if array is None else array[kept] for name, array in arrays.items()}
    inputs = source.inputs[kept] if source.in_memory else subset(source.inputs, kept)
    return dataclasses.replace(source, inputs=inputs, names=None, **chosen), kept


def _refuse_unusable(source: Source, where: str) -> None:
    missing, named = source.missing, ""
    if source.in_memory and source.inputs.dtype != np.uint8:
        bad = np.isinf(source.inputs) if _is_filled(source) else ~np.isfinite(source.inputs)
        missing = np.count_nonzero(bad.reshape(len(bad), -1), axis=1)
        if source.features is not None:
            columns = [feature for feature, column in zip(source.features, bad.any(0), strict=True) if column]
            named = f" in the columns {', '.join(columns)}"
    if missing is not None and missing.any():
        raise DataError(
            f"{where}: {missing.sum()} input values are NaN or infinite, in {np.count_nonzero(missing)} of "
            f"{len(missing)} samples{named}; fill them in or remove those samples (`data.stats` counts them)"
        )


def _is_filled(source: Source) -> bool:
    """Tell whether missing values of a table are filled."""
    return source.table is not None and source.table.missing == "fill"


def _refuse_one_class(targets: np.ndarray, task: str, name: str) -> None:
    if task == "classification" and len(np.unique(targets)) < 2:
        raise DataError(
            f"data.name={name}: all {len(targets)} samples have one class only, expected at least two; "
            "check the labels (`data.stats` counts them)"
        )
