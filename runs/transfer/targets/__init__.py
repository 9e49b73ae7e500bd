"""Writers of runs to other trackers; see `sacristan.runs.transfer.targets.target`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import cast

from sacristan.configs.installation import missing_package
from sacristan.runs.errors import MissingExtraError
from sacristan.runs.transfer.targets.target import TargetModule

__all__ = ["TARGETS", "target_of"]

# The module of each kind.
TARGETS = {"tensorboard": "event_folders", "mlflow": "mlflow_client", "wandb": "wandb_folders"}


def target_of(kind: str) -> TargetModule:
    """Return the writer of a kind of tracker; MissingExtraError means that its package is not installed."""
    module = cast(TargetModule, importlib.import_module(f"{__name__}.{TARGETS[kind]}"))
    for name in module.NEEDS:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(missing_package(f"export to {kind} needs", name, kind))
    return module
