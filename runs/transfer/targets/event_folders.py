"""Runs as TensorBoard's event files: a folder for each run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from sacristan.runs.errors import ForeignError
from sacristan.runs.stores import Run
from sacristan.runs.transfer.targets import RunFolders, media_of, start_of

LACKS = (
    "TensorBoard keeps numbers in 32 bits and steps as integers",
    "TensorBoard stores no artifacts, sources or output",
)
NEEDS = ("tensorboard", "google_crc32c")


def open_target(output: str) -> RunFolders:
    """Open a folder, which is created when the first run is written; reject an address or a file."""
    return RunFolders(output, "event files", _write, _name_of)


def _name_of(run: Run, key: str) -> str:
    return re.sub(r"[^\w.+-]", "_", run.id)[:100].lstrip(".") or key


def _write(run: Run, key: str, folder: Path) -> tuple[int, list[str]]:
    from sacristan.observers.tensorboard.run_events import RunEvents

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
