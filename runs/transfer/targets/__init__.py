"""Writers of runs to other trackers; see `runs.transfer.targets.target`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import cast

from runs.errors import MissingExtraError
from runs.transfer.targets.target import TargetModule

__all__ = ["TARGETS", "target_of"]

# The module of each kind.
TARGETS = {"tensorboard": "event_folders", "mlflow": "mlflow_client", "wandb": "wandb_folders"}


def target_of(kind: str) -> TargetModule:
    """Return the writer of a kind.

    Args:
        kind: A key of `TARGETS`.

    Raises:
        MissingExtraError: If the package that it needs is not installed.
    """
    module = cast(TargetModule, importlib.import_module(f"{__name__}.{TARGETS[kind]}"))
    for name in module.NEEDS:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(
                f"export to {kind} needs the package {name!r}, which is not installed; "
                f"install it with: pip install 'sacristan[{kind}]'"
            )
    return module
