"""The spool: a record for runs that no FileObserver records, which is removed once the run is delivered."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacristan.observers.file.observer import FileObserver
from sacristan.observers.file.recording import Recording, recording_of
from sacristan.observers.file.run_file import Beginning
from sacristan.observers.file.sacreds_interface import BeginningObserver
from sacristan.observers.record.files import lasting_path
from sacristan.observers.record.identity import new_uid
from sacristan.observers.record.points.point_log import PointLog
from sacristan.observers.record.stored_files import make_shared

__all__ = ["SpoolingObserver"]

# Name of the folder that holds the run in a spool.
_SPOOLED = "run"


class _Spool(FileObserver):
    """Records a run in a folder of its own, which is removed once the run is delivered.

    It is locked until `let_go`: `sacristan sync` removes a spool that it has delivered, unless it is locked.
    """

    _is_spool = True

    def _elsewhere(self) -> None:
        return None

    def _release(self) -> None:
        pass

    def let_go(self) -> None:
        """Let other processes deliver and remove the spool."""
        super()._release()


def _spooled(event: Callable[..., Any]) -> Callable[..., Any]:
    """Return an event that the spool handles; if there is none, a FileObserver records the run.

    `__getattr__` is not enough, because Sacred's observers define most of these events.
    """

    @functools.wraps(event)
    def take(self: SpoolingObserver, *args: Any, **kwargs: Any) -> Any:
        return None if self._spool is None else event(self._spool, *args, **kwargs)

    return take


class SpoolingObserver(BeginningObserver):
    """Base of an observer that needs a record of the run, and keeps one in a spool if no other observer does."""

    spool_dir: Path
    beat_interval_s: float | None = None
    _spool: _Spool | None = None

    def _recording_of(self, beginning: Beginning) -> Recording:
        """Return the recording of a run that begins, by an earlier observer, or by a new spool."""
        meta_info = beginning.meta_info
        if recording_of(meta_info.get("uid")) is None:
            place = lasting_path(self.spool_dir)
            with contextlib.suppress(OSError):  # the run is recorded elsewhere
                make_shared(place, place.parent)
            self._spool = _Spool(place / new_uid())
            self._spool.beat_interval_s = self.beat_interval_s
            self._spool.begin_run(beginning._replace(run_id=_SPOOLED))
        recording = recording_of(meta_info["uid"])
        if recording is None:
            raise RuntimeError(f"run {meta_info['uid']} is not recorded, so there is nothing to deliver")
        return recording

    def _close_spool(self, *, remove: bool) -> None:
        """Let other processes have the spool, if there is one, or remove it."""
        if self._spool is not None:
            if remove:
                shutil.rmtree(self._spool.basedir, ignore_errors=True)
            self._spool.let_go()

    def open_points(self) -> PointLog | None:
        """Return the spool's log; None without a spool, because another observer's log is delivered."""
        return None if self._spool is None else self._spool.open_points()

    heartbeat_event = _spooled(FileObserver.heartbeat_event)
    output_event = _spooled(FileObserver.output_event)
    log_metrics = _spooled(FileObserver.log_metrics)
    media_event = _spooled(FileObserver.media_event)
    resource_event = _spooled(FileObserver.resource_event)
    artifact_event = _spooled(FileObserver.artifact_event)
    keep_artifact = _spooled(FileObserver.keep_artifact)
    config_event = _spooled(FileObserver.config_event)
    flush_event = _spooled(FileObserver.flush_event)
    rewind_event = _spooled(FileObserver.rewind_event)
    completed_event = _spooled(FileObserver.completed_event)
    interrupted_event = _spooled(FileObserver.interrupted_event)
    failed_event = _spooled(FileObserver.failed_event)
