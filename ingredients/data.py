"""Ingredient `data`: real data, split, normalised, augmented and batched repeatably."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from configs import Map, to_plain
from ingredients.config.ingredient import Ingredient
from ingredients.config.tables import print_table
from ingredients.datasets.description import describe
from ingredients.datasets.preparation import Prepared, prepare, prepare_alike
from ingredients.datasets.samples import Source, Task
from ingredients.datasets.sources import check_options, check_source, kind_of, load_source
from ingredients.datasets.splitting import Split, check_fractions
from ingredients.datasets.survey import survey
from ingredients.errors import DataError
from ingredients.ranks.group import Ranks, current
from observers.record.identity import EXPECT_DATA_VARIABLE

if TYPE_CHECKING:
    import torch

    from ingredients.datasets.batches import Data
    from ingredients.datasets.fitted import Preparation

__all__ = ["ingredient", "load", "make_data", "make_test_data"]

_log = logging.getLogger(__name__)

ingredient = Ingredient("data")

# Settings of how a source is read.
_OF_COLUMNS = ("columns", "categorical", "encoding", "missing", "na_values", "dtype", "task", "weights")


@ingredient.config
def config() -> None:
    # file or folder that npz, csv, idx, image_folder, tar, parquet, text, huggingface and torchvision read
    path: str | None = None
    # digits, npz, csv, text, idx, image_folder, tar, parquet, huggingface:NAME, ... (see the docs); by default by path
    name = kind_of(path)
    # target column or columns of a csv, None the last; of other tables, and samples that are dicts, None takes label
    target: str | list[str] | None = None
    # columns of a table to take for inputs, None all but the targets; of tar, endings of members that make up a sample
    columns: str | list[str] | None = None
    # columns of a csv that hold categories, which become an input of 0 or 1 for each value; auto takes those of text
    categorical: str | list[str] | None = None
    # what a category becomes: one_hot, or codes, a whole number for models with embeddings, 0 for an unknown one
    encoding: Literal["one_hot", "codes"] = "one_hot"
    # gaps of a csv: refuse, or fill: numbers take the training part's mean, and an input that tells; categories a value
    missing: Literal["refuse", "fill"] = "refuse"
    # texts of a csv that stand for a missing value, such as ["NA", "?"]; an empty cell always does
    na_values: list[str] = []
    # what inputs become: float32; int64 keeps whole numbers, such as ids of words, as they are and not normalised
    dtype: Literal["float32", "int64"] = "float32"
    # arguments of the factory or of torchvision's class
    options: dict[str, Any] = {}
    # auto reads it off the targets: text and ints are classes, floats are numbers; custom takes samples as they are
    task: Task = "auto"
    # what makes a batch of samples: None stacks them, pad pads sequences, list keeps lists, or package.module:function
    collate: str | None = None
    # further arguments of that, such as value and fields of pad
    collate_options: dict[str, Any] = {}
    # number of classes; None counts them, a number also checks that labels are 0 to N-1
    num_classes: int | None = None
    # keep only so many samples, drawn at random; None keeps all
    limit: int | None = None
    # share of all samples for validation, unless the data bring a validation part
    val_fraction = 0.15
    # share of all samples for the final test, unless the data bring a test part
    test_fraction = 0.15
    # give every part its share of every class
    stratify = True
    # seed of the split alone; None takes the experiment's
    split_seed: int | None = None
    # part that evaluate, predict and export take of the data that a checkpoint was trained on: test, val, train, all
    part: Literal["test", "val", "train", "all"] = "test"
    # let a run that starts from a state of another one split the data anew, and not as that one did
    new_split = False
    # standard: by mean and deviation of the training part; imagenet: by those of ImageNet, for images in colour; none
    normalize: Literal["standard", "imagenet", "none"] = "standard"
    # do the same with regression targets; metrics stay in the targets' own unit
    normalize_targets = True
    # height and width that images of a folder are resized to, pixels; None keeps their size
    image_size: int | None = None
    # training samples of an epoch: None all, shuffled; sequential; weighted; balanced by class; by_length, in batches
    # of like ones; or package.module:Class, as torch's Sampler
    sampler: str | None = None
    # further arguments of a sampler of one's own
    sampler_options: dict[str, Any] = {}
    # of weighted: column of a csv, array of an npz, key of samples that are dicts, or attribute of a dataset
    weights: str | None = None
    # samples of an epoch of training; None takes as many as there are
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
        dtype=dtype,
        options=options,
        image_size=image_size,
        collate=collate,
        weights=weights,
    )
    # transforms of images, in order: names, or dicts of a name and options, such as {"name": "resize", "size": 32}
    transforms: list = []
    # random changes to training images
    augment = {
        # mirror left and right
        "flip": False,
        # shift by up to so many pixels
        "crop": 0,
        # rotate by up to so many degrees
        "rotate": 0.0,
    }
    # samples that a stream, or tar files read in a row, are shuffled among; 0 keeps a stream's order, and shuffles tar
    shuffle_buffer = 0
    # samples in a batch (a micro-batch, where amp.accumulate is above 1)
    batch_size = 64
    # leave out a last training batch with fewer samples
    drop_last = False
    # None puts arrays into the device's memory where they fill half of it at most, True images, too, False nothing
    in_memory: bool | None = None
    # processes that read data which are not in memory; 0 reads in the main process
    num_workers = 0
    # read batches into page-locked memory, for quicker copies to a GPU
    pin_memory = True


@ingredient.check
def check_config(config: Map) -> None:
    """Refuse data that are not there, and parts and batches that cannot be, before anything is read."""
    check_source(config.name, config.path)
    check_fractions(config.val_fraction, config.test_fraction)
    _collate_of(config)
    if config.transforms:
        from ingredients.datasets.transforms import parse

        parse(to_plain(config.transforms))
    if config.missing == "fill" and config.normalize != "standard":
        raise DataError(
            f"data.missing=fill: got data.normalize={config.normalize}, expected standard, which knows the means"
        )
    _check_sampler(config)
    if (config.sampler == "weighted") != (config.weights is not None):
        raise DataError(
            f"data.sampler: got {config.sampler} with data.weights={config.weights}, expected data.sampler=weighted "
            "with data.weights=NAME, or neither"
        )
    for name, least in (
        ("batch_size", 1),
        ("num_workers", 0),
        ("limit", 1),
        ("epoch_samples", 1),
        ("shuffle_buffer", 0),
    ):
        if config[name] is not None and config[name] < least:
            raise DataError(f"data.{name}: got {config[name]}, expected at least {least}")


def _check_sampler(config: Map) -> None:
    from ingredients.datasets.own_sampler import SAMPLERS, sampler_class

    if config.sampler in (None, *SAMPLERS):
        if config.sampler_options:
            raise DataError(
                f"data.sampler_options: got {to_plain(config.sampler_options)}, but data.sampler={config.sampler} "
                "takes none; name a class with data.sampler"
            )
        return
    sampler_class(config.sampler, config.sampler_options)
    if config.epoch_samples is not None:
        raise DataError(
            f"data.epoch_samples: got {config.epoch_samples} with data.sampler={config.sampler}, which says itself how "
            "many samples an epoch has; leave it at None"
        )


@ingredient.named_config
def fast() -> None:
    """A few hundred samples, to try things out."""
    limit = 300
    batch_size = 32


@ingredient.capture
def make_data(seed: int, device: torch.device, _config: Map, _run: Any, start: Split | None = None) -> Data:
    """Return the configured data as batches on `device`; their fingerprint and split go into the run's info.

    Args:
        seed: Seed of the experiment.
        device: Where batches are wanted.
        start: The split of the state that the training starts from, see `checkpoint.load_split`. The data are split
            alike, whatever the seed, so that no sample of its training comes to be tested on.

    Raises:
        DataError: If they are missing, empty, cannot be trained on, or not those of the run that is reproduced; or if
            the config asks for another split than `start`, unless it has `new_split`.

    Example:
        batches = data.make_data(seed, where)
        for inputs, targets in batches.train.epoch(1):
            print(inputs.shape, targets.shape)
    """
    from ingredients.datasets.batches import make_batches

    ranks = current()
    with ranks.first_on_node():
        prepared = load(_config, seed, start=None if _config.new_split else start)
    _check_same_data(prepared, ranks)
    refuse_other_data(prepared.fingerprint, _config, getattr(_run, "expected_data", None))
    split = prepared.preparation.split
    told: dict[str, Any] = {"seed": split.split_seed, "digest": split.digest}
    if start is not None:
        told |= {"is_new": _config.new_split, "differs_from_start": split.told_from(start)}
    made = make_batches(prepared, _config, seed, device, ranks)
    parts = {name: getattr(made, name).num_samples for name in ("train", "val", "test")}
    of_data = {"name": _config.name, "fingerprint": prepared.fingerprint, "task": made.task}
    _run.info["data"] = {**of_data, "parts": parts, "split": told}
    return made


def _check_same_data(prepared: Prepared, ranks: Ranks) -> None:
    """Refuse ranks that have read different data, as nodes with files of their own may.

    Raises:
        DataError: If it is so.
    """
    split = None if prepared.preparation is None else prepared.preparation.split.digest
    found = ranks.gather((prepared.fingerprint, split))
    differing = [rank for rank, each in enumerate(found) if each != found[0]]
    if differing:
        raise DataError(
            f"data: rank {differing[0]} has other data, or another split of them, than rank 0 (fingerprints "
            f"{found[differing[0]][0][:12]} and {found[0][0][:12]}); give all nodes the same files"
        )


@ingredient.capture
def make_test_data(
    seed: int,
    device: torch.device,
    preparation: Preparation | None,
    _config: Map,
    _run: Any,
    needs_targets: bool = True,
) -> Data:
    """Return the configured data to test a model on, prepared as those that it was trained on.

    Of the data that it was trained on that is `data.part`, by default their test part, as it was split then; of others,
    all of them, or that part if they bring one. Which it is, is said, and goes into the run's info.

    Args:
        seed: Seed of the experiment.
        device: Where batches are wanted.
        preparation: What the model's data were prepared by, see `checkpoint.load_preparation`; without it, data are
            prepared and split as the config says.
        needs_targets: Whether each sample has to have a target that the model knows.

    Returns:
        Data whose parts `train` and `val` are empty, if there is a preparation.

    Raises:
        DataError: If they are missing, empty, or have other inputs or classes than those that the model was trained on.

    Example:
        preparation = checkpoint.load_preparation() if _config.checkpoint.path else None
        batches = data.make_test_data(seed, where, preparation)
    """
    from ingredients.datasets.batches import make_batches

    if preparation is None:
        if _config.part != "test":
            raise DataError(f"data.part: got {_config.part}, but the checkpoint does not tell how its data were split")
        return make_data(seed, device)
    ranks = current()
    with ranks.first_on_node():
        source = _load_source(_config, preparation.split.seed, preparation, needs_targets=needs_targets)
        prepared = prepare_alike(source, preparation, _config, seed, needs_targets=needs_targets)
    _check_same_data(prepared, ranks)
    refuse_other_data(prepared.fingerprint, _config, getattr(_run, "expected_data", None))
    made = make_batches(prepared, _config, seed, device, ranks)
    is_same = prepared.fingerprint == preparation.split.data
    tested = made.test.num_samples
    total = len(prepared.names) or tested
    is_all = _config.part == "all" or (tested == total and not is_same)
    part = "all" if is_all else f"the {_config.part} part"
    which = "the checkpoint was trained on these data" if is_same else "the checkpoint was trained on other data"
    _log.info("testing on %s of %s: %d of %d samples; %s", part, _where(_config), tested, total, which)
    _run.info["data"] = {"name": _config.name, "fingerprint": prepared.fingerprint, "task": made.task}
    _run.info["data"] |= {
        "part": _config.part,
        "tested": tested,
        "samples": total,
        "trained_on": preparation.split.data,
    }
    return made


def refuse_other_data(fingerprint: str, config: Map, expected: str | None = None) -> None:
    """Refuse data that are not those of the run that goes on, or is reproduced.

    Args:
        fingerprint: Of the data.
        config: The ingredient's.
        expected: Fingerprint in the record of the run that goes on; else that in `SACRISTAN_EXPECT_DATA` counts.

    Raises:
        DataError: If the two differ.
    """
    expected = expected or os.environ.get(EXPECT_DATA_VARIABLE)
    if expected and expected != fingerprint:
        raise DataError(
            f"{_where(config)}: got data with the fingerprint {fingerprint[:12]}, expected {expected[:12]} as in the "
            "recorded run: the content has changed; put back what it was"
        )


def _where(config: Map) -> str:
    return f"data.path={config.path}" if config.path else f"data.name={config.name}"


@ingredient.command(unobserved=True)
def stats(_config: Map, _run: Any) -> None:
    """Show per split the count, classes or targets, mean, deviation and missing values, and the fingerprint.

    Raises:
        DataError: If that cannot be told of them; a file is shown as it is before.
    """
    seed = _run.config["seed"]
    try:
        found = describe(load(_config, seed, strict=False))
    except DataError:
        check_source(_config.name, _config.path)
        rows = None if _config.path is None else survey(_config.name, _config.path)
        if rows is not None:
            print(_config.path)
            print_table(rows[0], rows[1:])
        raise
    print_stats(_config.name, found)
    try:
        load(_config, seed)
    except DataError as error:
        print(f"training on it is refused: {error}")


def load(config: Map, seed: int, *, start: Split | None = None, strict: bool = True) -> Prepared:
    """Return the data of a config, split and normalised; see `preparation.prepare`.

    Args:
        config: The ingredient's config.
        seed: Seed of the experiment.
        start: A split to take over; the data are to be the same ones.
        strict: Whether data that cannot be trained on are refused.

    Raises:
        DataError: If the data cannot be had, or `start` is not their split.
    """
    split = Split.of(config, seed)
    if start is not None:
        start.check(config)
        split = dataclasses.replace(start, data=None, digest=None)
    source = _load_source(config, split.seed)
    prepared = prepare(source, config, seed, split=split, strict=strict)
    if start is not None:
        prepared.preparation.split.check_start(start, _where(config))
    return prepared


def _load_source(config: Map, seed: int, trained: Preparation | None = None, *, needs_targets: bool = True) -> Source:
    given = (config.name, config.path, config.target, config.image_size, config.options)
    how = {name: config[name] for name in _OF_COLUMNS}
    how["collate"] = _collate_of(config)
    return load_source(*given, seed, trained, **how, needs_targets=needs_targets)


def _collate_of(config: Map) -> Callable[[list], Any] | None:
    """Return what makes a batch of samples, if the config says so."""
    if config.collate is None:
        if config.collate_options:
            raise DataError(
                f"data.collate_options: got {to_plain(config.collate_options)}, but data.collate=None takes none; name "
                "a function with data.collate"
            )
        return None
    from ingredients.datasets.collating import collate_function

    return collate_function(config.collate, to_plain(config.collate_options))


def print_stats(name: str, stats: dict) -> None:
    """Print what `preparation.describe` found as tables."""
    shape = "x".join(map(str, stats["input_shape"]))
    print(f"{name}: {stats['task']}, inputs {shape} {stats['dtype']}, sha256 {stats['fingerprint']}")
    # Codes of words, and samples of any structure, have none.
    has_moments = any(not math.isnan(row["mean"]) for row in stats["splits"].values())
    rows = []
    for split, row in stats["splits"].items():
        if stats["task"] == "regression":
            low_high = "{:.4g} to {:.4g}".format(*row["targets"]) if row["count"] else "none"
        else:
            low_high = f"{len(stats['classes'])} classes" if stats["classes"] else "none"
        moments = [f"{row['mean']:z.4f}", f"{row['std']:.4f}", row["missing"]] if has_moments else []
        rows.append([split, row["count"], low_high, *moments])
    print_table(["split", "count", "targets", *(("mean", "std", "missing") if has_moments else ())], rows)
    splits = list(stats["splits"].values())
    if all("classes" in row for row in splits):
        balance = [[name, *(row["classes"][k] for row in splits)] for k, name in enumerate(stats["classes"])]
        print_table(["class", *stats["splits"]], balance)
