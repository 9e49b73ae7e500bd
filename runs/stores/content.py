"""`Content`: a file of a past run, in whatever store it lies."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from observers.record.atomic_file import replacing
from runs.errors import StoreError

__all__ = ["Content", "missing_content"]


@dataclasses.dataclass(frozen=True)
class Content:
    """A file of a run: an artifact, a source, a resource, an image.

    Attributes:
        name: As the run calls it; a text from outside, which may hold anything.
        open: Returns a stream of its bytes. Raises StoreError if it is gone.
        md5: What its record says its MD5 is, if it says so.

    Example:
        with open_store("my_runs") as store:
            for name, content in store.get("latest").artifacts.items():
                print(name, len(content.read()), content.sha256())
                content.save(name)
    """

    name: str
    open: Callable[[], BinaryIO]
    md5: str | None = None

    def read(self) -> bytes:
        """Return its bytes."""
        try:
            with self.open() as stream:
                return stream.read()
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
            StoreError: If there is a file already, the content is gone, or the file cannot be written.
        """
        path = Path(path)
        if not overwrite and (path.exists() or path.is_symlink()):
            raise StoreError(f"{path} is there already; choose another name, or say overwrite=True")
        with self.open() as source:
            try:
                with replacing(path) as stream:
                    shutil.copyfileobj(source, stream, 2**20)
            except OSError as error:
                raise StoreError(f"{path} cannot be written ({error.strerror or error})") from error
        return path

    def sha256(self) -> str:
        """Return the SHA-256 of its bytes, of which little is held at once."""
        digest = hashlib.sha256()
        with self.open() as stream:
            while piece := stream.read(2**20):
                digest.update(piece)
        return digest.hexdigest()


def missing_content(name: str, why: object) -> Content:
    """Return a content that says why it cannot be read when it is opened."""

    def open_() -> BinaryIO:
        raise StoreError(f"{name!r} cannot be read: {why}")

    return Content(name, open_)
