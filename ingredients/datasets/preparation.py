"""From a source to data to train or test on: checked, split, normalised, fingerprinted. numpy only, without torch."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import numpy as np

from sacristan.configs import to_plain
from sacristan.ingredients.config.seed import global_stream, numpy_stream
from sacristan.ingredients.datasets.fitted import Preparation, scaled
from sacristan.ingredients.datasets.samples import Source, as_floats, float32_rounds, statistics, subset
from sacristan.ingredients.datasets.source_checks import warn_of_merged
from sacristan.ingredients.datasets.splitting import SPLITS, Split
from sacristan.ingredients.datasets.structured import Stream, Streams
from sacristan.ingredients.datasets.targets import known_targets, resolve_task
from sacristan.ingredients.datasets.texts import Texts
from sacristan.ingredients.errors import DataError

_log = logging.getLogger(__name__)

# Samples whose bytes are converted to floats at once.
_BLOCK = 1024
# Fields of a source with a value for each sample, besides its inputs and names.
_PER_SAMPLE = ("targets", "part", "missing", "lengths", "weights", "shards", "split_values")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Data ready for batching.

    Attributes:
        inputs: Array (samples, *shape), normalised, or of bytes, which `values` normalises; or a map-style dataset
            that is normalised when read; or samples of any structure, unconverted (task `custom`).
        targets: int64 (samples,) for classification, int16 (samples, *places) for segmentation, else float32 (samples,
            outputs), normalised for regression. For `custom` int64 labels (samples,), 0 without labels.
        indices: Indices of the samples of `train`, `val` and `test`.
        fingerprint: SHA-256 of the content, before splitting and normalising.
        names: Name of each sample: its file, or its position (an int) in the source or in its part.
        has_targets: Whether there are targets; otherwise `targets` is -1, and NaN for regression.
        lengths, weights, shards: Length, sampling weight and number of the file of each sample (samples,), or None.
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
        """Return inputs (samples, *shape) as a model gets them; datasets are read now."""
        by = self.preparation
        if isinstance(self.inputs, np.ndarray):
            inputs = self.inputs[indices]
            return by.scaled(as_floats(inputs)) if inputs.dtype == np.uint8 else inputs
        items = [self.inputs[int(index)][0] for index in indices]
        return by.scaled(np.array(items) if items else np.zeros((0, *by.input_shape)))

    @property
    def is_stream(self) -> bool:
        return isinstance(self.inputs, Streams)

    def stream(self, split: str) -> Stream:
        """Return a split of streams; an empty one if there is none."""
        return self.inputs.parts.get(SPLITS.index(split), Stream((), 0))

    def num_samples(self, split: str) -> int:
        return self.stream(split).length or 0 if self.is_stream else len(self.indices[split])


def fingerprint(source: Source, *, exact_inputs: bool = False, exact_targets: bool = False) -> str:
    """Return the SHA-256 of inputs and targets as trained on, or the source's `digest`; exact ones are float64."""
    content = _content(source, exact=exact_inputs)
    # Before 0.3, all regression targets were rounded to float32 before they were normalised.
    return hashlib.sha256(f"{content} exact targets".encode()).hexdigest() if exact_targets else content


def _content(source: Source, *, exact: bool) -> str:
    inputs, targets = source.inputs, source.targets
    if source.digest is not None:
        return getattr(inputs, "exact_digest", None) or source.digest if exact else source.digest
    total = hashlib.sha256()
    if inputs.dtype == np.float64 and not exact:
        inputs = inputs.astype(np.float32)
    if inputs.dtype == np.uint8:
        total.update(f"{np.dtype(np.float32).str} {inputs.shape}".encode())
        for first in range(0, len(inputs), _BLOCK):
            total.update(as_floats(inputs[first : first + _BLOCK]).data)
    else:
        _add_array(total, inputs)
    if targets is not None:
        _add_array(total, targets if targets.dtype.kind in "biufS" else np.char.encode(targets.astype(str), "utf-8"))
    return total.hexdigest()


def _add_array(total: Any, array: np.ndarray) -> None:
    total.update(f"{array.dtype.str} {array.shape}".encode())
    total.update(np.ascontiguousarray(array).data)


