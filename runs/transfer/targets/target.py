"""The writer of runs to another tracker.

A writer is a module with three names:

    LACKS                   a sentence for each thing that the tracker cannot hold
    NEEDS                   packages that it imports, from the extra that is called like its kind
    open_target(output)     a context with a `Target`

A run is new there, replaced if it has changed since an earlier export, or present. Runs are identified by uid, so
exporting again adds nothing; what a killed export left is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from sacristan.observers.record.media_files import Content, MediaEntry
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.run import Run

__all__ = ["Outcome", "Target", "TargetModule", "key_of", "media_of", "start_of", "state_of"]

Outcome = Literal["new", "replaced", "present"]


class Target(Protocol):
    """A place of another tracker that runs are written to."""

    def find(self, key: str) -> str | None:
        """Return the state that a run was exported in, by its key; empty if it is unfinished, None if it is absent."""

    def put(self, run: Run, key: str, state: str) -> tuple[int, list[str]]:
        """Write a run under its key (see `key_of`), in place of an earlier export.

        Return the number of points, and a sentence for each part that was left out. `find` returns `state` once the run
        is complete.
        """

    def forget_place(self) -> None:
        """Remove the path of the folder from what was written there."""


class TargetModule(Protocol):
    """The module of a writer."""

    LACKS: tuple[str, ...]
    NEEDS: tuple[str, ...]

    def open_target(self, output: str) -> AbstractContextManager[Target]:
        """Open a folder or an address, which is created if it is missing."""


def key_of(run: Run) -> str:
    """Return the key of a run at all places: its uid, or for a run of stock Sacred a digest of its store and id."""
    return run.uid or hashlib.sha256(f"{run.store.where}\n{run.id}".encode()).hexdigest()[:32]


def state_of(run: Run) -> str:
    """Return a digest of the record, which changes when the run continues or its tags or note change."""
    document = {name: value for name, value in run.document.items() if name not in ("notified", "changes")}
    content = [document, dict(run.config), dict(run.info), run.summary, run.tags, run.note, run.display_name]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def start_of(run: Run) -> float:
    """Return when a run started, in seconds since 1970; 0 if that is unknown."""
    return run.start_time.timestamp() if run.start_time else 0.0


def media_of(run: Run, left_out: list[str]) -> Iterator[MediaEntry]:
    """Yield the media of a run with their contents; `left_out` gets a sentence for each unreadable one."""
    start = start_of(run)
    for row, (file, *images) in run.media_entries():
        try:
            content = _content(row, file.read(), tuple(_image(image.read()) for image in images))
        except StoreError as error:
            left_out.append(f"medium {row['name']!r}: {error}")
        else:
            yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _content(row: dict[str, Any], data: bytes, images: tuple[Content, ...]) -> Content:
    suffix = "." + row["file"].rpartition(".")[2]
    return Content(data, suffix, row["content_type"], row["meta"], images)


def _image(data: bytes) -> Content:
    """Return the image of a table's cell."""
    from sacristan.observers.media.arrays import png_size

    width, height = png_size(data)
    return Content(data, ".png", "image/png", {"width": width, "height": height})
