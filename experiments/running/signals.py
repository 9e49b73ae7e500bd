"""Signals that end a run: at once, or where a training holds them back, once its step is done and saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["SAVED_CODE", "Signals", "Terminated"]

# What a person, a scheduler or the end of a terminal sends.
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
# EX_TEMPFAIL of sysexits.h: start the same again later, and it resumes.
SAVED_CODE = 75


class Terminated(KeyboardInterrupt):
    """The run was ended by a signal; its status is INTERRUPTED. No `except Exception` on its way holds it up.

    Attributes:
        signal: Name of the signal.
        step: The optimizer step that a checkpoint was saved after; None if none was.
        code: Exit code: `SAVED_CODE` if the run can be resumed from a checkpoint saved for that, else by convention
            128 and the signal's number.
    """

    def __init__(self, number: int, step: int | None = None) -> None:
        self.signal = signal.Signals(number).name
        self.step = step
        self.code = 128 + number if step is None else SAVED_CODE
        super().__init__(f"ended by {self.signal}")


class Signals:
    """Turns the signals that end a process into exceptions, of the main thread's run.

    Attributes:
        stopping: Number of the signal that was held back; None before one came.
    """

    def __init__(self) -> None:
        self.stopping: int | None = None
        self._is_deferring = False
        # What came while signals have to wait; None where they have not.
        self._waiting: list[int] | None = None

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Raise `Terminated`, or `KeyboardInterrupt`, when a signal comes; without effect on other threads."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
        # nohup sets SIGHUP to be ignored, and means it; so does whoever has a handler of his own.
        ours = {number for number in numbers if before[number] in (signal.SIG_DFL, signal.default_int_handler)}
        for number in ours:
            signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Let signals wait until what is done here is done."""
        self._waiting = []
        try:
            yield
        finally:
            waiting, self._waiting = self._waiting, None
        if waiting:
            self._receive(waiting[0], None)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold the first signal back, as `stopping`; the second one is raised."""
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False

    def _receive(self, number: int, frame: Any) -> None:
        # The signal may have gone to the workers of a loader, too; that they end is no error then. A function of ours,
        # because Python complains of a signal that has come already and whose handler is gone.
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, _pass_over)
        if self._waiting is not None:
            self._waiting.append(number)
            return
        if self._is_deferring and self.stopping is None:
            self.stopping = number
            name = signal.Signals(number).name
            # Not by logging or print, which the signal may have come in the middle of; the terminal may be gone.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{name}: saving a checkpoint after this step; once more ends the run at once\n".encode())
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(number)

    def stop(self, step: int | None) -> NoReturn:
        """End the run by the signal that was held back.

        Args:
            step: The optimizer step that a checkpoint was saved after, if one was.

        Raises:
            Terminated: Always.
            RuntimeError: If no signal was held back.
        """
        if self.stopping is None:
            raise RuntimeError("stop: no signal was held back; call it once `stopping` is a number")
        raise Terminated(self.stopping, step)


def _pass_over(number: int, frame: Any) -> None:
    pass
