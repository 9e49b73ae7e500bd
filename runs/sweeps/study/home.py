"""`Home`: a sweep for all of its agents, as documents of a store: its definition, leases, and claims on its points.

The store may be away for a while, so a sweep outlives a server's restart. The study lies in the store as well, a
document for each trial; of a folder, in `sweeps/ID/study.journal`, which is Optuna's; or in an Optuna storage that the
sweep names. `sacristan.runs.stores.contract` describes the documents.

A reader never writes. A record may come from anybody, and so may the name of a storage in it. So a reader opens only a
file that lies among the runs, beside them or below the folder that it was started in, and never connects to another
machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sacristan.observers.mongo import Destination
from sacristan.observers.record.identity import is_alive, lease
from sacristan.runs.errors import RunsError, StoreAwayError, SweepError, needing_extra
from sacristan.runs.stores import Backend, Change, Documents
from sacristan.runs.stores.folders.documents import FolderDocuments
from sacristan.runs.stores.opening import open_backend, open_store
from sacristan.runs.sweeps import Definition
from sacristan.runs.transfer.syncing import deliveries, undelivered
from sacristan.runs.work import Claim, Claims, last_claims, point_claims

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from sacristan.runs.sweeps.study.study_storage import StudyStorage

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_S = 0.5
_FIRST_ANSWER_S = 60.0
_SLOW = ("timed out", "No servers found yet")


class PatientDocuments(Documents):
    """Documents of a store that is opened at the first question, and asked again while it is away.

    A store that has never answered is not waited for: its address is wrong, or its server was not started. It has some
    seconds only if it accepts connections, or seems to, as a server does that hundreds of agents ask at once.
    """

    def __init__(self, open: Callable[[], Backend]) -> None:
        self._open = open
        self._backend: Backend | None = None
        self._has_answered = False
        self._is_hurried = False
        self._over: float | None = None

    @property
    def where(self) -> str:
        """The store's URL without credentials."""
        return self.ask(lambda _: self._opened().where)

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()

    def read(
        self,
        kind: str,
        owner: Any = "",
        names: Collection[str] | None = None,
        *,
        after: str | None = None,
        where: Mapping[str, Collection[Any]] | None = None,
        entries: Collection[str] | None = None,
    ) -> dict[str, Any]:
        return self.ask(lambda own: own.read(kind, owner, names, after=after, where=where, entries=entries))

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        return self.ask(lambda own: own.change(kind, name, change, owner))

    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        return self.ask(lambda own: own.count(kind, name, start, limit))

    def ask(self, question: Callable[[Documents], _T]) -> _T:
        """Ask the store, again while it is away; StoreError means that it refuses, or has never answered.

        `question` may be called again after an answer was lost, so it must allow for that.
        """
        is_away = False
        patience = time.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                answer = question(self._opened().documents)
            except StoreAwayError as error:
                may_be_slow = any(sign in str(error.__cause__) for sign in _SLOW) and time.monotonic() < patience
                if self._is_hurried or not (self._has_answered or may_be_slow):
                    raise
                if not is_away:
                    _log.warning("%s; waiting for it", error)
                is_away = True
                time.sleep(_RETRY_S)
            else:
                self._has_answered = True
                if is_away:
                    self._over = time.monotonic()
                    _log.warning("%s is back", self._opened().where)
                return answer

    def _opened(self) -> Backend:
        if self._backend is None:
            self._backend = self._open()
            self._has_answered = True
        return self._backend

    def hurry(self) -> None:
        """Stop waiting, because this process is about to end."""
        self._is_hurried = True

    def let_others_beat(self, seconds: float) -> None:
        """Wait until others had some seconds since the last outage to renew their leases, which are judged next."""
        if self._over is not None and not self._is_hurried:
            time.sleep(max(self._over + seconds - time.monotonic(), 0))
            self._over = None


