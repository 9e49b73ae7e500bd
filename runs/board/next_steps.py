"""Next steps for a run: commands to type, and the last good run before a failed one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from sacristan.runs.board.views import CompareView
from sacristan.runs.comparison.difference import last_good
from sacristan.runs.query.flattening import list_of
from sacristan.runs.stores.run import Run

__all__ = ["best_checkpoint", "checkpoint_commands", "commands", "last_good_of"]

# Statuses of runs that ended before they were done.
_ENDED_BADLY = ("INTERRUPTED", "DEAD", "FAILED", "TIMEOUT")
_BEST = ("checkpoints/best.pt", "checkpoints/last.pt")


def commands(where: str, run: Run) -> Iterator[tuple[str, str]]:
    """Yield what to do with a run, and the command that does it; `where` is the store as `--store` takes it."""
    words = list_of(run.get("command_line"))
    if words:
        yield "run it again", _there(run) + shlex.join(["python", *map(str, words)])
    store = ["sacristan", "--store", where]
    yield "reproduce it from its record", shlex.join([*store, "reproduce", run.id])
    if run.status in _ENDED_BADLY:
        yield "resume it in its record", shlex.join([*store, "resume", run.id])
    setting = "lr=1e-4" if run.get("config.lr") is not None else "seed=1"
    yield "fork it with other settings", shlex.join([*store, "fork", run.id, "with", setting])
    yield from checkpoint_commands(run)


def checkpoint_commands(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the commands that evaluate the run's best checkpoint, predict with it, and export it.

    None are yielded if the run's folder is on another machine, or the run keeps no checkpoint.
    """
    name = best_checkpoint(run)
    words, recorded = list_of(run.get("command_line")), run.original() if name else None
    if name is None or not words or recorded is None or recorded.folder is None:
        return
    folder = recorded.folder.absolute()
    settings = ["with", str(folder / "config.json"), f"checkpoint.path={folder / name}"]
    for command, more in (("evaluate", []), ("predict", []), ("export", ["export.path=model.onnx"])):
        text = shlex.join(["python", str(words[0]), command, *settings, *more])
        yield f"{command} {'with ' if command == 'predict' else ''}its checkpoint", _there(run) + text


def best_checkpoint(run: Run) -> str | None:
    """Return the name of the run's best checkpoint, or of the last one; None if the run keeps neither."""
    return next((name for name in _BEST if name in run.checkpoints), None)


def _there(run: Run) -> str:
    folder = run.document.get("cwd")
    return f"cd {shlex.quote(folder)} && " if isinstance(folder, str) and folder else ""


def last_good_of(run: Run) -> tuple[Run, list[str], str] | None:
    """Return the last good run before a failed one, the settings that differ, and the page that compares them."""
    found = last_good(run) if run.status in _ENDED_BADLY else None
    if found is None:
        return None
    good, names = found
    return good, names, CompareView(run=(good.id, run.id)).url(tab="config" if names else "sources")
