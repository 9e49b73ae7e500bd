"""What can go wrong in a lab, as one tree.

LabError                    one clear sentence; Sacred prints it without a traceback
├── ConfigError             a setting is unknown, of the wrong type, or out of its choices
├── DataError               the data are missing, empty, or cannot be trained on
├── ModelError              the model cannot be built, or does not fit the data
├── LossError               the loss does not fit the task or the targets
├── OptimizerError          the optimizer or its parameter groups cannot be built
├── SchedulerError          the learning-rate schedule cannot be built
├── PrecisionError          mixed precision as asked for is not to be had
├── DeviceError             the device does not exist here
├── TrainingError           the training has diverged: its loss or its weights are NaN or infinite
├── CheckpointError         a checkpoint is missing, damaged, or does not fit
└── MissingDependencyError  an optional package is not installed
"""

from __future__ import annotations

from sacred.utils import SacredError

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "LabError",
    "LossError",
    "MissingDependencyError",
    "ModelError",
    "OptimizerError",
    "PrecisionError",
    "SchedulerError",
    "TrainingError",
]


class LabError(SacredError):
    """The root: a message for the person at the terminal, saying what to do next."""

    def __init__(self, message: str) -> None:
        super().__init__(message, print_traceback=False)


class ConfigError(LabError, ValueError):
    """A setting is unknown, of the wrong type, or not among its choices."""


class DataError(LabError, ValueError):
    """The data are missing, empty, or cannot be trained on as they are."""


class ModelError(LabError, ValueError):
    """The model cannot be built, or does not fit the data."""


class LossError(LabError, ValueError):
    """The loss does not fit the task or the targets."""


class OptimizerError(LabError, ValueError):
    """The optimizer or its parameter groups cannot be built."""


class SchedulerError(LabError, ValueError):
    """The learning-rate schedule cannot be built."""


class PrecisionError(LabError, ValueError):
    """Mixed precision as asked for is not to be had."""


class DeviceError(LabError, ValueError):
    """The device asked for does not exist on this machine."""


class TrainingError(LabError, ArithmeticError):
    """The training has diverged: its loss or its weights are NaN or infinite."""


class CheckpointError(LabError, ValueError):
    """A checkpoint is missing, damaged, or does not fit."""


class MissingDependencyError(LabError, ImportError):
    """An optional package is needed and not installed; the message names the extra."""
