"""What writes a run down: a journal on the local disk first, MongoDB fed from it.

`FileObserver` and `MongoObserver` take the place of Sacred's FileStorageObserver and MongoObserver.
`observers.record.schema` says what a record looks like; it and `observers.mongo.delivery` are read by `runs` too, so
nothing is loaded before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ArtifactError": "observers.artifacts.version",
    "ArtifactStore": "observers.artifacts.store",
    "Figure": "observers.media.kinds",
    "FileObserver": "observers.file.observer",
    "Histogram": "observers.media.kinds",
    "Image": "observers.media.kinds",
    "MongoObserver": "observers.mongo.observer",
    "Table": "observers.media.table",
    "TensorBoardObserver": "observers.tensorboard.observer",
    "Text": "observers.media.kinds",
    "file_observer": "observers.file.attaching",
    "run_folder": "observers.file.attaching",
}

__all__ = [
    "ArtifactError",
    "ArtifactStore",
    "Figure",
    "FileObserver",
    "Histogram",
    "Image",
    "MongoObserver",
    "Table",
    "TensorBoardObserver",
    "Text",
    "file_observer",
    "run_folder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'observers' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
