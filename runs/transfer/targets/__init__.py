"""Writers of runs to other trackers; see `runs.transfer.targets.target`."""

from __future__ import annotations

import importlib
from typing import cast

from runs.transfer.targets.target import TargetModule

__all__ = ["TARGETS", "target_of"]

# The module of each kind.
TARGETS = {"tensorboard": "event_folders", "mlflow": "mlflow_client"}


def target_of(kind: str) -> TargetModule:
    """Return the writer of a kind.

    Args:
        kind: A key of `TARGETS`.

    Raises:
        MissingExtraError: If the package that it needs is not installed.
    """
    return cast(TargetModule, importlib.import_module(f"{__name__}.{TARGETS[kind]}"))
