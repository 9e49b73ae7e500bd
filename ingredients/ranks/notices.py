"""`Notices`: what ranks tell each other beside the training: the config, the record, and how each of them ended.

They lie in the store at MASTER_ADDR:MASTER_PORT, where ranks meet. Whoever waits for a notice looks for ranks that have
ended meanwhile, so that nobody waits for the dead.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import threading
import time
from typing import Any

from ingredients.errors import RankError
from ingredients.ranks.world import World
from observers.record.identity import start_of

__all__ = ["Notices"]

_POLL_S = 0.02
# How long a rank that lost the others waits for them to say why; and how long for one that has not been heard of yet.
_REASON_S = 5.0
# How often a rank looks whether another one has failed.
_WATCH_S = 0.5
# How long a process whose store is gone may take to be gone itself.
_GOING_S = 0.5
_MEET_S = 300.0
# Ends of a rank that end the others, too.
_BAD = ("FAILED", "INTERRUPTED")


class Notices:
    """The notices of a launch.

    Args:
        world: Which rank this process is.

    Attributes:
        store: The store, for torch's own process group.

    Raises:
        RankError: If the ranks do not meet.
    """

    def __init__(self, world: World) -> None:
        import torch.distributed as dist

        self.world = world
        try:
            store, _, _ = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=_MEET_S)))
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"rank {world.rank}: cannot meet the others at MASTER_ADDR={os.environ['MASTER_ADDR']}, "
                f"MASTER_PORT={os.environ['MASTER_PORT']} ({str(error).splitlines()[0]})"
            ) from error
        # A launcher may keep its store, with all that is in it, when it starts its processes anew.
        self.store = dist.PrefixStore(f"attempt/{world.restarts}", store)
        self._notices = dist.PrefixStore("sacristan", self.store)
        self._people: dict[int, dict[str, Any]] = {}
        self._is_told = False
        # Whether the store is gone.
        self._is_alone = False
        # Of the first rank that failed.
        self._known: RankError | None = None
        self._has_left = threading.Event()
        self._watching: threading.Thread | None = None
        self.put(f"here/{world.rank}", _me())

    def put(self, name: str, value: Any) -> None:
        """Leave a notice, JSON."""
        self._notices.set(name, json.dumps(value))

    def take(self, name: str, timeout_s: float | None = None) -> Any:
        """Return a notice, as soon as it is there.

        Raises:
            RankError: If a rank has ended meanwhile, or it takes longer than `timeout_s`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        looked = time.monotonic()
        while not self._check(name):
            if time.monotonic() - looked > 10 * _POLL_S:  # not each time: it asks for every rank
                found = self.ended()
                if found is not None:
                    raise found
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
        """Remember who the other ranks are, all of which are here, for when the store is gone."""
        for rank in range(self.world.size):
            self._person(rank)

    # ------------------------------------------------------------------ how ranks end

    def tell_end(self, status: str, reason: str) -> None:
        """Leave word of how this rank ends; the first word counts."""
        if not self._is_told:
            self._is_told = True
            end = {"status": status, "reason": reason}
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self.put(f"end/{self.world.rank}", end)
                if status in _BAD and not self._notices.check(["failed"]):
                    self.put("failed", {**end, "rank": self.world.rank})

    def watch(self) -> None:
        """Look from now on, in a thread, whether another rank has failed: the store may go with rank 0."""
        self._watching = threading.Thread(target=self._watch, name="sacristan-notices", daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        while self._known is None and not self._is_alone and not self._has_left.wait(_WATCH_S):
            self._known = self._failed()
        if self._has_left.is_set():
            return
        if self._is_alone:
            self._known = self._known or self._gone()
        if self._known is not None:
            with contextlib.suppress(RuntimeError):
                self.put(f"knows/{self.world.rank}", True)
            if self._known.status == "FAILED":
                _abort_collectives()

    def check(self) -> None:
        """Raise the error of a rank that is known to have failed; asks nobody.

        Of a signal all ranks know after the same step, and save their state: that is no error here.
        """
        if self._known is not None and self._known.status == "FAILED":
            raise self._known

    def leave(self, *, well: bool) -> None:
        """Look no more; first wait until the others know why, some seconds at most, if their store goes with this rank.

        Args:
            well: Whether this one has come to its end.
        """
        if not well and self.world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            until = time.monotonic() + _REASON_S
            others = range(1, self.world.size)
            while time.monotonic() < until and not all(map(self._knows, others)):
                time.sleep(_POLL_S)
        self._has_left.set()
        if self._watching is not None:
            self._watching.join()

    def _knows(self, rank: int) -> bool:
        return any(self._read(f"{what}/{rank}") for what in ("knows", "end")) or self._is_gone(rank)

    def ended(self) -> RankError | None:
        """Return the error of a rank that has failed, or is gone without a word; None as long as there is none.

        Whether a process is gone is seen on its own node alone. A rank that ended because of another one, or well, says
        nothing of interest.
        """
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
        """Return what `ended` does, asking the store for one notice alone."""
        end = self._read("failed")
        if end is not None and end["rank"] != self.world.rank:
            return self._error_of(end["rank"], end)
        return self._gone()

    def _gone(self) -> RankError | None:
        """Return the error of a rank of this node that is gone without a word."""
        for rank in self._others():
            if self._is_gone(rank) and self._read(f"end/{rank}") is None:
                return RankError(
                    f"{self._name(rank)} is gone without a word: it was killed (kill -9, or out of memory), or crashed",
                    rank,
                )
        return None

    def _error_of(self, rank: int, end: dict[str, Any]) -> RankError:
        return RankError(f"{self._name(rank)} {_word(end)}", rank, end["status"], end["reason"])

    def reason(self) -> RankError | None:
        """Return `ended` once there is one; None after some seconds, or if the store is gone with rank 0."""
        found, until = self.ended(), time.monotonic() + (_GOING_S if self._is_alone else _REASON_S)
        while found is None and time.monotonic() < until:
            time.sleep(_POLL_S)
            found = self.ended()
        return found

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
            found = self._read(f"here/{rank}")
            if found is None:
                return None
            self._people[rank] = found
        return self._people[rank]

    def _name(self, rank: int) -> str:
        person = self._person(rank)
        return f"rank {rank}" if person is None else f"rank {rank} (pid {person['pid']} on {person['host']})"

    def _is_gone(self, rank: int) -> bool:
        person = self._person(rank)
        if person is None or person["host"] != socket.gethostname() or person["start"] is None:
            return False
        return start_of(person["pid"]) != person["start"]


def _abort_collectives() -> None:
    """Abort what this process waits for in NCCL, where it would not hear of a rank that is gone before the timeout.

    A collective that is aborted returns as if it were done, whatever lies in its memory; see `Notices.check`.
    """
    import torch.distributed as dist

    if dist.is_initialized() and dist.group.WORLD is not None and "nccl" in dist.get_backend_config():
        with contextlib.suppress(RuntimeError):
            dist.group.WORLD.abort()


def _me() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "start": start_of(os.getpid())}


def _word(end: dict[str, Any]) -> str:
    return f"was ended by {end['reason']}" if end["status"] == "INTERRUPTED" else f"failed: {end['reason']}"
