"""Labels of runs, computed once for all panels of a page."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from runs.stores.prefetching import prefetch
from runs.stores.run import Run
from runs.stores.settings import run_labels

__all__ = ["RunLabels"]

_MAX_KNOWN, _PATIENCE_S = 16, 1.0


class RunLabels:
    """Remembers the labels of the sets of runs that pages asked for last.

    A label depends on the configs of all runs of its page, which take half of the time of a panel to read and compare.
    A config never changes, so runs of the same names keep their labels.
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
        prefetch(runs, ["uid", "start_time", "display_name"])
        key = tuple(
            (run.store.where, run.id, run.uid, str(run.get("start_time")), str(run.get("display_name"))) for run in runs
        )
        # Panels of one page ask at once, and the first computes; none waits longer for a store that does not answer.
        is_mine = self._lock.acquire(timeout=_PATIENCE_S)
        try:
            labels = self._known.get(key)
            if labels is None:
                found = run_labels(runs)
                labels = self._known[key] = [found[run] for run in runs]
                if len(self._known) > _MAX_KNOWN:
                    self._known.pop(next(iter(self._known)), None)
            return dict(zip(runs, labels, strict=True))
        finally:
            if is_mine:
                self._lock.release()
