"""Past runs: find, read, compare, copy, resume and reproduce them, from Python.

    from runs import open_store

    with open_store("my_runs") as store:
        [best] = store.find("status=COMPLETED", sort="-val/accuracy.max", limit=1)
        print(best.id, best.config.optimizer.lr, best.metric("train/loss").values[-1])

The same from the command line: `python -m runs --help`. What is for users is here; the packages below `runs` are not.
A name is loaded when it is first used, so that `import runs` costs next to nothing.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if "configs.packages" not in sys.modules:  # by its path, because something may hide `configs`
    runpy.run_path(str(Path(__file__).parents[1] / "configs" / "packages.py"))

__all__ = [
    "ArchiveError",
    "ChangedError",
    "Comparison",
    "ComparisonError",
    "Content",
    "Copied",
    "DamagedError",
    "Difference",
    "ExperimentLoader",
    "Exported",
    "ExportedRun",
    "Fetched",
    "FilterError",
    "ForeignError",
    "ImportedRun",
    "LaunchError",
    "Medium",
    "MissingExtraError",
    "Mongod",
    "PlotError",
    "Reaped",
    "Removed",
    "Reproduction",
    "Run",
    "RunNotFoundError",
    "RunsError",
    "Series",
    "ServerError",
    "Store",
    "StoreAwayError",
    "StoreError",
    "SweepError",
    "SyncResult",
    "Tolerance",
    "Verdict",
    "Words",
    "compare",
    "copy",
    "diff",
    "export_runs",
    "export_to",
    "fetch",
    "fork",
    "import_foreign",
    "import_runs",
    "incense",
    "open_store",
    "reap",
    "reproduce",
    "resume",
    "sync",
    "write_report",
]

if TYPE_CHECKING:
    from observers.record.points.points import Series
    from runs.comparison.comparing import Comparison, compare
    from runs.comparison.difference import Difference, diff
    from runs.comparison.html_report import write_report
    from runs.errors import (
        ArchiveError,
        ChangedError,
        ComparisonError,
        DamagedError,
        FilterError,
        ForeignError,
        LaunchError,
        MissingExtraError,
        PlotError,
        RunNotFoundError,
        RunsError,
        ServerError,
        StoreAwayError,
        StoreError,
        SweepError,
    )
    from runs.notebooks.experiment_loader import ExperimentLoader
    from runs.notebooks.incense_loader import incense
    from runs.query.conditions import Words
    from runs.rerun.reproducing import Reproduction
    from runs.rerun.starting import fork, reproduce, resume
    from runs.rerun.verdict import Tolerance, Verdict
    from runs.stores.changes import Copied, Removed
    from runs.stores.content import Content, Medium
    from runs.stores.opening import open_store
    from runs.stores.run import Run
    from runs.stores.store import Store
    from runs.transfer.archives import Exported, export_runs, import_runs
    from runs.transfer.copying import copy
    from runs.transfer.exporting import ExportedRun, export_to
    from runs.transfer.fetching import Fetched, fetch
    from runs.transfer.foreign import ImportedRun, import_foreign
    from runs.transfer.syncing import Reaped, SyncResult, reap, sync
    from runs.work.mongod import Mongod
else:
    # The same for Python: a name that moves changes here and above.
    _NAMES = {
        "observers.record.points.points": "Series",
        "runs.comparison.comparing": "Comparison compare",
        "runs.comparison.difference": "Difference diff",
        "runs.comparison.html_report": "write_report",
        "runs.notebooks.experiment_loader": "ExperimentLoader",
        "runs.notebooks.incense_loader": "incense",
        "runs.query.conditions": "Words",
        "runs.rerun.reproducing": "Reproduction",
        "runs.rerun.starting": "fork reproduce resume",
        "runs.rerun.verdict": "Tolerance Verdict",
        "runs.stores.changes": "Copied Removed",
        "runs.stores.content": "Content Medium",
        "runs.stores.opening": "open_store",
        "runs.stores.run": "Run",
        "runs.stores.store": "Store",
        "runs.transfer.archives": "Exported export_runs import_runs",
        "runs.transfer.copying": "copy",
        "runs.transfer.fetching": "Fetched fetch",
        "runs.transfer.exporting": "ExportedRun export_to",
        "runs.transfer.foreign": "ImportedRun import_foreign",
        "runs.transfer.syncing": "Reaped SyncResult reap sync",
        "runs.work.mongod": "Mongod",
    }
    _HOMES = {name: "runs.errors" for name in __all__ if name.endswith("Error")}
    _HOMES |= {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'runs' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
