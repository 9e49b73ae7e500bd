"""Experiments: the strict, Map-injecting `Experiment`, the training loop, and the report at the end of a run.

    from sacristan.experiments import Experiment, loop

The rest, such as `loop` (`fit`, `evaluate`, `predict`) and `results`, imports torch, and is loaded when it is first
asked for, so that `print_config` starts without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if "." not in __name__:  # imported by its old name, from a checkout
    from sacristan.old_names import forward

    forward(__name__)

from sacristan.configs.importing import pause_collection, resume_collection

pause_collection()
try:
    from sacristan import ingredients  # noqa: F401 - first, because it imports sacred without its warning
    from sacristan.experiments.running import LabRun
    from sacristan.experiments.running.signals import Terminated
    from sacristan.experiments.scripts.capturing import capture

    LabRun.watching = capture.of_experiment
finally:
    resume_collection()

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
    from sacristan.experiments.experiment import Experiment
    from sacristan.experiments.training import Task, Trainer, inspection, loop, results
    from sacristan.experiments.training.callbacks import Callback
    from sacristan.experiments.training.evaluation import Monitor, Supervised
    from sacristan.experiments.training.loop import FitResult, evaluate, fit, predict, steps_per_epoch
    from sacristan.experiments.training.meters import RunningMetrics
    from sacristan.experiments.training.results import cases_table
else:
    _NAMES = {
        "sacristan.experiments.experiment": "Experiment",
        "sacristan.experiments.training.callbacks": "Callback",
        "sacristan.experiments.training.results": "cases_table",
        "sacristan.experiments.training.loop": "FitResult evaluate fit predict steps_per_epoch",
        "sacristan.experiments.training.meters": "RunningMetrics",
        "sacristan.experiments.training.evaluation": "Monitor Supervised",
        "sacristan.experiments.training": "Task Trainer",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in ("inspection", "loop", "results"):
            return importlib.import_module(f"sacristan.experiments.training.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'sacristan.experiments' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
