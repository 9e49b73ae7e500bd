"""What writes a run down: a journal on the local disk first, MongoDB fed from it.

`FileObserver` and `MongoObserver` take the place of Sacred's FileStorageObserver and MongoObserver.
`observers.schema` says what a record looks like; it and `observers.delivery` are read by `runs` too, so nothing is
loaded before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ArtifactError": "observers.artifact_version",
    "ArtifactStore": "observers.artifacts",
    "Figure": "observers.media",
    "FileObserver": "observers.files",
    "Histogram": "observers.media",
    "Image": "observers.media",
    "MongoObserver": "observers.mongo",
    "Table": "observers.media_table",
    "TensorBoardObserver": "observers.tensorboard",
    "Text": "observers.media",
    "file_observer": "observers.attaching",
    "run_folder": "observers.attaching",
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
