"""Processes of experiments: check their settings, run them to the end, or become them.

A process that this one waits for ends with it, even if this one is killed: a small shell waits at the end of a pipe,
whose other end the kernel closes then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from sacristan.configs.slurm import job_id
from sacristan.observers.record.identity import CHECK_VARIABLE
from sacristan.runs.errors import LaunchError, naming_os_errors
from sacristan.runs.rerun.launching import Launch

__all__ = ["EndsWithUs", "become", "check_settings", "end_text", "raising_signals", "run_launch", "started"]

# An interrupted run still writes its record and delivers it.
_END_BOUND_S = 60
# A line means that nothing is left to do. End of file without one: interrupt the group; kill what does not end.
_WATCH = """
read -r _ && exit
kill -s INT -- "-$0"
while [ "$1" -gt 0 ] && kill -s 0 -- "-$0"; do
    sleep 1
    set -- $(($1 - 1))
done
kill -s KILL -- "-$0"
"""


class EndsWithUs(contextlib.AbstractContextManager["EndsWithUs"]):
    """Context manager that ends a process and its group when this one ends: by SIGINT, after `bound_s` by SIGKILL."""

    def __init__(self, group: int, bound_s: int) -> None:
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(group), str(bound_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a Ctrl-C does not end it
        )

    def release(self) -> None:
        """Stop watching; the process then lives on its own."""
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate(b"\n")

    def __exit__(self, *_: object) -> None:
        self.release()


def _naming(launch: Launch) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the system into one that names the command and the folder."""
    return naming_os_errors(f"{launch.text} cannot be started in {launch.cwd}", kind=LaunchError)


def check_settings(launch: Launch) -> None:
    """Let an experiment check its settings with `print_config`; nothing is run, and nothing recorded."""
    with _naming(launch):
        done = subprocess.run(
            launch.command,
            cwd=launch.cwd,
            env=launch.environ({CHECK_VARIABLE: "1"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            errors="replace",
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the experiment ended with exit code {done.returncode}"]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise LaunchError(errors[-1] if errors else f"the experiment does not start: {lines[-1]}")


def become(launch: Launch) -> NoReturn:
    """Replace this process with the experiment's, which keeps the pid, the terminal and the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with _naming(launch):
        os.chdir(launch.cwd)
        os.execve(launch.command[0], launch.command, launch.environ())
    raise AssertionError  # execve does not return


def run_launch(launch: Launch, output: int | None = None) -> tuple[int, int]:
    """Run a process to its end, and return its pid and its exit code, negative for a signal."""
    with started(launch, output) as process:
        return process.pid, process.wait()


@contextlib.contextmanager
def started(launch: Launch, output: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and end it with the block as Ctrl-C would.

    Ctrl-C, SIGTERM and SIGHUP leave the block. If this process is killed, the other one is interrupted all the same.
    Without an `output`, it prints to stdout and stderr of this process.
    """
    # A script starts a command followed by `&` with SIGINT ignored, which children inherit.
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    with _naming(launch):
        process = subprocess.Popen(
            launch.command,
            cwd=launch.cwd,
            env=launch.environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # so that a Ctrl-C reaches it once, from here
            preexec_fn=_take_interrupts if is_ignored else None,
        )
    with EndsWithUs(process.pid, _END_BOUND_S), raising_signals():
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children as Ctrl-C would; kill them if that takes too long, or after a second Ctrl-C."""
    _signal(process, signal.SIGINT)
    try:
        process.wait(_END_BOUND_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        _signal(process, None)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int | None) -> None:
    """Send a signal to a process and its children, or kill them; without process groups, to the process alone."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if number is None else number)
        elif number is None:
            process.kill()
        else:
            process.terminate()


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP where they would end this process; only the main thread can do so."""

    def leave(number: int, frame: Any) -> None:
        if job_id() is not None:  # Slurm may send it to all processes of a job, and to srun, which passes it on
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # nohup ignores SIGHUP on purpose.
    handled = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def end_text(code: int) -> str:
    """Describe how a process ended, from its exit code, negative for a signal."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
