"""`TrainingRecord`: the interface of a run to the checkpoints of its training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

__all__ = ["TrainingRecord", "data_fingerprint"]


class TrainingRecord(Protocol):
    """A run whose record is kept in step with the states of its training; `experiments.LabRun` is one."""

    @property
    def uid(self) -> str | None:
        """Globally unique id; None of a run that is not recorded."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Notes of the experiment about the run; `data` holds the fingerprint of its data."""

    @property
    def folder(self) -> Path | None:
        """The folder of its record; None where it has none."""

    @property
    def is_resumed(self) -> bool:
        """True if the run was resumed, so that its record has an earlier session."""

    @property
    def stopping(self) -> int | None:
        """Number of the signal that is held back; None before one came."""

    def count_training(self) -> int:
        """Return the number of the training that begins now: 1 for the run's first one."""

    def position(self) -> Mapping[str, Any]:
        """Return how much was logged so far, as tensors and plain values."""

    def num_missing(self, position: Mapping[str, Any]) -> int:
        """Return how many entries up to a position are missing from the record that earlier sessions left."""

    def flush(self) -> None:
        """Write everything logged so far; any thread may call it."""

    def rewind(self, position: Mapping[str, Any] | None = None, step: int | None = None) -> None:
        """Remove later entries from the record.

        Args:
            position: The position to return to; None is the beginning.
            step: The step of the training there.
        """

    def signals_deferred(self) -> AbstractContextManager[None]:
        """Hold back the first signal that would end the run; see `stopping`."""

    def hold_back(self, number: int) -> None:
        """Treat a signal that another rank received as if it had come here, and been held back."""

    def stop(self, step: int | None = None) -> NoReturn:
        """End the run by the signal that is held back; `step` is the last one that a state was saved after."""


def data_fingerprint(record: TrainingRecord | None) -> str | None:
    """Return the fingerprint of the run's data, where its ingredient noted one."""
    data = None if record is None else record.info.get("data")
    return data.get("fingerprint") if isinstance(data, Mapping) else None
