"""The errors of ingredients and experiments: what was got, what was expected, what to do next, in one sentence.

LabError                        the root: catch it for all that follows; a SacredError
├── ConfigError                 a setting is of the wrong type or out of its choices; a ValueError
│   ├── UnknownEntryError       there is no such entry
│   ├── UnknownNamedConfigError there is no such named config or config file
│   ├── MissingConfigFileError  a config file that `add_config` names is not there; a FileNotFoundError
│   └── MissingEntryError       a captured function takes what neither the config nor its caller gives
├── DataError                   the data are missing, empty, or cannot be trained on; a ValueError
├── ModelError                  the model cannot be built, or does not fit the data; a ValueError
├── LossError                   the loss does not fit the task or the targets; a ValueError
├── OptimizerError              the optimizer or its parameter groups cannot be built; a ValueError
├── SchedulerError              the learning-rate schedule cannot be built; a ValueError
├── PrecisionError              the requested mixed precision is not available; a ValueError
├── DeviceError                 the device does not exist here; a ValueError
├── TrainingError               the training has diverged: NaN, infinity, or ranks apart; an ArithmeticError
├── CheckpointError             a checkpoint is missing, damaged, or does not fit; a ValueError
├── RankError                   another process of the same training has failed or gone; a RuntimeError
├── ConcurrentRunError          two runs of one process would mix, or one trial of a sweep run twice; a RuntimeError
└── MissingDependencyError      an optional package is not installed; an ImportError

An error that replaces one of Sacred's is also one of those, so that existing `except` clauses work:

    ConfigError                 sacred.utils.ConfigError
    UnknownEntryError           sacred.utils.ConfigAddedError
    UnknownNamedConfigError     sacred.utils.NamedConfigNotFoundError
    MissingEntryError           sacred.utils.MissingConfigError

Of Sacred's others, `InvalidConfigError`, `SacredInterrupt` and `TimeoutInterrupt` are for experiments to raise, and
`SignatureError`, `CircularDependencyError` and `ObserverError` stay its own.

`experiments.Terminated`, by which a signal ends a run, stands outside: it is a KeyboardInterrupt, so that no
`except Exception` holds it up; `Replayed`, by which `replay` ends a training, never leaves that
command. Modules of torch, such as `MLP` and `FocalLoss`, raise ValueError as torch's own do;
built from a config, that becomes a ModelError or LossError that names the entry.
"""

from __future__ import annotations

from typing import Any

import sacred.utils

__all__ = [
    "CheckpointError",
    "ConcurrentRunError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "LabError",
    "LossError",
    "MissingConfigFileError",
    "MissingDependencyError",
    "MissingEntryError",
    "ModelError",
    "OptimizerError",
    "PrecisionError",
    "RankError",
    "SchedulerError",
    "TrainingError",
    "UnknownEntryError",
    "UnknownNamedConfigError",
]


class LabError(sacred.utils.SacredError):
    """The root: a message for the person at the terminal, saying what to do next; Sacred prints no traceback."""

    def __init__(self, message: str) -> None:
        # Not by super(): constructors of Sacred's errors below take other arguments.
        sacred.utils.SacredError.__init__(self, message, print_traceback=False)


class ConfigError(LabError, sacred.utils.ConfigError, ValueError):
    """A setting is of the wrong type, or not among its choices."""

    # What Sacred's constructors set; the message says all of it already.
    print_conflicting_configs = False
    print_suggestions = False
    captured_args = ()
    __conflicting_configs__ = ()
    __prefix_handled__ = True
    __config__: dict[str, Any] = {}  # noqa: RUF012 - never written to


class UnknownEntryError(ConfigError, sacred.utils.ConfigAddedError):
    """A setting was given that the config has no entry for."""


class UnknownNamedConfigError(ConfigError, sacred.utils.NamedConfigNotFoundError):
    """A named config, or a config file, was given that does not exist."""


class MissingConfigFileError(ConfigError, FileNotFoundError):
    """A config file does not exist; also an OSError, as Sacred's `add_config` raises."""


class MissingEntryError(ConfigError, sacred.utils.MissingConfigError):
    """A captured function takes an argument that neither the config nor its caller gives a value."""


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
    """The requested mixed precision is not available."""


class DeviceError(LabError, ValueError):
    """The device asked for does not exist on this machine."""


class TrainingError(LabError, ArithmeticError):
    """The training has diverged: its loss or its weights are NaN or infinite, or weights differ between ranks.

    Attributes:
        step: The step at which that was seen; None if it is not known.
    """

    step: int | None = None


class CheckpointError(LabError, ValueError):
    """A checkpoint is missing, damaged, or does not fit."""


class RankError(LabError, RuntimeError):
    """Another rank, a process of the same training, has failed, or is gone.

    Attributes:
        rank: Its number; None if it is not known.
        status: How it ended: FAILED or INTERRUPTED.
        reason: Its error, or the signal that ended it.
    """

    def __init__(self, message: str, rank: int | None = None, status: str = "FAILED", reason: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.status = status
        self.reason = reason


class ConcurrentRunError(LabError, RuntimeError):
    """Another thread of this process runs an experiment, or a run shares the observers of the one that starts it."""


class MissingDependencyError(LabError, ImportError):
    """An optional package is needed and not installed; the message names the extra."""
