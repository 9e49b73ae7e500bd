"""Runs without their people, machines and places, for blind review.

Each run is first written into a scratch store, with all that names a person, a machine or a place replaced in records,
output, sources, the diff, media, notes and artifacts. Any exporter then writes from that store. What it wrote appears
only after every byte of it was searched for the words (`sacristan.runs.transfer.hidden_words`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from sacristan.observers.record.points.points import Series
from sacristan.runs.drawing.output_file import check_output, is_stream, publish, staging_beside
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.stores.content import Content
from sacristan.runs.stores.contract import PARTS
from sacristan.runs.stores.folders.adding import RELATIONS
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.copying import stage, uid_of
from sacristan.runs.transfer.hidden_words import HiddenWords
from sacristan.runs.transfer.identifying_words import IdentifyingWords
from sacristan.runs.transfer.packed_files import MOST_BYTES

__all__ = ["UNPROVEN", "AnonymousRuns", "anonymised"]

UNPROVEN = (
    "words that no record names are not known: add names of people, groups and projects with --hide WORD",
    "the uid and the times of the runs stay",
)
_MOST_FOUND = 10


@dataclasses.dataclass(frozen=True)
class AnonymousRuns:
    """Runs without the words, and the place to export them to.

    Attributes:
        common: Names of accounts and machines that are common words: they were removed from their own fields only.
        left_out: A sentence for each part that could not be kept.
    """

    runs: tuple[Run, ...]
    output: Path
    common: tuple[str, ...]
    left_out: tuple[str, ...]
    replacements: dict[str, str]
    _hidden: HiddenWords

    @property
    def unsearched(self) -> dict[str, int]:
        """Parts of the output that were not searched, such as `pixels`, with the number of files; set at the end."""
        return dict(sorted(self._hidden.unsearched.items()))

    @property
    def removed(self) -> dict[str, int]:
        """How often each kind of text was removed, as it contains words in a form that cannot be replaced."""
        return dict(self._hidden.removed)

    @property
    def replaced(self) -> dict[str, tuple[str, int]]:
        """The replacement of each word that was found, and how often it was written."""
        return {word: (self.replacements[word], count) for word, count in sorted(self._hidden.counts.items())}

    def name(self, name: str) -> str:
        """Return what a field or metric of the originals is called in the output."""
        return self._hidden.text(name)


@contextlib.contextmanager
def anonymised(
    runs: Sequence[Run],
    output: str | Path,
    hide: Sequence[str] = (),
    *,
    keep: Sequence[str] = (),
    overwrite: bool = False,
) -> Iterator[AnonymousRuns]:
    """Export runs so that the output names no people, machines and places.

    The block writes the runs to a place beside the output. When it ends, every byte there is searched, and the output
    appears, with the list of what was replaced beside it: `OUTPUT.replaced.json`.
    """
    output = Path(output)
    _check_place(output, overwrite=overwrite)
    words = _words_of(runs, hide, keep)
    hidden, left_out = HiddenWords(words.replacements, keep), list[str]()
    with naming_os_errors(f"{output} cannot be written"), staging_beside(output) as folder:
        for number, run in enumerate(runs, 1):
            staged = stage(anonymous_run(run, hidden, left_out), folder / "runs", str(number))
            left_out += [f"run {run.id}: {hidden.text(text)}" for text in staged.left_out]
        with open_store(folder / "runs", create=True) as store:
            copies = tuple(store.get(str(number)) for number in range(1, len(runs) + 1))
            common = tuple(sorted(words.common))
            prepared = folder / "output"
            anonymous = AnonymousRuns(copies, prepared, common, tuple(left_out), words.replacements, hidden)
            yield anonymous
        if leaks := list(itertools.islice(hidden.found_in(prepared), _MOST_FOUND)):
            raise StoreError(f"words to hide are left, so nothing is written: {'; '.join(leaks)}")
        if not is_stream(output):
            listed = _write_list(folder / "replaced.json", runs, anonymous)
            publish(listed, output.with_name(f"{output.name}.replaced.json"), overwrite=True)
        publish(prepared, output, overwrite=overwrite)


def _check_place(output: Path, *, overwrite: bool) -> None:
    if not output.is_dir():
        check_output(output, overwrite=overwrite)
    elif any(output.iterdir()):
        raise StoreError(f"{output} has files, which would not be searched; name a new folder")


def _words_of(runs: Sequence[Run], hide: Sequence[str], keep: Sequence[str]) -> IdentifyingWords:
    words = IdentifyingWords(keep)
    for word in hide:
        words.add("hidden", word)
    for run in runs:
        now = run.store.get(run.id)
        if now.is_living or not now.is_whole:
            raise StoreError(f"run {run.id} is {now.status}; export it when it is whole")
        words.note_own(run)
    for run in runs:
        words.take(run)
    if words.own:
        word = min(words.own)
        raise StoreError(
            f"{word!r} names a person or machine, and is part of the name of a setting, metric or source; hide it "
            f"everywhere with --hide {word}, or leave it with --keep {word}"
        )
    return words


def _write_list(path: Path, runs: Sequence[Run], anonymous: AnonymousRuns) -> Path:
    """Write the list of replacements for the authors, and for nobody else."""
    document: dict[str, Any] = {
        "runs": {str(number): run.id for number, run in enumerate(runs, 1)},
        "replaced": {word: {"by": by, "times": count} for word, (by, count) in anonymous.replaced.items()},
        "common": anonymous.common,
        "left_out": anonymous.left_out,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path


class _AnonymousRecord:
    """The parts of a run without the words to hide, in place of a `Backend`; see there."""

    where = "anonymous"
    folder = None

    def __init__(self, run: Run, hidden: HiddenWords, left_out: list[str]) -> None:
        self._run, self._hidden, self._left_out = run, hidden, left_out

    def part(self, _: Run, name: str, entries: Sequence[str] | None = None) -> Any:
        if name in PARTS or name == "artifact_details":
            part = self._run.artifact_details() if name == "artifact_details" else self._run.get(name)
            return self._hidden.document(_without_names(part or {}))
        return _READERS[name](self)

    def _document(self) -> dict[str, Any]:
        left = {*RELATIONS, "changes", "notified", "reproductions", "states_folder", "folder", "cwd"}
        if any(self._run.document.get(relation) for relation in RELATIONS):
            self._left_out.append(f"run {self._run.id}: versions of artifacts, which are known by their digests")
        document = {name: value for name, value in self._run.document.items() if name not in left}
        cleaned: dict[str, Any] = self._hidden.document(_without_names(document))
        return {**cleaned, "uid": uid_of(self._run)}

    def _lease(self) -> dict[str, Any] | None:
        lease = self._run.lease
        return lease and {**lease, "host": "anonymous", "boot_id": "anonymous", "pid_namespace": None}

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return {self._hidden.text(name): name for name in self._run.logged_metrics}

    def series(self, runs: Sequence[Run], metric: str) -> Iterator[tuple[Run, Series | None]]:
        for run in runs:
            yield run, self._run.metric(self._names[metric]) if metric in self._names else None

    def files(self, _: Run, kind: str) -> list[Content]:
        cleaned = self._output if kind == "ranks" else self._cleaned
        return [cleaned(content) for content in self._run.stored(kind)]

    def _cleaned(self, content: Content) -> Content:
        return Content(self._hidden.text(content.name), lambda: self._open(content))

    def _open(self, content: Content) -> BinaryIO:
        data = self._hidden.file(content.name, _bounded(content))
        self._left_out += [f"run {self._run.id}: {sentence}" for sentence in self._hidden.dropped]
        self._hidden.dropped.clear()
        return content.open() if data is None else io.BytesIO(data)

    def _output(self, content: Content) -> Content:
        return Content(content.name, lambda: io.BytesIO(self._as_text(content.read())))

    def _as_text(self, data: bytes) -> bytes:
        return self._hidden.text(data.decode(errors="replace")).encode()

    def output(self, _: Run, start: int, max_bytes: int | None) -> tuple[bytes, int]:
        data = self._as_text(self._run.read_output()[0])[start:][:max_bytes]
        return data, start + len(data)

    def media(self, _: Run, *, skips_damaged: bool = False) -> list[tuple[dict[str, Any], list[Content]]]:
        found = []
        for entry, (file, *images) in self._run.media_entries():
            try:
                with self._open(file) as stream:
                    data = stream.read()
            except StoreError as error:
                self._left_out.append(f"run {self._run.id}: a medium: {error}")
                continue
            digest = hashlib.sha256(data).hexdigest()
            name = f"media/{digest}.{entry['file'].rpartition('.')[2]}"
            cleaned = self._hidden.document(entry) | {"file": name, "sha256": digest, "bytes": len(data)}
            found.append((cleaned, [Content(name, functools.partial(io.BytesIO, data)), *images]))
        return found


_READERS: dict[str, Callable[[_AnonymousRecord], Any]] = {
    "document": _AnonymousRecord._document,
    "status": lambda record: record._run.status,
    "lease": _AnonymousRecord._lease,
    "metrics": lambda record: list(record._names),
    "values": lambda record: record._as_text(record._run.odd_values()),
}


def anonymous_run(run: Run, hidden: HiddenWords, left_out: list[str]) -> Run:
    """Return a run that is read without the words to hide; `left_out` gets a sentence on each part left out."""
    store: Any = SimpleNamespace(
        where="anonymous",
        backend=_AnonymousRecord(run, hidden, left_out),
        check_field=lambda name: None,
        tell=lambda *_: None,
    )
    return Run(store, run.id)


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


def _without_names(value: Any) -> Any:
    """Return a record without the fields that name users and machines, as common words stay elsewhere."""
    if isinstance(value, Mapping):
        named = ("user", "username", "hostname")
        return {
            key: _without_names(item) for key, item in value.items() if key not in named or not isinstance(item, str)
        }
    return [_without_names(item) for item in value] if isinstance(value, list | tuple) else value
