"""Sacristan: experiments in PyTorch, recorded so that each can be found, resumed and reproduced.

    import sacristan

    ex = sacristan.Experiment("mine")

    with sacristan.open_store("my_runs") as store:
        print(store.find(sort="-val/accuracy.max", limit=1))

What people use most is here, and is loaded when it is first used. The rest is in `sacristan.experiments` (training),
`sacristan.ingredients` (data, model, ...), `sacristan.observers` (records and media), `sacristan.runs` (past runs) and
`sacristan.configs` (configs).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

__all__ = [
    "ArtifactStore",
    "Audio",
    "Callback",
    "Experiment",
    "Figure",
    "FileObserver",
    "Histogram",
    "Html",
    "Image",
    "Ingredient",
    "LabError",
    "Map",
    "MongoObserver",
    "ObserversError",
    "PointCloud",
    "Run",
    "RunsError",
    "Series",
    "Store",
    "Supervised",
    "Table",
    "TensorBoardObserver",
    "Text",
    "Trainer",
    "Video",
    "compare",
    "copy",
    "diff",
    "evaluate",
    "export_runs",
    "fit",
    "fork",
    "import_foreign",
    "import_runs",
    "incense",
    "open_store",
    "predict",
    "read_media",
    "read_metrics",
    "read_table",
    "reproduce",
    "resume",
    "sync",
]

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(_FOLDER, "configs")
if os.path.islink(_INSTALLED) or not os.path.isdir(_INSTALLED):
    # A checkout: the packages stand beside this folder, which has links to them for type checkers and editors.
    __path__ = [os.path.dirname(_FOLDER), _FOLDER]

if TYPE_CHECKING:
    from sacristan.configs import Map
    from sacristan.experiments import Callback, Experiment, Supervised, Trainer, evaluate, fit, predict
    from sacristan.ingredients import Ingredient, LabError
    from sacristan.observers import (
        ArtifactStore,
        FileObserver,
        MongoObserver,
        ObserversError,
        TensorBoardObserver,
        read_media,
        read_metrics,
        read_table,
    )
    from sacristan.observers.media import Audio, Figure, Histogram, Html, Image, PointCloud, Table, Text, Video
    from sacristan.runs import (
        Run,
        RunsError,
        Series,
        Store,
        compare,
        copy,
        diff,
        export_runs,
        fork,
        import_foreign,
        import_runs,
        incense,
        open_store,
        reproduce,
        resume,
        sync,
    )
else:
    # The same for Python: a name that moves changes here and above.
    _NAMES = {
        "configs": "Map",
        "experiments": "Callback Experiment Supervised Trainer evaluate fit predict",
        "ingredients": "Ingredient LabError",
        "observers": (
            "ArtifactStore FileObserver MongoObserver ObserversError TensorBoardObserver"
            " read_media read_metrics read_table"
        ),
        "observers.media": "Audio Figure Histogram Html Image PointCloud Table Text Video",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in ("configs", "experiments", "ingredients", "observers", "runs"):
            return importlib.import_module(f"sacristan.{name}")
        if name == "__version__":
            return importlib.import_module("sacristan.configs.installation").version()
        if name not in __all__:
            raise AttributeError(f"module 'sacristan' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"sacristan.{_HOMES.get(name, 'runs')}"), name)
        globals()[name] = value  # the next use does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
