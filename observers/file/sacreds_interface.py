"""`SacredsInterface`: the methods of Sacred's FileStorageObserver that scripts use, for the observer of a run."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sacred.observers import FileStorageObserver

from sacristan.observers.file.recording import Recording
from sacristan.observers.file.run_file import Beginning
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.guarding import Owned
from sacristan.observers.record.run_folder import artifact_path
from sacristan.observers.record.schema import FORMAT, RUN

__all__ = ["BeginningObserver", "SacredsInterface"]


class BeginningObserver(Owned):
    """Base of observers that handle both ways in which a run begins in one method."""

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an observer, like the constructor; for scripts written for Sacred's observers."""
        return cls(*args, **kwargs)

    def queued_event(
        self,
        ex_info: dict[str, Any],
        command: str,
        host_info: dict[str, Any],
        queue_time: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
        _id: Any,
    ) -> Any:
        """Handle Sacred's event for a run that another process will start; see `begin_run`."""
        return self.begin_run(Beginning(ex_info, command, host_info, queue_time, config, meta_info, _id, True))

    def started_event(
        self,
        ex_info: dict[str, Any],
        command: str,
        host_info: dict[str, Any],
        start_time: datetime,
        config: dict[str, Any],
        meta_info: dict[str, Any],
        _id: Any,
    ) -> Any:
        """Handle Sacred's event for a run that starts now; see `begin_run`."""
        return self.begin_run(Beginning(ex_info, command, host_info, start_time, config, meta_info, _id))

    @abstractmethod
    def begin_run(self, beginning: Beginning) -> Any:
        """Start to record a run, or record that it is queued; return its id in the observer's store."""


class SacredsInterface(BeginningObserver, FileStorageObserver):
    """Has the methods and attributes of Sacred's observer, and passes `isinstance`.

    Sacred's constructor is not called: every method of it that does something is overridden.
    """

    VERSION = FORMAT

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self._lock = threading.RLock()

    create_from = BeginningObserver.create

    @property
    def dir(self) -> str | None:  # type: ignore[override]  # Sacred assigns it
        """The run's folder as text, relative to the working folder if `basedir` is; None before the run starts."""
        if self.recording is None:
            return None
        return str(self.recording.folder) if Path(self.basedir).is_absolute() else self.recording.place

    @property
    def run_entry(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The content of `run.json`, which scripts change and pass to `save_json`; None before the run starts."""
        return None if self.recording is None else self.recording.run.entry

    def save_file(self, filename: str | Path, target_name: str | None = None) -> None:
        """Copy a file into the run's folder, as an artifact, by default under its own name."""
        self.keep_artifact(target_name or Path(filename).name, filename)

    def save_json(self, obj: Mapping[str, Any], filename: str) -> None:
        """Write a JSON file into the run's folder; `run.json` is merged into `run_entry`.

        Raises ArtifactError for a name that leads out of the folder, or belongs to another file of the record.
        """
        if self._is_copy():
            return
        with self._lock:
            recording = self._started()
            if filename == RUN:
                recording.run.update(obj)
            else:
                target = artifact_path(recording.folder, filename)
                recording.journal.write(target.relative_to(recording.folder.resolve()).as_posix(), plain(obj))

    def _started(self) -> Recording:
        if self.recording is None:
            raise RuntimeError("this observer has no run yet: started_event comes first")
        return self.recording

    @abstractmethod
    def keep_artifact(
        self, name: str, filename: str | Path, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file that the run made; recording continues while it is copied."""
