"""Experiments: the strict, Map-injecting `Experiment`, the training loop, and the report at the end of a run.

    from experiments import Experiment, loop

The rest, such as `loop` (`fit`, `evaluate`, `predict`) and `results`, imports torch, and is loaded when it is first
asked for, so that `print_config` starts without it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if "configs.packages" not in sys.modules:  # by its path, because something may hide `configs`
    runpy.run_path(str(Path(__file__).parents[1] / "configs" / "packages.py"))

from configs import collection

collection.pause()
try:
    import ingredients  # noqa: F401 - first, because it imports sacred without its warning
    from experiments.experiment import Experiment
    from experiments.running.lab_run import LabRun
    from experiments.running.signals import Terminated
finally:
    collection.resume()

__all__ = [
    "Callback",
    "Experiment",
    "FitResult",
    "LabRun",
    "Monitor",
    "RunningMetrics",
    "Supervised",
    "Task",
    "Terminated",
    "Trainer",
    "cases_table",
    "evaluate",
    "fit",
    "inspection",
    "loop",
    "predict",
    "results",
    "steps_per_epoch",
]

if TYPE_CHECKING:
    from experiments.training import inspection, loop, results
    from experiments.training.callbacks import Callback
    from experiments.training.cases import cases_table
    from experiments.training.loop import FitResult, evaluate, fit, predict, steps_per_epoch
    from experiments.training.meters import RunningMetrics
    from experiments.training.monitor import Monitor
    from experiments.training.tasks import Supervised
    from experiments.training.trainer import Task, Trainer
else:
    _NAMES = {
        "experiments.training.callbacks": "Callback",
        "experiments.training.cases": "cases_table",
        "experiments.training.loop": "FitResult evaluate fit predict steps_per_epoch",
        "experiments.training.meters": "RunningMetrics",
        "experiments.training.monitor": "Monitor",
        "experiments.training.tasks": "Supervised",
        "experiments.training.trainer": "Task Trainer",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in ("inspection", "loop", "results"):
            return importlib.import_module(f"experiments.training.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'experiments' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
