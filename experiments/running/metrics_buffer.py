"""`MetricsBuffer`: keeps logged values until the run's next beat, so that logging them costs next to nothing."""

from __future__ import annotations

import operator
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sacred.metrics_logger import ScalarMetricLogEntry

from observers.record.rewinding import is_rewound

__all__ = ["MetricsBuffer"]

_EPOCH = datetime(1970, 1, 1)  # Sacred's times are UTC without saying so
_NAME = operator.itemgetter(0)


class MetricsBuffer:
    """Takes logged values until the next beat, in the place of Sacred's MetricsLogger.

    A value of torch on a GPU is copied there and fetched with the beat, so that logging never waits for the device.
    """

    def __init__(self) -> None:
        self._rows: list[tuple] = []
        self._next_step: dict[str, int] = {}
        # Counted when they are taken, so that logging does not pay for it.
        self._counts: Counter[str] = Counter()
        self._taking = threading.Lock()

    def log_scalar_metric(self, name: str, value: Any, step: Any = None) -> None:
        """Take one value; without a step, one above the metric's last."""
        if step is None:
            step = self._next_step.get(name, -1) + 1
        self._next_step[name] = step
        kind = type(value)
        if kind is not float and kind is not int:
            value = _snapshot(value)
        # One append is atomic, so that the beat's thread needs no lock.
        self._rows.append((name, step, time.time(), value))

    def get_last_metrics(self) -> list[ScalarMetricLogEntry]:
        """Return what came since the last call."""
        with self._taking:
            rows, count = self._rows, len(self._rows)
            taken = rows[:count]
            del rows[:count]
            self._counts.update(map(_NAME, taken))
        return [
            ScalarMetricLogEntry(
                name,
                step if type(step) is int else _plain(step),
                _EPOCH + timedelta(seconds=at),
                value if type(value) is float else _plain(value),
            )
            for name, step, at, value in taken
        ]

    def position(self) -> dict[str, list]:
        """Return how many values were logged of each metric so far, taken or not, and the last step."""
        with self._taking:
            counts = self._counts + Counter(map(_NAME, self._rows.copy()))
        steps = {name: _plain(self._next_step.get(name)) for name in counts if is_rewound(name)}
        return {name: [counts[name], step if isinstance(step, int | float) else None] for name, step in steps.items()}

    def go_on_from(self, position: Mapping[str, list]) -> None:
        """Count on from a position; what is not taken yet is not looked at."""
        with self._taking:
            self._counts = Counter({name: count for name, (count, _) in position.items()})
        others = {name: step for name, step in self._next_step.copy().items() if not is_rewound(name)}
        self._next_step = others | {name: step for name, (_, step) in position.items() if step is not None}


def _snapshot(value: Any) -> Any:
    """Return what later changes of `value` in place do not reach, without waiting for a GPU."""
    if hasattr(value, "detach"):
        value = value.detach()
        return value.item() if value.device.type == "cpu" and value.numel() == 1 else value.clone()
    return value.copy() if hasattr(value, "copy") else value


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
