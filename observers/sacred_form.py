"""`metrics.json`: the metrics of a run in the form of Sacred's FileStorageObserver."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from observers.schema import read_metrics

__all__ = ["sacred_metrics"]


def sacred_metrics(folder: Path, start: datetime) -> dict[str, Any]:
    """Return the points of a run as Sacred's observer writes them down; `start` is that of the run."""
    began = start.replace(tzinfo=None).timestamp()
    document = {}
    for name, series in read_metrics(folder).items():
        stamps = [datetime.fromtimestamp(began + seconds).isoformat() for seconds in series.times.tolist()]
        document[name] = {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
    return document
