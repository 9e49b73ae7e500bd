"""Ingredient `data`: reproducible loading, splitting, normalising, augmenting and batching of data."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map, to_plain
from sacristan.ingredients.commands import print_table
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.datasets.csv_cells import check_csv
from sacristan.ingredients.datasets.preparation import Prepared, prepare, prepare_alike
from sacristan.ingredients.datasets.samples import Source, Task
from sacristan.ingredients.datasets.sources import check_options, check_source, describe, kind_of, load_source, survey
from sacristan.ingredients.datasets.split_rules import default_test_fraction
from sacristan.ingredients.datasets.splitting import Split, check_split
from sacristan.ingredients.errors import DataError
from sacristan.ingredients.ranks.group import Ranks, current
from sacristan.observers.record.identity import EXPECT_DATA_VARIABLE

if TYPE_CHECKING:
    import torch

    from sacristan.ingredients.datasets.batches import Data
    from sacristan.ingredients.datasets.fitted import Preparation

__all__ = ["ingredient", "load", "make_data", "make_test_data"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("data")

# Settings that a source reads as they are.
_OF_SOURCES = (
    "name",
    "path",
    "target",
    "columns",
    "categorical",
    "encoding",
    "missing",
    "na_values",
    "csv",
    "split",
    "dtype",
    "options",
    "image_size",
    "task",
    "weights",
)
# Lowest values of numeric settings.
_LEAST = {"batch_size": 1, "num_workers": 0, "limit": 1, "epoch_samples": 1, "shuffle_buffer": 0}


@ingredient.config
def config() -> None:
    # file or folder to read, for npz, csv, text, idx, image_folder, tar, parquet, huggingface and torchvision
    path: str | None = None
    # kind of data: digits, breast_cancer, wine, diabetes, npz, csv, text, idx, image_folder, tar, parquet, huggingface,
    # huggingface:NAME, torchvision:NAME, or package.module:factory; inferred from path, digits without one
    name = kind_of(path)
    # target column or columns of a table, or key of samples that are dicts; None: last column of a csv, else label
    target: str | list[str] | None = None
    # input columns of a table, None for all but the target; for tar, file endings of the members of a sample
    columns: str | list[str] | None = None
    # categorical columns of a csv, or auto for all text columns
    categorical: str | list[str] | None = None
    # encoding of categories: one_hot (an input of 0 or 1 per value) or codes (an integer for embeddings, 0 if unknown)
    encoding: Literal["one_hot", "codes"] = "one_hot"
    # missing values of a csv: refuse, or fill (training mean and a missing-value indicator; for categories a new value)
    missing: Literal["refuse", "fill"] = "refuse"
    # texts in a csv that mean a missing value, such as ["NA", "?"]; an empty cell always does
    na_values: list[str] = []
    # arguments of pandas.read_csv for a csv in another form: {sep: ";", decimal: ",", encoding: latin-1}, skiprows, ...
    csv: dict[str, Any] = {}
    # type of the inputs: float32, or int64 to keep integers such as word ids, which are not normalised
    dtype: Literal["float32", "int64"] = "float32"
    # arguments of the factory, of torchvision's class, of Hugging Face's load_dataset, or of the vocabulary of texts
    options: dict[str, Any] = {}
    # auto (inferred: text and ints are classes, floats are numbers), classification, regression, multilabel,
    # segmentation, or custom (samples of any structure)
    task: Task = "auto"
    # makes a batch of samples: None (stack), pad (pad sequences), list (keep lists), or package.module:function
    collate: str | None = None
    # arguments of collate, such as value and fields of pad
    collate_options: dict[str, Any] = {}
    # number of classes; None counts them, a number also checks that labels are 0 to N-1
    num_classes: int | None = None
    # number of samples to keep, drawn at random; None keeps all
    limit: int | None = None
    # how to split: random, group:COLUMN (no group is in two parts), time:COLUMN or time:COLUMN:FORMAT (train on the
    # oldest, test on the newest); for files in folders, a regular expression instead of the column
    split = "random"
    # fold to test on (to validate on if the data have a test part), such as 2/5 for the second of five; None: no folds
    fold: str | None = None
    # share of all samples for validation, unless the data have a validation part
    val_fraction = 0.15
    # share of all samples for the final test, unless the data have a test part; follows from fold if there is one
    test_fraction = default_test_fraction(split, fold)
    # stratify by class: every part gets its share of every class
    stratify = True
    # seed of the split; None uses the experiment's seed, and 0 for folds, so that all runs have the same folds
    split_seed: int | None = None
    # part of the training data that evaluate, predict and export use: test, val, train, all
    part: Literal["test", "val", "train", "all"] = "test"
    # allow a run that starts from another run's state to split the data differently
    new_split = False
    # normalise inputs by mean and deviation: standard (of the training part), imagenet (for colour images), none
    normalize: Literal["standard", "imagenet", "none"] = "standard"
    # normalise regression targets as well; metrics and predictions stay in the targets' own unit
    normalize_targets = True
    # height and width to resize images of a folder to, pixels; None keeps their size
    image_size: int | None = None
    # training samples of an epoch: None (all, shuffled), sequential, weighted, balanced (by class), by_length (batches
    # of similar length), or package.module:Class, which works like torch's Sampler
    sampler: str | None = None
    # arguments of your own sampler
    sampler_options: dict[str, Any] = {}
    # sampling weights for sampler=weighted: column of a csv, array of an npz, key of dict samples, or dataset attribute
    weights: str | None = None
    # samples in a training epoch; None uses every sample once
    epoch_samples: int | None = None
    check_options(
        name,
        path=path,
        target=target,
        columns=columns,
        categorical=categorical,
        encoding=encoding,
        missing=missing,
        na_values=na_values,
        csv=csv,
        split=split,
        dtype=dtype,
        options=options,
        image_size=image_size,
        collate=collate,
        weights=weights,
    )
    # transforms of images, in order: names, or dicts with a name and options, such as {"name": "resize", "size": 32}
    transforms: list = []
    # random changes to training images
    augment = {
        # mirror left and right
        "flip": False,
        # shift by up to this many pixels
        "crop": 0,
        # rotate by up to this many degrees
        "rotate": 0.0,
    }
    # samples to shuffle a stream or tar files among; 0 keeps a stream's order and shuffles tar files completely
    shuffle_buffer = 0
    # samples in a batch; with amp.accumulate above 1, in a micro-batch
    batch_size = 64
    # leave out a smaller last training batch
    drop_last = False
    # keep data in the device's memory: None (arrays that take at most half of it), True (images too), False (nothing)
    in_memory: bool | None = None
    # worker processes that read data; 0 reads in the main process
    num_workers = 0
    # read batches into page-locked memory, which is faster to copy to a GPU
    pin_memory = True


config.legacy(name="")  # an experiment without this ingredient has other data


# What the training of the checkpoint did with the samples of a part of its data.
_ORIGINS = {
    "test": "the checkpoint was not trained on them",
    "val": "the epoch of the checkpoint was chosen by them",
    "train": "the checkpoint was trained on them",
    "all": "the checkpoint was trained on its training part of them",
}


@ingredient.check
def check_config(config: Map) -> None:
    """Reject missing data and invalid settings before anything is read."""
    check_source(config.name, config.path)
    check_split(config)
    check_csv(config.csv)
    _collate_of(config)
    if config.transforms:
        from sacristan.ingredients.datasets.transforms import parse

        parse(to_plain(config.transforms))
    if config.missing == "fill" and config.normalize != "standard":
        raise DataError(
            f"data.missing=fill: got data.normalize={config.normalize}, expected standard, which provides the means"
        )
    _check_sampler(config)
    for name, least in _LEAST.items():
        if config[name] is not None and config[name] < least:
            raise DataError(f"data.{name}: got {config[name]}, expected at least {least}")


def _check_sampler(config: Map) -> None:
    from sacristan.ingredients.datasets.epochs import SAMPLERS, sampler_class

    if (config.sampler == "weighted") != (config.weights is not None):
        raise DataError(
            f"data.sampler: got {config.sampler} with data.weights={config.weights}, expected data.sampler=weighted "
            "with data.weights=NAME, or neither"
        )
    if config.sampler not in (None, *SAMPLERS):
        sampler_class(config.sampler, config.sampler_options)
        if config.epoch_samples is not None:
            raise DataError(
                f"data.epoch_samples: got {config.epoch_samples} with data.sampler={config.sampler}, which determines "
                "the number of samples in an epoch itself; leave it at None"
            )
    elif config.sampler_options:
        raise DataError(
            f"data.sampler_options: got {to_plain(config.sampler_options)}, but data.sampler={config.sampler} "
            "takes none; name a class with data.sampler"
        )


@ingredient.named_config
def fast() -> None:
    """A few hundred samples, to try things out."""
    limit = 300
    batch_size = 32


@ingredient.capture
def make_data(seed: int, device: torch.device, _config: Map, _run: Any, start: Split | None = None) -> Data:
    """Load, split and batch the configured data; record their fingerprint and split in the run's info.

    Args:
        seed: Seed of the experiment.
        device: Device of the batches.
        start: Split of the state that training starts from, see `checkpoint.load_split`. The data are split the same
            way whatever the seed, so that no training sample of that state is tested on.

    Returns:
        The batches of the training, validation and test parts, and what a model and a loss need to know of the data.

    Raises:
        DataError: If the data are missing, empty, unfit to train on, or not those of the run that is reproduced; or if
            the config describes another split than `start`, unless `data.new_split` allows it.

    Example:
        batches = data.make_data(seed, where)
        for inputs, targets in batches.train.epoch(1):
            print(inputs.shape, targets.shape)
    """
    from sacristan.ingredients.datasets.batches import make_batches

    ranks = current()
    with ranks.first_on_node():
        fingerprints = {_expected(getattr(_run, "expected_data", None)), None if start is None else start.data}
        prepared = load(_config, seed, start=None if _config.new_split else start, earlier=fingerprints)
    _check_data(prepared, ranks, _config, _run)
    split = prepared.preparation.split
    recorded: dict[str, Any] = {"seed": split.split_seed, "digest": split.digest}
    if start is not None:
        recorded |= {"is_new": _config.new_split, "differs_from_start": split.warn_of_new(start)}
    batches = make_batches(prepared, _config, seed, device, ranks)
    parts = {name: getattr(batches, name).num_samples for name in ("train", "val", "test")}
    _run.info["data"] = {**_identity(prepared, _config), "parts": parts, "split": recorded}
    return batches


@ingredient.capture
def make_test_data(
    seed: int,
    device: torch.device,
    preparation: Preparation | None,
    _config: Map,
    _run: Any,
    needs_targets: bool = True,
) -> Data:
    """Load the configured data to test a model on, prepared as its training data were.

    The data that the model was trained on are split as in training, and `data.part` selects the part, by default test.
    Other data are used whole, or that part of them if they are split already. The log and the run's info say which.

    Args:
        seed: Seed of the experiment.
        device: Device of the batches.
        preparation: Preparation of the model, see `checkpoint.load_preparation`; without it, data are prepared and
            split as configured.
        needs_targets: Whether every sample must have a target that the model knows.

    Returns:
        Data with the selected samples in `test`; `train` and `val` are empty if there is a preparation.

    Raises:
        DataError: If the data are missing, empty, or have other inputs or classes than the training data.

    Example:
        preparation = checkpoint.load_preparation() if _config.checkpoint.path else None
        batches = data.make_test_data(seed, where, preparation)
    """
    from sacristan.ingredients.datasets.batches import make_batches

    if preparation is None:
        if _config.part != "test":
            raise DataError(f"data.part: got {_config.part}, but the checkpoint does not hold the split of its data")
        return make_data(seed, device)
    ranks = current()
    with ranks.first_on_node():
        source = _load_source(_config, preparation.split.seed, preparation, needs_targets=needs_targets)
        prepared = prepare_alike(source, preparation, _config, seed, needs_targets=needs_targets)
    _check_data(prepared, ranks, _config, _run)
    batches = make_batches(prepared, _config, seed, device, ranks)
    is_same = prepared.fingerprint == preparation.split.data
    tested = batches.test.num_samples
    total = len(prepared.names) or tested
    is_all = _config.part == "all" or (tested == total and not is_same)
    part = "all" if is_all else f"the {_config.part} part"
    origin = _ORIGINS["all" if is_all else _config.part] if is_same else "the checkpoint was trained on other data"
    _log.info("testing on %s of %s: %d of %d samples; %s", part, _where(_config), tested, total, origin)
    counts = {"part": _config.part, "tested": tested, "samples": total, "trained_on": preparation.split.data}
    _run.info["data"] = {**_identity(prepared, _config), **counts}
    return batches


def _identity(prepared: Prepared, config: Map) -> dict[str, Any]:
    return {"name": config.name, "fingerprint": prepared.fingerprint, "task": prepared.preparation.task}


def _check_data(prepared: Prepared, ranks: Ranks, config: Map, run: Any) -> None:
    """Reject data that differ between ranks (nodes may have different files) or from those of a recorded run."""
    identities = ranks.gather((prepared.fingerprint, prepared.preparation.split.digest))
    differing = [rank for rank, identity in enumerate(identities) if identity != identities[0]]
    if differing:
        raise DataError(
            f"data: rank {differing[0]} has other data, or another split of them, than rank 0 (fingerprints "
            f"{identities[differing[0]][0][:12]} and {identities[0][0][:12]}); give all nodes the same files"
        )
    refuse_other_data(prepared.fingerprint, config, getattr(run, "expected_data", None))


def _expected(recorded: str | None) -> str | None:
    """Return the fingerprint of the data of the run that is resumed, else reproduced; None without one."""
    return recorded or os.environ.get(EXPECT_DATA_VARIABLE)


def refuse_other_data(fingerprint: str, config: Map, expected: str | None = None) -> None:
    """Reject data other than `expected`, the resumed run's fingerprint, or `SACRISTAN_EXPECT_DATA`."""
    expected = _expected(expected)
    if expected and expected != fingerprint:
        raise DataError(
            f"{_where(config)}: got data with the fingerprint {fingerprint[:12]}, expected {expected[:12]} as in the "
            "recorded run: the content has changed; restore the recorded data"
        )


