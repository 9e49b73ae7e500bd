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
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from sacristan.observers.artifacts.store import RELATIONS
from sacristan.observers.record.identity import user_name
from sacristan.observers.record.points import Series
from sacristan.runs.drawing.output_file import check_output, is_stream, publish, staging_beside
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.query import entry_at, list_of, mapping_of
from sacristan.runs.stores import PARTS, Content, Run
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.settings import flat_config
from sacristan.runs.transfer.copying import stage, uid_of
from sacristan.runs.transfer.hidden_words import HiddenWords
from sacristan.runs.transfer.packed_files import MOST_BYTES

UNPROVEN = (
    "words that no record names are not known: add names of people, groups and projects with --hide WORD",
    "the uid and the times of the runs stay",
)
_MOST_FOUND = 10
# Names of accounts and machines that are words of their own; they name nobody.
_COMMON = frozenset(
    ("admin", "administrator", "adm", "base", "code", "data", "debian", "default", "dev", "docker", "exp", "experiment",
     "git", "gpu", "guest", "home", "host", "jovyan", "lab", "local", "localhost", "main", "master", "model", "mongo",
     "mongodb", "nobody", "node", "public", "root", "run", "runner", "runs", "server", "slurm", "student", "sudo",
     "test", "train", "ubuntu", "user", "users", "vagrant", "vm", "work", "worker", "www")
)  # fmt: skip
_PEOPLE = frozenset(("user", "username", "author", "email", "by", "who"))
_MACHINES = frozenset(("hostname", "host", "fqdn", "node"))
_SYSTEM = re.compile(r"/(usr|bin|lib|lib64|etc|dev|proc|sys|sbin|run|boot)(/|$)")
_PATH = re.compile(r"(?:^|(?<=[=:\s'\"]))(/(?:[^\s:'\",;=/]+/)*[^\s:'\",;=/]+)")
_HOME = re.compile(r"(?:/home/|/Users/|\\Users\\)([^\s/\\'\":]+)")
_EMAIL = re.compile(
    r"[\w.+-]+@(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|ai|dev|eu|de|fr|uk|ch|at|it|es|nl|cn|jp|kr|in|ca|us)\b"
)
_PRIVATE = re.compile(r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\d.])")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ADDRESS = re.compile(
    r"^(?:\w[\w+.-]*://)?+(?:(?P<account>[^@:/]*)(?::[^@/]*)?@)?(?P<machines>\w[\w.-]*(?::\d+)?(?:,[\w.:-]+)?)"
    r"(?:[:/](?P<owner>[^/]+)/)?"
)
_PUBLIC = re.compile(r"(^|\.)(github|gitlab|bitbucket)\.(com|org)$|^127\.")


@dataclasses.dataclass(frozen=True)
class AnonymousRuns:
    """Runs without the words, and the place to export them to."""

    runs: tuple[Run, ...]
    output: Path
    # Names of accounts and machines that are common words: they were removed from their own fields only.
    common: tuple[str, ...]
    left_out: tuple[str, ...]  # a sentence for each part that could not be kept
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
        versions = []
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
            versions.append((cleaned, [Content(name, functools.partial(io.BytesIO, data)), *images]))
        return versions


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


