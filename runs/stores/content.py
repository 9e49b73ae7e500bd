"""`Content`: a file of a past run in any store."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from observers.record.atomic_file import replacing
from runs.errors import DamagedError, StoreError

__all__ = ["Content", "missing_content"]


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
        try:
            with replacing(path) as stream:
                self.write_to(stream)
        except OSError as error:
            raise StoreError(f"{path} cannot be written ({error.strerror or error})") from error
        return path

    def sha256(self) -> str:
        """Return the SHA-256 of its bytes; see `pieces` for errors."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


def missing_content(name: str, why: object) -> Content:
    """Return a content that cannot be read.

    Args:
        name: The run's name for it.
        why: The reason in the StoreError that opening it raises.
    """

    def open_() -> BinaryIO:
        raise StoreError(f"{name!r} cannot be read: {why}")

    return Content(name, open_)
