"""`ReplicaSet`: a replica set of real servers on this machine, whose members tests kill, suspend and step down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pymongo
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from sacristan.runs import Mongod

_QUIET = ["--setParameter", "diagnosticDataCollectionEnabled=false"]
# Members notice within a second or so that one is away.
_SETTINGS = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200}


class ReplicaSet:
    """Three members in a folder, for a `with` block; the first one is the primary.

    Args:
        folder: Where their data are.
        arbiter: Whether the last member holds no data.
    """

    def __init__(self, folder: Path, *, arbiter: bool = False) -> None:
        options = ["--replSet", "lab", *_QUIET]
        self.members = [Mongod(folder / str(number), options=options) for number in range(3)]
        self._has_arbiter = arbiter
        self._suspended: set[int] = set()

    def url(self, **options: Any) -> str:
        """The URL of the database `lab` of the set, with options."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/lab?" + urlencode({"replicaSet": "lab", **options})

    def kill(self, *numbers: int) -> None:
        """Kill members."""
        for number in numbers:
            self.members[number].kill()

    def start(self, *numbers: int) -> None:
        """Start members."""
        for number in numbers:
            self.members[number].start()

    def suspend(self, number: int) -> None:
        """Stop a member without ending it: its connections stay open, and it answers nothing."""
        self._signal(number, signal.SIGSTOP)
        self._suspended.add(number)

    def resume(self, number: int) -> None:
        """Let a suspended member continue."""
        self._suspended.discard(number)
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, sign: signal.Signals) -> None:
        pid = self.members[number].pid
        assert pid is not None
        os.kill(pid, sign)

    def lock(self, number: int) -> None:
        """Let a secondary receive nothing, while it stays a member."""
        self.ask(number, lambda client: client.admin.command("fsync", lock=True))

    def unlock(self, number: int) -> None:
        """Let a locked secondary continue."""
        self.ask(number, lambda client: client.admin.command("fsyncUnlock"))

    def elect(self, number: int, *, instead_of: int) -> None:
        """Kill the primary, and wait until another member is it; what only the old one had is rolled back."""
        self.kill(instead_of)
        if self.members[number].pid is None:
            self.start(number)
        self.primary([number])
        self.start(instead_of)
        self.catch_up(instead_of)

    def ask(self, number: int, question: Callable[[pymongo.MongoClient], Any]) -> Any:
        """Return what one member answers, whatever its state is."""
        options: dict[str, Any] = {"directConnection": True, "serverSelectionTimeoutMS": 1000, "socketTimeoutMS": 5000}
        with pymongo.MongoClient(self.members[number].url, **options) as client:
            return question(client)

    def step_down(self, number: int) -> None:
        """Make the primary a secondary for some seconds."""
        with contextlib.suppress(PyMongoError):
            command = {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1}
            self.ask(number, lambda client: client.admin.command(command))

    def primary(self, among: Sequence[int] = (0, 1, 2)) -> int:
        """Wait until one of some members is the primary, and return its number."""
        found: list[int] = []

        def is_found() -> bool:
            found.extend(number for number in among if self._is("isWritablePrimary", number))
            return bool(found)

        until(is_found, "a primary")
        return found[0]

    def catch_up(self, number: int) -> None:
        """Wait until a member is a secondary, and has all that the primary has, with a checkpoint.

        A member that is killed earlier would have to copy everything again before it can be elected.
        """
        until(lambda: self._is("secondary", number), f"member {number}")

        def write(client: pymongo.MongoClient) -> Any:
            writes = client.lab.get_collection("caught_up", write_concern=WriteConcern("majority", j=True))
            return writes.insert_one({})

        self.ask(self.primary(), write)

        def is_saved() -> bool:
            with contextlib.suppress(PyMongoError):
                self.ask(number, lambda client: client.admin.command("fsync"))
                return True
            return False

        until(is_saved, f"a checkpoint of member {number}")

    def _is(self, state: str, number: int) -> bool:
        if self.members[number].pid is None or number in self._suspended:
            return False
        with contextlib.suppress(PyMongoError):
            return bool(self.ask(number, lambda client: client.admin.command("hello"))[state])
        return False

    def __enter__(self) -> ReplicaSet:
        try:
            self.start(0, 1, 2)
            members: list[dict[str, Any]] = [
                {"_id": number, "host": f"127.0.0.1:{member.port}", "priority": 2 if number == 0 else 1}
                for number, member in enumerate(self.members)
            ]
            if self._has_arbiter:
                members[2] |= {"arbiterOnly": True, "priority": 0}
            config = {"_id": "lab", "members": members, "settings": _SETTINGS}
            self.ask(0, lambda client: client.admin.command({"replSetInitiate": config}))
            self.primary([0])
            for number in range(1, 2 if self._has_arbiter else 3):
                self.catch_up(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._suspended):
            self.resume(number)
        self.kill(0, 1, 2)


def until(condition: Callable[[], object], what: str, bound_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {bound_s} s in vain for {what}"
        time.sleep(0.05)