def shared_storage(url: str) -> BaseStorage:
    """Return the storage of a URL as agents open it; connections to a SQLite file are closed after each use."""
    from optuna.exceptions import OptunaError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    is_file = url.startswith("sqlite") and not url.endswith((":memory:", "://"))
    try:
        return RDBStorage(url, {"poolclass": NullPool} if is_file else None)
    except (OptunaError, SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        why = str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0]
        raise SweepError(
            f"sweep.storage: got {url!r}, which cannot be opened ({why}); expected the URL of an Optuna storage, such "
            "as sqlite:///study.db"
        ) from error


def check_storage(definition: Definition) -> None:
    """Reject a `storage` that cannot be opened; a definition without one keeps its study beside the runs."""
    if definition.storage:
        shared_storage(definition.storage)


def has_study(definition: Definition) -> bool:
    """Tell whether the storage that a sweep names has its study, such as one copied from another storage."""
    import optuna

    return definition.id in optuna.get_all_study_names(shared_storage(definition.storage))


@contextlib.contextmanager
def own_storage(definition: Definition, folders: Sequence[Path]) -> Iterator[BaseStorage]:
    """Open the storage of a sweep's own, a SQLite file in one of the `folders`, or below."""
    path = _path(definition, folders)
    with needing_extra("sweeps", "a sweep"):
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, check_same_thread=False)

    try:
        # No connection is left open, not even by what fails.
        yield RDBStorage("sqlite://", {"creator": connect, "poolclass": NullPool}, skip_table_creation=True)
    except RunsError:
        raise
    except (StorageInternalError, SQLAlchemyError, RuntimeError) as error:  # RuntimeError of tables of another version
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        why = getattr(cause, "orig", cause)
        raise SweepError(f"sweep {definition.id}: {path} cannot be read as an Optuna storage ({why})") from error


def _path(definition: Definition, folders: Sequence[Path]) -> Path:
    """Return the file that a URL of SQLite names, from the folder that the sweep was started in."""
    kind, _, rest = definition.storage.partition("://")
    if kind.partition("+")[0] != "sqlite":
        raise SweepError(
            f"sweep {definition.id}: its study is on a server ({kind[:20]}), and a record alone makes nobody connect "
            f"to one; draw it with: {_drawing(definition)}"
        )
    name = rest.removeprefix("/").partition("?")[0]
    if not name or name == ":memory:" or name.startswith("file:"):
        raise SweepError(f"sweep {definition.id}: its study is in {definition.storage[:200]!r}, expected a SQLite file")
    path = Path(definition.cwd, name).resolve()
    if not any(path.is_relative_to(folder.resolve()) for folder in folders):
        raise SweepError(
            f"sweep {definition.id}: its study is in {path}, neither beside the runs nor below the folder that the "
            f"board was started in; start the board in {path.parent}, or draw it with: {_drawing(definition)}"
        )
    if not path.is_file():
        raise SweepError(f"sweep {definition.id}: its study is in {path}, which does not exist")
    return path


def _drawing(definition: Definition) -> str:
    return f"{'' if definition.is_script else 'python exp.py '}{definition.action('plot')}"


