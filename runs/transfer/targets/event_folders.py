"""Runs as TensorBoard's event files: a folder for each run.

The file `sacristan.json` beside the event files says which run it is, and in which state it was exported. A folder is
complete when it has its name: it is written beside and renamed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from runs.errors import ForeignError, MissingExtraError
from runs.stores.run import Run
from runs.transfer.targets.target import media_of, start_of

__all__ = ["LACKS", "open_target"]

LACKS = (
    "TensorBoard keeps numbers in 32 bits and steps as integers",
    "TensorBoard stores no artifacts, sources or output",
)
_MARK = "sacristan.json"
_SUFFIX = ".incomplete"


@contextlib.contextmanager
def open_target(output: str) -> Iterator[EventFolders]:
    """Open a folder.

    Args:
        output: The folder, which is created when the first run is written.

    Raises:
        ForeignError: If it is an address or a file.
        MissingExtraError: If the extra `tensorboard` is not installed.
    """
    for name in ("tensorboard", "google_crc32c"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(
                f"event files need the package {name!r}, which is not installed; "
                "install it with: pip install 'sacristan[tensorboard]'"
            )
    folder = Path(output)
    if "://" in output or (folder.exists() and not folder.is_dir()):
        raise ForeignError(f"got {output}, expected a folder for event files")
    yield EventFolders(folder)


class EventFolders:
    """A folder with a folder of event files for each run.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, Path] = {}
        for mark in folder.glob(f"*/{_MARK}"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                self._places[json.loads(mark.read_text())["run"]] = mark.parent
        self._places = {key: path for key, path in self._places.items() if path.suffix != _SUFFIX}

    def find(self, key: str) -> str | None:
        """Return the state that a run was exported in; see `Target.find`."""
        if key not in self._places:
            return None
        try:
            return str(json.loads((self._places[key] / _MARK).read_text())["state"])
        except (OSError, ValueError, KeyError):
            return ""

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        """Write a run; see `Target.put`."""
        place = self._places.get(key) or self._free_place(run, key)
        part = place.with_name(place.name + _SUFFIX)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            written = _write(run, key, part)
            (part / _MARK).write_text(json.dumps({"run": key, "id": run.id, "state": state}))
            if place.exists():
                shutil.rmtree(place)
            part.rename(place)
        except OSError as error:
            raise ForeignError(f"{place}: {error.strerror or error}") from error
        self._places[key] = place
        return written

    def _free_place(self, run: Run, key: str) -> Path:
        """Return a folder named by the run's id, or by its uid too if another run has that."""
        name = re.sub(r"[^\w.+-]", "_", run.id)[:100].lstrip(".") or key
        place = self._folder / name
        return place.with_name(f"{name}_{key}") if place.exists() else place


def _write(run: Run, key: str, folder: Path) -> tuple[int, list[str]]:
    from observers.tensorboard.run_events import RunEvents

    start = start_of(run)
    events = RunEvents(folder, key, dict(run.config), datetime.fromtimestamp(start, UTC))
    left_out, num_points = [], 0
    for name in run.metrics:
        series = run.metric(name)
        times = (series.times + start).tolist()
        events.add_scalars(name, zip(series.steps.tolist(), series.values.tolist(), times, strict=True))
        events.flush()
        num_points += len(series)
        if series.steps.dtype.kind == "f" and (series.steps % 1 != 0).any():
            left_out.append(f"metric {name!r}: fractions of its steps")
    for entry in media_of(run, left_out):
        events.add_media([entry])
        events.flush()
    if run.odd_values():
        left_out.append("logged values that are no numbers")
    stopped = run.stop_time or datetime.fromtimestamp(start, UTC)
    if isinstance(run.result, int | float):
        events.add_result(float(run.result), stopped)
    if not events.end(stopped, completed=run.status.startswith("COMPLETED")):
        raise ForeignError(f"{folder} cannot be written as a whole; make room on its disk and export again")
    return num_points, left_out
