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
from typing import TYPE_CHECKING

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
    "Fetched",
    "FilterError",
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
    "fetch",
    "fork",
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
    from runs.stores.adding import Copied
    from runs.stores.content import Content
    from runs.stores.media import Medium
    from runs.stores.opening import open_store
    from runs.stores.removing import Removed
    from runs.stores.run import Run
    from runs.stores.store import Store
    from runs.transfer.archives import Exported, export_runs, import_runs
    from runs.transfer.copying import copy
    from runs.transfer.fetching import Fetched, fetch
    from runs.transfer.syncing import Reaped, SyncResult, reap, sync
    from runs.work.mongod import Mongod
else:
    # The same for Python: a name that moves changes here and above.
    _HOMES = {
        "ArchiveError": "runs.errors",
        "ChangedError": "runs.errors",
        "Comparison": "runs.comparison.comparing",
        "ComparisonError": "runs.errors",
        "Content": "runs.stores.content",
        "Copied": "runs.stores.adding",
        "DamagedError": "runs.errors",
        "Difference": "runs.comparison.difference",
        "ExperimentLoader": "runs.notebooks.experiment_loader",
        "Exported": "runs.transfer.archives",
        "Fetched": "runs.transfer.fetching",
        "FilterError": "runs.errors",
        "LaunchError": "runs.errors",
        "Medium": "runs.stores.media",
        "MissingExtraError": "runs.errors",
        "Mongod": "runs.work.mongod",
        "PlotError": "runs.errors",
        "Reaped": "runs.transfer.syncing",
        "Removed": "runs.stores.removing",
        "Reproduction": "runs.rerun.reproducing",
        "Run": "runs.stores.run",
        "RunNotFoundError": "runs.errors",
        "RunsError": "runs.errors",
        "Series": "observers.record.points.points",
        "ServerError": "runs.errors",
        "Store": "runs.stores.store",
        "StoreAwayError": "runs.errors",
        "StoreError": "runs.errors",
        "SweepError": "runs.errors",
        "SyncResult": "runs.transfer.syncing",
        "Tolerance": "runs.rerun.verdict",
        "Verdict": "runs.rerun.verdict",
        "Words": "runs.query.conditions",
        "compare": "runs.comparison.comparing",
        "copy": "runs.transfer.copying",
        "diff": "runs.comparison.difference",
        "export_runs": "runs.transfer.archives",
        "fetch": "runs.transfer.fetching",
        "fork": "runs.rerun.starting",
        "import_runs": "runs.transfer.archives",
        "incense": "runs.notebooks.incense_loader",
        "open_store": "runs.stores.opening",
        "reap": "runs.transfer.syncing",
        "reproduce": "runs.rerun.starting",
        "resume": "runs.rerun.starting",
        "sync": "runs.transfer.syncing",
        "write_report": "runs.comparison.html_report",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'runs' has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found  # it is asked for once
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
