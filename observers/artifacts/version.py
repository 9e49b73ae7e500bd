"""A version of an artifact: its content, which is verified when it is read, and its manifest, which gives it a number.

A manifest is written elsewhere, and gets its number by a hard link, which fails if another process was faster. So
versions are numbered without gaps, and a content gets only one. Without hard links, an empty file claims the number and
the manifest replaces it: readers skip the claim, and a process that is killed in between leaves a number without a
version.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from sacristan.configs.map import abbreviated
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError, ArtifactNotFoundError
from sacristan.observers.record.files import open_regular, read_regular, replacing, sync_folder
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.stored_files import make_shared, share, write_sparsely

__all__ = [
    "ArtifactFile",
    "ArtifactVersion",
    "Manifests",
    "Reference",
    "check_name",
    "digest_of",
    "from_manifest",
    "parse_reference",
]

_log = logging.getLogger(__name__)

FORMAT = "sacristan-artifact-1"
CHUNK_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"(?P<name>[^:@]+)(?::(?:v(?P<number>\d{1,9})|latest)|@(?P<digest>[0-9a-f]{4,64}))?")


@dataclasses.dataclass(frozen=True)
class ArtifactFile:
    """A file of an artifact.

    Attributes:
        path: Its name in the artifact's folder, with `/` between its parts.
        sha256: SHA-256 of its content.
        bytes: Length of its content.
    """

    path: str
    sha256: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class ArtifactVersion:
    """A version of an artifact, which never changes.

    Attributes:
        name: The artifact's name.
        version: 1 for the first, written v1.
        digest: SHA-256 over the names and SHA-256 of all files, sorted by name.
        type: Such as dataset, model, code.
        files: Sorted by name.
        bytes: Length of all files together.
        metadata: The metadata of its first logging.
        made_by: The uid of the run that logged it first; None if no run did.
        created: When, in UTC.
        contents: Where the store keeps contents.
    """

    name: str
    version: int
    digest: str
    type: str
    files: tuple[ArtifactFile, ...]
    bytes: int
    metadata: Mapping[str, Any] = dataclasses.field(hash=False)
    made_by: str | None
    created: datetime
    contents: Path = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name}:v{self.version}"

    def entry(self) -> dict[str, Any]:
        """Return the entry of the version in a run's record."""
        return {"name": self.name, "version": self.version, "digest": self.digest, "type": self.type}

    def manifest(self) -> builtins.bytes:
        """Return the content of the manifest, without the number, which the store assigns."""
        document = {"format": FORMAT, **dataclasses.asdict(self), "created": self.created.isoformat()}
        del document["version"], document["contents"]
        return json.dumps(document, indent=1).encode()

    def copy_to(self, folder: str | Path) -> Path:
        """Copy all files into a folder, and return the folder.

        The SHA-256 of every content is checked before its copy appears. A file with the same content stays as it is,
        and so do files of other names.

        Args:
            folder: The folder, which receives the tree as it was logged, or the one file.

        Raises:
            ArtifactDamagedError: If a content in the store is missing or damaged.
            ArtifactError: If the folder has another file of that name, a path leads out of it, or a file cannot be
                written.
        """
        folder = Path(folder)
        for file in self.files:
            self._copy(file, folder)
        return folder

    def path(self, folder: str | Path, name: str | None = None) -> Path:
        """Copy one file into a folder, as `copy_to` does, and return its path.

        Args:
            folder: The folder.
            name: The file's name in the artifact; optional if there is only one file.
        """
        return self._copy(self._file(name), Path(folder))

    def open(self, name: str | None = None) -> io.BufferedReader:
        """Check the content of one file, and return a stream that reads it without a copy.

        Args:
            name: The file's name in the artifact; optional if there is only one file.

        Raises:
            ArtifactDamagedError: If the content in the store is missing or damaged.
        """
        file = self._file(name)
        stream = self.stored(file)
        try:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                self._refuse_content(file)
            stream.seek(0)
        except BaseException:
            stream.close()
            raise
        return stream

    def _file(self, name: str | None) -> ArtifactFile:
        matches = [file for file in self.files if name in (None, file.path)]
        if len(matches) != 1:
            names = abbreviated(file.path for file in self.files)
            raise ArtifactNotFoundError(f"{self}: got the file name {name!r}, expected one of: {names}")
        return matches[0]

    def stored(self, file: ArtifactFile) -> io.BufferedReader:
        """Return a stream that reads a content from the store, without checking it.

        Args:
            file: The file.

        Raises:
            ArtifactDamagedError: If it is missing or cannot be read.
        """
        try:
            return open_regular(content_path(self.contents, file.sha256))
        except OSError as error:
            self._refuse_content(file, error)

    def _copy(self, file: ArtifactFile, folder: Path) -> Path:
        target = folder / file.path
        try:
            if not target.resolve().is_relative_to(folder.resolve()):
                raise ArtifactError(f"{self}: {target} leads out of {folder}; copy to a folder without links")
            if target.is_file():
                self._check_same(file, target)
                return target
            target.parent.mkdir(parents=True, exist_ok=True)
            with self.stored(file) as source, replacing(target, durable=False) as stream:
                sha256 = hashlib.sha256()
                while chunk := source.read(CHUNK_BYTES):
                    sha256.update(chunk)
                    write_sparsely(stream, chunk)
                stream.truncate()
                if sha256.hexdigest() != file.sha256:
                    self._refuse_content(file)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
            reason = getattr(error, "strerror", None) or error
            raise ArtifactError(f"{self}: {target} cannot be written ({reason})") from error
        return target

    def _check_same(self, file: ArtifactFile, target: Path) -> None:
        with open_regular(target) as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                raise ArtifactError(
                    f"{self}: {target} is there with another content; remove it, or copy to another folder"
                )

    def _refuse_content(self, file: ArtifactFile, error: OSError | None = None) -> NoReturn:
        reason = "is not what was logged" if error is None else f"cannot be read ({error.strerror})"
        where = content_path(self.contents, file.sha256)
        raise ArtifactDamagedError(
            f"{self}: the content of {file.path} {reason}: {where}; remove that, and log the same content again"
        ) from error


