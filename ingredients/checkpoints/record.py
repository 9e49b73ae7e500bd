"""Interface of the run that checkpoints belong to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

__all__ = ["TrainingRecord"]


class TrainingRecord(Protocol):
    """A run whose record is kept in step with the states of its training; `experiments.LabRun` is one."""

    @property
    def uid(self) -> str | None:
        """Its id over all stores; None of a run that is not recorded."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Info of the run; under `data` it has the fingerprint of its data."""

    @property
    def folder(self) -> Path | None:
        """The folder of its record; None where it has none."""

    @property
    def is_resumed(self) -> bool:
        """True if the run was resumed, so that its record has an earlier session."""

    @property
    def stopping(self) -> int | None:
        """Number of the signal that was held back; None before one came."""

    def count_training(self) -> int:
        """Return the number of the training that begins now: 1 for the run's first one."""

    def position(self) -> Mapping[str, Any]:
        """Return how much was logged so far, as tensors and plain values."""

    def num_missing(self, position: Mapping[str, Any]) -> int:
        """Return how many entries up to a position are missing from the record that earlier sessions left."""

    def flush(self) -> None:
        """Write down all that was logged up to now; any thread may call it."""

    def rewind(self, position: Mapping[str, Any] | None = None, step: int | None = None) -> None:
        """Take the record back to a position; None is the beginning."""

    def signals_deferred(self) -> AbstractContextManager[None]:
        """Hold back the first signal that would end the run; see `stopping`."""

    def hold_back(self, number: int) -> None:
        """Take a signal that another rank was sent as if it had come here, and been held back."""

    def stop(self, step: int | None = None) -> NoReturn:
        """End the run by the signal that was held back; `step` is the last that a state was saved after."""
