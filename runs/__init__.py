"""Past runs: find, read, compare, copy, resume and reproduce them, from Python.

    from sacristan.runs import open_store

    with open_store("my_runs") as store:
        [best] = store.find("status=COMPLETED", sort="-val/accuracy.max", limit=1)
        print(best.id, best.config.optimizer.lr, best.metric("train/loss").values[-1])

The same from the command line: `sacristan --help`. What is for users is here; the packages below `runs` are not.
A name is loaded when it is first used, so that the import costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if "." not in __name__:  # imported by its old name, from a checkout
    from sacristan.old_names import forward

    forward(__name__)

__all__ = [
    "ArchiveError",
    "ChangedError",
    "Comparison",
    "ComparisonError",
    "Content",
    "Copied",
    "DamagedError",
    "Difference",
    "DiscardedError",
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
    "ReportError",
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
    from sacristan.observers.record.points import Series
    from sacristan.runs.comparison import Difference, diff
    from sacristan.runs.comparison.comparing import Comparison, compare
    from sacristan.runs.comparison.reports import write_report
    from sacristan.runs.errors import (
        ArchiveError,
        ChangedError,
        ComparisonError,
        DamagedError,
        DiscardedError,
        FilterError,
        ForeignError,
        LaunchError,
        MissingExtraError,
        PlotError,
        ReportError,
        RunNotFoundError,
        RunsError,
        ServerError,
        StoreAwayError,
        StoreError,
        SweepError,
    )
    from sacristan.runs.notebooks import ExperimentLoader, incense
    from sacristan.runs.query.conditions import Words
    from sacristan.runs.rerun.reproducing import Reproduction, reproduce
    from sacristan.runs.rerun.resuming import fork, resume
    from sacristan.runs.rerun.verdict import Tolerance, Verdict
    from sacristan.runs.stores import Store
    from sacristan.runs.stores.changes import Removed
    from sacristan.runs.stores.content import Content, Fetched, Medium, fetch
    from sacristan.runs.stores.opening import open_store
    from sacristan.runs.stores.operations import Copied
    from sacristan.runs.stores.run import Run
    from sacristan.runs.transfer.archives import Exported, export_runs, import_runs
    from sacristan.runs.transfer.copying import copy
    from sacristan.runs.transfer.foreign import ImportedRun, import_foreign
    from sacristan.runs.transfer.syncing import Reaped, SyncResult, reap, sync
    from sacristan.runs.transfer.targets import ExportedRun, export_to
    from sacristan.runs.work.mongod import Mongod
else:
    # The same for Python: a name that moves changes here and above.
    _NAMES = {
        "sacristan.observers.record.points": "Series",
        "sacristan.runs.comparison.comparing": "Comparison compare",
        "sacristan.runs.comparison": "Difference diff",
        "sacristan.runs.comparison.reports": "write_report",
        "sacristan.runs.notebooks": "ExperimentLoader incense",
        "sacristan.runs.query.conditions": "Words",
        "sacristan.runs.rerun.reproducing": "Reproduction reproduce",
        "sacristan.runs.rerun.resuming": "fork resume",
        "sacristan.runs.rerun.verdict": "Tolerance Verdict",
        "sacristan.runs.stores.changes": "Removed",
        "sacristan.runs.stores.operations": "Copied",
        "sacristan.runs.stores.content": "Content Fetched Medium fetch",
        "sacristan.runs.stores.opening": "open_store",
        "sacristan.runs.stores.run": "Run",
        "sacristan.runs.stores": "Store",
        "sacristan.runs.transfer.archives": "Exported export_runs import_runs",
        "sacristan.runs.transfer.copying": "copy",
        "sacristan.runs.transfer.targets": "ExportedRun export_to",
        "sacristan.runs.transfer.foreign": "ImportedRun import_foreign",
        "sacristan.runs.transfer.syncing": "Reaped SyncResult reap sync",
        "sacristan.runs.work.mongod": "Mongod",
    }
    _HOMES = {name: "sacristan.runs.errors" for name in __all__ if name.endswith("Error")}
    _HOMES |= {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'sacristan.runs' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
