"""`Content`: a file of a past run, in whatever store it lies."""

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
        name: As the run calls it; a text from outside, which may hold anything.
        open: Returns a stream of its bytes, which nobody has compared with the record. Raises StoreError if it is gone.
        md5: What its record says its MD5 is, if it says so.
        find_md5: Asks the store for that, where it keeps it beside the content.

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
        """Yield its bytes, of which little is held at once.

        Raises:
            DamagedError: After the last piece, if their MD5 is not the recorded one.
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
                f"{self.name!r} has the MD5 {digest.hexdigest()}, recorded was {expected}: the store is damaged; put "
                "back what it was"
            )

    def write_to(self, target: BinaryIO) -> None:
        """Write its bytes to a stream; raises what `pieces` does."""
        for piece in self.pieces():
            target.write(piece)

    def read(self) -> bytes:
        """Return its bytes; raises what `pieces` does."""
        try:
            return b"".join(self.pieces())
        except MemoryError as error:
            raise StoreError(f"{self.name!r} is larger than the memory that is free; write it to a file") from error

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write its bytes to a file, as a whole or not at all, of which little is held at once.

        Args:
            path: The file.
            overwrite: Whether a file that is there is replaced; it stays as it was until all is written.

        Returns:
            The path.

        Raises:
            DamagedError: If its MD5 is not the recorded one.
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
        """Return the SHA-256 of its bytes, of which little is held at once; raises what `pieces` does."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


def missing_content(name: str, why: object) -> Content:
    """Return a content that says why it cannot be read when it is opened."""

    def open_() -> BinaryIO:
        raise StoreError(f"{name!r} cannot be read: {why}")

    return Content(name, open_)
