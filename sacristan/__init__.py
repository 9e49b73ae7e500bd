"""Sacristan: experiments in PyTorch, recorded so that each can be found, resumed and reproduced.

    import sacristan

    ex = sacristan.Experiment("mine")

    with sacristan.open_store("my_runs") as store:
        print(store.find(sort="-val/accuracy.max", limit=1))

A script of yours, of any kind, is recorded by three lines, with the names of W&B; see `init`:

    run = sacristan.init(config=vars(args), name="mnist")
    run.log({"loss": loss})

What people use most is here, and is loaded when it is first used. The rest is in `sacristan.experiments` (training),
`sacristan.ingredients` (data, model, ...), `sacristan.observers` (records and media), `sacristan.runs` (past runs) and
`sacristan.configs` (configs).
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

__all__ = [
    "Artifact",
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
    "alert",
    "compare",
    "config",
    "copy",
    "define_metric",
    "diff",
    "evaluate",
    "export_runs",
    "finish",
    "fit",
    "fork",
    "import_foreign",
    "import_runs",
    "incense",
    "init",
    "log",
    "log_artifact",
    "log_model",
    "open_store",
    "predict",
    "read_media",
    "read_metrics",
    "read_table",
    "reproduce",
    "resume",
    "run",
    "save",
    "summary",
    "sync",
    "unwatch",
    "use_artifact",
    "use_model",
    "watch",
]

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = os.path.join(_FOLDER, "configs")
if os.path.islink(_INSTALLED) or not os.path.isdir(_INSTALLED):
    # A checkout: the packages stand beside this folder, which has links to them for type checkers and editors.
    __path__ = [os.path.dirname(_FOLDER), _FOLDER]

if TYPE_CHECKING:
    from sacristan.configs import Map
    from sacristan.experiments import Callback, Experiment, Supervised, Trainer, evaluate, fit, predict
    from sacristan.experiments.scripts.artifact import Artifact
    from sacristan.experiments.scripts.settings import Settings, Summary
    from sacristan.experiments.scripts.tracked_run import TrackedRun
    from sacristan.experiments.scripts.tracking import (
        alert,
        define_metric,
        finish,
        init,
        log,
        log_artifact,
        log_model,
        save,
        unwatch,
        use_artifact,
        use_model,
        watch,
    )
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

    config: Settings
    run: TrackedRun | None
    summary: Summary
else:
    # The same for Python: a name that moves changes here and above.
    _NAMES = {
        "configs": "Map",
        "experiments": "Callback Experiment Supervised Trainer evaluate fit predict",
        "experiments.scripts.artifact": "Artifact",
        "experiments.scripts.tracking": (
            "alert define_metric finish init log log_artifact log_model save unwatch use_artifact use_model watch"
        ),
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
            return importlib.import_module("sacristan.configs.packages").version()
        if name in ("config", "run", "summary"):  # of the run that `init` has started last
            return importlib.import_module("sacristan.experiments.scripts.tracking").value_of_run(name)
        if name not in __all__:
            advice = importlib.import_module("sacristan.names_of_wandb").ADVICE.get(name)
            hint = f"; of W&B, it is not here: {advice}" if advice else ""
            raise AttributeError(f"module 'sacristan' has no attribute {name!r}{hint}")
        value = getattr(importlib.import_module(f"sacristan.{_HOMES.get(name, 'runs')}"), name)
        globals()[name] = value  # the next use does not come here
        return value

    class _Package(type(os)):
        """The package, which takes `wandb.config = {...}` of scripts for W&B as settings of their run."""

        def __setattr__(self, name: str, value: object) -> None:
            run = self.run if name == "config" else None
            if run is None:
                super().__setattr__(name, value)
            else:
                run.config.update(value)

    sys.modules[__name__].__class__ = _Package

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
