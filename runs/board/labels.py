"""Labels of runs and the settings that tell them apart, computed once for all pages and panels of the same runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from runs.stores.prefetching import prefetch
from runs.stores.run import Run
from runs.stores.settings import run_labels, telling_settings

__all__ = ["RunLabels"]

_MAX_KNOWN, _PATIENCE_S = 32, 1.0


class RunLabels:
    """Remembers what tells the sets of runs apart that pages asked for last.

    It depends on the configs of all runs of a page, which take half of the time of a page or panel to read and compare.
    A config that is there never changes, so runs of the same names keep their labels.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[str]] = {}
        self._lock = threading.Lock()

    def of(self, runs: Sequence[Run]) -> dict[Run, str]:
        """Return a label for every run; see `runs.stores.settings.run_labels`.

        Args:
            runs: The runs, each once.

        Raises:
            StoreError: If the store cannot be read.
        """
        return dict(zip(runs, self._remembered(runs, _labels), strict=True))

    def telling(self, runs: Sequence[Run]) -> list[str]:
        """Return the settings to show in a list of runs; see `runs.stores.settings.telling_settings`.

        Args:
            runs: The runs.

        Raises:
            StoreError: If the store cannot be read.
        """
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
