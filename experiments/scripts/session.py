"""`Session`: the run of this process with an open end, from `begin` to `end`, to the end of a `with` or of the process.

However the process ends, the run gets an end first that says how: an uncaught exception, `sys.exit`, `os._exit`, or a
signal, which then ends the process as it would have without a run. What kills it at once, such as SIGKILL or a crash,
leaves the record as it is then; readers see that its process is gone.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import logging
import opcode
import os
import signal
import sys
import threading
from _sitebuiltins import Quitter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn, Self

from sacristan.experiments.running import pseudo_terminals
from sacristan.experiments.running.main_file import is_notebook
from sacristan.experiments.running.signals import Terminated
from sacristan.experiments.scripts.in_children import place_in_launch
from sacristan.experiments.scripts.script_run import ScriptRun, make_run
from sacristan.ingredients.errors import ConcurrentRunError

_log = logging.getLogger(__name__)

# What ends a process by default, and can be caught; Ctrl-C raises KeyboardInterrupt in any Python.
_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM")
# Code that must not be left half done: a signal that comes in it is handled a little later, but not never.
_CRITICAL = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("observers", "experiments/running"))
_LATER_S, _MOST_DELAYS = 0.01, 500
# Ids of `sys.monitoring` that are not those of debuggers, coverage, profilers and optimizers.
_TOOLS = (4, 3)

_active: Session | None = None
_num_begun = 0


def active_session() -> Session | None:
    """Return the session of this process that has begun and not ended; None in a forked child."""
    return _active if _active is not None and _active.is_owner else None


class Session:
    """The recording of a script, which has no function to wrap.

        session = Session.begin("mnist", {"lr": 0.1})
        session.run.log({"loss": 0.5}, step=0)
        session.end()

    A `with` ends it, too. One that is not ended ends with the process. A process has one session at a time, and may
    have several one after another. Forked children log metrics into the parent's run; their end is none of its.

    Attributes:
        run: The run. It logs nothing once it has ended.
        on_signal: Gets the number of a signal that would end the process, and tells whether it takes care of that; None
            ends the run, and the process, at once.
    """

    def __init__(self, run: ScriptRun) -> None:
        self.run = run
        self._recording = run.recorded()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._has_ended = False
        self._ending: BaseException | None = None
        self._before_end: list[Callable[[], None]] = []
        self._undo = contextlib.ExitStack()
        self._program = _frame_of_program()
        self.on_signal: Callable[[int], bool] | None = None

    @classmethod
    def begin(
        cls,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        record_to: str | Path | None = "my_runs",
        script: Mapping[str, Any] | None = None,
        resume: Path | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start a run of this process, and record it until the session ends.

        Args:
            name: The name of its experiment; by default that of the script.
            config: Settings, nested or by dotted name; `session.run.update_config` adds more later.
            record_to: The folder of runs; None records none. The variable `SACRISTAN_STORE` names another one, or a
                MongoDB that the run is sent to as well.
            script: How the script was started: `kind`, `program` and `args`; by default, it is found out.
            resume: The folder of a record to continue.
            meta: Entries of its meta information; `notes` has the `display_name`, `note` and `tags` to begin with.

        Raises:
            ConcurrentRunError: If a session of this process has not ended.
            ObserversError: If the run cannot be recorded or resumed.
        """
        global _active, _num_begun
        if (other := active_session()) is not None:
            place = other.run.folder or other.run.experiment_info["name"]
            raise ConcurrentRunError(f"this process records a run already, {place}; end that one first")
        session = cls(make_run(name, config or {}, record_to=record_to, script=script, resume=resume, meta=meta))
        _num_begun += 1
        if _num_begun == 1:
            session._say_which_records()
        else:  # so that it is found again among those of another process
            session.run.meta_info["script"]["number"] = _num_begun
        session._recording.__enter__()
        _active = session
        session._watch_process()
        return session

    def _say_which_records(self) -> None:
        """Say that this task of srun records for all, which may as well be separate runs."""
        _, size, launcher = place_in_launch()
        if launcher == "srun" and size > 1:
            from sacristan.ingredients.ranks import ALONE_IN_STEP

            text = "recording the first of %d tasks of srun; to have a run of each, write: srun %s ..."
            self.run.run_logger.warning(text, size, ALONE_IN_STEP)

    def end(self, error: BaseException | None = None) -> None:
        """End the run; a session that has ended already stays as it is.

        Args:
            error: What ended it: a `KeyboardInterrupt` makes it INTERRUPTED, a `SystemExit` with a code FAILED, as any
                other error; None, and `SystemExit` without a code, COMPLETED.
        """
        global _active
        if not self.is_owner:
            return
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            for step in self._before_end:
                try:
                    step()
                except Exception:
                    _log.exception("a last step of the run failed; the run ends without it")
            trace = None if error is None else error.__traceback__
            try:
                self._recording.__exit__(None if error is None else type(error), error, trace)
            except BaseException as raised:
                if raised is not error:
                    raise
                raised.__traceback__ = trace
            finally:
                self._undo.close()
                if _active is self:
                    _active = None

    def before_end(self, step: Callable[[], None]) -> None:
        """Call a function when the run ends, while it can still be logged to.

        Args:
            step: The function; its errors are logged.
        """
        self._before_end.append(step)

    def note_ending(self, error: BaseException | None) -> None:
        """Note what will end the process; the run ends with it when the process does, unless something else comes.

        Args:
            error: As for `end`.
        """
        self._ending = error

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self._has_ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    @property
    def is_owner(self) -> bool:
        """Whether this process records the run; a forked child does not."""
        return os.getpid() == self._pid

    # ------------------------------------------------------------------ the end of the process

    def _watch_process(self) -> None:
        """Have whatever ends the process end the run first."""
        atexit.register(self._end_at_exit)
        self._undo.callback(atexit.unregister, self._end_at_exit)
        self._replace(sys, "excepthook", self._excepthook)
        self._replace(os, "_exit", self._exit_at_once)
        for name in ("execv", "execve"):  # which all others call
            self._replace(os, name, self._exec)
        if not self._monitor_program():
            self._replace(sys, "exit", self._exit)
            for name in ("exit", "quit"):  # which `python -S` lacks
                if isinstance(getattr(builtins, name, None), Quitter):
                    self._replace(builtins, name, self._exit)
        if threading.current_thread() is threading.main_thread():
            self._watch_signals()

    def _replace(self, module: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace a function of a module until the session ends; `function` gets the original first."""
        original = getattr(module, name)
        replacement = functools.wraps(original)(functools.partial(function, original))
        setattr(module, name, replacement)

        def give_back() -> None:
            if getattr(module, name) is replacement:  # else somebody has replaced it since
                setattr(module, name, original)

        self._undo.callback(give_back)

    def _monitor_program(self) -> bool:
        """Note the error that leaves the program's code; return False where Python, before 3.12, shows none."""
        if sys.version_info < (3, 12) or self._program is None:
            return False
        monitoring, program = sys.monitoring, self._program.f_code
        tool = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
        if tool is None:  # debuggers and profilers have them all
            return False

        def note(code: CodeType, offset: int, error: BaseException) -> None:
            if code is program and self.is_owner:
                self.note_ending(SystemExit(error.code) if isinstance(error, SystemExit) else error)

        monitoring.use_tool_id(tool, "sacristan")
        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, note)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)
        self._undo.callback(monitoring.free_tool_id, tool)
        self._undo.callback(monitoring.register_callback, tool, monitoring.events.PY_UNWIND, None)
        self._undo.callback(monitoring.set_events, tool, 0)
        return True

    def _end_at_exit(self) -> None:
        if self._ending is None and self.is_owner and not self._has_ended and _was_left_by_error(self._program):
            self._ending = getattr(sys, "last_value", None)  # the script has replaced our hook
            if self._ending is None:
                self._say_that_code_is_unknown()
        self.end(self._ending)

    def _say_that_code_is_unknown(self) -> None:
        self.run.info["exit_code"] = "unknown"
        self.run.run_logger.warning(
            "the script has raised SystemExit, and Python %d.%d does not tell its code, so that the run counts as"
            " COMPLETED; call sys.exit(code) instead",
            *sys.version_info[:2],
        )

    def _excepthook(
        self, original: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: Any
    ) -> None:
        if self.is_owner:
            self.note_ending(error)
        original(kind, error, trace)

    def _exit(self, original: Callable[[Any], NoReturn], code: Any = None) -> NoReturn:
        try:
            original(code)
        except SystemExit as error:
            if self.is_owner and threading.current_thread() is threading.main_thread():
                self.note_ending(SystemExit(error.code))
                error.noted = _Caught(self)  # type: ignore[attr-defined]  # lives as long as the exception
            raise

    def _exit_at_once(self, original: Callable[[int], NoReturn], status: int) -> NoReturn:
        if self.is_owner:
            with contextlib.suppress(Exception):
                self.end(SystemExit(status) if status else None)
        original(status)

    def _exec(self, original: Callable[..., Any], *args: Any) -> Any:
        # os.execvp tries each folder of PATH.
        if self.is_owner and not self._has_ended and not isinstance(args[0], int) and os.access(args[0], os.X_OK):
            self.run.run_logger.warning(
                "the script replaces its process by %s (os.exec): its record ends here, and reads as DEAD; to record"
                " that program, start it by sacristan run", os.fsdecode(args[0]),
            )  # fmt: skip
        return original(*args)

    # ------------------------------------------------------------------ signals

    def _watch_signals(self) -> None:
        """End the run before a signal ends the process. A script sees signals as they would be without a run."""
        self._delays = 0
        self._numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        for number in self._numbers:
            # Signals that are ignored, as SIGHUP under nohup, and those with a handler stay as they are.
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._receive)
        if pseudo_terminals.are_open() and (handler := signal.getsignal(signal.SIGWINCH)) is not None:
            self._numbers.append(signal.SIGWINCH)
            signal.signal(signal.SIGWINCH, _Resizing(handler))
            signal.siginterrupt(signal.SIGWINCH, False)
        self._undo.callback(self._give_back_signals)
        self._replace(signal, "getsignal", self._getsignal)
        self._replace(signal, "signal", self._signal)

    def _give_back_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                handler = signal.getsignal(number)
                if handler != (seen := self._as_seen(handler)):
                    signal.signal(number, seen)

    def _getsignal(self, original: Callable[[int], Any], number: int) -> Any:
        return self._as_seen(original(number))

    def _signal(self, original: Callable[[int, Any], Any], number: int, handler: Any) -> Any:
        if number in self._numbers and not self._has_ended and self.is_owner:
            if number == signal.SIGWINCH:
                handler = _Resizing(handler)
            elif handler == signal.SIG_DFL:
                handler = self._receive
        return self._as_seen(original(number, handler))

    def _as_seen(self, handler: Any) -> Any:
        if isinstance(handler, _Resizing):
            return handler.script_handler
        return signal.SIG_DFL if handler == self._receive else handler

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """End the run, and then the process by the same signal, as if it had not been caught."""
        if not self._has_ended and self.on_signal is not None and self.on_signal(number):
            return
        if self.is_owner and not self._has_ended:
            if _is_critical(frame) and self._delays < _MOST_DELAYS:
                self._delays += 1
                again = threading.Timer(_LATER_S, os.kill, (self._pid, number))
                again.daemon = True
                again.start()
                return
            with contextlib.suppress(Exception):
                self.end(Terminated(number))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class _Resizing:
    """Handles a new size of the terminal: first its copies, then what the script does."""

    def __init__(self, script_handler: Any) -> None:
        self.script_handler = script_handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        pseudo_terminals.resize()
        if callable(self.script_handler):
            self.script_handler(number, frame)


class _Caught:
    """Goes with the exception of a `sys.exit`; if the script catches that, nothing is noted any more."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __del__(self) -> None:
        try:
            sys._getframe(1)
        except ValueError:  # nothing runs any more: the exception ends the process
            return
        self._session.note_ending(None)


def _frame_of_program() -> FrameType | None:
    """Return the frame of the code at the top of `__main__`; None in a notebook, where it is that of a cell."""
    names, found, frame = vars(sys.modules["__main__"]), None, None if is_notebook() else sys._getframe()
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            found = frame
        frame = frame.f_back
    return found


def _was_left_by_error(frame: FrameType | None) -> bool:
    """Return whether a frame that runs no more has not returned."""
    return frame is not None and not opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _is_critical(frame: FrameType | None) -> bool:
    """Return whether the main thread is in code of the record, which holds its locks."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_CRITICAL):
            return True
        frame = frame.f_back
    return False
