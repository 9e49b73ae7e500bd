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

from experiments.running.captured_output import terminal
from experiments.running.main_file import module_of
from observers.file.observer import FileObserver
from observers.record.identity import RECORD_TO_VARIABLE
from observers.record.safe_paths import shown_path
from observers.record.schema import CONFIG

__all__ = ["resume_command", "show_next_steps"]

# The entries of `meta_info` that name what has started a run, unless a person did.
_STARTERS = ("parent", "queued", "sweep")


def resume_command(folder: Path) -> str:
    """Return the command that resumes a run.

    Args:
        folder: The folder of its record.
    """
    return _runs_command("resume", folder)


def show_next_steps(run: Any, commands: Collection[str]) -> None:
    """Show what to type next after a completed training, on a terminal where a person watches.

    Runs that a sweep, a queue or another run has started show nothing, nor does CI or a log level above INFO.

    Args:
        run: The `LabRun`, which has completed.
        commands: Names of the experiment's commands.
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
    """Return the commands by what they are for."""
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
    return f"{_python()} -m runs {shlex.join([*where, command, *([folder.name] if names_run else [])])}"


def _python() -> str:
    """Return the word that starts this Python."""
    found = shutil.which("python")
    is_usual = found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent
    return "python" if is_usual else shlex.quote(sys.orig_argv[0] or sys.executable)


def _program() -> str | None:
    """Return the words that start the experiment again; None if no file or module started it."""
    main = vars(sys.modules["__main__"])
    module, path = module_of(main), main.get("__file__")
    if module is not None:
        return f"{_python()} -m {module}"
    return None if path is None else f"{_python()} {shlex.quote(shown_path(Path(path).absolute()))}"
