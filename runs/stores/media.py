"""`Medium`: an image, sound, table and so on of a past run, read from any store."""

from __future__ import annotations

import dataclasses
import wave
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from observers.record.json_text import parse_json
from runs.errors import StoreError
from runs.stores.content import Content

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Medium"]


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
            entry: The entry; see `observers.record.schema`.
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
        return document.get("columns") or [], [[self._cell(value) for value in row] for row in document["rows"]]

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
        from observers.media.ply import read_points  # imports numpy, which lists of runs do without

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

    def _cell(self, value: Any) -> Any:
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
