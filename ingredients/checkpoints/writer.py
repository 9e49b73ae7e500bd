"""`Writer`: writes files on a thread of its own, one batch of jobs at a time, beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ingredients.errors import CheckpointError

__all__ = ["Writer"]


class Writer:
    """Does jobs in the background; what goes wrong with them is raised by the next `wait`.

    Args:
        folder: Where the jobs write, for messages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do `jobs` one after the other, until one fails; those before must have been waited for."""
        # No daemon: Python waits for it, so that what was copied is not lost.
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
