"""`KeptCurves`: thinned curves of runs, cached as long as their points stay the same."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Sequence

import numpy as np

from sacristan.runs.comparison.expressions import Quantity
from sacristan.runs.drawing.curve import Curve
from sacristan.runs.stores.prefetching import points_versions
from sacristan.runs.stores.run import Run

__all__ = ["KeptCurves", "ThinCurve"]

# What a curve takes beside its arrays, roughly.
_OVERHEAD_BYTES = 1_000


@dataclasses.dataclass(frozen=True)
class ThinCurve:
    """A curve of few points, and facts about all of its points.

    Attributes:
        curve: The curve, thinned.
        num_not_finite: Number of points that are NaN or infinite.
        num_below: Number of points that are not above 0.
        is_any_above: Whether a finite value is above 0.
    """

    curve: Curve
    num_not_finite: int
    num_below: int
    is_any_above: bool


class KeptCurves:
    """A cache of the most recently used curves, up to a size in memory; threads may share it."""

    def __init__(self, max_bytes: int = 16 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._curves: dict[Hashable, ThinCurve] = {}
        self._lock = threading.Lock()

    def keys(self, runs: Sequence[Run], quantity: Quantity, how: Hashable) -> list[Hashable | None]:
        """Return cache keys of the runs' curves, which change with the points; None if these may change unnoticed."""
        versions = zip(*(points_versions(runs, name) for name in quantity.names), strict=True)
        return [
            None if None in version else (run.store.where, run.id, str(run.start_time), quantity.text, how, version)
            for run, version in zip(runs, versions, strict=True)
        ]

    def get(self, key: Hashable | None) -> ThinCurve | None:
        """Return the cached curve of a key; None if there is none."""
        with self._lock:
            curve = self._curves.pop(key, None)
            if curve is not None:
                self._curves[key] = curve  # the last one to be dropped
            return curve

    def keep(self, key: Hashable | None, curve: ThinCurve) -> None:
        """Cache a curve unless its key is None, and drop the least recently used ones."""
        if key is None:
            return
        with self._lock:
            if key not in self._curves:
                self._num_bytes += _size(curve)
            self._curves[key] = curve
            while self._num_bytes > self._max_bytes:
                oldest = next(iter(self._curves))
                self._num_bytes -= _size(self._curves.pop(oldest))


def _size(curve: ThinCurve) -> int:
    arrays = (value for value in vars(curve.curve).values() if isinstance(value, np.ndarray))
    return _OVERHEAD_BYTES + sum(array.nbytes for array in arrays)
