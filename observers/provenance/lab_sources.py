"""`LabSources`: the sources of the lab that a run imports, each content kept as it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from observers.errors import ArtifactError
from observers.provenance import sources_and_git as provenance
from observers.record.guarding import Pace
from observers.record.stored_files import keep

__all__ = ["LabSources"]


class LabSources:
    """Keeps what a run imports, whenever `look` is called.

    Args:
        experiment: What Sacred tells of the experiment: `base_dir`, `mainfile`, and `sources` to begin with.
        store: Folder of contents; None keeps no copies.
        runs: The folder of runs, from which contents are named.
        earlier: Pairs of a name and where its content is kept, of earlier sessions of the run.

    Attributes:
        pairs: All of them. Of a name that is there twice, the last one is the newest.
        changed: Names whose content is not that of the earlier sessions.
        missing: Names whose content could not be kept so far, and why.
    """

    def __init__(
        self,
        experiment: Mapping[str, Any],
        store: Path | None,
        runs: str | Path,
        earlier: Sequence[Sequence[str]] = (),
    ) -> None:
        self._lab = Path(experiment["base_dir"])
        self._mainfile = self._lab / experiment["mainfile"] if experiment.get("mainfile") else None
        self._given = [name for name, _ in experiment["sources"]]
        self._store = store
        self._runs = runs
        self._earlier: list[list[str]] = [list(pair) for pair in earlier]
        self._kept: dict[str, str] = {}
        self._num_modules = 0
        self.pairs: list[list[str]] = self._earlier
        self.changed: list[str] = []
        self.missing: dict[str, str] = {}
        self._retry_pace = Pace()

    def look(self, *, last: bool = False) -> bool:
        """Keep every source that is imported by now; return whether there are new ones.

        Those that cannot be kept are `missing`, and tried again by later calls; by the `last` one in any case.
        """
        is_retry = bool(self.missing) and (last or self._retry_pace.is_due)
        if len(sys.modules) == self._num_modules and not is_retry:
            return False
        self._num_modules = len(sys.modules)
        names = (*self._given, *provenance.imported_files(self._lab, self._mainfile), *self.missing)
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
            self._kept[name] = str(path) if self._store is None else keep(path, self._store, self._runs)
        except OSError as error:
            self.missing[name] = f"{error.filename or self._store}: {error.strerror}"
        except ArtifactError as error:
            self.missing[name] = str(error)
