"""Between Sacred's forms of what a run holds, and those of its record."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from sacred.serializer import flatten

from observers.record.schema import TICKS_PER_S, read_metrics

__all__ = ["plain", "sacred_metrics", "to_ticks"]


def plain(value: Any) -> Any:
    """Return `value` as what JSON holds, by Sacred's serializer; text where that fails."""
    try:
        return flatten(value)
    except Exception:
        return json.loads(json.dumps(value, default=str))


def to_ticks(timestamps: list[datetime], start: datetime) -> np.ndarray:
    """Return Sacred's times (n,) as ticks (n,) since the `start` of the run."""
    began = start.replace(tzinfo=None)
    seconds = np.array([(at - began).total_seconds() for at in timestamps])
    return np.maximum(seconds * TICKS_PER_S, 0).astype(np.uint32)


def sacred_metrics(folder: Path, start: datetime) -> dict[str, Any]:
    """Return the `metrics.json` that Sacred would write of the run in `folder`, which started at `start`."""
    began = start.replace(tzinfo=None).timestamp()
    document = {}
    for name, series in read_metrics(folder).items():
        stamps = [datetime.fromtimestamp(began + seconds).isoformat() for seconds in series.times.tolist()]
        document[name] = {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
    return document
