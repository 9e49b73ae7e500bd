"""Interface of observers of the lab beyond Sacred's own events, and how runs are protected from them.

Sacred calls `started_event`, `heartbeat_event`, `log_metrics`, `resource_event`, `artifact_event`, `completed_event`,
`interrupted_event`, `failed_event` and `join` of every `sacred.observers.RunObserver`. A run of the lab checks each
observer with `isinstance` for the protocols below.

If an event fails, the error is logged and the run continues; `keep_artifact`, `rewind_event` and `fetch_artifact`
raise, because the run depends on their outcome. Runs are resumed in the folder of a `FileObserver` only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from sacristan.observers.errors import ObserversError
from sacristan.observers.record.media_files import MediaEntry
from sacristan.observers.record.points.point_log import PointLog
from sacristan.observers.record.points.rewinding import Position

_log = logging.getLogger(__name__)


@runtime_checkable
class PointObserver(Protocol):
    """Has a log of the run's points, which the run writes to; it receives no `log_metrics`."""

    def open_points(self) -> PointLog | None:
        """Return the log that points go to from now on; None if another observer's log is enough."""


@runtime_checkable
class MediaObserver(Protocol):
    """Keeps logged media."""

    def media_event(self, entries: Sequence[MediaEntry]) -> None:
        """Keep media.

        Args:
            entries: The media, in the order of logging. An entry without content could not be converted.
        """


@runtime_checkable
class OutputObserver(Protocol):
    """Takes output in parts; its heartbeats have an empty `captured_out`, those of other observers all of it."""

    def output_event(self, text: str) -> None:
        """Take the next part of the output, up to about a megabyte; it may end in the middle of a line."""


@runtime_checkable
class ArtifactObserver(Protocol):
    """Keeps files that the run made; it receives no `artifact_event`."""

    def keep_artifact(
        self, name: str, filename: str, metadata: dict[str, Any] | None = None, content_type: str | None = None
    ) -> None:
        """Keep a file, in the caller's thread; raise ArtifactError if that is impossible."""


@runtime_checkable
class GraphObserver(Protocol):
    """Draws graphs of models."""

    def graph_event(self, model: Any, inputs: Any) -> None:
        """Draw the graph of a model, without changing the model or any random stream.

        Args:
            model: A `torch.nn.Module`.
            inputs: Its inputs: a tensor, or a tuple of tensors.
        """


@runtime_checkable
class BufferedObserver(Protocol):
    """Can wait for the disk."""

    def flush_event(self) -> None:
        """Return when all points and media so far are on the disk; what cannot be written is retried later."""


@runtime_checkable
class RewindableObserver(Protocol):
    """Can remove the end of its record."""

    def rewind_event(self, position: Position, step: int | None = None) -> Position | None:
        """Remove what was logged beyond a position.

        Args:
            position: How much of each metric and each series of media to keep.
            step: The training's step at that position.

        Returns:
            The position that the record has now, which has less where something was lost; None if the observer has no
            record.

        Raises:
            ResumeError: If the record cannot be written.
        """


@runtime_checkable
class ConfigObserver(Protocol):
    """Keeps the config of a run that has begun before its settings are known, such as a script's."""

    def config_event(self, config: Mapping[str, Any]) -> None:
        """Keep the whole config as it is now; the meta entry of the run says which settings were typed."""


@runtime_checkable
class HasFolder(Protocol):
    """Writes into a folder."""

    @property
    def dir(self) -> str | Path | None:
        """The run's folder; None before the run starts."""


@runtime_checkable
class HasPlace(Protocol):
    """Knows the place of its record."""

    @property
    def place(self) -> str | None:
        """The folder or database that has all of a finished run, for messages; None if it has not."""


@runtime_checkable
class HasLoss(Protocol):
    """Knows what could not be recorded."""

    @property
    def loss(self) -> str:
        """What the record of an ended run lacks, in words; empty if it is whole."""


@runtime_checkable
class LeasedObserver(Protocol):
    """Writes a lease, which depends on the time between heartbeats."""

    beat_interval_s: float | None
    """Seconds between two heartbeats, set by the run before it starts."""


@runtime_checkable
class ArtifactSource(Protocol):
    """Has versions of artifacts that this machine may not have."""

    @property
    def label(self) -> str:
        """Name in messages, without credentials."""

    def fetch_artifact(self, reference: str, root: Path) -> Any | None:
        """Download a version of an artifact into the local store below `root`, and return it; None if there is none.

        `reference` is `name`, `name:latest`, `name:v3`, `name:` and an alias, or `name@` and the start of its digest.
        """

    def artifact_aliases(self, name: str) -> Mapping[str, tuple[str, str | None]]:
        """Return time and digest of what `latest` and each alias of an artifact name, or raise ArtifactError."""


# The share of the time that paced work may take.
_SHARE = 0.01


class Owned:
    """Base of observers that record for one process; the copy in a forked child must not change the parent's record."""

    _owner_pid: int | None = None
    _has_warned_child = False

    def _own(self) -> None:
        """Record for this process from now on."""
        self._owner_pid, self._has_warned_child = os.getpid(), False

    def _is_copy(self) -> bool:
        """Tell whether this is the copy in a forked child, and warn once that the child records nothing."""
        if self._owner_pid is None or self._owner_pid == os.getpid():
            return False
        if not self._has_warned_child:
            self._has_warned_child = True
            _log.warning(
                "%s: process %d was forked from %d, which records the run; nothing is recorded from the child",
                type(self).__name__,
                os.getpid(),
                self._owner_pid,
            )
        return True


class Apart:
    """Runs the parts of an event apart: an error is logged once, noted in `failed`, and the next part follows."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self._logged: set[str] = set()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a block, and log an error instead of raising it."""
        try:
            yield
        except Exception:
            self.failed.add(name)
            if name not in self._logged:
                self._logged.add(name)
                _log.exception("%s failed; the run continues, and so does the rest of its record", name)
        else:
            self.failed.discard(name)


class Pace:
    """Spaces out work, so that it takes at most 1 % of the time however often it could be done.

    if pace.is_due:
        with pace:  # if this takes 1 ms, it is due again in 99 ms
            look()
    """

    def __init__(self) -> None:
        self._due = self._began = 0.0

    @property
    def is_due(self) -> bool:
        """True if the work may be done again."""
        return time.monotonic() >= self._due

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.monotonic()
        self._due = ended + (1 / _SHARE - 1) * (ended - self._began)


def guarded(method: Callable) -> Callable:
    """Make an event log its errors instead of raising them, hold the observer's lock, and do nothing in a child."""
    event = guarded_without_lock(method)

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the lock: in a child, it may be held by a thread that does not exist there.
        if self._is_copy():
            return None
        with self._lock:
            return event(self, *args, **kwargs)

    return locked


def guarded_without_lock(method: Callable) -> Callable:
    """Do what `guarded` does without the lock, for events that may take long; recording continues meanwhile."""

    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_copy():
            return None
        try:
            return method(self, *args, **kwargs)
        except ObserversError as error:
            self.num_errors += 1
            _log.error("%s; the run continues", error)
        except Exception:
            self.num_errors += 1
            _log.exception("%s failed; the run continues, and so does its record", method.__name__)
        return None

    return event
