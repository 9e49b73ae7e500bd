"""The end of sweeps, for a message: one digest for each sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sacristan.runs.errors import MissingExtraError, SweepError
from sacristan.runs.query.names import SWEEP
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store
from sacristan.runs.sweeps.views.reading import SweepReader
from sacristan.runs.sweeps.views.status import status_lines
from sacristan.runs.work.watching import Notice, RecentRuns

__all__ = ["Digests"]


class Digests:
    """Digests of the sweeps beside the runs of a store.

    Args:
        tell: Takes a line about a sweep that cannot be read.
    """

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._reader = SweepReader()
        self._problems: set[str] = set()

    def notices(self, recent: RecentRuns, known: Iterable[tuple[str, str]] = ()) -> list[Notice]:
        """Return a digest of each sweep that is done, once for each last run; keys in `known` are left out."""
        known = set(known)
        by_sweep: dict[str, list[Run]] = {}
        for run in recent.runs:
            if isinstance(sweep := run.get(SWEEP), str):
                by_sweep.setdefault(sweep, []).append(run)
        found = []
        for id, runs in by_sweep.items():
            last = max(runs, key=lambda run: run.uid or "")
            is_open = any(run.status in ("RUNNING", "QUEUED") for run in runs)
            if is_open or not any(map(recent.ended, runs)) or (last.uid or last.id, "sweep_done") in known:
                continue
            text = self._text(id)
            if text is not None:
                found.append(Notice(last, "sweep_done", text, "success"))
        return found

    def _text(self, id: str) -> str | None:
        """Return the digest of a sweep; None if it is not done or cannot be read."""
        try:
            seen = self._reader.read(self._store, id)
        except (MissingExtraError, SweepError) as error:
            if str(error) not in self._problems:
                self._problems.add(str(error))
                self._tell(f"sweep {id}: {error}")
            return None
        status = seen.status
        is_over = status.is_done or (status.is_stopped and not status.running)
        return "\n".join(status_lines(status, seen.spec.objective_names)) if is_over else None

    def close(self) -> None:
        """Close all studies."""
        self._reader.close()
