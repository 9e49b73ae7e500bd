"""`LabSources`: keeps the sources of the lab that a run imports, each content as it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.errors import ArtifactError
from sacristan.observers.provenance.sources_and_git import imported_files
from sacristan.observers.record.guarding import Pace
from sacristan.observers.record.stored_files import keep

__all__ = ["LabSources"]


class LabSources:
    """Keeps what a run imports, whenever `look` is called.

    Args:
        experiment: What Sacred says about the experiment: `base_dir`, `mainfile`, and the first `sources`.
        store: The folder of contents; None keeps no copies.
        base: The folder of runs, which the paths of contents are relative to.
        earlier: Sources of the run's earlier sessions: the name of each, and where its content is kept.

    Attributes:
        pairs: The name of each source, and where its content is kept. If a name occurs twice, the last is the newest.
        changed: Names whose content differs from the earlier sessions.
        missing: Names whose content could not be kept so far, and why.
    """

    def __init__(
        self,
        experiment: Mapping[str, Any],
        store: Path | None,
        base: Path,
        earlier: Sequence[Sequence[str]] = (),
    ) -> None:
        self.base = base
        self._lab = Path(experiment["base_dir"])
        self._mainfile = self._lab / experiment["mainfile"] if experiment.get("mainfile") else None
        self._first = [name for name, _ in experiment["sources"]]
        self._store = store
        self._earlier: list[list[str]] = [list(pair) for pair in earlier]
        self._kept: dict[str, str] = {}
        self._num_modules = 0
        self.pairs: list[list[str]] = self._earlier
        self.changed: list[str] = []
        self.missing: dict[str, str] = {}
        self._retry_pace = Pace()

    def look(self, *, last: bool = False) -> bool:
        """Keep every source imported so far, and return whether `pairs` has changed.

        Those that cannot be kept are `missing`, and retried; the `last` call retries in any case.
        """
        is_retry = bool(self.missing) and (last or self._retry_pace.is_due)
        if len(sys.modules) == self._num_modules and not is_retry:
            return False
        self._num_modules = len(sys.modules)
        names = (*self._first, *imported_files(self._lab, self._mainfile), *self.missing)
        self.missing = {}
        with self._retry_pace:
            for name in names:
                if name not in self._kept:
                    self._keep(name)
        before, recorded = self.pairs, dict(self._earlier)
        new = sorted([name, stored] for name, stored in self._kept.items() if recorded.get(name) != stored)
        self.pairs, self.changed = [*self._earlier, *new], [name for name, _ in new if name in recorded]
        return self.pairs != before

    def _keep(self, name: str) -> None:
        path = self._lab / name
        try:
            self._kept[name] = str(path) if self._store is None else keep(path, self._store, self.base)
        except OSError as error:
            self.missing[name] = f"{error.filename or self._store}: {error.strerror}"
        except ArtifactError as error:
            self.missing[name] = str(error)