# Seconds between two signs of life of an agent.
BEAT_S = 5.0
_ID = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclasses.dataclass(frozen=True)
class Place:
    """Place where sweeps are kept: in the store, if there is one, so that agents on all machines see them."""

    base: Path  # the folder that runs are recorded below on this machine
    # The `address` of a store that has the sweeps and their runs; empty for the folder alone. It may contain a
    # password.
    store: str = dataclasses.field(default="", repr=False)

    def home(self, id: str) -> Home:
        """Return the home of a sweep, which need not exist yet; close it when done. Invalid ids raise SweepError."""
        if not _ID.fullmatch(id):
            raise SweepError(f"sweep.id: got {id!r}, expected letters, digits, hyphens and underscores, at most 64")
        return Home(self, id, self._documents())

    def folder(self, id: str) -> Path:
        """Return the folder of a sweep on this machine, with the output of its runs; it need not exist."""
        return self.base / "sweeps" / id

    @property
    def copies_runs(self) -> bool:
        """True if no observer delivers runs to the store, so that agents copy them there once they have ended."""
        return bool(self.store) and Destination.at(self.store) is None

    def deliver(self, folders: Iterable[Path]) -> None:
        """Deliver ended runs to the store, as far as it takes them."""
        for _ in deliveries(self.base, self.store.partition("#")[0], only=folders):
            pass  # what is left is counted afterwards

    def deliver_ended(self, id: str) -> None:
        """Deliver the ended runs of a sweep on this machine, as far as the store that has the sweep takes them."""
        if self.store and (left := self.undelivered(id)):
            destination = Destination.at(self.store)
            self.deliver(folder for folder, where in left.items() if destination is None or where == destination.label)

    def undelivered(self, id: str) -> dict[Path, str]:
        """Return the folders of a sweep's runs that have ended and are not delivered, and to where they are to be."""
        if not self.base.is_dir():
            return {}
        labels = {}
        with open_store(self.base) as store:
            runs = [run for run in store.find([("meta.sweep.id", "=", id)]) if not run.is_living]
            if self.copies_runs:
                with open_store(self.store, create=True) as target:
                    ended = {
                        run.uid: run.folder for run in runs if run.uid and run.status not in ("DEAD", "INTERRUPTED")
                    }
                    there = target.backend.get(ended)
                    return {folder: target.where for uid, folder in ended.items() if folder and uid not in there}
            folders = [run.folder for run in runs]
        for folder in filter(None, folders):
            with contextlib.suppress(OSError, ValueError, TypeError):
                if (label := undelivered(folder)) is not None:
                    labels[folder] = label
        return labels

    def ids(self) -> list[str]:
        documents = self._documents()
        try:
            return sorted(documents.read("sweeps", entries=()))
        finally:
            documents.close()

    def _documents(self) -> FolderDocuments | PatientDocuments:
        return PatientDocuments(lambda: open_backend(self.store)) if self.store else FolderDocuments(self.base)

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with the store's password: for a pipe, not for a file."""
        return {"base": str(self.base.absolute()), "store": self.store}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Place:
        return cls(Path(document["base"]), document["store"])


