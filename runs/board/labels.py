"""Labels of runs and the settings that distinguish them, computed once for all pages and panels of the same runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sacristan.runs.stores.prefetching import prefetch
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import run_labels, telling_settings

__all__ = ["RunLabels"]

_MAX_KNOWN, _PATIENCE_S = 32, 1.0


class RunLabels:
    """Caches the settings that distinguish the sets of runs that pages requested last.

    Reading and comparing the configs of all runs takes half of the time of a page or panel. A recorded config never
    changes, so runs of the same names keep their labels.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[str]] = {}
        self._lock = threading.Lock()

    def of(self, runs: Sequence[Run]) -> dict[Run, str]:
        """Return a label for every run, each given once; see `sacristan.runs.stores.settings.run_labels`."""
        return dict(zip(runs, self._remembered(runs, _labels), strict=True))

    def telling(self, runs: Sequence[Run]) -> list[str]:
        """Return the settings to show in a list of runs; see `sacristan.runs.stores.settings.telling_settings`."""
        return self._remembered(runs, telling_settings)

    def _remembered(self, runs: Sequence[Run], compute: Callable[[Sequence[Run]], list[str]]) -> list[str]:
        prefetch(runs, ["uid", "start_time", "display_name"])
        named = (
            (run.store.where, run.id, run.uid, str(run.get("start_time")), str(run.get("display_name"))) for run in runs
        )
        key = (compute, *named)
        # Panels of one page ask at once, and the first computes; none waits longer for a store that does not answer.
        is_mine = self._lock.acquire(timeout=_PATIENCE_S)
        try:
            found = self._known.get(key)
            if found is None:
                found = compute(runs)
                if all(run.get("config") for run in runs):  # else it may be about to be written
                    self._known[key] = found
                if len(self._known) > _MAX_KNOWN:
                    self._known.pop(next(iter(self._known)), None)
            return found
        finally:
            if is_mine:
                self._lock.release()


def _labels(runs: Sequence[Run]) -> list[str]:
    found = run_labels(runs)
    return [found[run] for run in runs]
