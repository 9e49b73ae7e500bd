"""`Home`: storage of a sweep for all of its agents: its definition, their leases, and the claims on its points.

    sweep.json              the definition
    study.journal           Optuna's journal of the study
    next                    the next point that an agent is to claim
    claims/000017.0         the agent that claimed the first attempt at trial 17
    claims/000017.0.lease   the lease of the process that last asked to begin that attempt
    agents/NAME.json        the lease of an agent
    stopped                 exists if agents must start no more trials

This is a folder, `my_runs/sweeps/ID`; `mongo_home.py` keeps the same in a database.
"""

from __future__ import annotations

import abc
import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.files import make_folder, read_regular, replacing, write_once
from sacristan.observers.record.identity import is_alive, lease
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.locking import claimed
from sacristan.observers.record.stored_files import make_shared
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.definition import Definition
from sacristan.runs.work.claims import Claim, Claims, FolderClaims

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["BEAT_S", "FolderHome", "Home", "folder_of"]

# Seconds between two signs of life of an agent.
BEAT_S = 5.0
_ID = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Home(abc.ABC):
    """Storage of a sweep."""

    id: str
    where: str

    # ------------------------------------------------------------------ what it is

    @abc.abstractmethod
    def create(self, definition: Definition) -> bool:
        """Store the definition and return True; False if the sweep exists, which stays as it is.

        Of many agents at once, one succeeds.
        """

    @abc.abstractmethod
    def definition(self) -> Definition:
        """Return the definition."""

    @abc.abstractmethod
    def replace(self, definition: Definition, expected: Definition) -> bool:
        """Replace the definition if it still is `expected`; otherwise change nothing and return False.

        Living agents read the search and the number of points from the new one.
        """

    @abc.abstractmethod
    def storage(self, *, is_read_only: bool = False) -> BaseStorage:
        """Return Optuna's storage of the study.

        If `is_read_only`, nothing is written, and a study of an earlier version is read in its own form instead of
        converted.
        """

    def expire(self) -> None:  # noqa: B027, as a file is read each time
        """Let the next read of the study return what others have written by now."""

    # ------------------------------------------------------------------ who does what

    @abc.abstractmethod
    def next_number(self, start: int, limit: float) -> int | None:
        """Return the number of a point to claim. It is new, except after a power cut: the claim decides.

        None if all numbers from `start` to below `limit` were given out; an agent that got one may have died before its
        claim.
        """

    @abc.abstractmethod
    def claims(self, number: int, agent: str = "") -> Claims:
        """Return the claims on a point, numbered from 0, asking no store yet; `agent` is empty to only read them."""

    @abc.abstractmethod
    def last_claims(self, numbers: Iterable[int]) -> dict[int, Claim]:
        """Return the last claims on some points, without unclaimed ones, asking a database once for all of them."""

    @abc.abstractmethod
    def beat(self, agent: str) -> None:
        """Renew the lease of an agent, which is this process.

        Called every `BEAT_S` seconds. An agent without a beat for ten times as long, or whose process is gone, counts
        as dead, and its points go to others.
        """

    @abc.abstractmethod
    def leases(self) -> dict[str, dict[str, Any]]:
        """Return the lease of each agent there ever was, by its name."""

    @abc.abstractmethod
    def leave(self, agent: str) -> None:
        """Remove the lease of an agent that ends, if it has one; others take over its unfinished points at once."""

    def hurry(self) -> None:  # noqa: B027
        """Stop waiting for a database that is away: this process is about to end."""

    @abc.abstractmethod
    def stop(self, wanted: bool = True) -> None:
        """Let agents finish their current trials and start no more; `wanted=False` continues a stopped sweep."""

    @property
    @abc.abstractmethod
    def is_stopped(self) -> bool:
        """True if agents must start no more trials."""

    def living_agents(self) -> set[str]:
        """Return the names of the agents that are alive."""
        return {name for name, lease in self.leases().items() if is_alive(lease)}

    def close(self) -> None:  # noqa: B027, as a folder has nothing open
        """Close the connection to a database."""


def folder_of(base: Path, id: str) -> Path:
    """Return the folder of a sweep, which need not exist.

    An id of other characters than letters, digits, hyphens and underscores, or of more than 64, raises SweepError.
    """
    if not _ID.fullmatch(id):
        raise SweepError(f"sweep.id: got {id!r}, expected letters, digits, hyphens and underscores, at most 64")
    return base / "sweeps" / id


class FolderHome(Home):
    """A sweep in a folder."""

    def __init__(self, base: Path, id: str) -> None:
        self.id = id
        self.folder = folder_of(base, id)
        self.where = str(self.folder)
        self._definition = self.folder / "sweep.json"
        self._next = self.folder / "next"
        self._stopped = self.folder / "stopped"

    def create(self, definition: Definition) -> bool:
        make_shared(self.folder.parent, self.folder.parent.parent)
        for name in ("claims", "agents"):
            make_folder(self.folder / name)
        return write_once(self._definition, json.dumps(definition.document(), indent=2).encode())

    def replace(self, definition: Definition, expected: Definition) -> bool:
        with claimed(self.folder):
            if self.definition() != expected:
                return False
            with replacing(self._definition) as stream:
                stream.write(json.dumps(definition.document(), indent=2).encode())
        return True

    def definition(self) -> Definition:
        try:
            document = parse_json(read_regular(self._definition))
        except FileNotFoundError:
            others = ", ".join(sorted(path.parent.name for path in self.folder.parent.glob("*/sweep.json"))) or "none"
            raise SweepError(f"there is no sweep {self.id} in {self.folder.parent}; there are: {others}") from None
        except (OSError, ValueError) as error:
            raise SweepError(
                f"{self._definition}: cannot be read ({error}); restore it, or start another sweep"
            ) from error
        return Definition.of(document, str(self._definition))

    def storage(self, *, is_read_only: bool = False) -> BaseStorage:
        from sacristan.runs.sweeps.study.optuna_extensions import file_storage

        return file_storage(self.folder / "study.journal")

    def next_number(self, start: int, limit: float) -> int | None:
        with claimed(self.folder):
            # There is none in a sweep that begins or is of an earlier version; a power cut may have torn it.
            with contextlib.suppress(FileNotFoundError, ValueError):
                start = max(start, int(read_regular(self._next)))
            if start >= limit:
                return None
            with replacing(self._next, durable=False) as stream:
                stream.write(b"%d" % (start + 1))
        return start

    def claims(self, number: int, agent: str = "") -> Claims:
        return FolderClaims(self.folder / "claims", first=0, stem=f"{number:06d}.", suffix="", owner=agent)

    def last_claims(self, numbers: Iterable[int]) -> dict[int, Claim]:
        listed = {number: self.claims(number).listed() for number in numbers}
        return {number: claims[-1] for number, claims in listed.items() if claims}

    def beat(self, agent: str) -> None:
        with replacing(self.folder / "agents" / f"{agent}.json", durable=False) as stream:
            stream.write(json.dumps(lease(BEAT_S)).encode())

    def leases(self) -> dict[str, dict[str, Any]]:
        found = {}
        for path in (self.folder / "agents").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found[path.stem] = parse_json(read_regular(path))
        return found

    def leave(self, agent: str) -> None:
        (self.folder / "agents" / f"{agent}.json").unlink(missing_ok=True)

    def stop(self, wanted: bool = True) -> None:
        if wanted:
            self._stopped.touch()
        else:
            self._stopped.unlink(missing_ok=True)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.exists()
