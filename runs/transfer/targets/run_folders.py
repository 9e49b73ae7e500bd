"""A folder with a folder for each exported run, for trackers that are files.

The file `sacristan.json` in a run's folder says which run it is, in which state it was exported, and its status and
result. A folder with its final name is complete: it is written beside it under a hidden name, and renamed. The next
export deletes what a killed one left there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from sacristan.observers.record.locking import claimed
from sacristan.runs.errors import ForeignError
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.trackers.foreign_run import MARK
from sacristan.runs.transfer.trackers.source_files import INCOMPLETE

__all__ = ["RunFolders"]


class RunFolders:
    """A folder with a folder for each run; a `Target`.

    Args:
        output: The folder, which is created when the first run is written.
        content: Noun for the content, for messages.
        write: Writes a run, with its key, into an empty folder; returns what `Target.put` returns.
        name_of: Returns the name of the folder of a run and its key.

    Raises:
        ForeignError: If the output is an address or a file.
    """

    def __init__(
        self,
        output: str,
        content: str,
        write: Callable[[Run, str, Path], tuple[int, list[str]]],
        name_of: Callable[[Run, str], str],
    ) -> None:
        self._folder = Path(output)
        if "://" in output or (self._folder.exists() and not self._folder.is_dir()):
            raise ForeignError(f"got {output}, expected a folder for {content}")
        self._write = write
        self._name_of = name_of
        _remove_incomplete(self._folder)
        self._places = _exported(self._folder)

    def find(self, key: str) -> str | None:
        """Return the state that a run was exported in; see `Target.find`."""
        if key not in self._places:
            return None
        try:
            return str(json.loads((self._places[key] / MARK).read_text())["state"])
        except (OSError, ValueError, KeyError):
            return ""

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        """Write a run; see `Target.put`."""
        place = self._places.get(key) or self._free_place(run, key)
        part = place.with_name(f".{place.name}{INCOMPLETE}")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            with claimed(part):
                written = self._write(run, key, part)
                mark = {"run": key, "id": run.id, "state": state, "status": run.status, "result": run.result}
                (part / MARK).write_text(json.dumps(mark, default=str))
                if place.exists():
                    shutil.rmtree(place)
                part.rename(place)
        except OSError as error:
            raise ForeignError(f"{place}: {error.strerror or error}") from error
        self._places[key] = place
        return written

    def forget_place(self) -> None:
        """Do nothing: no file names the folder; see `Target.forget_place`."""

    def _free_place(self, run: Run, key: str) -> Path:
        """Return the folder of a run, with its key in the name too if another run has that name."""
        name = self._name_of(run, key)
        place = self._folder / name
        return place.with_name(f"{name}_{key}") if place.exists() else place


def _remove_incomplete(folder: Path) -> None:
    for part in folder.glob(f".*{INCOMPLETE}"):
        with contextlib.suppress(BlockingIOError), claimed(part, wait=False):  # another export may be writing it
            shutil.rmtree(part, ignore_errors=True)


def _exported(folder: Path) -> dict[str, Path]:
    """Return the folders of the runs that have been exported, by the runs' keys."""
    found: dict[str, Path] = {}
    for mark in folder.glob(f"*/{MARK}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found[json.loads(mark.read_text())["run"]] = mark.parent
    return {key: path for key, path in found.items() if path.suffix != INCOMPLETE}