def content_path(contents: Path, sha256: str) -> Path:
    """Return the path of a content in a store."""
    return contents / sha256[:2] / sha256


def digest_of(files: Iterable[ArtifactFile]) -> str:
    """Return the digest that identifies an artifact's content.

    It is the SHA-256 over the names and SHA-256 of all files, sorted by name, in hexadecimal digits.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        digest.update(f"{file.path}\0{file.sha256}\0".encode())
    return digest.hexdigest()


def check_name(name: Any, what: str = "artifact name") -> str:
    """Check the name of an artifact, or of a type of artifacts, and return it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArtifactError(
            f"{what}: got {name!r}, expected up to 128 letters (a-z, A-Z), digits, dots, underscores and hyphens, "
            "a letter or digit first"
        )
    return name


@dataclasses.dataclass(frozen=True)
class Reference:
    """Requested version: a number, the start of a digest, or, with neither, the latest version."""

    name: str
    number: int | None = None
    digest: str | None = None


def parse_reference(text: Any) -> Reference:
    """Parse a reference to a version: `name`, `name:latest`, `name:v3`, or `name@0a1b2c3d`."""
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ArtifactError(
            f"artifact: got {text!r}, expected name, name:v3, name:latest, or name@ and 4 to 64 digits of its digest"
        )
    return Reference(check_name(match["name"]), int(match["number"]) if match["number"] else None, match["digest"])


def from_manifest(document: Any, name: str, number: int, contents: Path) -> ArtifactVersion:
    """Return the version that a manifest describes."""
    try:
        if document["format"] != FORMAT:
            use = "use the version of the lab that logged it"
            reason = f"its format is {document['format']!r}, this version reads {FORMAT}"
            raise ArtifactDamagedError(f"{name}:v{number}: {reason}; {use}")
        if document["name"] != name:
            raise ValueError(f"it is that of {document['name']!r}")
        files = tuple(ArtifactFile(str(row["path"]), row["sha256"], row["bytes"]) for row in document["files"])
        for file in files:
            if not is_safe(file.path) or not _SHA256.fullmatch(file.sha256) or not isinstance(file.bytes, int):
                raise ValueError(f"it has a file {file.path!r}")
        if digest_of(files) != document["digest"] or not files:
            raise ValueError("its digest is not that of its files")
        return ArtifactVersion(
            name=name,
            version=number,
            digest=document["digest"],
            type=document["type"],
            files=files,
            bytes=sum(file.bytes for file in files),
            metadata=dict(document["metadata"]),
            made_by=document["made_by"],
            created=datetime.fromisoformat(document["created"]),
            contents=contents,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactDamagedError(f"{name}:v{number}: its manifest is damaged ({error}); log it again") from error


def is_safe(path: str) -> bool:
    """Tell whether a file's name stays within the artifact's folder.

    Absolute paths, `.` and `..`, empty parts and null characters are not safe.
    """
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


# ---------------------------------------------------------------------- manifests

_MANIFEST = re.compile(r"v([1-9]\d{0,8})\.json")
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EINVAL}
# How long to wait for a manifest whose number another process has claimed, without hard links.
_CLAIM_S = 2.0


