"""Ranks of one launch: this process's, from the environment of `torchrun` or `srun`, and messages between them.

Torch is not imported for it. `Notices` are exchanged beside the training: the config, the record, and how each rank
ended. They are kept in the store through which ranks connect, at MASTER_ADDR:MASTER_PORT or `World.meeting`. A rank
that waits for a notice also checks for ranks that have ended, so none waits for a dead one.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.ingredients.errors import ConfigError, RankError
from sacristan.observers.record.identity import start_of

__all__ = ["ALONE_IN_STEP", "Notices", "World", "world_of"]

# Variables that torch reads to connect processes; `torchrun` sets them, and so may any other launcher.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables of a task of `srun`.
_OF_STEP = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
)

# Makes a task of `srun` a run of its own, before the command.
ALONE_IN_STEP = "env SLURM_STEP_NUM_TASKS=1"

_POLL_S = 0.02
# Seconds that a rank waits for the reason why others ended.
_REASON_S = 5.0
# Seconds between two checks whether another rank has failed.
_WATCH_S = 0.5
# Seconds between the end of a store and that of its process.
_GOING_S = 0.5
# Seconds that ranks wait for each other to connect.
_MEET_S = 300.0
# States of an ended rank that end the others, too.
_BAD = ("FAILED", "INTERRUPTED")
# What faulthandler writes at the end of a process, before a name of the signal, and these names.
_FATAL = "Fatal Python error: "
_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating-point exception": "SIGFPE",
}
# Bytes at the end of a rank's output that are searched for these, and lines that are quoted.
_TAIL_BYTES, _QUOTED = 2**18, 4


class World(NamedTuple):
    """The processes of one launch, and the rank of this one, from 0, also on its node.

    `launch` is the same after a restart of its processes; empty for a single process. The processes of a node have the
    number `node` in common. Tasks of `srun` meet at `meeting`; empty where torch reads that from the environment.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launch: str = ""
    restarts: int = 0
    node: int = 0
    meeting: str = ""

    @property
    def note(self) -> dict[str, Any]:
        """Entry about the launch for the run's record."""
        return {"size": self.size, "per_node": self.local_size, "launch": self.launch}

    @property
    def way_out(self) -> str:
        """End of a message for users who did not want ranks; empty if only `torchrun` starts any."""
        return f"; to have a run of each task of srun, start them with: {ALONE_IN_STEP}" if self.meeting else ""


def world_of(environ: Mapping[str, str] | None = None) -> World:
    """Return the world that the environment describes; that of a single process if it describes none."""
    environ = os.environ if environ is None else environ
    if not all(environ.get(name) for name in _NEEDED):
        return _of_step(environ)
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank, local_size = _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", size)
    if not 0 <= rank < size or not 0 <= local_rank < local_size:
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE={local_size}: expected ranks "
            "from 0 to one below the size; start the processes with torchrun"
        )
    if size == 1:
        return World()
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    return World(rank, size, local_rank, local_size, _launch(environ), restarts, node=rank - local_rank)


def _of_step(environ: Mapping[str, str]) -> World:
    """Return the world of the tasks that one `srun` has started; a batch script is not such a task."""
    if not all(environ.get(name) for name in _OF_STEP) or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return World()
    job, step, restarts = (_number(environ, f"SLURM_{name}", 0) for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    node = _number(environ, "SLURM_NODEID", 0)
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])
        for _ in range(int(times or 1))
    ]
    host = "127.0.0.1" if len(counts) == 1 else _first_host(environ["SLURM_STEP_NODELIST"])
    port = 20_000 + (job + 101 * step) % 10_000  # steps that share a node do not meet
    return World(
        _number(environ, "SLURM_PROCID"),
        _number(environ, "SLURM_STEP_NUM_TASKS"),
        _number(environ, "SLURM_LOCALID"),
        counts[node],
        f"slurm-{job}.{step}-{restarts}",
        node=node,
        meeting=f"{environ.get('MASTER_ADDR') or host}:{environ.get('MASTER_PORT') or port}",
    )


def _first_host(nodes: str) -> str:
    """Return the first host of a Slurm host list, such as `gpu[03-05,07],login`."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^\[,]*))?", nodes)
    return "".join(filter(None, match.groups())) if match else nodes


def _launch(environ: Mapping[str, str]) -> str:
    """Return the id of the launch, or without one a digest of host and pid of the parent process."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return run_id
    return hashlib.sha256(f"{platform.node()}/{os.getppid()}".encode()).hexdigest()[:16]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name) or default
    try:
        return int(text)  # type: ignore[arg-type]  # those without a default are there
    except ValueError as error:
        by = "srun" if name.startswith("SLURM") else "torchrun"
        raise ConfigError(f"{name}: got {text!r}, expected a number; start the processes with {by}") from error


