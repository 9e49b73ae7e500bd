"""Interface of observers of the lab beyond Sacred's own events.

Sacred calls `started_event`, `heartbeat_event`, `log_metrics`, `resource_event`, `artifact_event`, `completed_event`,
`interrupted_event`, `failed_event` and `join` of every `sacred.observers.RunObserver`. A run of the lab asks each
observer with `isinstance` for more:

    PointObserver         open_points       has a log that points are packed into when they are logged; no `log_metrics`
    OutputObserver        output_event      takes output in parts; its heartbeats have an empty `captured_out`
    MediaObserver         media_event       keeps images, sounds, tables and so on
    ArtifactObserver      keep_artifact     keeps files that the run made, or raises; no `artifact_event`
    GraphObserver         graph_event       draws the graph of a model
    BufferedObserver      flush_event       can wait until all it was given is on the disk
    RewindableObserver    rewind_event      can take back what was logged beyond a position
    HasFolder             dir               writes into a folder of the run's own
    HasPlace              place             can say where the record of a run that has ended is
    ResumableObserver     is_resumed, ...   can go on with the record of an earlier session; has a folder
    LeasedObserver        beat_interval_s   says how long its record lives without a heartbeat
    ArtifactSource        fetch_artifact    has versions of artifacts that this machine may not have

An event that fails is logged, and the run goes on; `keep_artifact`, `rewind_event` and `fetch_artifact` raise, because
the run depends on their outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from observers.record.media_entry import MediaEntry
from observers.record.points.point_log import PointLog
from observers.record.points.rewinding import Position

__all__ = [
    "ArtifactObserver",
    "ArtifactSource",
    "BufferedObserver",
    "GraphObserver",
    "HasFolder",
    "HasPlace",
    "LeasedObserver",
    "MediaObserver",
    "OutputObserver",
    "PointObserver",
    "ResumableObserver",
    "RewindableObserver",
]


@runtime_checkable
class PointObserver(Protocol):
    """Has a log of the run's points, which the run itself writes to; it is given no `log_metrics`."""

    def open_points(self) -> PointLog | None:
        """Return the log, to which points may go from now on; None where another observer's is enough."""


@runtime_checkable
class MediaObserver(Protocol):
    """Keeps what is logged beside numbers."""

    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Keep media, in the order in which they were logged; one whose content is None could not be made."""


@runtime_checkable
class OutputObserver(Protocol):
    """Takes what a run prints as it comes; other observers are given all of it with each heartbeat."""

    def output_event(self, text: str) -> None:
        """Take the next part, of about a megabyte at most."""


@runtime_checkable
class ArtifactObserver(Protocol):
    """Keeps files that the run made."""

    def keep_artifact(
        self, name: str, filename: str, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file under a name, in the caller's thread.

        Raises:
            ArtifactError: If it cannot be kept.
        """


@runtime_checkable
class GraphObserver(Protocol):
    """Draws graphs of models."""

    def graph_event(self, model: Any, inputs: Any) -> None:
        """Draw the graph of a model without changing it or any random stream.

        Args:
            model: A `torch.nn.Module`.
            inputs: What it is called with: a tensor, or a tuple of them.
        """


@runtime_checkable
class BufferedObserver(Protocol):
    """Can be told to wait for the disk."""

    def flush_event(self) -> None:
        """Return when all points and media so far are on the disk; what cannot be written is tried again later."""


@runtime_checkable
class RewindableObserver(Protocol):
    """Can take its record back."""

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Take back what was logged beyond a position.

        Args:
            position: How much of each metric and each series of media to keep.
            step: The training's step at that position.

        Returns:
            The position that is reached, which has less where something was lost; None if the observer keeps no
            record of its own.

        Raises:
            ResumeError: If the record cannot be written.
        """


@runtime_checkable
class HasFolder(Protocol):
    """Writes into a folder."""

    @property
    def dir(self) -> str | Path | None:
        """The folder of the run; None before it starts."""


@runtime_checkable
class HasPlace(Protocol):
    """Says where the record is."""

    @property
    def place(self) -> str | None:
        """The folder or database that has all of a run that has ended, for a message; None if it has not."""


@runtime_checkable
class ResumableObserver(HasFolder, Protocol):
    """Records runs in folders that a later process can resume; see `observers.record.resuming`."""

    basedir: str
    """The folder that the folders of runs are in."""

    @property
    def is_resumed(self) -> bool:
        """True if the run continues the record of an earlier session."""

    @property
    def elapsed_s(self) -> float:
        """Seconds of the earlier sessions; 0 for a run that was not resumed."""

    def position(self) -> Position:
        """Return how much the record holds of each metric and each series of media."""

    def held(self, position: Position) -> Position:
        """Return the part of a position that the record has; less where points or media were lost."""


@runtime_checkable
class LeasedObserver(Protocol):
    """Writes down who records the run, and until when that is to be believed."""

    beat_interval_s: float | None
    """Seconds between two heartbeats, set by the run before it starts."""


@runtime_checkable
class ArtifactSource(Protocol):
    """Has artifacts of other machines."""

    @property
    def label(self) -> str:
        """Name in messages, without credentials."""

    def fetch_artifact(self, reference: str, root: Path) -> Any | None:
        """Return an `observers.artifacts.version.ArtifactVersion`, its contents in the store at `root`; None for none.

        Args:
            reference: `name`, `name:latest`, `name:v3`, or `name@` and the start of its digest.
            root: The folder of the local store.

        Raises:
            ArtifactError: If the source cannot be reached or refuses, or the version is damaged or cannot be kept.
        """
