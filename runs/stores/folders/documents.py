"""Small documents of a folder of runs, in files.

    .views/NAME.json                 a saved view; reports and their versions are in .reports and .report_versions
    _artifacts/versions/NAME/aliases the moves of the aliases of an artifact
    _artifacts/versions/NAME/removed who removed a version of it
    RUN/notes.json, RUN/notified/    the notes on a run, and a file for each message
    RUN/run.json                     its status
    RUN/claims/2.json, 2.lease       the second claim on a queued run, and the lease of the process that asked to begin
    sweeps/ID/sweep.json             the definition of a sweep
    sweeps/ID/next                   the next point that an agent is to claim
    sweeps/ID/stopped                exists if agents must start no more trials
    sweeps/ID/claims/000017.0        the agent that claimed the first attempt at trial 17; 000017.0.lease as above
    sweeps/ID/agents/NAME.json       the lease of an agent

Optuna's journal of a sweep, `sweeps/ID/study.journal`, lies beside these; see `sacristan.runs.sweeps.study.home`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.artifacts.aliases import AliasMoves
from sacristan.observers.artifacts.store import ARTIFACTS
from sacristan.observers.notifying import SENT, SentMessages
from sacristan.observers.record.copies import make_shared, share
from sacristan.observers.record.files import make_folder, read_regular, replacing, write_once
from sacristan.observers.record.folders import claimed, locked
from sacristan.observers.record.json_text import load_json, parse_json
from sacristan.observers.record.schema import CLAIMS, NOTES, RUN
from sacristan.runs.errors import naming_os_errors
from sacristan.runs.stores import NOTED, Change, Documents
from sacristan.runs.stores.contract import UNSENT
from sacristan.runs.stores.folders.records import read_document

# A larger file is no saved view and no report.
_MAX_VIEW_BYTES = 2**20
_STATUS = ("status", "stop_time", "fail_trace")


class FolderDocuments(Documents):
    """The documents of a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        """Close nothing: no file stays open."""

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
        files = _KINDS[kind](self.folder, owner)
        with naming_os_errors(f"{files.folder} cannot be read", files.advice):
            if names is None or after is not None:
                wanted = [name for name in files.names(where) if after is None or name > after or name in (names or ())]
            else:
                wanted = list(names)
            documents = {name: files.load(name, entries) for name in wanted}
        return {name: document for name, document in documents.items() if document is not None}

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        files = _KINDS[kind](self.folder, owner)
        with naming_os_errors(f"{files.place(name)} cannot be written", files.advice):
            if not files.exist():
                return False
            with contextlib.suppress(BlockingIOError), files.held(name):
                while True:
                    now = files.load(name)
                    new = change(now)
                    if new == now:
                        return False
                    if files.save(name, now, new):
                        return True
        return False

    def count(self, kind: str, name: str, start: int, limit: float) -> int | None:
        folder = _KINDS[kind](self.folder, "").place(name).parent
        with naming_os_errors(f"{folder} cannot be written", "; check its permissions"), claimed(folder):
            # There is none in a sweep that begins or is of an earlier version; a power cut may have torn it.
            with contextlib.suppress(FileNotFoundError, ValueError):
                start = max(start, int(read_regular(folder / "next")))
            if start >= limit:
                return None
            with replacing(folder / "next", durable=False) as stream:
                stream.write(b"%d" % (start + 1))
        return start


