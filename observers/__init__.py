"""Recording of runs: a journal on the local disk first, MongoDB and TensorBoard beside it.

    from sacristan.observers import FileObserver, Image, MongoObserver

`FileObserver` and `MongoObserver` are subclasses of Sacred's FileStorageObserver and MongoObserver. `Image`,
`Table` and so on, listed in `sacristan.observers.media`, are what a run can log beside numbers.
`ArtifactStore` has the artifacts of a folder of runs. `read_metrics`, `read_media` and `read_table` read a run's folder
back. The protocols say what an observer of your own may implement beyond Sacred's events. Every error is an
`ObserversError`; `sacristan.observers.errors` draws the tree.

Nothing but the errors is loaded before it is asked for, because `runs` reads records without Sacred.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if "." not in __name__:  # imported by its old name, from a checkout
    from sacristan.old_names import forward

    forward(__name__)

from sacristan.observers import media
from sacristan.observers.errors import (
    ArtifactDamagedError,
    ArtifactError,
    ArtifactMovedError,
    ArtifactNotFoundError,
    DestinationError,
    MediaError,
    MissingExtraError,
    NotifyError,
    ObserversError,
    RecordError,
    ReservedNameError,
    ResumeError,
    SealError,
)

__all__ = [
    "ArtifactDamagedError",
    "ArtifactError",
    "ArtifactFile",
    "ArtifactMovedError",
    "ArtifactNotFoundError",
    "ArtifactStore",
    "ArtifactVersion",
    "BufferedObserver",
    "DestinationError",
    "FileObserver",
    "GraphObserver",
    "Lineage",
    "MediaEntry",
    "MediaError",
    "MediaObserver",
    "MediaRecord",
    "MissingExtraError",
    "MongoObserver",
    "NotifyError",
    "ObserversError",
    "RecordError",
    "ReservedNameError",
    "ResumeError",
    "RewindableObserver",
    "SealError",
    "Series",
    "TensorBoardObserver",
    "file_observer",
    "read_media",
    "read_metrics",
    "read_table",
    "run_folder",
]

__all__ += media.__all__

if TYPE_CHECKING:
    from sacristan.observers.artifacts import ArtifactFile, ArtifactVersion
    from sacristan.observers.artifacts.store import ArtifactStore, Lineage
    from sacristan.observers.file.observer import FileObserver, file_observer, run_folder
    from sacristan.observers.media import *  # noqa: F403  # the kinds of media, listed there
    from sacristan.observers.mongo.observer import MongoObserver
    from sacristan.observers.record.interface import BufferedObserver, GraphObserver, MediaObserver, RewindableObserver
    from sacristan.observers.record.media_files import MediaEntry, MediaRecord, read_media, read_table
    from sacristan.observers.record.points import Series
    from sacristan.observers.record.points.intact_points import read_metrics
    from sacristan.observers.tensorboard.observer import TensorBoardObserver
else:
    _NAMES = {
        "sacristan.observers.artifacts.store": "ArtifactStore Lineage",
        "sacristan.observers.artifacts": "ArtifactFile ArtifactVersion",
        "sacristan.observers.file.observer": "FileObserver file_observer run_folder",
        "sacristan.observers.mongo.observer": "MongoObserver",
        "sacristan.observers.record.media_files": "MediaEntry MediaRecord read_media read_table",
        "sacristan.observers.record.points.intact_points": "read_metrics",
        "sacristan.observers.record.points": "Series",
        "sacristan.observers.record.interface": "BufferedObserver GraphObserver MediaObserver RewindableObserver",
        "sacristan.observers.tensorboard.observer": "TensorBoardObserver",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()} | media.HOMES

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'sacristan.observers' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