class Notices:
    """The notices of a launch; `RankError` if the ranks cannot connect."""

    def __init__(self, world: World) -> None:
        import torch.distributed as dist

        self.world = world
        where = f"tcp://{world.meeting}?rank={world.rank}&world_size={world.size}" if world.meeting else "env://"
        try:
            timeout = datetime.timedelta(seconds=_MEET_S)
            store, _, _ = next(dist.rendezvous(where, timeout=timeout))
        except (RuntimeError, ValueError) as error:
            at = world.meeting or " and ".join(f"{name}={os.environ[name]}" for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise RankError(
                f"rank {world.rank}: cannot meet the others at {at} ({str(error).splitlines()[0]}){world.way_out}"
            ) from error
        # A launcher may keep its store, with its content, when it restarts its processes.
        self.store = dist.PrefixStore(f"attempt/{world.restarts}", store)
        self._notices = dist.PrefixStore("sacristan", self.store)
        self._people: dict[int, dict[str, Any]] = {}
        self._has_ended = False
        # Whether the store is gone.
        self._is_alone = False
        # The error of the first rank that failed.
        self._known: RankError | None = None
        self._has_left = threading.Event()
        self._watching: threading.Thread | None = None
        me = {"host": platform.node(), "pid": os.getpid(), "start": start_of(os.getpid())}
        self.put(f"here/{world.rank}", me)

    def put(self, name: str, value: Any) -> None:
        """Post a notice with a JSON value, which stays in the store until another of the same name replaces it."""
        self._notices.set(name, json.dumps(value))

    def take(self, name: str, timeout_s: float | None = None) -> Any:
        """Wait for a notice, while all ranks live and up to `timeout_s`; then raise RankError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        looked = time.monotonic()
        while not self._check(name):
            if time.monotonic() - looked > 10 * _POLL_S:  # not each time: it queries every rank
                error = self.ended()
                if error is not None:
                    raise error
                looked = time.monotonic()
            if until is not None and time.monotonic() > until:
                raise RankError(f"rank {self.world.rank}: waited {timeout_s:g} s for another rank ({name})")
            time.sleep(_POLL_S)
        return json.loads(self._notices.get(name))

    def _check(self, name: str) -> bool:
        try:
            return self._notices.check([name])
        except RuntimeError as error:
            raise RankError("rank 0, or the launcher, is gone: its store does not answer") from error

    def know_all(self) -> None:
        """Remember host and pid of the other ranks, for when the store is gone."""
        for rank in range(self.world.size):
            self._person(rank)

    # ------------------------------------------------------------------ how ranks end

    def tell_end(self, status: str, reason: str) -> None:
        """Post how this rank ends; only the first call counts. FAILED and INTERRUPTED end the other ranks."""
        if not self._has_ended:
            self._has_ended = True
            end = {"status": status, "reason": reason}
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self.put(f"end/{self.world.rank}", end)
                if status in _BAD and not self._notices.check(["failed"]):
                    self.put("failed", {**end, "rank": self.world.rank})

    def watch(self) -> None:
        """Watch other ranks in a thread, which ends before Python does: inside torch it would abort the process."""
        atexit.register(self._stop_watching)
        self._watching = threading.Thread(target=self._watch, name="sacristan-notices", daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        while self._known is None and not self._is_alone and not self._has_left.wait(_WATCH_S):
            self._known = self._failed()
        if self._has_left.is_set():
            return
        self._known = self._known or (self._gone() if self._is_alone else None)
        if self._known is not None:
            with contextlib.suppress(RuntimeError):
                self.put(f"knows/{self.world.rank}", True)
            if self._known.status == "FAILED":
                _abort_collectives()

    def check(self) -> None:
        """Raise the error of a failed rank that is known by now; all ranks act on a signal after the same step."""
        if self._known is not None and self._known.status == "FAILED":
            raise self._known

    def leave(self, *, well: bool) -> None:
        """Stop watching. If the store ends with this rank, first wait some seconds until the others know why."""
        if not well and self.world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            until = time.monotonic() + _REASON_S
            others = range(1, self.world.size)
            while time.monotonic() < until and not all(map(self._knows, others)):
                time.sleep(_POLL_S)
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watching is not None and self._watching.is_alive():  # a forked child has no such thread
            self._has_left.set()
            self._watching.join()
        atexit.unregister(self._stop_watching)

    def _knows(self, rank: int) -> bool:
        return any(self._read(f"{what}/{rank}") for what in ("knows", "end")) or self._is_gone(rank)

    def ended(self) -> RankError | None:
        """Return the error of a rank that failed or, on this node, is gone without a notice; None if there is none."""
        if self._known is not None:
            return self._known
        for rank in self._others():
            end = self._read(f"end/{rank}")
            if end is not None and end["status"] in _BAD:
                return self._error_of(rank, end)
        return self._gone()

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world.size) if rank != self.world.rank]

    def _failed(self) -> RankError | None:
        """Return the result of `ended` with a single query of the store."""
        end = self._read("failed")
        if end is not None and end["rank"] != self.world.rank:
            return self._error_of(end["rank"], end)
        return self._gone()

    def _gone(self) -> RankError | None:
        """Return the error of a rank of this node that is gone without a notice."""
        for rank in self._others():
            if self._is_gone(rank) and self._read(f"end/{rank}") is None:
                return RankError(f"{self._name(rank)} {self._end_of_output(rank)}", rank)
        return None

    def tell_output(self, path: Path) -> None:
        """Post that this rank writes its output to the end of a file from now on."""
        self.put(f"output/{self.world.rank}", {"path": str(path.absolute()), "start": path.stat().st_size})

    def _end_of_output(self, rank: int) -> str:
        """Say how a rank ended that left no notice, by the end of its output."""
        output = self._read(f"output/{rank}")
        if output is None:
            where = "on the terminal, or in the output of the job"
        else:
            where = f"in {output['path']}"
            lines, fatal, crash = _tail(Path(output["path"]), output["start"]).rpartition(_FATAL)
            if fatal:
                name = crash.partition("\n")[0]
                last = " | ".join(filter(None, map(str.strip, lines.splitlines()[-_QUOTED:])))
                return (
                    f"was ended by {_SIGNALS.get(name, name)}, raised by native code such as torch's: {last or name}; "
                    f"its traceback is {where}; resume the run, or let torchrun do so with --max-restarts"
                )
        return (
            "is gone without a word: it was killed (kill -9, or out of memory), or crashed; its last output is "
            f"{where}, and torchrun names the signal"
        )

    def _error_of(self, rank: int, end: dict[str, Any]) -> RankError:
        return RankError(f"{self._name(rank)} {_word(end)}", rank, end["status"], end["reason"])

    def reason(self) -> RankError | None:
        """Wait some seconds for an error from `ended`; None if there is none."""
        error, until = self.ended(), time.monotonic() + (_GOING_S if self._is_alone else _REASON_S)
        while error is None and time.monotonic() < until:
            time.sleep(_POLL_S)
            error = self.ended()
        return error

    def _read(self, name: str) -> Any:
        if self._is_alone:
            return None
        try:
            return json.loads(self._notices.get(name)) if self._notices.check([name]) else None
        except RuntimeError:
            self._is_alone = True
            return None

    def _person(self, rank: int) -> dict[str, Any] | None:
        if rank not in self._people:
            person = self._read(f"here/{rank}")
            if person is None:
                return None
            self._people[rank] = person
        return self._people[rank]

    def _name(self, rank: int) -> str:
        person = self._person(rank)
        return f"rank {rank}" if person is None else f"rank {rank} (pid {person['pid']} on {person['host']})"

    def _is_gone(self, rank: int) -> bool:
        person = self._person(rank)
        if person is None or person["host"] != platform.node() or person["start"] is None:
            return False
        return start_of(person["pid"]) != person["start"]


def _abort_collectives() -> None:
    """Abort NCCL's collectives, which wait for a rank that is gone; results are undefined, see `Notices.check`."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.group.WORLD is not None and "nccl" in dist.get_backend_config():
        with contextlib.suppress(RuntimeError):
            dist.group.WORLD.abort()


def _tail(path: Path, start: int) -> str:
    """Return the last text of a file beyond a position; none if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(start, path.stat().st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "replace")
    return ""


def _word(end: dict[str, Any]) -> str:
    return f"was ended by {end['reason']}" if end["status"] == "INTERRUPTED" else f"failed: {end['reason']}"
