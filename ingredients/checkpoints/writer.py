"""`Writer`: writes files on its own thread beside the training, one batch of jobs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ingredients.errors import CheckpointError

__all__ = ["Writer"]


class Writer:
    """Does jobs in the background; the next `wait` raises their error.

    Args:
        folder: The folder they write to, for messages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do jobs one after the other, until one fails; `wait` or `join` must have been called for those before.

        Args:
            jobs: Functions that write files. An `OSError` becomes a `CheckpointError` that names the folder.
        """
        # No daemon: Python waits for it, so no copied state is lost.
        self._thread = threading.Thread(target=self._work, args=(jobs,), name="sacristan-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until all jobs are done.

        Raises:
            CheckpointError: If one could not write.
        """
        error = self.join()
        self._error = None
        if error is not None:
            raise error

    def join(self) -> BaseException | None:
        """Wait until all jobs are done, and return the error that `wait` would raise."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._error

    def _work(self, jobs: Sequence[Callable[[], None]]) -> None:
        try:
            for job in jobs:
                job()
        except OSError as error:
            self._error = CheckpointError(f"{self._folder}: cannot be written: {error}; the checkpoint before it stays")
        except BaseException as error:
            self._error = error