def prepare(
    source: Source,
    config: Mapping[str, Any],
    seed: int,
    *,
    split: Split | None = None,
    strict: bool = True,
    earlier: Collection[str | None] = (),
) -> Prepared:
    """Check, split and normalise a source to train on it.

    `strict=False` accepts missing values and a single class, to inspect them. `earlier` are fingerprints of trainings
    to resume or repeat, whose data earlier versions may have rounded to float32.
    """
    split = split or Split.of(config, seed)
    where = f"data.name={config['name']}"
    if isinstance(source.inputs, Streams):
        return _prepare_streams(source, config, split)
    _check_not_empty(source, where)
    if config["task"] == "custom" and not source.is_structured:
        raise DataError(
            f"data.task=custom: {where} gives inputs and targets instead of samples of any structure; leave data.task "
            "out, or write a package.module:factory"
        )
    task, targets, classes = resolve_task(source, config["task"], config["num_classes"])
    has_targets = source.targets is not None
    exact = _exact(source, config, task, targets, earlier)
    content = fingerprint(source, **exact)
    source = _limited(dataclasses.replace(source, targets=targets, names=_names(source)), split)
    targets = cast(np.ndarray, source.targets)
    if strict:
        _check_usable(source, where)
        remedy = "check the labels (`data.stats` counts them)"
        _check_classes(targets, task, f"{where}: all {source.num_samples} samples have", remedy)
    indices = split.indices(targets, source.part, _stratified_as(task, has_targets), source.split_values)
    train = indices["train"]
    if strict:
        remedy = "change data.split_seed or data.stratify, or the data"
        _check_classes(targets[train], task, f"{where}: the training part has", remedy)
    if isinstance(source.inputs, Texts):
        source = dataclasses.replace(source, inputs=source.inputs.fitted(train))
    preparation = _fitted(source, config, task, classes, split.drawn(content, indices), train, has_targets, **exact)
    return _prepared(source, indices, preparation, content, has_targets)


def _exact(
    source: Source,
    config: Mapping[str, Any],
    task: str,
    targets: np.ndarray,
    earlier: Collection[str | None],
) -> dict[str, bool]:
    """Return which parts of a source are normalised in float64, as float32 would lose their digits."""
    inputs = source.inputs
    if source.in_memory:
        inputs_matter = float32_rounds(inputs)
    else:
        inputs_matter = getattr(inputs, "exact_digest", None) is not None
    targets_matter = task == "regression" and float32_rounds(targets)
    exact_inputs = inputs_matter and config["normalize"] == "standard"
    exact_targets = targets_matter and config["normalize_targets"]
    if (exact_inputs or exact_targets) and fingerprint(source) in earlier:
        exact_inputs = exact_targets = False
    if not exact_inputs and source.in_memory and inputs.dtype == np.float64:
        where = f"data.path={config['path']}" if config["path"] else f"data.name={config['name']}"
        columns = zip(source.features, inputs.T, strict=True) if source.features else [("", inputs)]
        for name, column in columns:
            column_name = f"{where}: the column {name}" if name else where
            warn_of_merged(column, column_name, of_whole=not (inputs_matter and float32_rounds(column[:, None])))
    if task == "regression" and not exact_targets:
        warn_of_merged(targets, "data.target", of_whole=not targets_matter)
    return {"exact_inputs": exact_inputs, "exact_targets": exact_targets}


def _fitted(
    source: Source,
    config: Mapping[str, Any],
    task: str,
    classes: tuple[str, ...],
    split: Split,
    train: np.ndarray,
    has_targets: bool,
    *,
    exact_inputs: bool,
    exact_targets: bool,
) -> Preparation:
    """Return the preparation fitted on the training part."""
    targets: Any = source.targets
    mean, std = _input_moments(source, config, split, train, exact=exact_inputs)
    target_mean = target_std = None
    if task == "regression" and config["normalize_targets"]:
        target_mean, target_std = statistics(targets, train, exact=exact_targets)
    return Preparation(
        task=task,
        input_shape=_input_shape(source),
        classes=classes,
        class_counts=_class_counts(targets[train], task, len(classes)) if has_targets else (),
        features=source.features,
        target_names=source.target_names,
        mean=mean,
        std=std,
        target_mean=target_mean,
        target_std=target_std,
        num_targets=len(classes) if source.is_structured else len(classes) or targets.shape[1],
        image_size=config["image_size"] if config["name"] == "image_folder" else None,
        split=split,
        dtype=source.dtype,
        table=source.table,
        vocabulary=source.inputs.vocabulary if isinstance(source.inputs, Texts) else None,
        csv=to_plain(config["csv"]),
    )


