"""The commands that make sense after a run, as one types them in the working folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sacristan.experiments.running.captured_output import terminal
from sacristan.experiments.running.main_file import module_of
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.record.files import shown_path
from sacristan.observers.record.identity import RECORD_TO_VARIABLE
from sacristan.observers.record.schema import CONFIG

__all__ = ["resume_command", "show_next_steps"]

# The entries of `meta_info` that name what has started a run, unless a person did.
_STARTERS = ("parent", "queued", "sweep")


def resume_command(folder: Path) -> str:
    """Return the command that resumes the run with this record folder."""
    return _runs_command("resume", folder)


def show_next_steps(run: Any, commands: Collection[str]) -> None:
    """Show what to type next after a completed training, if stdout is a terminal.

    Runs that a sweep, a queue or another run has started show nothing, nor does CI or a log level above INFO.
    """
    stream = terminal()
    folder = next((each.place for each in run.observers if isinstance(each, FileObserver)), None)
    if stream is None or folder is None or not _is_for_a_person(run):
        return
    steps = _next_steps(run, Path(folder), commands)
    *first, last = steps
    intent = f"{', '.join(first)} or {last}" if first else last
    print(f"Next, {intent}:", *(f"  {command}" for command in steps.values()), sep="\n", file=stream, flush=True)


def _is_for_a_person(run: Any) -> bool:
    is_watched = sys.stdout.isatty() and not os.environ.get("CI") and run.run_logger.isEnabledFor(logging.INFO)
    return is_watched and not any(name in run.meta_info for name in _STARTERS)


def _next_steps(run: Any, folder: Path, commands: Collection[str]) -> dict[str, str]:
    """Return the commands by purpose."""
    steps = {"look at the run": _runs_command("show", folder)}
    if importlib.util.find_spec("plotly") is not None:
        steps["open the board"] = _runs_command("board", folder, names_run=False)
    program, best = _program(), folder / "checkpoints" / "best.pt"
    if program is not None and "evaluate" in commands and best.is_file():
        is_usual = RECORD_TO_VARIABLE not in os.environ and "--file_storage" not in run.launch_options
        source = f"run:{folder.name}" if is_usual else str(best)
        words = ["evaluate", "with", str(folder / CONFIG), f"checkpoint.path={source}"]
        steps["evaluate its best weights"] = f"{program} {shlex.join(words)}"
    return steps


def _runs_command(command: str, folder: Path, *, names_run: bool = True) -> str:
    usual = os.environ.get("SACRISTAN_STORE") or "my_runs"
    store = Path(shown_path(folder.absolute().parent))
    where = [] if Path(usual).absolute() == store.absolute() else ["--store", str(store)]
    program = "sacristan" if _is_found("sacristan") else f"{_python()} -m sacristan"
    return f"{program} {shlex.join([*where, command, *([folder.name] if names_run else [])])}"


def _python() -> str:
    """Return the command that starts this Python."""
    return "python" if _is_found("python") else shlex.quote(sys.orig_argv[0] or sys.executable)


def _is_found(program: str) -> bool:
    """Return whether a shell finds the program of this environment by its name."""
    found = shutil.which(program)
    return found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent


def _program() -> str | None:
    """Return the command that starts the experiment again; None if no file or module started it."""
    main = vars(sys.modules["__main__"])
    module, path = module_of(main), main.get("__file__")
    if module is not None:
        return f"{_python()} -m {module}"
    return None if path is None else f"{_python()} {shlex.quote(shown_path(Path(path).absolute()))}"