def _where(config: Map) -> str:
    return f"data.path={config.path}" if config.path else f"data.name={config.name}"


@ingredient.command(unobserved=True)
def stats(_config: Map, _run: Any) -> None:
    """Show count, classes or targets, mean, deviation and missing values of each split, and the fingerprint."""
    seed = _run.config["seed"]
    try:
        description = describe(load(_config, seed, strict=False))
    except DataError:
        check_source(_config.name, _config.path)
        rows = None if _config.path is None else survey(_config.name, _config.path, _config.csv)
        if rows is not None:
            print(_config.path)
            print_table(rows[0], rows[1:])
        raise
    print_stats(_config.name, description)
    try:
        load(_config, seed)
    except DataError as error:
        print(f"cannot train on these data: {error}")


def load(
    config: Map, seed: int, *, start: Split | None = None, strict: bool = True, earlier: Collection[str | None] = ()
) -> Prepared:
    """Load the configured data, split and normalised; see `preparation.prepare`. `start` is a split to repeat."""
    split = Split.of(config, seed)
    if start is not None:
        start.check(config)
        split = dataclasses.replace(start, data=None, digest=None)
    source = _load_source(config, split.seed)
    prepared = prepare(source, config, seed, split=split, strict=strict, earlier=earlier)
    if start is not None:
        prepared.preparation.split.check_start(start, _where(config))
    return prepared


