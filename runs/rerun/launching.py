"""Command lines that start a past run again, and the processes that run them.

    launch = recorded_launch(Record(run), config=Path("config.json"), updates=["lr=0.1"])
    pid, code = run_launch(launch)

Everything comes from the record as far as it goes; the notes name what could not be taken from it. A process that this
one waits for ends with it, even if this one is killed: a small shell waits at the end of a pipe, whose other end the
kernel closes then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NoReturn

from sacristan import configs
from sacristan.configs.slurm import job_id
from sacristan.observers.record.identity import CHECK_VARIABLE, NAMED_CONFIGS_VARIABLE
from sacristan.observers.record.redaction import hide_passwords, is_hidden, redact
from sacristan.runs.errors import LaunchError, naming_os_errors
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun import Record, ScriptStart

# Options that say where a run is recorded.
OBSERVERS = ("--file_storage", "--mongo_db", "--sql", "--tiny_db", "--s3")
# Options that would do something other than run it again.
_OTHER_ACTIONS = ("--queue", "--print-config", "--pdb", "--debug", "--id", "--unobserved", "--help")
# Short names of Sacred's options and the lab's.
_LONG = {
    "-A": "--anonymous",
    "-C": "--capture",
    "-E": "--environment",
    "-F": "--file_storage",
    "-P": "--priority",
    "-R": "--no_reads",
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


@dataclasses.dataclass(frozen=True)
class Launch:
    """A process to start; `environment` has the variables to set, where an empty text removes one."""

    command: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]
    notes: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The command without passwords, to show it."""
        return [hide_passwords(redact(word)) for word in self.command]

    @property
    def text(self) -> str:
        """The command without passwords, as one types it."""
        return shlex.join(self.words)

    def environ(self, added: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment of the process: this one's, updated by `added`, then by the launch's own."""
        merged = {**os.environ, **(added or {}), **self.environment}
        merged.pop("SLURM_STEP_NUM_TASKS", None)  # the process is no task of srun, as its parent may be
        return {name: value for name, value in merged.items() if value or name not in self.environment}


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
    """Return how to start a recorded run again.

    `config` holds the whole config, which `updates` such as `lr=0.1` change. `options` follow those of the record and
    replace the same ones; `without` leaves recorded ones out, by their long names. Modules are searched for in the
    experiment's folder, then in those of `search`, then elsewhere. With `prints_config`, the process prints the config
    instead.

    A script gets its own words again, and `options` after them; it has no `updates`.
    """
    if record.script_start is not None:
        return _script_launch(record, record.script_start, script, updates, options, environment or {}, search)
    _check_passwords_given(record, updates)
    script = record.script if script is None else script.absolute()
    # -P: as with a script, the folder it starts in is not searched before that of the experiment.
    program = ["-P", "-m", record.module] if record.module else [str(script)]
    if prints_config:
        command = [sys.executable, *program, "print_config"]
    else:
        command = [sys.executable, *_with_torchrun(record, program), *([record.command] if record.command else [])]
    command += ["with", str(config.absolute()), *updates]
    # Sacred rejects an option that is given twice.
    recorded, notes = _recorded_options(record, {*without, *_OTHER_ACTIONS, *map(_long_name, options)})
    folder, folder_notes = _folder(record)
    if "lab" not in record.provenance:  # its sources may import the lab's packages by their old names
        search = [*search, Path(configs.__file__).parents[1]]
    variables = {"PYTHONPATH": _python_path(script, record.mainfile, search), **(environment or {})}
    if record.named_configs:
        variables[NAMED_CONFIGS_VARIABLE] = ",".join(record.named_configs)
    if record.num_ranks > 1 and record.module:
        variables["PYTHONSAFEPATH"] = "1"  # as -P, for the processes of torchrun
    return Launch((*command, *recorded, *options), folder, variables, (*notes, *folder_notes))


def _script_launch(
    record: Record,
    start: ScriptStart,
    script: Path | None,
    updates: Sequence[str],
    words: Sequence[str],
    environment: Mapping[str, str],
    search: Sequence[Path],
) -> Launch:
    """Return how to start a script again: as it was started, with more words after its own."""
    if updates:
        raise LaunchError(
            f"run {record.id} is of a script, whose settings are its own words: got {' '.join(updates)}; give words "
            "after --"
        )
    path = record.script if script is None else script.absolute()
    _check_can_start(record, start)
    program = ["-m", start.program] if start.kind == "module" else [str(path)]
    if start.is_captured:
        program = ["-m", "sacristan", "run", *start.options, *program]
    folder, notes = _folder(record)
    variables = {"PYTHONPATH": _python_path(path, record.mainfile, search), "SACRISTAN_STORE": "", "SACRISTAN_MODE": ""}
    # -P: as with a script, the folder it starts in is not searched before that of the script.
    python = [sys.executable, *(["-P"] if program[0] == "-m" else [])]
    if start.num_processes > 1:
        if program[0] == "-m":
            variables["PYTHONSAFEPATH"] = "1"  # as -P, for the processes of torchrun
        program = [*_torchrun(start.num_processes), *program]
    return Launch((*python, *program, *start.args, *words), folder, {**variables, **environment}, tuple(notes))


def _check_can_start(record: Record, start: ScriptStart) -> None:
    """Reject a script that needs more than its command to run as it did."""
    hidden = [word for word in start.args if is_hidden(word)]
    if hidden:
        raise LaunchError(
            f"run {record.id} was recorded without the password in its words: {hidden[0]}; start it yourself: "
            f"{start.text}"
        )
    if start.num_processes > start.per_node:
        raise LaunchError(
            f"run {record.id} had {start.num_processes} processes on several machines, or by another launcher than "
            "torchrun, whose words are not recorded; start it yourself: sacristan run -- torchrun ..."
        )
    if start.reads_pipe and _reads_input(record):
        raise LaunchError(
            f"run {record.id} read its standard input, which is not recorded; start it yourself with the same input: "
            f"{start.text} < FILE"
        )


def _reads_input(record: Record) -> bool:
    """Tell whether the main file of a script may read the standard input."""
    content = record.sources.get(record.mainfile_text)
    text = b"" if content is None else content.read()
    return re.search(rb"\bsys\.stdin\b|\binput\(|\bfileinput\b", text) is not None


def _with_torchrun(record: Record, program: Sequence[str]) -> list[str]:
    """Return the words of a program, started by torchrun if the run had several processes; reject several machines."""
    if record.num_ranks == 1:
        return list(program)
    if record.ranks_per_node != record.num_ranks:
        nodes = record.num_ranks // record.ranks_per_node
        raise LaunchError(
            f"run {record.id} had {record.num_ranks} processes on {nodes} machines, which cannot be started from one; "
            "start torchrun on each of them as before, and let the run be resumed: with resume=auto"
        )
    of_module = ["-m", str(record.module)] if record.module else program
    return [*_torchrun(record.num_ranks), *of_module]


def _torchrun(num_processes: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]


def check_passwords_alone(record: Record, settings: Sequence[str]) -> None:
    """Reject settings that do more than supply the passwords that the `hidden_settings` of a record lack."""
    hidden = record.hidden_settings
    for setting in settings:
        name, sign, _ = setting.partition("=")
        if not sign or name not in hidden:
            allowed = (
                f"{list_text(hidden)}, which lacks its password" if hidden else "no setting, as its config is whole"
            )
            raise LaunchError(
                f"run {record.id} is started with its own config: got {name}, expected {allowed}; to change other "
                "settings: fork"
            )


def _check_passwords_given(record: Record, updates: Sequence[str]) -> None:
    """Reject a start with a URL whose recorded form lacks its password, unless `updates` set it."""
    updated = [update.partition("=")[0] for update in updates if "=" in update]
    missing = {
        name: value
        for name, value in record.hidden_settings.items()
        if not any(name == other or name.startswith(f"{other}.") for other in updated)
    }
    if missing:
        name, value = next(iter(missing.items()))
        more = f", and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise LaunchError(
            f"run {record.id} was recorded without the password in its config: {name}={value}{more}; give it: with "
            + " ".join(f"{name}=..." for name in missing)
        )


def _python_path(script: Path, mainfile: PurePath, search: Sequence[Path]) -> str:
    """Return the module search path, the experiment's folder first, ahead of any installed copy of it."""
    parts = len(mainfile.parts)
    base = script.parents[parts - 1] if script.parts[-parts:] == mainfile.parts else script.parent
    return os.pathsep.join([*dict.fromkeys(map(str, [base, *search])), *filter(None, [os.environ.get("PYTHONPATH")])])


# ---------------------------------------------------------------------- options


def _used_options(record: Record, without: Collection[str]) -> dict[str, str | bool]:
    """Return the recorded options that a new start takes over, but for some, with their values; True for a switch."""
    return {
        name: value if value is True else str(value)
        for name, value in (record.options or {}).items()
        if name.startswith("--") and name not in without and value not in (None, False, "")
    }


def dropped_options(record: Record, names: Sequence[str]) -> list[str]:
    """Return the long names of recorded options to leave out, given as `--name`, `-n` or `name`; reject unknown."""
    recorded = _used_options(record, _OTHER_ACTIONS)
    long_names = [_LONG.get(name, f"--{name.lstrip('-')}") for name in names]
    for name, long_name in zip(names, long_names, strict=True):
        if long_name not in recorded:
            raise LaunchError(
                f"without: got {name!r}, expected an option that run {record.id} was started with: "
                f"{', '.join(recorded) or 'it had none'}"
            )
    return long_names


def _long_name(word: str) -> str:
    """Return the long name of the option in a word of a command line."""
    return word.partition("=")[0] if word.startswith("--") else _LONG.get(word[:2], word)


def _recorded_options(record: Record, without: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the recorded options as words of a command line, and notes about them."""
    if record.options is None:
        return [], [f"the record of run {record.id} names no options of its command line; it is started without any"]
    options = _used_options(record, without)
    words = [name if value is True else f"{name}={value}" for name, value in options.items()]
    url = str(options.get("--mongo_db", ""))
    if "://" not in url:
        return words, []
    return words, [
        f"-m {url}: user and password are never recorded; if the database requires them, rejected points are kept, and "
        "delivered by: sacristan sync"
    ]


def _folder(record: Record) -> tuple[Path, list[str]]:
    """Return the folder to start the process in, and a note if it is not the recorded one."""
    if record.cwd is not None and record.cwd.is_dir():
        return record.cwd, []
    folder = record.base if record.base is not None and record.base.is_dir() else Path.cwd()
    started = f"was started in {record.cwd}, which is not there"
    why = started if record.cwd is not None else "does not say in which folder it was started"
    return folder, [f"run {record.id} {why}; it is started in {folder}, where relative paths in its config begin"]


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
