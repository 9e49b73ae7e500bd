"""Small documents of a folder of runs, each in a file of its own."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.artifacts.aliases import AliasMoves
from sacristan.observers.artifacts.store import ARTIFACTS
from sacristan.observers.notifying.messages import SENT, SentMessages
from sacristan.observers.record.files import read_regular, replacing, write_once
from sacristan.observers.record.locking import claimed
from sacristan.observers.record.schema import NOTES
from sacristan.observers.record.stored_files import make_shared, share
from sacristan.runs.errors import naming_os_errors
from sacristan.runs.stores.contract import NOTED, UNSENT, Change, Documents
from sacristan.runs.stores.folders.records import read_document

__all__ = ["FolderDocuments"]

# A larger file is no saved view and no report.
_MAX_VIEW_BYTES = 2**20
# Kinds that people share, each in a folder of its own.
_SHARED = ("views", "reports", "report_versions")


class FolderDocuments(Documents):
    """The documents of a folder: `.views/NAME.json` and so on; aliases beside artifacts; in a run's folder its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, kind: str, owner: Any = "", name: str | None = None) -> dict[str, Any]:
        if name is not None:
            document = _load(kind, self._path(kind, owner, name))
            return {} if document is None else {name: document}
        found: dict[str, Any] = {}
        with naming_os_errors(f"{self._path(kind, owner, '').parent} cannot be read"):
            for path in sorted(self._path(kind, owner, "").parent.glob("*.json")):
                with contextlib.suppress(OSError):  # it is no file, or another user's
                    found[path.stem] = _load(kind, path)
        return found

    def change(self, kind: str, name: str, change: Change, owner: Any = "") -> bool:
        path = self._path(kind, owner, name)
        with naming_os_errors(f"{path if kind in _SHARED else path.parent} cannot be written"):
            if kind in (*_SHARED, "aliases"):
                make_shared(path.parent, self.folder)
            elif kind == "messages":
                if not path.parent.parent.is_dir():
                    return False  # the run was removed
                path.parent.mkdir(exist_ok=True)
            with claimed(path.parent):
                while True:
                    now = _load(kind, path)
                    new = change(now)
                    if new == now:
                        return False
                    if _SAVE.get(kind, _save)(path, new):
                        return True

    def _path(self, kind: str, owner: Any, name: str) -> Path:
        if kind in _SHARED:
            return self.folder / f".{kind}" / f"{name}.json"
        if kind == "aliases":
            return AliasMoves.path(self.folder / ARTIFACTS / "versions" / owner, name)
        return SentMessages(self.folder / owner).path(name) if kind == "messages" else self.folder / owner / NOTES


def _load(kind: str, path: Path) -> Any:
    """Return the document in a file; None if there is none; a damaged view is a text."""
    if kind == "messages":
        return _message(path)
    if kind == "notes":
        return {name: value for name, value in read_document(path.parent).items() if name in NOTED}
    try:
        return json.loads(read_regular(path, _MAX_VIEW_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        return str(error)


def _message(path: Path) -> dict[str, Any] | None:
    try:
        content, at = read_regular(path).decode(errors="replace"), path.stat().st_mtime
    except FileNotFoundError:
        return {"state": UNSENT} if _unsent(path).exists() else None
    return {"state": SENT if content == SENT else datetime.fromtimestamp(at, UTC).isoformat()}


def _unsent(path: Path) -> Path:
    return path.with_name(f"{path.name}.{UNSENT}")


def _save(path: Path, document: Any) -> bool:
    with replacing(path) as stream:
        stream.write(json.dumps(document, indent=2).encode())
    return True


def _save_shared(path: Path, document: Any) -> bool:
    if document is None:
        path.unlink(missing_ok=True)
        return True
    _save(path, document)
    if not document.get("owner"):
        share(path)
    return True


def _save_message(path: Path, document: Any) -> bool:
    """Write the state of a message; False if the run's own process, which needs no lock, was quicker."""
    state = document["state"]
    if state == UNSENT:
        path.replace(_unsent(path))
    elif not path.exists():
        return write_once(path, state.encode(), durable=False)
    else:
        with replacing(path, durable=False) as stream:
            stream.write(state.encode())
    return True


def _save_move(path: Path, document: Any) -> bool:
    return AliasMoves(path.parent).write(path.name, document)


_SAVE = {"messages": _save_message, "aliases": _save_move, **dict.fromkeys(_SHARED, _save_shared)}
