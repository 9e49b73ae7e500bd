"""`SacredsInterface`: what scripts that were written for Sacred's FileStorageObserver ask of the observer of a run."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from sacred.observers import FileStorageObserver

from observers.file.recording import Recording
from observers.file.sacred_form import plain
from observers.record.guarding import Owned
from observers.record.numbered_folder import artifact_path
from observers.record.safe_paths import shown_path
from observers.record.schema import RUN

__all__ = ["SacredsInterface"]


class SacredsInterface(Owned, FileStorageObserver):
    """Has the methods and attributes of Sacred's observer that scripts use, and is one for `isinstance`.

    Nothing of Sacred's own constructor is run: each of its methods that does something is replaced.

    Attributes:
        recording: The run; None before it starts.
    """

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self._lock = threading.RLock()

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an observer, as its constructor does."""
        return cls(*args, **kwargs)

    create_from = create

    @property
    def dir(self) -> str | None:  # type: ignore[override]  # Sacred assigns it
        """The folder of the run, as text, from the working folder if `basedir` is, too; None before it starts."""
        if self.recording is None:
            return None
        return str(self.recording.folder) if Path(self.basedir).is_absolute() else shown_path(self.recording.folder)

    @property
    def run_entry(self) -> dict[str, Any] | None:  # type: ignore[override]
        """Content of `run.json`, for scripts that change it and call `save_json`; None before the run starts."""
        return None if self.recording is None else self.recording.run.entry

    def save_file(self, filename: str | Path, target_name: str | None = None) -> None:
        """Copy a file into the run's folder, as an artifact.

        Args:
            filename: The file.
            target_name: Its name there, by default its own.

        Raises:
            ArtifactError: If it cannot be kept.
        """
        self.keep_artifact(target_name or Path(filename).name, filename)

    def save_json(self, obj: Mapping[str, Any], filename: str) -> None:
        """Write a JSON file into the run's folder.

        Args:
            obj: Its content. That of `run.json` is merged into `run_entry`.
            filename: Its name there.

        Raises:
            ArtifactError: If that leads out of the folder, or is that of another file of the record.
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
        """Keep a file that the run made, under `name` in the run's folder."""