class Home:
    """A sweep where it is kept."""

    def __init__(self, place: Place, id: str, documents: FolderDocuments | PatientDocuments) -> None:
        self.id = id
        self.place, self._documents = place, documents
        self._patient = documents if isinstance(documents, PatientDocuments) else None
        self._storage: StudyStorage | None = None

    @property
    def where(self) -> str:
        """What messages call it."""
        if self._patient is not None:
            return f"{self._patient.where}, sweep {self.id}"
        return str(self.place.folder(self.id))

    @property
    def _definition(self) -> str:
        return self.where if self._patient is not None else f"{self.where}/sweep.json"

    def close(self) -> None:
        self._documents.close()

    # ------------------------------------------------------------------ what it is

    def create(self, definition: Definition) -> bool:
        """Store the definition and return True; False if the sweep exists. Of many agents at once, one succeeds."""
        return self._change(lambda now: definition.document() if now is None else now)

    def definition(self) -> Definition:
        document = self._documents.read("sweeps", names=[self.id]).get(self.id)
        if document is None:
            others = ", ".join(sorted(self._documents.read("sweeps", entries=()))) or "none"
            place = self.where.removesuffix(f", sweep {self.id}").removesuffix(f"/{self.id}")
            raise SweepError(f"there is no sweep {self.id} in {place}; there are: {others}")
        if isinstance(document, str):
            raise SweepError(f"{self._definition}: cannot be read ({document}); restore it, or start another sweep")
        return Definition.of(document, self._definition)

    def replace(self, definition: Definition, expected: Definition) -> bool:
        """Replace the definition, which living agents read, if it still is `expected`; return whether it was."""
        is_replaced = False

        def replaced(now: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal is_replaced
            present = Definition.of(now, self._definition)
            is_replaced = present in (expected, definition)  # as after a first try whose answer was lost
            return {**now, **definition.document()} if present == expected else now

        self._change(replaced)
        return is_replaced

    def storage(self, *, is_read_only: bool = False) -> BaseStorage:
        """Return Optuna's storage of the study; with `is_read_only`, nothing is written or converted."""
        if self._patient is None:
            from sacristan.runs.sweeps.study.optuna_extensions import file_storage

            return file_storage(self.place.folder(self.id) / "study.journal")
        from sacristan.runs.sweeps.study.study_storage import StudyStorage, convert_journal, journal_storage

        storage = StudyStorage(self._documents, self.id)
        if not storage.get_all_studies():
            journal = journal_storage(self._documents, self.id)
            if journal is not None and is_read_only:
                return journal
            if journal is not None:
                convert_journal(journal, storage, self.id)
        self._storage = storage
        return storage

    def expire(self) -> None:
        """Let the next read of the study return what others have written by now."""
        if self._storage is not None:
            self._storage.expire()

    # ------------------------------------------------------------------ who does what

    def next_number(self, start: int, limit: float) -> int | None:
        """Return the number of a point to claim. It is new, except after a power cut: the claim decides.

        None if all numbers from `start` to below `limit` were given out; an agent that got one may have died before its
        claim.
        """
        return self._documents.count("sweeps", self.id, start, limit)

    def claims(self, number: int, agent: str = "") -> Claims:
        """Return the claims on a point, numbered from 0, asking no store yet; `agent` is empty to only read them."""
        return point_claims(self._documents, self.id, number, agent)

    def last_claims(self, numbers: Iterable[int]) -> dict[int, Claim]:
        """Return the last claims on some points, without unclaimed ones, asking once for all of them."""
        return last_claims(self._documents, self.id, list(numbers))

    def beat(self, agent: str) -> None:
        """Renew the lease of an agent, which is this process.

        Called every `BEAT_S` seconds. An agent without a beat for ten times as long, or whose process is gone, counts
        as dead, and its points go to others.
        """
        own = {"agent": agent, "lease": lease(BEAT_S)}
        self._documents.change("sweep_agents", agent, lambda _: own, self.id)

    def leases(self) -> dict[str, dict[str, Any]]:
        """Return the lease of each agent there ever was, by its name."""
        if self._patient is not None:
            self._patient.let_others_beat(2 * BEAT_S)
        return {name: one["lease"] for name, one in self._documents.read("sweep_agents", self.id).items()}

    def living_agents(self) -> set[str]:
        return {name for name, lease in self.leases().items() if is_alive(lease)}

    def leave(self, agent: str) -> None:
        """Remove the lease of an agent that ends, if it has one; others take over its unfinished points at once."""
        self._documents.change("sweep_agents", agent, lambda _: None, self.id)

    def hurry(self) -> None:
        """Stop waiting for a store that is away: this process is about to end."""
        if self._patient is not None:
            self._patient.hurry()

    def stop(self, wanted: bool = True) -> None:
        """Let agents finish their current trials and start no more; `wanted=False` continues a stopped sweep."""

        def stopped(now: Mapping[str, Any]) -> Mapping[str, Any]:
            rest = {name: value for name, value in now.items() if name != "stopped"}
            return {**rest, "stopped": True} if wanted else rest

        self._change(stopped)

    @property
    def is_stopped(self) -> bool:
        """True if agents must start no more trials."""
        document = self._documents.read("sweeps", names=[self.id], entries=("stopped",)).get(self.id)
        return bool(document and document.get("stopped"))

    def _change(self, change: Callable[[Any], Mapping[str, Any]]) -> bool:
        return self._documents.change("sweeps", self.id, change)