class Manifests:
    """The manifests in a folder, `<name>/v<number>.json`."""

    def __init__(self, home: Path, contents: Path) -> None:
        self.home = home
        self.contents = contents
        # Digests of manifests that were read, so that frequent logging does not read all of them again.
        self._digests: dict[tuple, str] = {}

    def names(self) -> list[str]:
        """Return the names of all artifacts, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self.home) if self.numbers(entry.name))
        except OSError:
            return []

    def numbers(self, name: str) -> dict[int, tuple[int, int, int]]:
        """Return every number in use, in order, with a stamp that changes with the manifest."""
        found = {}
        try:
            entries = list(os.scandir(self.home / name))
        except OSError:
            return {}
        for entry in entries:
            match = _MANIFEST.fullmatch(entry.name)
            if match:
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    found[int(match[1])] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return dict(sorted(found.items()))

    def read(self, name: str, number: int) -> ArtifactVersion | None:
        """Return a version; None if there is none, or only a claim to its number."""
        path = self.home / name / f"v{number}.json"
        try:
            raw = read_regular(path)
            document = parse_json(raw) if raw else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or "it is not JSON"
            raise ArtifactDamagedError(
                f"{name}:v{number}: its manifest {path} is damaged ({reason}); log its content again"
            ) from error
        return from_manifest(document, name, number, self.contents) if raw else None

    def latest(self, name: str) -> ArtifactVersion | None:
        """Return the newest version; None if there is none.

        Raises an error if that version is damaged: an older one is no substitute.
        """
        for number in reversed(self.numbers(name)):
            version = self.read(name, number)
            if version is not None:
                return version
        return None

    def versions(self, name: str) -> list[ArtifactVersion]:
        """Return all versions that can be read, the oldest first; each damaged one is logged as an error."""
        found = []
        for number in self.numbers(name):
            try:
                version = self.read(name, number)
            except ArtifactDamagedError as error:
                _log.error("%s", error)
                continue
            found += [version] if version is not None else []
        return found

    def add(self, manifest: Path, name: str, digest: str) -> int:
        """Give a manifest the next free number unless a version has its content; return that version's number."""
        folder = self.home / name
        make_shared(folder, self.home.parent)
        # One listing for both; a manifest between two listings would be neither found nor in the way of the number.
        taken = self.numbers(name)
        newest = max(taken, default=0)
        for number in range(1, newest + 1):
            if self._digest(name, number, taken.get(number)) == digest:
                return number
            if number in taken and taken[number][1] == 0 and self._digest_when_written(name, number) == digest:
                return number
        number = newest + 1
        while not _put(manifest, folder / f"v{number}.json"):
            # Another process was faster, perhaps with the same content.
            if self._digest_when_written(name, number) == digest:
                return number
            number += 1
        share(folder / f"v{number}.json")
        sync_folder(folder)
        return number

    def _digest(self, name: str, number: int, stamp: tuple[int, int, int] | None) -> str | None:
        """Return the digest of a version; None if it cannot be read."""
        key = (name, number, stamp)
        if key not in self._digests:
            try:
                version = self.read(name, number)
            except ArtifactDamagedError:
                return None
            if version is None:
                return None
            if stamp is None:
                return version.digest
            self._digests[key] = version.digest
        return self._digests[key]

    def _digest_when_written(self, name: str, number: int) -> str | None:
        """Return the digest of a version that another process may be writing; None if it does not appear."""
        path, deadline = self.home / name / f"v{number}.json", time.monotonic() + _CLAIM_S
        try:
            while (version := self.read(name, number)) is None:
                if time.monotonic() > deadline or time.time() - path.stat().st_mtime > _CLAIM_S:
                    return None
                time.sleep(0.02)
        except (ArtifactDamagedError, OSError):
            return None
        return version.digest


def _put(manifest: Path, target: Path) -> bool:
    """Move a manifest to its place, if that is free; readers find all of it, an empty file, or nothing."""
    try:
        os.link(manifest, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    else:
        return True
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    manifest.replace(target)
    return True