def _input_moments(
    source: Source, config: Mapping[str, Any], split: Split, train: np.ndarray, *, exact: bool
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return mean and deviation to normalise inputs by; None for no normalising."""
    if config["normalize"] == "imagenet":
        return _of_imagenet(source, config["name"])
    if config["normalize"] != "standard" or source.dtype != "float32" or source.is_structured:
        return None, None
    with global_stream(split.seed, "statistics"):
        mean, std = statistics(source.inputs, train, exact=exact)
    if source.table is not None:  # codes of categories stay as they are
        codes = list(source.table.code_counts)
        mean[codes], std[codes] = 0, 1
    return mean, std


def prepare_alike(
    source: Source, trained: Preparation, config: Mapping[str, Any], seed: int, *, needs_targets: bool = True
) -> Prepared:
    """Prepare a source like the training data of a model, to test the model on it: all in `test`; nothing is fitted.

    Data that the model was trained on are split as in training, and `config.part` selects the part. Other data are used
    whole, or that part of them if they are split already.
    """
    where = f"data.path={config['path']}" if config["path"] else f"data.name={config['name']}"
    if isinstance(source.inputs, Streams):
        if config["part"] != "test":
            raise DataError(f"data.part: got {config['part']}, but {where} is a stream, of which only test is read")
        return _prepare_streams(source, config, Split.of(config, seed))
    _check_not_empty(source, where)
    source = _like_trained(source, trained, where)
    content = fingerprint(source, exact_inputs=trained.exact_inputs, exact_targets=trained.exact_targets)
    is_same, has_targets = content == trained.split.data, source.targets is not None
    targets = known_targets(source, trained, where, needed=needs_targets)
    source = dataclasses.replace(source, targets=targets, names=_names(source))
    source = _limited(source, trained.split if is_same else Split.of(config, seed))
    _check_usable(source, where)
    indices = {name: np.zeros(0, np.int64) for name in SPLITS}
    if is_same:
        indices["test"] = _as_trained(source, trained, content, config["part"], where, has_targets)
    else:
        indices["test"] = _part_of_others(source, config["part"])
    return _prepared(source, indices, trained, content, has_targets)


def _like_trained(source: Source, trained: Preparation, where: str) -> Source:
    """Return a source with its columns in the order of training, after a check that the inputs fit the model."""
    if source.in_memory and source.features and trained.features:
        order = trained.column_order(source.features, where)
        source = dataclasses.replace(source, inputs=source.inputs[:, order], features=trained.features)
    if source.is_structured != (trained.task == "custom"):
        kinds = ("samples of any structure", "inputs and targets")
        got, expected = kinds if source.is_structured else reversed(kinds)
        raise DataError(f"{where}: got {got}, expected {expected} as the checkpoint was trained on")
    if not source.is_structured:
        trained.check_shape(_input_shape(source), where)
    return source


def _as_trained(
    source: Source, trained: Preparation, content: str, part: str, where: str, has_targets: bool
) -> np.ndarray:
    """Return the indices of a part of the training data, split as in training."""
    targets: Any = source.targets
    task = _stratified_as(trained.task, has_targets)
    drawn = trained.split.indices(targets, source.part, task, source.split_values)
    if trained.split.drawn(content, drawn).digest != trained.split.digest:
        raise DataError(
            f"{where}: the test part cannot be separated from the samples that the checkpoint was trained on, because "
            "they are drawn differently here; use the versions of the lab and of numpy that it was trained with"
        )
    return np.sort(np.concatenate([*drawn.values()])) if part == "all" else drawn[part]


def _part_of_others(source: Source, part: str) -> np.ndarray:
    """Return the indices of a part of data that the model was not trained on; all of them without such a part."""
    if source.part is not None and part != "all" and (source.part == SPLITS.index(part)).any():
        return np.flatnonzero(source.part == SPLITS.index(part))
    return np.arange(source.num_samples)


def _prepared(
    source: Source, indices: dict[str, np.ndarray], by: Preparation, content: str, has_targets: bool
) -> Prepared:
    inputs, targets = _normalized(source, by)
    return Prepared(
        inputs,
        targets,
        indices,
        by,
        content,
        source.names or (),
        has_targets,
        source.collate,
        source.lengths,
        source.weights,
        source.shards,
    )


def _prepare_streams(source: Source, config: Mapping[str, Any], split: Split) -> Prepared:
    """Return streams with their lengths; they cannot be split, sampled or normalised."""
    where = f"data.name={config['name']}"
    for name, unset in (("limit", None), ("sampler", None), ("split", "random"), ("fold", None)):
        if config[name] != unset:
            remedy = f"leave data.{name} out" if name in ("split", "fold") else "use data.epoch_samples, or none"
            raise DataError(f"data.{name}: got {config[name]}, but {where} is a stream; {remedy}")
    streams = source.inputs.ready(config["epoch_samples"], where)
    nothing = {name: np.zeros(0, np.int64) for name in SPLITS}
    unfitted: dict[str, Any] = dict.fromkeys(
        ("features", "target_names", "mean", "std", "target_mean", "target_std", "image_size")
    )
    preparation = Preparation(
        task="custom",
        input_shape=(),
        classes=source.classes or (),
        class_counts=(),
        num_targets=0,
        split=dataclasses.replace(split.drawn("", nothing), data=source.digest),
        **unfitted,
    )
    no_targets = np.zeros(0, np.int64)
    return Prepared(streams, no_targets, nothing, preparation, fingerprint(source), (), False, source.collate)


def _of_imagenet(source: Source, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return ImageNet's mean and deviation of images from 0 to 1, which networks trained on it expect: (3, 1, 1)."""
    shape = _input_shape(source)
    if len(shape) != 3 or shape[0] != 3 or source.is_structured:
        raise DataError(
            f"data.normalize=imagenet: data.name={name} has inputs of shape {shape}, expected colour images (3, "
            "height, width); use data.normalize=standard"
        )
    mean, std = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32).reshape(2, 3, 1, 1)
    return mean, std