class IdentifyingWords:
    """Collects the words that name people, machines and places in runs, with a replacement for each."""

    def __init__(self, keep: Sequence[str] = ()) -> None:
        self._keep = {word.lower() for word in keep}
        self.replacements: dict[str, str] = {}
        self.own = set[str]()  # names of people and machines that are also names of settings, metrics or sources
        self.common = set[str]()  # names of accounts and machines that are common words, not hidden everywhere
        self._counts: dict[str, int] = {}
        self._known: set[str] = set()
        self._own_names: set[str] = set()

    def note_own(self, run: Run) -> None:
        """Note the names of a run's settings, metrics and sources, whose meaning only its author knows."""
        names = [*flat_config(run), *run.metrics, *(content.name for content in run.stored("sources"))]
        self._own_names |= {part.lower() for name in names for part in re.split(r"[^A-Za-z0-9]+", name)}

    def _add_full_name(self, name: str) -> None:
        self.add("person", name)
        for part in name.split():
            self.add("person", part, is_part=True)

    def add(self, kind: str, word: str, *, is_part: bool = False) -> None:
        """Add a word unless it is known, or too common to hide everywhere.

        `kind` is `person`, `machine`, `path`, `address`, `commit` or `hidden`. With `is_part`, the word is a first or
        last name, which is common if it is also the name of a setting, as `max` is.
        """
        word = word.strip().rstrip("/")
        if not word or word.lower() in self._known:
            return
        is_common = len(word) < 3 or word.isdigit() or word.lower() in _COMMON | self._keep
        if kind in ("person", "machine") and is_common:
            self.common.add(word)
            return
        if kind in ("person", "machine") and word.lower() in self._own_names:
            (self.common if is_part else self.own).add(word)
            return
        if len(word) < 2 or (kind == "path" and _is_public(word)):
            return
        self._known.add(word.lower())
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = f"{number:040x}" if kind == "commit" else f"{'/' * (kind == 'path')}{kind}-{number}"
        self.replacements[word] = name
        for length in range(7, 13) if kind == "commit" else ():
            self.replacements.setdefault(word[:length], name[-length:])

    def take(self, run: Run) -> None:
        self.add("person", user_name() or "")
        self._add_full_name(_account_name())
        for name in dict.fromkeys((socket.gethostname(), socket.gethostname().partition(".")[0])):
            self.add("machine", name)
        self.add("path", str(Path.home()))
        record = {**run.document, "info": dict(run.info), "lease": run.lease or {}, "notes": run.notes()}
        self._take_fields(record)
        texts = [json.dumps([record, dict(run.config), run.provenance], default=str, ensure_ascii=False)]
        self._take_repositories(run)
        self._take_places(run)
        for content in run.stored("sources"):
            with contextlib.suppress(StoreError):
                texts.append(content.read().decode(errors="replace"))
        texts.append(run.read_output()[0].decode(errors="replace"))
        for text in texts:
            for kind, pattern in (("person", _HOME), ("person", _EMAIL), ("machine", _PRIVATE)):
                for match in pattern.finditer(text):
                    self.add(kind, match[1] if match.re.groups else match[0])

    def _take_fields(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                self._take_fields(item)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, str) and key in _PEOPLE | _MACHINES:
                    self.add("person" if key in _PEOPLE else "machine", item)
                self._take_fields(item)

    def _take_repositories(self, run: Run) -> None:
        git = mapping_of(run.provenance.get("git"))
        recorded = list_of(entry_at(run.document, "experiment.repositories"))
        libraries = mapping_of(run.provenance.get("libraries")).values()
        for repository in map(mapping_of, (git, *recorded, *libraries)):
            if _COMMIT.fullmatch(str(repository.get("commit"))):
                self.add("commit", repository["commit"])
            self._take_address(str(repository.get("url") or ""))
        for name in _git_people(str(git.get("root") or ""), str(git.get("commit") or "")):
            self.add("person", name) if "@" in name else self._add_full_name(name)

    def _take_places(self, run: Run) -> None:
        for option in mapping_of(entry_at(run.document, "meta.options")).values():
            if isinstance(option, str) and re.search(r"://|^[\w.-]+:\d+", option):
                self._take_address(option)
        if "://" in run.store.where:
            self._take_address(run.store.where)
        else:
            self.add("path", str(Path(run.store.where).absolute()))
        for value in _texts([run.document, dict(run.config), run.provenance]):
            for match in _PATH.finditer(value):
                self.add("path", match[1])
                self.add("path", str(Path(match[1]).parent))

    def _take_address(self, address: str) -> None:
        """Add an address, its account, its machines unless they are public, and the owner of a repository."""
        self.add("address", address)
        match = _ADDRESS.search(address) if ":" in address else None  # else it is a path
        if match is None:
            return
        for machine in re.split(r"(?::\d+)?,|:\d+$", match["machines"]):
            if not _PUBLIC.search(machine):
                self.add("machine", machine)
        self.add("person", match["account"] or "")
        self.add("person", match["owner"] or "")


def _is_public(path: str) -> bool:
    """Tell whether a path is short or belongs to the system, so that it says nothing about its user."""
    return (path.count("/") < 2 and path != "/root") or bool(_SYSTEM.match(path))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _account_name() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
    except (ImportError, KeyError):
        return ""


def _git_people(root: str, commit: str) -> Iterator[str]:
    """Yield names and addresses of a commit's author and of this repository's user, if the repository is here."""
    if not root or not Path(root).is_dir():
        return
    queries = [["config", "user.name"], ["config", "user.email"]]
    if _COMMIT.fullmatch(commit):
        queries.append(["log", "-1", "--format=%an%n%ae%n%cn%n%ce", commit])
    for query in queries:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["git", "-C", root, *query], capture_output=True, text=True, timeout=10, check=False)
            yield from done.stdout.splitlines()
