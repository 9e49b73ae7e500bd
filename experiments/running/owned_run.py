"""`OwnedRun`: Sacred's Run, whose record belongs to the process that started it; a forked child adds metrics alone."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from sacred.observers import RunObserver
from sacred.run import Run
from sacred.stdout_capturing import CapturedStdout

from experiments.running.forking import watch
from experiments.running.metrics_buffer import MetricsBuffer

__all__ = ["OwnedRun"]

_log = logging.getLogger(__name__)


class OwnedRun(Run):
    """A run that knows its forked children.

    Attributes:
        observers: What records it; none in a child.
    """

    observers: list[RunObserver]
    _metrics: MetricsBuffer  # type: ignore[assignment]  # in the place of Sacred's, which is slow and cannot be rewound
    _output_file: CapturedStdout | None
    # Whether this is the copy of a forked child, and whether it was said what that means.
    _is_child = False
    _has_told = False

    def _emit_started(self) -> None:
        super()._emit_started()
        watch(self)

    def before_fork(self) -> None:
        """Get ready for a child: where its points come by."""
        self._metrics.before_fork()

    def after_fork_in_child(self) -> None:
        """Let go of the record, which is the parent's."""
        self._is_child = True
        self.observers = []
        self._metrics.after_fork_in_child()
        # The file of the parent's captured output is not to go with the child's copy of what has it open.
        with contextlib.suppress(AttributeError):
            self._output_file.buffer._closer.delete = False  # type: ignore[union-attr]

    def _refuse_in_child(self, what: str, error: type[Exception]) -> None:
        if self._is_child:
            raise error(f"process {os.getpid()} is a forked child of the run and cannot {what}; do it in the parent")

    def _is_left_to_parent(self, what: str) -> bool:
        """Tell whether this is a forked child, whose `what` is not recorded, which is said once."""
        if self._is_child and not self._has_told:
            self._has_told = True
            _log.warning(
                "process %d is a forked child of the run: %s is not recorded, nor is anything else of a child but "
                "metrics; record it in the parent",
                os.getpid(),
                what,
            )
        return self._is_child

    def _emit_resource_added(self, filename: str) -> None:
        if not self._is_left_to_parent(f"the resource {filename}"):
            super()._emit_resource_added(filename)

    def _emit_artifact_added(self, name: str, filename: str, metadata: Any, content_type: str | None) -> None:
        if not self._is_left_to_parent(f"the artifact {name!r}"):
            super()._emit_artifact_added(name, filename, metadata, content_type)
