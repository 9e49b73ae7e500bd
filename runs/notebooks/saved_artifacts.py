"""Artifacts of past runs in notebooks: shown and saved, with incense's classes and methods."""

from __future__ import annotations

import base64
import functools
from collections import UserList
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.stores import Content

if TYPE_CHECKING:
    import pandas


class Rendered:
    """An artifact as a notebook shows it: its bytes, and the forms that Jupyter displays, by MIME type."""

    def __init__(self, data: bytes, bundle: Mapping[str, str]) -> None:
        self.data = data
        self.bundle = dict(bundle)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.bundle


class Artifact:
    """A file that a run saved; the subclasses render it in a notebook.

    Attributes:
        can_render: MIME types that the class renders.
        name: Its name in the run.
        content_type: Its MIME type, as recorded or guessed from the name; None if unknown.
        extension: The suffix that `save` appends if it is missing; empty for a type that is not rendered.
    """

    can_render: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, name: str, stored: Content, run_id: str, content_type: str | None = None) -> None:
        self.name = name
        self.content_type = content_type
        self.extension = content_type.rpartition("/")[2] if content_type and content_type in self.can_render else ""
        self._stored = stored
        self._run_id = run_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name})"

    @property
    def file(self) -> BinaryIO:
        """A new stream of its bytes. Raises StoreError if they were deleted."""
        return self._stored.open()

    @functools.cached_property
    def content(self) -> bytes:
        return self._stored.read()

    def save(self, to_dir: str | Path = "") -> Path:
        """Write it to `to_dir/ID_NAME`, with the run's id, and return that path; an existing file is replaced.

        Slashes in the name become `_`. The folder is created if it does not exist.
        """
        folder = Path(to_dir)
        with naming_os_errors(f"{folder} cannot be created"):
            folder.mkdir(parents=True, exist_ok=True)
        base = self.name.replace("/", "_")
        ending = "" if base.endswith(self.extension) else f".{self.extension}"
        return self._stored.save(folder / f"{self._run_id}_{base}{ending}", overwrite=True)

    def render(self) -> Any:
        """Return an object that a notebook shows, or the data frame of a CSV file.

        Raises StoreError if its bytes were deleted, or files of its type are not rendered.
        """
        return self._rendered

    show = render

    @functools.cached_property
    def _rendered(self) -> Any:
        return self._render()

    def _render(self) -> Any:
        raise StoreError(
            f"{self.name!r} of run {self._run_id} is not rendered: got the type {self.content_type}, expected one of "
            f"{', '.join(sorted(_CLASSES))}; read .content, call .save(), or choose a type with .as_content_type()"
        )

    def as_content_type(self, content_type: str) -> Artifact:
        """Return it as a file of another MIME type, such as `text/csv` for a table without a suffix.

        A type that is not rendered raises StoreError.
        """
        if content_type not in _CLASSES:
            raise StoreError(f"got the type {content_type!r}, expected one of {', '.join(sorted(_CLASSES))}")
        return _CLASSES[content_type](self.name, self._stored, self._run_id, content_type)

    def as_type(self, artifact_type: type[Artifact]) -> Artifact:
        """Return it as an artifact of another class, such as `CSVArtifact`, whatever its MIME type is."""
        return artifact_type(self.name, self._stored, self._run_id)

    def _base64(self) -> str:
        return base64.b64encode(self.content).decode()


class ImageArtifact(Artifact):
    """A picture."""

    can_render = frozenset(("image/png", "image/jpeg"))

    def _render(self) -> Rendered:
        kind = "image/jpeg" if self.content.startswith(b"\xff\xd8") else "image/png"
        return Rendered(self.content, {kind: self._base64()})


class MP4Artifact(Artifact):
    """A video, embedded in the page."""

    can_render = frozenset(("video/mp4",))

    def _render(self) -> Rendered:
        source = f"data:video/mp4;base64,{self._base64()}"
        return Rendered(self.content, {"text/html": f'<video width="640" controls src="{source}"></video>'})


class CSVArtifact(Artifact):
    """A table."""

    can_render = frozenset(("text/csv",))

    def _render(self) -> pandas.DataFrame:
        import pandas

        with self.file as stream:
            try:
                return pandas.read_csv(stream)
            except ValueError as error:
                raise StoreError(f"{self.name!r} of run {self._run_id} is not a table in CSV ({error})") from error


class PDFArtifact(Artifact):
    """A document, shown by JupyterLab."""

    can_render = frozenset(("application/pdf",))

    def _render(self) -> Rendered:
        return Rendered(self.content, {"application/pdf": self._base64()})


class PickleArtifact(Artifact):
    """A pickle. It is never loaded here, because loading runs the code in it."""

    def __init__(self, name: str, stored: Content, run_id: str, content_type: str | None = None) -> None:
        super().__init__(name, stored, run_id, content_type)
        self.extension = "pickle"

    def _render(self) -> Any:
        raise StoreError(
            f"{self.name!r} of run {self._run_id} is not loaded: loading a pickle runs the code in it; "
            "if you trust it, call pickle.loads(artifact.content)"
        )


_CLASSES: dict[str, type[Artifact]] = {
    kind: cls for cls in (ImageArtifact, MP4Artifact, CSVArtifact, PDFArtifact) for kind in cls.can_render
}


def make_artifact(name: str, stored: Content, run_id: str, content_type: str | None) -> Artifact:
    """Create an artifact of the class that renders its MIME type, an `Artifact` if none does.

    The content is read on first use; the run's id is for the names of saved files.
    """
    return _CLASSES.get(content_type or "", Artifact)(name, stored, run_id, content_type)


class ArtifactSet(UserList[Artifact]):
    """Artifacts of several runs."""

    def save(self, to_dir: str | Path, n_threads: int | None = None) -> list[Path]:
        """Save all artifacts in parallel; see `Artifact.save`.

        Args:
            to_dir: A folder, created if it does not exist.
            n_threads: Number of files to write at a time; None for the default of `ThreadPoolExecutor`.

        Returns:
            The path of each file, in order.

        Raises:
            StoreError: If one cannot be read or written.
        """
        with ThreadPoolExecutor(n_threads) as executor:
            return list(executor.map(lambda artifact: artifact.save(to_dir), self.data))