def _stratified_as(task: str, has_targets: bool) -> str:
    """Return the task that a split is drawn for: labelled samples of any structure are stratified as classes."""
    return "classification" if task == "custom" and has_targets else task


def _check_not_empty(source: Source, where: str) -> None:
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
    """Return the names of samples, else their positions, counted within their part if there are parts."""
    if source.names is not None:
        return source.names
    if source.part is None:
        return tuple(range(source.num_samples))
    positions = np.zeros(source.num_samples, np.int64)
    for code in np.unique(source.part):
        positions[source.part == code] = np.arange((source.part == code).sum())
    return tuple(positions.tolist())


def _class_counts(targets: np.ndarray, task: str, num_classes: int) -> tuple[int, ...]:
    """Return how many training targets have each class or label; for segmentation, how many pixels."""
    if task == "regression":
        return ()
    counts = targets.sum(0) if task == "multilabel" else np.bincount(targets[targets >= 0], minlength=num_classes)
    return tuple(int(count) for count in counts)


def _normalized(source: Source, by: Preparation) -> tuple[Any, np.ndarray]:
    """Return inputs and targets, normalised; bytes and items of a dataset are normalised when they are read."""
    inputs: Any = source.inputs
    targets: Any = source.targets
    if source.in_memory and inputs.dtype != np.uint8:
        inputs = by.scaled(inputs)
        if _is_filled(source):
            inputs = np.where(np.isnan(inputs), np.float32(0), inputs)  # 0 is the mean
    return inputs, scaled(targets, by.target_mean, by.target_std) if by.task == "regression" else targets


def _limited(source: Source, split: Split) -> Source:
    """Return a random `limit` of the samples, drawn from the stream `limit`."""
    if split.limit is None or split.limit >= source.num_samples:
        return source
    if split.limit < 1:
        raise DataError(f"data.limit: got {split.limit}, expected at least 1, or None for all samples")
    kept = np.sort(numpy_stream(split.limit_seed, "limit").permutation(source.num_samples)[: split.limit])
    arrays = {name: getattr(source, name) for name in _PER_SAMPLE}
    chosen: dict[str, Any] = {name: array[kept] for name, array in arrays.items() if array is not None}
    names: Any = tuple(map((source.names or ()).__getitem__, kept.tolist()))
    inputs = source.inputs[kept] if source.in_memory else subset(source.inputs, kept)
    return dataclasses.replace(source, inputs=inputs, names=names, **chosen)


def _check_usable(source: Source, where: str) -> None:
    """Reject inputs that are NaN or infinite, but for missing values that are filled."""
    missing, named = source.missing, ""
    if source.in_memory and source.inputs.dtype != np.uint8:
        bad = np.isinf(source.inputs) if _is_filled(source) else ~np.isfinite(source.inputs)
        missing = np.count_nonzero(bad.reshape(len(bad), -1), axis=1)
        if source.features is not None:
            columns = [feature for feature, is_bad in zip(source.features, bad.any(0), strict=True) if is_bad]
            named = f" in the columns {', '.join(columns)}"
    if missing is not None and missing.any():
        raise DataError(
            f"{where}: {missing.sum()} input values are NaN or infinite, in {np.count_nonzero(missing)} of "
            f"{len(missing)} samples{named}; fill them in or remove those samples (`data.stats` counts them)"
        )


def _is_filled(source: Source) -> bool:
    """Return whether missing values of a table are filled."""
    return source.table is not None and source.table.missing == "fill"


def _check_classes(labels: Any, task: str, subject: str, remedy: str) -> None:
    if task == "classification" and len(np.unique(labels)) < 2:
        raise DataError(f"{subject} one class only, expected at least two; {remedy}")
