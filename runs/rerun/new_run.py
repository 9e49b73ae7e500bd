"""The new run of a reproduction: where its process records it, and how it gets into the store of the old one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.schema import RUN, read_json_if_whole
from sacristan.runs.errors import LaunchError, StoreError
from sacristan.runs.query.flattening import list_of
from sacristan.runs.rerun.planning import Plan
from sacristan.runs.rerun.record import is_written_by
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store
from sacristan.runs.transfer.copying import copy

__all__ = ["NewRunPlace"]


class NewRunPlace(contextlib.AbstractContextManager["NewRunPlace"]):
    """Context manager around the process of a plan; open it before the process starts.

    The process records into the store itself, or beside it into a staging folder, from which the run is copied. Where
    the store cannot be written to, the run goes into a folder of runs of its own, which is open until the block ends.

    Raises:
        LaunchError: If an artifact version that the old run used is missing.
        StoreError: If the store cannot be read.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._old, self._store = plan, plan.record.run, plan.record.store
        with contextlib.ExitStack() as self._stack:
            self._own = self._open_own() if plan.is_read_only else None
            if plan.is_staged:
                self._fetch_used_versions()
            self._before = {run.id for run in self._store.find(columns=())}
            self._stack = self._stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open_own(self) -> Store:
        return self._stack.enter_context(open_store(self._plan.own_store, create=True))

    def _fetch_used_versions(self) -> None:
        """Put the artifact versions that the old run used where the process looks for them."""
        folder = self._plan.record_to
        for entry in list_of(self._old["artifacts_used"]):
            try:
                ArtifactStore(folder).take(self._old.fetch_version(entry, folder))
            except (ArtifactError, StoreError) as error:
                raise LaunchError(f"run {self._old.id} used an artifact that does not exist: {error}") from error

    def find(self, pid: int) -> tuple[Run | None, list[str]]:
        """Return the run that the ended process recorded, None if there is none, and notes about where it is.

        A staged run is copied into the store first.
        """
        return self._find_staged(pid) if self._plan.is_staged else (self._find_recorded(pid), [])

    def _find_recorded(self, pid: int) -> Run | None:
        children = self._store.find([("parent", "==", self._old.uid)])
        # Another reproduction of the same run, or a fork, may have begun beside this one.
        own = [run for run in children if run.id not in self._before and (not run.lease or is_written_by(run, pid))]
        return self._store.get(own[0].id) if own else None

    def _find_staged(self, pid: int) -> tuple[Run | None, list[str]]:
        old = self._old
        with open_store(self._plan.record_to) as staging:
            recorded = staging.find(sort="start_time")
            if not recorded:
                return None, []
            # It may have started others, which are recorded beside it.
            run = next((entry for entry in recorded if is_written_by(entry, pid)), recorded[0])
            if old.uid and not run["parent"]:
                _adopt(self._plan.record_to / run.id / RUN, old.uid)
            # A run that its own observer recorded in the store is not copied there a second time.
            delivered = next((new for new in self._store.find() if self._is_new_run(new)), None)
            return self._copy(staging.get(run.id)) if delivered is None else (delivered, [])

    def _is_new_run(self, run: Run) -> bool:
        """Tell whether a run of the store may be the one that the process recorded into a database itself."""
        if run.id in self._before:
            return False
        if run.uid is None and run.name == self._old.name:
            return True
        return self._old.uid is not None and run["parent"] == self._old.uid

    def _copy(self, run: Run) -> tuple[Run, list[str]]:
        if self._own is not None:
            return copy(run, self._own).run, []
        try:
            return copy(run, self._store).run, []
        except StoreError as error:
            own = self._open_own()
            return copy(run, own).run, [
                f"the new run could not be put into {self._store.where} ({error}); it is in {own.where}"
            ]


def _adopt(path: Path, parent: str) -> None:
    """Name the parent in a record that stock Sacred wrote."""
    path.write_text(json.dumps({**(read_json_if_whole(path) or {}), "parent": parent}, indent=2))