class _Files:
    """The documents of one kind and owner."""

    advice = ""

    def __init__(self, base: Path, owner: Any) -> None:
        self.base, self.folder = base, base / owner

    def place(self, name: str) -> Path:
        """Return the path that messages name."""
        return self.folder

    def exist(self) -> bool:
        """Create the folder that a document needs; False if its owner is gone."""
        return True

    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Hold the documents against other writers; BlockingIOError means that they may not be changed now."""
        return contextlib.nullcontext()

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        """Yield the names of the documents that there are, and that may meet `where`."""
        yield ""

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        """Return a document; None if there is none."""
        raise NotImplementedError

    def save(self, name: str, before: Any, document: Any) -> bool:
        """Replace a document; False if another process, which needs no lock, was quicker."""
        raise NotImplementedError


class _Notes(_Files):
    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return claimed(self.folder)

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        return {each: value for each, value in read_document(self.folder).items() if each in NOTED}

    def save(self, name: str, before: Any, document: Any) -> bool:
        return _save(self.folder / NOTES, document)


class _Status(_Files):
    """The status of a run, which belongs to the process that holds its record."""

    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return locked(self.folder, wait=False)

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        run = load_json(self.folder / RUN)
        return {each: run[each] for each in _STATUS if each in run}

    def save(self, name: str, before: Any, document: Any) -> bool:
        from sacristan.observers.record.journal import Journal  # imports NumPy

        with contextlib.closing(Journal(self.folder)) as journal:
            journal.write(RUN, {**load_json(self.folder / RUN), **document})
        return True


class _Shared(_Files):
    """What people share, each kind in a folder of its own."""

    def __init__(self, base: Path, owner: Any, kind: str) -> None:
        super().__init__(base, f".{kind}")

    def place(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def exist(self) -> bool:
        make_shared(self.folder, self.base)
        return True

    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return claimed(self.folder)

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        # Not what is no file, or another user's.
        paths = sorted(self.folder.glob("*.json"))
        return (path.stem for path in paths if path.is_file() and os.access(path, os.R_OK))

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        try:
            return json.loads(read_regular(self.place(name), _MAX_VIEW_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            return str(error)

    def save(self, name: str, before: Any, document: Any) -> bool:
        if document is None:
            self.place(name).unlink(missing_ok=True)
            return True
        _save(self.place(name), document)
        if not document.get("owner"):
            share(self.place(name))
        return True


class _Aliases(_Shared):
    """The moves of the aliases of an artifact, each written once."""

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, owner, "")
        self.folder = base / ARTIFACTS / "versions" / owner / "aliases"

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        return super().load(name) if entries is None or entries else {}

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        return iter(AliasMoves(self.folder).keys())  # of ten thousand moves, the files are not looked at

    def save(self, name: str, before: Any, document: Any) -> bool:
        return AliasMoves(self.folder).write(self.place(name).name, document)


class _RemovedVersions(_Shared):
    """Who removed which version of an artifact."""

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, owner, "")
        self.folder = base / ARTIFACTS / "versions" / owner / "removed"


class _Messages(_Files):
    """Messages about a run; its own process writes them, too, and needs no lock."""

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, owner)
        self._messages = SentMessages(self.folder)

    def place(self, name: str) -> Path:
        return self._messages.path(name).parent

    def exist(self) -> bool:
        if self.folder.is_dir():
            self.place("event").mkdir(exist_ok=True)
        return self.folder.is_dir()

    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return claimed(self.place(name))

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        path = self._messages.path(name)
        try:
            content, at = read_regular(path).decode(errors="replace"), path.stat().st_mtime
        except FileNotFoundError:
            return {"state": UNSENT} if _unsent(path).exists() else None
        return {"state": SENT if content == SENT else datetime.fromtimestamp(at, UTC).isoformat()}

    def save(self, name: str, before: Any, document: Any) -> bool:
        path, state = self._messages.path(name), document["state"]
        if state == UNSENT:
            path.replace(_unsent(path))
        elif not path.exists():
            return write_once(path, state.encode(), durable=False)
        else:
            with replacing(path, durable=False) as stream:
                stream.write(state.encode())
        return True


class _Claims(_Files):
    """Claims on a queued run. A file is linked once, so that nobody needs a lock; its owner alone writes the lease."""

    advice = "; check its permissions"
    process = "process"

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, owner)
        self.folder = self.folder / CLAIMS

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        return self._following("", 1)

    def _following(self, start: str, first: int) -> Iterator[str]:
        """Yield the names of claims from the first attempt on, of which none is left out."""
        names = (f"{start}{attempt}" for attempt in itertools.count(first))
        with contextlib.suppress(FileNotFoundError):
            for name in names:
                self._path(name).lstat()
                yield name

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        try:
            document = self._document(name, read_regular(self._path(name)))
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError, ValueError):  # a power cut that damages it ended the process as well
            if isinstance(process := load_json(self._lease_path(name)), dict):
                document[self.process] = process
        return document

    def save(self, name: str, before: Any, document: Any) -> bool:
        if document is None:
            for path in (self._path(name), self._lease_path(name)):
                path.unlink(missing_ok=True)
            return True
        if before is None:
            self.folder.mkdir(exist_ok=True)
            return write_once(self._path(name), self._content(document), durable=False)
        if (process := document.get(self.process)) != before.get(self.process):
            with replacing(self._lease_path(name), durable=False) as stream:
                stream.write(json.dumps(process).encode())
        if (content := self._content(document)) != self._content(before):
            with replacing(self._path(name), durable=False) as stream:
                stream.write(content)
        return True

    def _document(self, name: str, content: bytes) -> dict[str, Any]:
        """Return a claim. A damaged one has no lease, and keeps nobody from the task."""
        with contextlib.suppress(ValueError):
            if isinstance(lease := parse_json(content), dict):
                return lease
        return {"agent": content.decode(errors="replace")}

    def _content(self, document: Mapping[str, Any]) -> bytes:
        return json.dumps({name: value for name, value in document.items() if name != self.process}).encode()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _lease_path(self, name: str) -> Path:
        return self._path(name).with_suffix(".lease")


class _SweepClaims(_Claims):
    process = "lease"

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, f"sweeps/{owner}")
        self._sweep = owner

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        if where is None or "trial" not in where:
            numbers = {int(path.name.partition(".")[0]) for path in self.folder.glob("*.0")}
        else:
            numbers = set(where["trial"])
        for number in sorted(numbers):
            yield from self._following(f"{number}/", 0)

    def _document(self, name: str, content: bytes) -> dict[str, Any]:
        number, attempt = map(int, name.split("/"))
        agent = content.decode(errors="replace")
        return {"sweep": self._sweep, "trial": number, "attempt": attempt, "agent": agent}

    def _content(self, document: Mapping[str, Any]) -> bytes:
        return str(document["agent"]).encode()

    def _path(self, name: str) -> Path:
        number, _, attempt = name.partition("/")
        return self.folder / f"{int(number):06d}.{attempt}"

    def _lease_path(self, name: str) -> Path:
        return self.folder / f"{self._path(name).name}.lease"


class _Agents(_Files):
    """The leases of a sweep's agents, each of which writes its own."""

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, f"sweeps/{owner}/agents")

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        return (path.stem for path in self.folder.glob("*.json"))

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return {"agent": name, "lease": load_json(self._path(name))}
        return None

    def save(self, name: str, before: Any, document: Any) -> bool:
        if document is None:
            self._path(name).unlink(missing_ok=True)
            return True
        with replacing(self._path(name), durable=False) as stream:
            stream.write(json.dumps(document["lease"]).encode())
        return True

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


