"""`RecordReader`: what a folder and a database each implement to read the record of a run."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.runs.stores.content import Content, Medium

if TYPE_CHECKING:
    from sacristan.observers.artifacts.version import ArtifactVersion
    from sacristan.observers.record.points.points import Series

__all__ = ["PARTS", "RecordReader"]

# Parts of a record that are read on their own.
PARTS = ("config", "info", "summary", "provenance")


class RecordReader(abc.ABC):
    """The parts of a run's record, read one at a time; `Run` derives everything else from them."""

    @functools.cached_property
    @abc.abstractmethod
    def document(self) -> dict[str, Any]:
        """The run's own fields, without config, info and summary; times are texts in ISO 8601.

        Raises:
            StoreError: If it cannot be read, or is gone.
        """

    @abc.abstractmethod
    def _part(self, name: str) -> dict[str, Any]:
        """Return one of `PARTS`; empty if the run has none."""

    @abc.abstractmethod
    def _check_is_there(self) -> None:
        """Raise a StoreError if the run was removed."""

    def damage(self) -> list[str]:
        """Return what is missing or damaged in the record, in sentences that name the file; a database has no files.

        Reads all points, so that it is for one run at a time.
        """
        return []

    @abc.abstractmethod
    def _true_status(self) -> str:
        """Return the recorded status, with DEAD instead of RUNNING if the process is gone."""

    @property
    @abc.abstractmethod
    def lease(self) -> dict[str, Any] | None:
        """Host, process and last heartbeat of the run's writer; None for a run of stock Sacred."""

    @abc.abstractmethod
    def _metric_names(self) -> list[str]: ...

    @abc.abstractmethod
    def _series(self, name: str) -> Series | None: ...

    @abc.abstractmethod
    def stored(self, kind: str) -> list[Content]:
        """Return all files of one kind.

        Args:
            kind: `sources`, `resources`, `artifacts` or `checkpoints`.

        Returns:
            The files, in the order of the record; sources and resources may contain a name more than once.
        """

    @property
    @abc.abstractmethod
    def rank_outputs(self) -> dict[int, Content]:
        """Outputs of the processes of a distributed run, by rank; rank 0 wrote the run's own output.

        Until the run ends, a database reads them from the run's folder, if that is on this machine.
        """

    @abc.abstractmethod
    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        """Return a part of what the run wrote to its terminal.

        Args:
            start: First byte; a negative number counts from the end.
            max_bytes: Maximum number of bytes; by default everything there is now.

        Returns:
            The bytes, and the position after them. While the run continues, a database lacks the middle of a long
            output; one line says so.
        """

    @property
    @abc.abstractmethod
    def media(self) -> list[Medium]:
        """Images, tables, sounds and so on, in the order of logging."""

    @abc.abstractmethod
    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        """Return the media as recorded: each entry of `sacristan.observers.record.schema` with its files.

        Raises:
            StoreError: If an entry cannot be read.
        """

    @abc.abstractmethod
    def artifact_details(self) -> dict[str, dict[str, Any]]:
        """Return `metadata` and `content_type` of the artifacts that have any, by name."""

    @abc.abstractmethod
    def odd_values(self) -> bytes:
        """Return logged values that are no numbers, as lines of JSON; see `sacristan.observers.record.schema`."""

    @abc.abstractmethod
    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> ArtifactVersion:
        """Return a version of an artifact that the run logged or used.

        Args:
            entry: An entry of `artifacts_logged` or `artifacts_used`.
            into: The folder of runs that will receive the version; its contents may be stored there.

        Raises:
            StoreError: If the version is missing or damaged.
        """
