"""A run of several processes: rank 0 records it, and the others go along, with the same config and the same end.

What the others print goes to files in rank 0's record, see `sacristan.observers.record.schema`, and not to the
terminal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import sacred
from sacred.utils import iterate_flattened

from sacristan.experiments.running.endings import format_failure
from sacristan.experiments.running.signals import Terminated
from sacristan.ingredients.errors import ConfigError, RankError
from sacristan.ingredients.ranks import Notices, World, world_of
from sacristan.ingredients.ranks.group import is_of_connection, leave
from sacristan.observers.file.recording import recording_of
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.schema import RANKS_FOLDER

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def own_world(experiment: sacred.Experiment, command: Any) -> World:
    """Return the ranks of a run; tasks of `srun` are ranks only if it can have some, else workers or other runs."""
    world = world_of()
    if not world.meeting or (_has_ranks(experiment) and not getattr(command, "unobserved", True)):
        return world
    if world.rank and command is not None and not getattr(command, "unobserved", True):
        _log.warning(
            "task %d of %d of srun: %s has no ingredient distributed, so each task is a run of its own",
            world.rank,
            world.size,
            os.fsdecode(experiment.path),
        )
    return World()


def _has_ranks(experiment: sacred.Experiment) -> bool:
    return "distributed" in [part.path for part, _ in list(experiment.traverse_ingredients())]


def meet(world: World, experiment: sacred.Experiment, command: Any) -> Notices | None:
    """Meet the other ranks before a run is created; return the notices between them, None in a single process."""
    if world.size == 1:
        return None
    which = f"this process is rank {world.rank} of {world.size}"
    name = os.fsdecode(experiment.path)
    if not _has_ranks(experiment):
        raise ConfigError(
            f"{which}, but the experiment {name} has no ingredient distributed, so that each would train by "
            "itself; add sacristan.ingredients.distributed to it, or start it without torchrun"
        )
    if getattr(command, "unobserved", False):
        raise ConfigError(f"{which}, but this command takes one process; start it without torchrun")
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a rank that native code aborts leaves a traceback in its output, see `Notices`
    return Notices(world)


def publish_config(notices: Notices, config: Mapping[str, Any]) -> None:
    """Send the whole config of rank 0 to the other ranks."""
    notices.put("config", _as_json(config))


def check_same_config(notices: Notices, config: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Reject a config that differs from that of rank 0 (`first`)."""
    mine, its = dict(iterate_flattened(_as_json(config))), dict(iterate_flattened(dict(first)))
    names = [name for name in sorted({*mine, *its}) if mine.get(name) != its.get(name)]
    if names:
        shown = ", ".join(f"{name}={mine.get(name)!r} and {its.get(name)!r}" for name in names[:3])
        error = ConfigError(
            f"rank {notices.world.rank} and rank 0 have different configs: {shown}; give all ranks the same command "
            f"line, and let config scopes draw no random numbers but from seed{notices.world.way_out}"
        )
        notices.tell_end("FAILED", f"ConfigError: {error}")
        raise error


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(plain(dict(config))))


def ending_together(notices: Notices | None, function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that tells other ranks why it failed, and raises the cause if that is another one."""
    if notices is None:
        return function

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            cause = _cause(notices, error)
            if cause is None:
                is_signal = isinstance(error, KeyboardInterrupt)
                reason = getattr(error, "signal", "SIGINT") if is_signal else f"{type(error).__name__}: {error}"
                notices.tell_end("INTERRUPTED" if is_signal else "FAILED", reason)
                raise
            notices.tell_end("FOLLOWED", str(cause))
            if cause.status == "INTERRUPTED" and cause.reason in signal.Signals.__members__:
                raise Terminated(signal.Signals[cause.reason]) from error
            raise cause from error

    return call


@contextlib.contextmanager
def reporting_end(notices: Notices | None) -> Iterator[None]:
    """Tell the other ranks how the block ends, and leave the process group; `notices` is None in a single process."""
    has_ended_well = False
    try:
        yield
        if notices is not None:
            notices.tell_end("COMPLETED", "")
        has_ended_well = True
    finally:
        leave(well=has_ended_well)
        if notices is not None:
            notices.leave(well=has_ended_well)


def _cause(notices: Notices, error: BaseException) -> RankError | None:
    """Return the failure of another rank that caused an error; None if none did."""
    if isinstance(error, RankError):
        return error
    if is_of_connection(error):
        lost = RankError(f"rank {notices.world.rank} lost the connection to another one: {str(error).splitlines()[0]}")
        return notices.reason() or lost
    # A launcher that sees a rank end sends the others a signal.
    if isinstance(error, KeyboardInterrupt) and getattr(error, "step", None) is None:
        ended = notices.ended()
        return ended if ended is not None and ended.status == "FAILED" else None
    return None


def publish_record(notices: Notices | None, uid: str | None) -> None:
    """Tell the other ranks the folder of the record (None if not recorded), if this is rank 0 of several."""
    if notices is not None and notices.world.rank == 0:
        recording = recording_of(uid)  # one for MongoDB alone has a folder as well
        notices.put("record", None if recording is None else str(recording.folder.absolute()))


@contextlib.contextmanager
def printing_to_record(notices: Notices | None) -> Iterator[Callable[[], None]]:
    """Yield a function that redirects the output of this rank to its file in rank 0's record, until the block ends.

    It waits until that record exists. On a node without the folder, output stays where it is. What a full disk refuses
    is lost, with an error at the end: no training ends for its output.
    """
    saved: list[tuple[int, int]] = []
    streams = sys.stdout, sys.stderr
    raw: list[_Lossy] = []

    def begin() -> None:
        folder = None if notices is None or notices.world.rank == 0 else notices.take("record")
        if notices is None or folder is None or not Path(folder).is_dir():
            return
        path = Path(folder) / RANKS_FOLDER / f"{notices.world.rank}.txt"
        path.parent.mkdir(exist_ok=True)
        _flush()
        with path.open("ab") as stream:
            notices.tell_output(path)
            for number in (1, 2):
                saved.append((number, os.dup(number)))
                os.dup2(stream.fileno(), number)
        raw.extend(_Lossy(number, "w", closefd=False) for number in (1, 2))
        sys.stdout, sys.stderr = (_as_text(one) for one in raw)

    try:
        yield begin
    except BaseException as error:
        if saved:
            sys.stderr.write(f"{format_failure(error)}\n")
        raise
    finally:
        _flush()
        sys.stdout, sys.stderr = streams
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)
        lost = [one for one in raw if one.num_lost]
        if lost:
            num_lost = sum(one.num_lost for one in lost)
            _log.error("%d bytes of output could not be written and are lost (%s)", num_lost, lost[0].reason)


class _Lossy(io.FileIO):
    """A descriptor that accepts everything: bytes that cannot be written are counted."""

    num_lost = 0
    reason = ""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.num_lost += memoryview(data).nbytes
            self.reason = error.strerror or str(error)
            return memoryview(data).nbytes


def _as_text(raw: io.FileIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
