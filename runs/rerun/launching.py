"""How a recorded run is started again as a process: its script, command, options, folder and environment.

    launch = recorded_launch(read_record(run), config=Path("config.json"), updates=["lr=0.1"])
    pid, code = run_launch(launch)

Everything comes from the record, ours or stock Sacred's, as far as it goes; what could not be taken over is said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from observers.record.redaction import hide_passwords, redact
from runs.errors import LaunchError
from runs.rerun.ending import EndsWithUs
from runs.rerun.record import Record
from runs.rerun.wording import some

__all__ = [
    "OBSERVERS",
    "Launch",
    "check_passwords_alone",
    "dropped_options",
    "raising_signals",
    "recorded_launch",
    "run_launch",
    "started",
]

# Options that say where a run is recorded.
OBSERVERS = ("--file_storage", "--mongo_db", "--sql", "--tiny_db", "--s3")
# Options that would do something else than run it again.
_OTHER_DEEDS = ("--queue", "--print-config", "--pdb", "--debug", "--id", "--unobserved", "--help")
# Sacred's short names, and the lab's.
_LONG = {
    "-C": "--capture",
    "-E": "--environment",
    "-F": "--file_storage",
    "-P": "--priority",
    "-S": "--s3",
    "-T": "--tensorboard",
    "-b": "--beat-interval",
    "-c": "--comment",
    "-e": "--enforce_clean",
    "-f": "--force",
    "-l": "--loglevel",
    "-m": "--mongo_db",
    "-n": "--name",
    "-s": "--sql",
    "-t": "--tiny_db",
}
# A run that is interrupted still writes its record down, and delivers it.
_END_BOUND_S = 60


@dataclasses.dataclass(frozen=True)
class Launch:
    """A process to be started.

    Attributes:
        command: Interpreter, script or module, command of the experiment, `with`, config file, updates, options.
        cwd: The folder to start it in.
        environment: What is added to the environment; an empty text takes a variable away.
        notes: Sentences for the person: what could not be taken over.
    """

    command: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]
    notes: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The command, to be shown: without passwords."""
        return [hide_passwords(redact(word)) for word in self.command]

    @property
    def text(self) -> str:
        """The same as it is typed."""
        return shlex.join(self.words)

    def environ(self, added: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment of the process; `added` goes between that of this process and its own."""
        both = {**os.environ, **(added or {}), **self.environment}
        return {name: value for name, value in both.items() if value or name not in self.environment}


def recorded_launch(
    record: Record,
    *,
    script: Path | None = None,
    config: Path,
    updates: Sequence[str] = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    search: Sequence[Path] = (),
    prints_config: bool = False,
) -> Launch:
    """Return how a recorded run is started once more.

    Args:
        record: How it was started.
        script: The experiment's main file, by default that of the record in its own folder.
        config: A file with the whole config.
        updates: Settings that change it, such as `lr=0.1`.
        options: Options of the command line, behind those of the record, and in the place of those that are the same.
        environment: Variables to set.
        without: Options of the record, by their long names, that are not to be taken over.
        search: Folders to look for modules in, behind that of the experiment and ahead of all others.
        prints_config: Whether its config is printed, by one process, instead.

    Raises:
        LaunchError: If the record names no script, the script is not there, or the config lacks a password.
    """
    _refuse_hidden(record, updates)
    script = record.script if script is None else script.absolute()
    # -P: the folder that it is started in is not searched ahead of the one of the experiment, as with a script.
    how = ["-P", "-m", record.module] if record.module else [str(script)]
    if prints_config:
        command = [sys.executable, *how, "print_config"]
    else:
        command = [sys.executable, *_started_by(record, how), *([record.command] if record.command else [])]
    command += ["with", str(config.absolute()), *updates]
    # Sacred takes no option twice.
    recorded, notes = _recorded_options(record, {*without, *_OTHER_DEEDS, *map(_long_name, options)})
    folder, note = _folder(record)
    added = {"PYTHONPATH": _python_path(script, record.mainfile, search), **(environment or {})}
    if record.num_ranks > 1 and record.module:
        added["PYTHONSAFEPATH"] = "1"  # as -P, for the processes of torchrun
    return Launch((*command, *recorded, *options), folder, added, (*notes, *note))


def _started_by(record: Record, how: Sequence[str]) -> list[str]:
    """Return words of a command line with those of torchrun, if the run had several processes.

    Raises:
        LaunchError: If they were on several machines.
    """
    if record.num_ranks == 1:
        return list(how)
    if record.ranks_per_node != record.num_ranks:
        nodes = record.num_ranks // record.ranks_per_node
        raise LaunchError(
            f"run {record.run.id} had {record.num_ranks} processes on {nodes} machines, which cannot be started from "
            "one; start torchrun on each of them as before, and let the run be resumed: with resume=auto"
        )
    of_module = ["-m", str(record.module)] if record.module else how
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={record.num_ranks}", *of_module]


def check_passwords_alone(record: Record, settings: Sequence[str]) -> None:
    """See to it that settings give passwords that were not recorded, and change nothing else.

    Raises:
        LaunchError: If one does.
    """
    hidden = record.hidden_settings
    for setting in settings:
        name, sign, _ = setting.partition("=")
        if not sign or name not in hidden:
            allowed = f"{some(hidden)}, which lacks its password" if hidden else "no setting, as its config is whole"
            raise LaunchError(
                f"run {record.run.id} is started with its own config: got {name}, expected {allowed}; to change "
                "others: fork"
            )


def _refuse_hidden(record: Record, updates: Sequence[str]) -> None:
    """Refuse to start a run with a URL that lacks its password.

    Raises:
        LaunchError: If the record has one that `updates` do not set.
    """
    given = [update.partition("=")[0] for update in updates if "=" in update]
    missing = {
        name: value
        for name, value in record.hidden_settings.items()
        if not any(name == other or name.startswith(f"{other}.") for other in given)
    }
    if missing:
        name, value = next(iter(missing.items()))
        more = f", and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise LaunchError(
            f"run {record.run.id} was recorded without the password in its config: {name}={value}{more}; give it: with "
            + " ".join(f"{name}=..." for name in missing)
        )


def _python_path(script: Path, mainfile: PurePath, search: Sequence[Path]) -> str:
    """Return the search path of modules with the folder of the experiment first, ahead of any installed copy of it."""
    parts = len(mainfile.parts)
    base = script.parents[parts - 1] if script.parts[-parts:] == mainfile.parts else script.parent
    return os.pathsep.join([*dict.fromkeys(map(str, [base, *search])), *filter(None, [os.environ.get("PYTHONPATH")])])


def dropped_options(record: Record, names: Sequence[str]) -> list[str]:
    """Return the long names of recorded options that are to be left away.

    Args:
        record: How the run was started.
        names: As on a command line, `--name` or `-n`, or without dashes, `name`.

    Raises:
        LaunchError: If the record has no such option.
    """
    recorded = [name for name, value in (record.options or {}).items() if value not in (None, False, "")]
    recorded = [name for name in recorded if name.startswith("--") and name not in _OTHER_DEEDS]
    found = [_LONG.get(name, f"--{name.lstrip('-')}") for name in names]
    for given, name in zip(names, found, strict=True):
        if name not in recorded:
            raise LaunchError(
                f"got the option {given!r} to leave away, but run {record.run.id} was started with: "
                f"{', '.join(recorded) or 'none'}"
            )
    return found


def _long_name(word: str) -> str:
    """Return the long name of the option in a word of a command line."""
    return word.partition("=")[0] if word.startswith("--") else _LONG.get(word[:2], word)


def _recorded_options(record: Record, without: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the options of the record as words of a command line, and what is to be said of them."""
    if record.options is None:
        text = f"the record of run {record.run.id} names no options of its command line; it is started without any"
        return [], [text]
    words, notes = [], []
    for name, value in record.options.items():
        if not name.startswith("--") or name in without or value in (None, False, ""):
            continue
        words.append(name if value is True else f"{name}={value}")
        if name == "--mongo_db" and "://" in str(value):
            notes.append(
                f"-m {value}: user and password are never recorded; if the database wants them, what it refuses is "
                "kept, and delivered by: python -m runs sync"
            )
    return words, notes


def _folder(record: Record) -> tuple[Path, list[str]]:
    """Return the folder to start the process in, and what is to be said of it."""
    if record.cwd is not None and record.cwd.is_dir():
        return record.cwd, []
    chosen = record.base if record.base is not None and record.base.is_dir() else Path.cwd()
    started = f"was started in {record.cwd}, which is not there"
    why = started if record.cwd is not None else "does not say in which folder it was started"
    return chosen, [f"run {record.run.id} {why}; it is started in {chosen}, where relative paths in its config begin"]


def run_launch(launch: Launch, output: int | None = None) -> tuple[int, int]:
    """Run a process to its end; return its pid and its exit code, negative for the signal that ended it.

    Args:
        launch: The process.
        output: File descriptor for all that it prints; None leaves stdout and stderr as they are.

    Raises:
        LaunchError: If it cannot be started.
    """
    with started(launch, output) as process:
        return process.pid, process.wait()


@contextlib.contextmanager
def started(launch: Launch, output: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with the block, as Ctrl-C would end it.

    Ctrl-C, SIGTERM and SIGHUP leave the block; where this process is killed, the other one is interrupted all the same.

    Args:
        launch: The process.
        output: File descriptor for all that it prints; None leaves stdout and stderr as they are.

    Raises:
        LaunchError: If it cannot be started.
    """
    # A script starts what stands before an `&` with SIGINT ignored, which a process hands on to those that it starts.
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    try:
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
    except OSError as error:
        raise LaunchError(f"{launch.text} cannot be started in {launch.cwd} ({error.strerror})") from error
    with EndsWithUs(process.pid, _END_BOUND_S), raising_signals():
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children as Ctrl-C would; at once if it takes too long, or after a second Ctrl-C."""
    _signal(process, signal.SIGINT)
    try:
        process.wait(_END_BOUND_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        _signal(process, None)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int | None) -> None:
    """Send a signal to a process and its children, or kill them; where there are no groups, to the process alone."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if number is None else number)
        elif number is None:
            process.kill()
        else:
            process.terminate()


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit where they would end this process, if signals can be handled here."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # nohup sets SIGHUP to be ignored, and means it.
    ours = [number for number in handled if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
