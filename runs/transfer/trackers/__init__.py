"""Readers of other trackers' files; see `sacristan.runs.transfer.trackers.foreign_run`.

A package of your own adds a reader by an entry point of the group `sacristan.readers` that names its module.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import ForeignError
from sacristan.runs.transfer.trackers.source_files import is_database, open_database, table_columns

if TYPE_CHECKING:
    from sacristan.runs.transfer.trackers.foreign_run import Reader

__all__ = ["READERS", "is_known", "others_at", "reader_for", "readers"]

# The module of each kind. Kinds whose files lie among those of others come last.
READERS = {
    "mlflow": "mlflow_stores",
    "wandb": "wandb_files",
    "wandb-hosted": "wandb_hosted",
    "aim": "aim_repositories",
    "comet": "comet_files",
    "clearml": "clearml_files",
    "neptune": "neptune_exports",
    "trackio": "trackio_databases",
    "hydra": "hydra_outputs",
    "dvclive": "dvclive_folders",
    "tensorboard": "event_files",
    "csv": "csv_files",
}

# Those whose folders lie side by side in a project.
_STORES = ("mlflow", "wandb", "aim")


def readers() -> dict[str, Reader]:
    """Return all readers by kind: the lab's, and those of entry points."""
    by_kind = {kind: _load(f"{__name__}.{module}") for kind, module in READERS.items()}
    for point in entry_points(group="sacristan.readers"):
        by_kind[point.name] = cast("Reader", point.load())
    return by_kind


def reader_for(path: Path, kind: str | None = None) -> Reader:
    """Return the reader of a kind, or without one the reader that recognizes a file or folder."""
    by_kind = readers()
    if kind is not None:
        if kind not in by_kind:
            hint = word_suggestion(kind, by_kind, "or leave --from out")
            raise ForeignError(f"got the kind {kind!r}, expected one of {', '.join(by_kind)}; {hint}")
        return by_kind[kind]
    if not path.exists():
        raise ForeignError(f"{path}: there is no such file or folder")
    for reader in by_kind.values():
        if reader.recognizes(path):
            return reader
    if is_database(path):
        with open_database(path) as database:  # raises an error that says so if it is damaged
            table_columns(database)
    raise ForeignError(
        f"{path} holds no runs of a known tracker; expected an archive of runs or one of: {', '.join(by_kind)}. "
        "Name the folder that holds them, or choose a kind with --from"
    )


def others_at(path: Path) -> list[str]:
    """Return the other trackers, besides the one that `reader_for` chooses, with a store of their own in a folder."""
    chosen = reader_for(path).KIND
    return [kind for kind in _STORES if kind != chosen and _load(f"{__name__}.{READERS[kind]}").recognizes(path)]


def is_known(path: Path) -> bool:
    """Tell whether a reader recognizes a file or folder."""
    return any(reader.recognizes(path) for reader in readers().values())


def _load(module: str) -> Reader:
    return cast("Reader", importlib.import_module(module))
