"""Artifacts, versioned content with lineage. A version: its content, verified when it is read, and its manifest."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeGuard

from sacristan.configs.map import abbreviated
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError, ArtifactNotFoundError
from sacristan.observers.record.copies import CopyProgress, copy_stream
from sacristan.observers.record.files import open_regular, replacing

__all__ = [
    "AliasKeeper",
    "ArtifactFile",
    "ArtifactVersion",
    "Reference",
    "check_name",
    "digest_of",
    "from_manifest",
    "is_name",
    "parse_reference",
]

_log = logging.getLogger(__name__)

FORMAT = "sacristan-artifact-1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(
    r"(?P<name>[^:@]+)(?::(?:v(?P<number>\d{1,9})|latest|(?P<alias>(?!\d+$)\w[\w.-]{0,63}))|@(?P<digest>[0-9a-f]{4,64}))?",
    re.ASCII,
)


class AliasKeeper(Protocol):
    """Keeps the aliases of versions: a store, or a run, wherever it is recorded."""

    def move_alias(self, version: ArtifactVersion, alias: str, was: int | str | None) -> None:
        """Let an alias name a version; `was` is the version that it must name now."""

    def remove_alias(self, version: ArtifactVersion, alias: str) -> None:
        """Remove an alias, which must name a version now."""

    def aliases_of(self, version: ArtifactVersion) -> list[str]:
        """Return the aliases that name a version now, `latest` first."""


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
    keeper: AliasKeeper | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name}:v{self.version}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"keeper": None}  # which holds the run, that no worker of a data loader needs

    def entry(self) -> dict[str, Any]:
        """Return the entry of the version in a run's record."""
        return {"name": self.name, "version": self.version, "digest": self.digest, "type": self.type}

    def manifest(self) -> builtins.bytes:
        """Return the content of the manifest, without the number, which the store assigns."""
        document = {"format": FORMAT, **dataclasses.asdict(dataclasses.replace(self, keeper=None))}
        for name in ("version", "contents", "keeper"):
            del document[name]
        return json.dumps(document | {"created": self.created.isoformat()}, indent=1).encode()

    def alias(self, alias: str, was: int | str | None = None) -> None:
        """Let an alias, such as `champion`, name this version from now on.

            version = _run.log_artifact("net", "best.pt", type="model")
            version.alias("challenger")

        Who moved it, when, and from which version, is kept; see `ArtifactStore.alias`. A version of a run moves it
        wherever the run is recorded: in MongoDB, once the version is delivered.

        Args:
            alias: Letters, digits, dots, underscores and hyphens; neither `latest` nor the form of a version.
            was: The version that it must name now, such as `v6`; empty if it must be new; by default any.

        Raises:
            ArtifactMovedError: If it names another version than `was`, or is moved by another process meanwhile.
            ArtifactError: If the alias is invalid, or the store cannot be written.
        """
        self._keeper.move_alias(self, alias, was)

    def remove_alias(self, alias: str) -> None:
        """Remove an alias that names this version; its moves are kept.

        Args:
            alias: The alias.

        Raises:
            ArtifactMovedError: If it names another version.
            ArtifactError: If there is no such alias, or the store cannot be written.
        """
        self._keeper.remove_alias(self, alias)

    @property
    def aliases(self) -> list[str]:
        """The aliases that name this version now, `latest` first; of a run in a database alone, those there."""
        return self._keeper.aliases_of(self)

    @property
    def _keeper(self) -> AliasKeeper:
        if self.keeper is None:
            raise ArtifactError(f"{self}: its store is not known; get it from one: ArtifactStore(FOLDER).resolve(...)")
        return self.keeper

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

    def stored_path(self, name: str | None = None) -> Path:
        """Return the path of a content in the store, which is read-only and has no suffix, without checking it.

        Args:
            name: The file's name in the artifact; optional if there is only one file.
        """
        return content_path(self.contents, self._file(name).sha256)

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
                with CopyProgress(target.name, file.bytes) as progress:
                    copy_stream(source, stream, file.bytes, progress, sha256)
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
    """Return the SHA-256 over the names and SHA-256 of all files, sorted by name: it identifies the content."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        digest.update(f"{file.path}\0{file.sha256}\0".encode())
    return digest.hexdigest()


def check_name(name: Any, what: str = "artifact name") -> str:
    """Check the name of an artifact, or of a type of artifacts, and return it."""
    if not is_name(name):
        raise ArtifactError(
            f"{what}: got {name!r}, expected up to 128 letters (a-z, A-Z), digits, dots, underscores and hyphens, "
            "a letter or digit first"
        )
    return name


def is_name(name: Any) -> TypeGuard[str]:
    """Tell whether a value can be the name of an artifact."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class Reference:
    """Requested version: a number, the start of a digest, an alias, or, without any, the latest version."""

    name: str
    number: int | None = None
    digest: str | None = None
    alias: str | None = None

    @property
    def moves(self) -> bool:
        """Whether it may name another version later, as an alias does."""
        return self.number is None and self.digest is None


def parse_reference(text: Any) -> Reference:
    """Parse a reference to a version: `name`, `name:latest`, `name:champion`, `name:v3`, or `name@0a1b2c3d`."""
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ArtifactError(
            f"artifact: got {text!r}, expected name, name:v3, name:latest, name:ALIAS, or name@ and 4 to 64 digits of "
            "its digest"
        )
    number = int(match["number"]) if match["number"] else None
    return Reference(check_name(match["name"]), number, match["digest"], match["alias"])


def from_manifest(
    document: Any, name: str, number: int, contents: Path, keeper: AliasKeeper | None = None
) -> ArtifactVersion:
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
            keeper=keeper,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactDamagedError(f"{name}:v{number}: its manifest is damaged ({error}); log it again") from error


def is_safe(path: str) -> bool:
    """Tell whether a file's name stays within the artifact's folder, on every system."""
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