class _Sweeps(_Files):
    advice = "; make room or check its permissions"

    def __init__(self, base: Path, owner: Any) -> None:
        super().__init__(base, "sweeps")

    def place(self, name: str) -> Path:
        return self.folder / name / "sweep.json"

    def held(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return claimed(self.folder / name)

    def names(self, where: Mapping[str, Collection[Any]] | None) -> Iterator[str]:
        return (path.parent.name for path in sorted(self.folder.glob("*/sweep.json")))

    def load(self, name: str, entries: Collection[str] | None = None) -> Any:
        stopped = {"stopped": True} if self._stopped(name).exists() else {}
        if entries is not None and set(entries) <= {"stopped"}:
            return stopped
        try:
            document = load_json(self.place(name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return str(error)
        return {**document, **stopped} if isinstance(document, dict) else document

    def save(self, name: str, before: Any, document: Any) -> bool:
        definition = _definition(document)
        content = json.dumps(definition, indent=2).encode()
        if before is None:
            make_shared(self.folder, self.base)
            for part in (CLAIMS, "agents"):
                make_folder(self.folder / name / part)
            return write_once(self.place(name), content)
        if definition != _definition(before):
            with replacing(self.place(name)) as stream:
                stream.write(content)
        if document.get("stopped"):
            self._stopped(name).touch()
        else:
            self._stopped(name).unlink(missing_ok=True)
        return True

    def _stopped(self, name: str) -> Path:
        return self.folder / name / "stopped"


_KINDS: dict[str, Callable[[Path, Any], _Files]] = {
    "notes": _Notes,
    "messages": _Messages,
    "status": _Status,
    "claims": _Claims,
    **{kind: functools.partial(_Shared, kind=kind) for kind in ("views", "reports", "report_versions")},
    "aliases": _Aliases,
    "removed_versions": _RemovedVersions,
    "sweeps": _Sweeps,
    "sweep_claims": _SweepClaims,
    "sweep_agents": _Agents,
}


def _definition(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "stopped"}


def _unsent(path: Path) -> Path:
    return path.with_name(f"{path.name}.{UNSENT}")


def _save(path: Path, document: Any) -> bool:
    with replacing(path) as stream:
        stream.write(json.dumps(document, indent=2).encode())
    return True
