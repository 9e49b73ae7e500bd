"""Signals that end a run: at once, or where a training holds them back, once its step is done and saved.

A signal raises in what people write alone: the command, and the hooks around it. While the run begins, and from the
moment that the command is left, however that is, signals wait, so that a run that has begun has an end in its record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from sacristan.configs.slurm import job_id

P = ParamSpec("P")
T = TypeVar("T")

# What a person, a scheduler or the end of a terminal sends.
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
# EX_TEMPFAIL of sysexits.h: start the same again later, and it resumes.
SAVED_CODE = 75


class Terminated(KeyboardInterrupt):
    """The run was ended by a signal; its status is INTERRUPTED. No `except Exception` on its way holds it up.

    Attributes:
        signal: Name of the signal.
        step: The optimizer step that a checkpoint was saved after; None if none was.
        code: Exit code: `SAVED_CODE` if a checkpoint was saved for that, or the same command resumes the run anyway;
            else by convention 128 and the signal's number.
    """

    def __init__(self, number: int, step: int | None = None) -> None:
        self.signal = signal.Signals(number).name
        self.step = step
        self.code = 128 + number if step is None else SAVED_CODE
        super().__init__(f"ended by {self.signal}")


class Signals:
    """Turns the signals that end a process into exceptions, of the main thread's run.

    `stopping` is the number of the signal that was held back. If `is_patient`, further ones are held back as well:
    launchers and agents of sweeps pass on signals that all processes of a job received anyway.
    """

    def __init__(self) -> None:
        self.stopping: int | None = None
        self.is_patient = False
        self._is_deferring = False
        # Whether a signal may raise, and the function at whose edge that begins and ends.
        self._is_open = False
        self._edge: CodeType | None = None
        # What came while it was not.
        self._waiting: list[int] = []
        self._replaced: dict[int, Any] = {}
        self._is_child = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Raise on a signal in the main thread; code in the block finishes first, unless it is `interruptible`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Ctrl-C is given back last, because Python's own handler raises at once.
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        for number in sorted(numbers, key=lambda number: number != signal.SIGINT):
            # Signals that are ignored, as SIGHUP under nohup, and those with a handler of the user's stay as they are.
            if _is_for_us(signal.getsignal(number)):
                self._replaced[number] = signal.signal(number, self._receive)
        try:
            yield
        except KeyboardInterrupt:
            self._waiting.clear()  # they have what they came for
            raise
        except BaseException as error:
            if self._waiting:
                raise _exception(self._waiting[0]) from error
            raise
        finally:
            self._give_back()
        if self._waiting:
            raise _exception(self._waiting[0])

    def _give_back(self) -> None:
        """Restore the previous handlers; one of them may raise at once."""
        raised = None
        while self._replaced:
            try:
                # A signal that comes meanwhile may add to them.
                number = list(self._replaced)[-1]
                signal.signal(number, self._replaced[number])
                del self._replaced[number]
            except KeyboardInterrupt as error:
                raised = error
        if raised is not None:
            raise raised

    def interruptible(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function` such that signals raise in it, at any line; one that is waiting is raised at the call."""

        def edge(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                self._is_open = True
                if self._waiting:
                    raise _exception(self._waiting.pop(0))
                return function(*args, **kwargs)
            finally:
                # A signal may come here as well; see `_receive`.
                self._is_open = False

        self._edge = edge.__code__
        return wraps(function)(edge)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold the first signal back, as `stopping`; the second one is raised."""
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False

    def after_fork_in_child(self) -> None:
        """Leave the run and its signals to the parent; the child handles its own as if there were no run."""
        self._is_child = True

    def _receive_in_child(self, number: int) -> None:
        # A signal goes to a whole group, workers of a loader among it: without them the step could not be finished.
        if self._is_deferring and is_loader_worker():
            return
        signal.signal(number, self._replaced.get(number, signal.SIG_DFL))
        os.kill(os.getpid(), number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._is_child:
            self._receive_in_child(number)
            return
        self.pass_over_workers()
        # It may come while another one is received.
        while frame is not None and frame.f_code is _RECEIVE:
            frame = frame.f_back
        may_raise = self._is_open
        if frame is not None and frame.f_code is self._edge:
            # An exception raised here misses the line that does this, or has passed it.
            self._is_open = False
        if not may_raise:
            self._waiting.append(number)
            _say(number, "the record of this run is completed first; Ctrl-\\ or SIGKILL end it at once")
        elif self._is_deferring and self.stopping is None:
            self.stopping = number
            more = "" if self.is_patient or job_id() is not None else "; once more ends the run at once"
            _say(number, f"saving a checkpoint after this step{more}")
        elif self._is_deferring and (self.is_patient or (number != signal.SIGINT and job_id() is not None)):
            return  # Slurm sends it to all processes of a job, to srun as well, which passes it on
        else:
            raise _exception(number)

    def pass_over_workers(self) -> None:
        """Ignore the end of loader workers, which may have received the signal as well."""
        if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is not _pass_over:
            # Not SIG_IGN: Python reports an error for a signal that has come already and whose handler is gone.
            replaced = signal.signal(signal.SIGCHLD, _pass_over)
            self._replaced.setdefault(signal.SIGCHLD, signal.SIG_DFL if replaced is None else replaced)

    def stop(self, step: int | None) -> NoReturn:
        """End the run by the signal that was held back, with `Terminated`."""
        if self.stopping is None:
            raise RuntimeError("stop: no signal was held back; call it once `stopping` is a number")
        raise Terminated(self.stopping, step)


def _pass_over(number: int, frame: Any) -> None:
    pass


def is_loader_worker() -> bool:
    """Return whether this process is a worker of torch's DataLoader, without loading torch."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(module, "_worker_info", None) is not None


def _exception(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def _say(number: int, text: str) -> None:
    # Not by logging or print, which the signal may have come in the middle of; the terminal may be gone.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{signal.Signals(number).name}: {text}\n".encode())


def _is_for_us(handler: Any) -> bool:
    """Return whether a handler is Python's default, or that of the run that started this one."""
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(
        getattr(handler, "__self__", None), Signals
    )


_RECEIVE = Signals._receive.__code__
