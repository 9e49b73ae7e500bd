"""A run that is read with the words replaced that name people, machines and places."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from sacristan.observers.record.points.points import Series
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.content import Content, Medium
from sacristan.runs.stores.folders.adding import RELATIONS
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.hidden_words import HiddenWords
from sacristan.runs.transfer.packed_files import MOST_BYTES
from sacristan.runs.transfer.unloading import uid_of

__all__ = ["AnonymousRun"]


class AnonymousRun(Run):
    """A run that is read without the words to hide; `left_out` gets a sentence for each part that is left out."""

    def __init__(self, run: Run, hidden: HiddenWords, left_out: list[str]) -> None:
        store: Any = SimpleNamespace(where="anonymous", check_field=lambda name: None, tell=lambda *_: None)
        super().__init__(store, run.id)
        self._run, self._hidden, self._left_out = run, hidden, left_out

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        left = {*RELATIONS, "changes", "notified", "states_folder", "folder", "cwd"}
        if any(self._run.document.get(relation) for relation in RELATIONS):
            self._left_out.append(f"run {self.id}: versions of artifacts, which are known by their digests")
        document = {name: value for name, value in self._run.document.items() if name not in left}
        cleaned: dict[str, Any] = self._hidden.document(_without_names(document))
        return {**cleaned, "uid": uid_of(self._run)}

    def _part(self, name: str) -> dict[str, Any]:
        cleaned: dict[str, Any] = self._hidden.document(_without_names(self._run._read_part(name)))
        return cleaned

    def _check_is_there(self) -> None:
        self._run._check_is_there()

    def _true_status(self) -> str:
        return self._run.status

    @property
    def lease(self) -> dict[str, Any] | None:
        lease = self._run.lease
        return lease and {**lease, "host": "anonymous", "boot_id": "anonymous", "pid_namespace": None}

    def notes(self) -> dict[str, Any]:
        kept = {name: self._run.notes().get(name) for name in ("tags", "note", "display_name")}
        cleaned: dict[str, Any] = self._hidden.document({name: value for name, value in kept.items() if value})
        return cleaned

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return {self._hidden.text(name): name for name in self._run.logged_metrics}

    def _metric_names(self) -> list[str]:
        return list(self._names)

    def _series(self, name: str) -> Series | None:
        return self._run.metric(self._names[name]) if name in self._names else None

    def stored(self, kind: str) -> list[Content]:
        return [self._cleaned(content) for content in self._run.stored(kind)]

    def _cleaned(self, content: Content) -> Content:
        return Content(self._hidden.text(content.name), lambda: self._open(content))

    def _open(self, content: Content) -> BinaryIO:
        data = self._hidden.file(content.name, _bounded(content))
        self._left_out += [f"run {self.id}: {sentence}" for sentence in self._hidden.dropped]
        self._hidden.dropped.clear()
        return content.open() if data is None else io.BytesIO(data)

    @property
    def rank_outputs(self) -> dict[int, Content]:
        return {rank: self._output(content) for rank, content in self._run.rank_outputs.items()}

    def _output(self, content: Content) -> Content:
        return Content(content.name, lambda: io.BytesIO(self._as_text(content.read())))

    def _as_text(self, data: bytes) -> bytes:
        return self._hidden.text(data.decode(errors="replace")).encode()

    def read_output(self, start: int = 0, max_bytes: int | None = None) -> tuple[bytes, int]:
        data = self._as_text(self._run.read_output()[0])[start:][:max_bytes]
        return data, start + len(data)

    @property
    def media(self) -> list[Medium]:
        return [Medium.of(entry, contents) for entry, contents in self.media_entries()]

    def media_entries(self) -> list[tuple[dict[str, Any], list[Content]]]:
        found = []
        for entry, (file, *images) in self._run.media_entries():
            try:
                with self._open(file) as stream:
                    data = stream.read()
            except StoreError as error:
                self._left_out.append(f"run {self.id}: a medium: {error}")
                continue
            digest = hashlib.sha256(data).hexdigest()
            name = f"media/{digest}.{entry['file'].rpartition('.')[2]}"
            cleaned = self._hidden.document(entry) | {"file": name, "sha256": digest, "bytes": len(data)}
            found.append((cleaned, [Content(name, _opener(data)), *images]))
        return found

    def artifact_details(self) -> dict[str, dict[str, Any]]:
        cleaned: dict[str, dict[str, Any]] = self._hidden.document(self._run.artifact_details())
        return cleaned

    def odd_values(self) -> bytes:
        return self._as_text(self._run.odd_values())

    def fetch_version(self, entry: Mapping[str, Any], into: Path) -> Any:
        raise StoreError("versions of artifacts are left out")

    def original(self) -> Run | None:
        return None


def _bounded(content: Content) -> bytes | None:
    """Return the checked bytes of a content; None if they are too many."""
    pieces, size = list[bytes](), 0
    for piece in content.pieces():
        size += len(piece)
        if size > MOST_BYTES:
            pieces.clear()
        else:
            pieces.append(piece)
    return b"".join(pieces) if size <= MOST_BYTES else None


def _opener(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: io.BytesIO(data)


def _without_names(value: Any) -> Any:
    """Return a record without the fields that name users and machines, as common words stay elsewhere."""
    if isinstance(value, Mapping):
        named = ("user", "username", "hostname")
        return {
            key: _without_names(item) for key, item in value.items() if key not in named or not isinstance(item, str)
        }
    return [_without_names(item) for item in value] if isinstance(value, list | tuple) else value