def _load_source(config: Map, seed: int, trained: Preparation | None = None, *, needs_targets: bool = True) -> Source:
    settings = {name: config[name] for name in _OF_SOURCES}
    return load_source(**settings, seed=seed, trained=trained, collate=_collate_of(config), needs_targets=needs_targets)


def _collate_of(config: Map) -> Callable[[list], Any] | None:
    if config.collate is None:
        if config.collate_options:
            raise DataError(
                f"data.collate_options: got {to_plain(config.collate_options)}, but data.collate=None takes none; name "
                "a function with data.collate"
            )
        return None
    from sacristan.ingredients.datasets.collating import collate_function

    return collate_function(config.collate, to_plain(config.collate_options))


def print_stats(name: str, stats: dict[str, Any]) -> None:
    """Print the result of `describe` as tables."""
    shape = "x".join(map(str, stats["input_shape"]))
    print(f"{name}: {stats['task']}, inputs {shape} {stats['dtype']}, sha256 {stats['fingerprint']}")
    has_moments = any(not math.isnan(row["mean"]) for row in stats["splits"].values())
    rows = []
    for split, row in stats["splits"].items():
        moments = [f"{row['mean']:z.4f}", f"{row['std']:.4f}", row["missing"]] if has_moments else []
        rows.append([split, row["count"], _shown_targets(stats, row), *moments])
    print_table(["split", "count", "targets", *(("mean", "std", "missing") if has_moments else ())], rows)
    splits = list(stats["splits"].values())
    if all("classes" in row for row in splits):
        balance = [[name, *(row["classes"][k] for row in splits)] for k, name in enumerate(stats["classes"])]
        print_table(["class", *stats["splits"]], balance)


def _shown_targets(stats: dict[str, Any], row: dict[str, Any]) -> str:
    if stats["task"] == "regression":
        return "{:.4g} to {:.4g}".format(*row["targets"]) if row["count"] else "none"
    return f"{len(stats['classes'])} classes" if stats["classes"] else "none"
