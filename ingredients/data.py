"""Ingredient `data`: real data, split, normalised, augmented and batched repeatably."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from configs import Map
from ingredients.config.ingredient import Ingredient
from ingredients.datasets.preparation import Prepared, describe, prepare
from ingredients.datasets.sources import Task, load_source
from ingredients.errors import DataError
from observers.record.identity import EXPECT_DATA_VARIABLE

if TYPE_CHECKING:
    import torch

    from ingredients.datasets.batches import Data

__all__ = ["ingredient", "load", "make_data"]

ingredient = Ingredient("data")


@ingredient.config
def config() -> None:
    # digits, breast_cancer, wine, diabetes, npz, csv, idx, image_folder, torchvision:NAME or package.module:factory
    name = "digits"
    # file or folder that npz, csv, idx, image_folder and torchvision read
    path: str | None = None
    # target column or columns of a csv; None takes the last
    target: str | list[str] | None = None
    # arguments of the factory or of torchvision's class
    options: dict[str, Any] = {}
    # auto reads it off the targets: text, bools and ints are classes, floats are numbers
    task: Task = "auto"
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
    # standard: subtract the mean and divide by the deviation of the training part; none
    normalize: Literal["standard", "none"] = "standard"
    # do the same with regression targets; metrics stay in the targets' own unit
    normalize_targets = True
    # height and width that images of a folder are resized to, pixels; None keeps their size
    image_size: int | None = None
    # random changes to training images
    augment = {
        # mirror left and right
        "flip": False,
        # shift by up to so many pixels
        "crop": 0,
        # rotate by up to so many degrees
        "rotate": 0.0,
    }
    # samples in a batch (a micro-batch, where amp.accumulate is above 1)
    batch_size = 64
    # leave out a last training batch with fewer samples
    drop_last = False
    # processes that read data which are not in memory; 0 reads in the main process
    num_workers = 0
    # read batches into page-locked memory, for quicker copies to a GPU
    pin_memory = True


@ingredient.named_config
def fast() -> None:
    """A few hundred samples, to try things out."""
    limit = 300
    batch_size = 32


@ingredient.capture
def make_data(seed: int, device: torch.device, _config: Map, _run: Any) -> Data:
    """Return the configured data as batches on `device`; their fingerprint goes into the run's info.

    Raises:
        DataError: If they are missing, empty, cannot be trained on, or not those of the run that is reproduced.

    Example:
        batches = data.make_data(seed, where)
        for inputs, targets in batches.train.epoch(1):
            print(inputs.shape, targets.shape)
    """
    from ingredients.datasets.batches import make_batches

    prepared = load(_config, seed)
    refuse_other_data(prepared.fingerprint, _config, getattr(_run, "expected_data", None))
    data = make_batches(prepared, _config, seed, device)
    _run.info["data"] = {"name": _config.name, "fingerprint": data.fingerprint}
    return data


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
        where = f"data.path={config.path}" if config.path else f"data.name={config.name}"
        raise DataError(
            f"{where}: got data with the fingerprint {fingerprint[:12]}, expected {expected[:12]} as in the recorded "
            "run: the content has changed; put back what it was"
        )


@ingredient.command(unobserved=True)
def stats(_config: Map, _run: Any) -> None:
    """Show per split the count, classes or targets, mean, deviation and missing values, and the fingerprint."""
    print_stats(_config.name, describe(load(_config, _run.config["seed"], strict=False)))


def load(config: Map, seed: int, *, strict: bool = True) -> Prepared:
    """Return the data of a config, split and normalised; see `preparation.prepare`."""
    source = load_source(config.name, config.path, config.target, config.image_size, config.options, seed)
    return prepare(source, config, seed, strict=strict)


def print_stats(name: str, stats: dict) -> None:
    """Print what `preparation.describe` found as tables."""
    from ingredients.config.tables import print_table

    shape = "x".join(map(str, stats["input_shape"]))
    print(f"{name}: {stats['task']}, inputs {shape} {stats['dtype']}, sha256 {stats['fingerprint']}")
    rows = []
    for split, row in stats["splits"].items():
        if stats["task"] == "regression":
            low_high = "{:.4g} to {:.4g}".format(*row["targets"]) if row["count"] else "none"
        else:
            low_high = f"{len(stats['classes'])} classes"
        rows.append([split, row["count"], low_high, f"{row['mean']:z.4f}", f"{row['std']:.4f}", row["missing"]])
    print_table(["split", "count", "targets", "mean", "std", "missing"], rows)
    if stats["classes"]:
        splits = list(stats["splits"].values())
        balance = [[name, *(row["classes"][k] for row in splits)] for k, name in enumerate(stats["classes"])]
        print_table(["class", *stats["splits"]], balance)
