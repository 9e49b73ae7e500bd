"""Ingredients that experiments are composed of.

Each module holds one ingredient, called `ingredient`, with its config and its captured builders `make_*`: `data`,
`model`, `loss`, `metrics`, `optimizer`, `scheduler`, `amp`, `device`, `distributed`, `training`, `checkpoint`,
`exporting`, `probe`, `sweep`. None of them imports torch before something is built. `Ingredient` is the class to write
one's own with.

What the builders return (`Data`, `Loss`, `MixedPrecision`, `Schedule`, `Checkpointer`), the networks and the named
random streams are exported as well, for annotations and for your own loop. Each is loaded when it is first used.
Every error is a `LabError`; `ingredients.errors` draws the tree.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if "configs.packages" not in sys.modules:  # by its path, because something may hide `configs`
    runpy.run_path(str(Path(__file__).parents[1] / "configs" / "packages.py"))

from configs.importing import import_sacred
from ingredients.config.threads import let_threads_sleep

# Before anything here imports it.
import_sacred()
# Before anything imports torch.
let_threads_sleep()

from ingredients.config.ingredient import Ingredient
from ingredients.errors import (
    CheckpointError,
    ConcurrentRunError,
    ConfigError,
    DataError,
    DeviceError,
    LabError,
    LossError,
    MissingConfigFileError,
    MissingDependencyError,
    MissingEntryError,
    ModelError,
    OptimizerError,
    PrecisionError,
    RankError,
    SchedulerError,
    TrainingError,
    UnknownEntryError,
    UnknownNamedConfigError,
)

__all__ = [
    "CNN",
    "MLP",
    "Batches",
    "CheckpointError",
    "Checkpointer",
    "ConcurrentRunError",
    "ConfigError",
    "Data",
    "DataError",
    "DeviceError",
    "FocalLoss",
    "Ingredient",
    "LabError",
    "LoaderBatches",
    "Loss",
    "LossError",
    "MissingConfigFileError",
    "MissingDependencyError",
    "MissingEntryError",
    "MixedPrecision",
    "ModelError",
    "OptimizerError",
    "Padded",
    "Place",
    "PrecisionError",
    "RankError",
    "Schedule",
    "SchedulerError",
    "Source",
    "TensorBatches",
    "TrainingError",
    "UnknownEntryError",
    "UnknownNamedConfigError",
    "ViT",
    "amp",
    "checkpoint",
    "data",
    "device",
    "distributed",
    "exporting",
    "global_stream",
    "loss",
    "metrics",
    "model",
    "numpy_stream",
    "optimizer",
    "scheduler",
    "seed_globals",
    "stream_seed",
    "torch_stream",
    "training",
]

if TYPE_CHECKING:
    from ingredients import (
        amp,
        checkpoint,
        data,
        device,
        distributed,
        exporting,
        loss,
        metrics,
        model,
        optimizer,
        scheduler,
        training,
    )
    from ingredients.checkpoints.checkpointer import Checkpointer
    from ingredients.checkpoints.training_state import Place
    from ingredients.config.seed import global_stream, numpy_stream, seed_globals, stream_seed, torch_stream
    from ingredients.datasets.batches import Batches, Data, LoaderBatches, TensorBatches
    from ingredients.datasets.collating import Padded
    from ingredients.datasets.samples import Source
    from ingredients.losses.building import Loss
    from ingredients.losses.modules import FocalLoss
    from ingredients.models.networks import CNN, MLP, ViT
    from ingredients.precision.mixed_precision import MixedPrecision
    from ingredients.scheduler import Schedule
else:
    _NAMES = {
        "ingredients.checkpoints.checkpointer": "Checkpointer",
        "ingredients.checkpoints.training_state": "Place",
        "ingredients.config.seed": "global_stream numpy_stream seed_globals stream_seed torch_stream",
        "ingredients.datasets.batches": "Batches Data LoaderBatches TensorBatches",
        "ingredients.datasets.collating": "Padded",
        "ingredients.datasets.samples": "Source",
        "ingredients.losses.building": "Loss",
        "ingredients.losses.modules": "FocalLoss",
        "ingredients.models.networks": "CNN MLP ViT",
        "ingredients.precision.mixed_precision": "MixedPrecision",
        "ingredients.scheduler": "Schedule",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in __all__:
            return importlib.import_module(f"ingredients.{name}")
        raise AttributeError(f"module 'ingredients' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
