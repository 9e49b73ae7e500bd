"""Contents of a store: files of past runs, which are written to folders, their media, and versions of artifacts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import unicodedata
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from sacristan.configs.map import abbreviated
from sacristan.observers.record.files import relative_path, replacing
from sacristan.observers.record.json_text import parse_json
from sacristan.runs.errors import DamagedError, StoreError, naming_os_errors

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Content:
    """A file of a run: an artifact, a source, a resource, an image.

    Attributes:
        name: The run's name for it; an untrusted text, which may hold anything.
        open: Returns a stream of its bytes, unchecked. Raises StoreError if it is gone.
        md5: The recorded MD5, if there is one.
        find_md5: Returns the MD5 that the store keeps beside the content, if it keeps one.

    Example:
        with open_store("my_runs") as store:
            for name, content in store.get("latest").artifacts.items():
                print(name, len(content.read()), content.sha256())
                content.save(name)
    """

    name: str
    open: Callable[[], BinaryIO]
    md5: str | None = None
    find_md5: Callable[[], str | None] = lambda: None

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes in pieces of a megabyte.

        Raises:
            DamagedError: After the last piece, if the MD5 differs from the recorded one.
            StoreError: If it is gone.
        """
        digest = hashlib.md5(usedforsecurity=False)
        with self.open() as stream:
            while piece := stream.read(2**20):
                digest.update(piece)
                yield piece
        expected = self.md5 or self.find_md5()
        if expected is not None and digest.hexdigest() != expected:
            raise DamagedError(
                f"{self.name!r} has the MD5 {digest.hexdigest()}, recorded was {expected}: the store is damaged; "
                "restore the file from a backup"
            )

    def write_to(self, target: BinaryIO) -> None:
        """Write its bytes to a stream.

        Args:
            target: The stream.

        Raises:
            DamagedError, StoreError: See `pieces`.
        """
        for piece in self.pieces():
            target.write(piece)

    def read(self) -> bytes:
        """Return its bytes; see `pieces` for errors."""
        try:
            return b"".join(self.pieces())
        except MemoryError as error:
            raise StoreError(f"{self.name!r} is larger than the memory that is free; write it to a file") from error

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write its bytes to a file, completely or not at all, without loading them into memory.

        Args:
            path: The file.
            overwrite: Whether to replace an existing file, which stays unchanged until all bytes are written.

        Returns:
            The path.

        Raises:
            DamagedError: If the MD5 differs from the recorded one.
            StoreError: If there is a file already, the content is gone, or the file cannot be written.
        """
        path = Path(path)
        if not overwrite and (path.exists() or path.is_symlink()):
            raise StoreError(f"{path} already exists; choose another name, or use overwrite=True")
        with naming_os_errors(f"{path} cannot be written"), replacing(path) as stream:
            self.write_to(stream)
        return path

    def sha256(self) -> str:
        """Return the SHA-256 of its bytes; see `pieces` for errors."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


def missing_content(name: str, why: object) -> Content:
    """Return a content that raises a StoreError with the reason `why` when it is opened."""

    def open_() -> BinaryIO:
        raise StoreError(f"{name!r} cannot be read: {why}")

    return Content(name, open_)


@dataclasses.dataclass(frozen=True)
class Medium:
    """A medium that a run logged: an image, a table, a sound and so on.

    Attributes:
        name: Name of the series, such as `test/cases`.
        kind: Such as `image` or `table`. Other programs and later versions may log other kinds, whose files can be read
            all the same.
        step: The step it was logged at.
        time_s: Seconds since the run started.
        content_type: Such as `image/png`.
        meta: Properties that the record has, such as width and height.
        content: Its file.
        images: Files of the images in a table, by their names in its cells.

    Example:
        with open_store("my_runs") as store:
            for medium in store.get("latest").media:
                print(medium.name, medium.step, medium.kind, len(medium.content.read()))
    """

    name: str
    kind: str
    step: int | float | None
    time_s: float | None
    content_type: str
    meta: Mapping[str, Any]
    content: Content
    images: Mapping[str, Content] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any], contents: Sequence[Content]) -> Medium:
        """Return the medium of a recorded entry.

        Args:
            entry: The entry; see `sacristan.observers.record.schema`.
            contents: Its file, and then the files of its images.

        Raises:
            KeyError: If the entry lacks a field.
        """
        fields = {key: entry[key] for key in ("name", "kind", "step", "content_type", "meta")}
        images = {content.name.rpartition("/")[2]: content for content in contents[1:]}
        return cls(**fields, time_s=entry.get("time"), content=contents[0], images=images)

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of a table; cells are numbers, texts, None, or the `Content` of an image.

        Raises:
            StoreError: If the medium is no table, or cannot be read.
        """
        document = self.document()
        if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
            self._refuse("table")
        return document.get("columns") or [], [[self.cell(value) for value in row] for row in document["rows"]]

    def audio(self) -> tuple[np.ndarray, int]:
        """Return the samples of a sound, (T, C) int16, and the sample rate in Hz.

        Raises:
            StoreError: If the medium is no sound, or cannot be read.
        """
        import numpy as np

        try:
            with self.content.open() as stream, wave.open(stream, "rb") as file:
                if file.getsampwidth() != 2:
                    self._refuse("WAV file of 16 bits")
                data = file.readframes(file.getnframes())
                samples = np.frombuffer(data, "<i2").astype(np.int16).reshape(-1, file.getnchannels())
                return samples, file.getframerate()
        except (wave.Error, EOFError, ValueError, OSError, MemoryError) as error:
            self._refuse("WAV file", error)

    def point_cloud(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the points, (N, 3) float32, and colours, (N, 3) uint8 or None, of a point cloud.

        Raises:
            StoreError: If the medium is no point cloud, or cannot be read.
        """
        from sacristan.observers.media.point_clouds import read_points  # imports numpy, which lists of runs do without

        try:
            with self.content.open() as stream:
                return read_points(stream)
        except (ValueError, OSError, MemoryError) as error:
            self._refuse("point cloud", error)

    def _refuse(self, expected: str, error: Exception | None = None) -> NoReturn:
        why = f": {error}" if error else ""
        raise StoreError(f"{self.name!r} at step {self.step}, of kind {self.kind}, is no {expected}{why}") from error

    def document(self) -> Any:
        """Return the JSON document of a histogram or a table.

        Raises:
            StoreError: If the medium is no JSON, or cannot be read.
        """
        try:
            return parse_json(self.content.read())
        except (ValueError, RecursionError) as error:
            self._refuse("JSON", error)

    def cell(self, value: Any) -> Any:
        """Return a cell of a table as `table` does.

        Args:
            value: The cell in the document.

        Raises:
            StoreError: If it names an image that the record lacks.
        """
        if not isinstance(value, dict):
            return value
        if "$number" in value:
            return float(value["$number"])
        name = str(value.get("$image"))
        if name not in self.images:
            raise StoreError(
                f"{self.name!r} at step {self.step} names the image {name!r}, which its record does not have"
            )
        return self.images[name]


