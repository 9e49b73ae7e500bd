"""Ingredients that experiments are composed of.

Each module holds one ingredient, called `ingredient`, with its config and its captured builders `make_*`: `data`,
`model`, `loss`, `metrics`, `optimizer`, `scheduler`, `amp`, `device`, `distributed`, `training`, `checkpoint`,
`exporting`, `probe`, `sweep`. None of them imports torch before something is built. `Ingredient` is the class to write
one's own with.

What the builders return (`Data`, `Loss`, `MixedPrecision`, `Schedule`, `Checkpointer`), the networks and the named
random streams are exported as well, for annotations and for your own loop. Each is loaded when it is first used.
Every error is a `LabError`; `sacristan.ingredients.errors` draws the tree.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if "." not in __name__:  # imported by its old name, from a checkout
    from sacristan.old_names import forward

    forward(__name__)

from sacristan.configs.importing import import_sacred

# Before anything here imports it.
import_sacred()

from sacristan.ingredients.config.threads import let_threads_sleep
from sacristan.ingredients.errors import (
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

# Before anything imports torch.
let_threads_sleep()

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
    "TrainingSettings",
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
    from sacristan.ingredients import (
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
    from sacristan.ingredients.checkpoints import Checkpointer
    from sacristan.ingredients.checkpoints.training_state import Place
    from sacristan.ingredients.config.ingredient import Ingredient
    from sacristan.ingredients.config.seed import global_stream, numpy_stream, seed_globals, stream_seed, torch_stream
    from sacristan.ingredients.datasets.batches import Batches, Data, LoaderBatches, TensorBatches
    from sacristan.ingredients.datasets.collating import Padded
    from sacristan.ingredients.datasets.samples import Source
    from sacristan.ingredients.losses import Loss
    from sacristan.ingredients.losses.modules import FocalLoss
    from sacristan.ingredients.models.networks import CNN, MLP, ViT
    from sacristan.ingredients.precision import MixedPrecision
    from sacristan.ingredients.scheduler import Schedule
    from sacristan.ingredients.training import TrainingSettings
else:
    _NAMES = {
        "sacristan.ingredients.checkpoints": "Checkpointer",
        "sacristan.ingredients.checkpoints.training_state": "Place",
        "sacristan.ingredients.config.ingredient": "Ingredient",
        "sacristan.ingredients.config.seed": "global_stream numpy_stream seed_globals stream_seed torch_stream",
        "sacristan.ingredients.datasets.batches": "Batches Data LoaderBatches TensorBatches",
        "sacristan.ingredients.datasets.collating": "Padded",
        "sacristan.ingredients.datasets.samples": "Source",
        "sacristan.ingredients.losses": "Loss",
        "sacristan.ingredients.losses.modules": "FocalLoss",
        "sacristan.ingredients.models.networks": "CNN MLP ViT",
        "sacristan.ingredients.precision": "MixedPrecision",
        "sacristan.ingredients.scheduler": "Schedule",
        "sacristan.ingredients.training": "TrainingSettings",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in __all__:
            return importlib.import_module(f"sacristan.ingredients.{name}")
        raise AttributeError(f"module 'sacristan.ingredients' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