@dataclasses.dataclass(frozen=True)
class StoredArtifact:
    """One version of an artifact."""

    name: str
    version: int  # 1 for the first version; each store counts on its own
    type: str  # such as dataset, model, code
    digest: str  # SHA-256 over the names and SHA-256 of all files
    created: datetime | None  # when it was logged, in UTC
    num_bytes: int
    num_files: int
    metadata: Mapping[str, Any]  # the metadata that it was first logged with
    # Uids of the runs that logged it, and of those that used it.
    made_by: tuple[str, ...]
    used_by: tuple[str, ...]
    files: Mapping[str, Content]  # its files by path; in a database as many as fit into a document
    sizes: Mapping[str, int]  # their sizes in bytes, by path
    hashes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # their SHA-256, by path


@dataclasses.dataclass
class Fetched:
    """The result of `fetch`.

    Attributes:
        files: Paths of the written files.
        refused: A sentence with the reason for each file that was not written.
    """

    files: list[Path] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)


def choose(contents: Mapping[str, Content], names: Sequence[str]) -> list[Content]:
    """Return contents by name, all of them if no names are given; an unknown name is a StoreError."""
    for name in names:
        if name not in contents:
            available = abbreviated(map(repr, sorted(contents)))
            raise StoreError(
                f"got the file name {name!r}, expected one of: {available or 'none, the run has no files'}"
            )
    return [contents[name] for name in names or contents]


def length_of(content: Content) -> int | None:
    """Return the size of a content in bytes; None if it is missing."""
    try:
        with content.open() as stream:
            return stream.seek(0, os.SEEK_END) or stream.tell()
    except (StoreError, OSError):
        return None


def fetch(contents: Iterable[Content], folder: str | Path, *, overwrite: bool = False) -> Fetched:
    """Write files of a run into a folder under their names, each completely or not at all.

    Names are untrusted: a name that would lead out of the folder, by `..`, from `/` or through a link, is rejected.

    Args:
        contents: Values of `run.artifacts`, `run.sources` or `run.resources`.
        folder: The folder to write into, which is created if missing.
        overwrite: Whether to replace existing files. If two names are the same file to the file system, the second
            content never replaces the first.

    Returns:
        Paths of the written files, and a sentence for each file that was not written.

    Raises:
        StoreError: If the folder cannot be created.

    Example:
        with open_store("my_runs") as store:
            done = fetch(store.get("latest").artifacts.values(), "files")
            print(done.files, done.refused)
    """
    folder = Path(folder)
    fetched = Fetched()
    with naming_os_errors(f"{folder} cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    for content in contents:
        try:
            fetched.files.append(_write(content, folder, written, overwrite=overwrite))
        except StoreError as error:
            fetched.refused.append(str(error))
        except OSError as error:
            fetched.refused.append(f"{content.name!r} cannot be written ({error.strerror or error})")
    return fetched


def _write(content: Content, folder: Path, written: set[str], *, overwrite: bool) -> Path:
    path = relative_path(content.name)
    if path is None:
        raise StoreError(f"{content.name!r} is not written: it does not stay in the folder, or is no name of a file")
    target = folder / path
    with contextlib.suppress(RuntimeError):  # a link to itself
        target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"{content.name!r} is not written: a link leads out of {folder}")
    same = unicodedata.normalize("NFC", content.name).casefold()
    _check_target(target, overwrite=overwrite and same not in written)
    with replacing(target, durable=False) as stream:
        content.write_to(stream)
    written.add(same)
    return target


def _check_target(target: Path, *, overwrite: bool) -> None:
    is_link = target.is_symlink()
    if not overwrite and (is_link or target.exists()):
        raise StoreError(f"{str(target)!r} already exists; choose another folder, or use --force")
    if target.exists() and not is_link and not target.is_file():
        raise StoreError(f"{str(target)!r} is {'a folder' if target.is_dir() else 'no regular file'}; move it away")
