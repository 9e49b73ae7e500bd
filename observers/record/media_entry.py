"""Media on their way from a run to its record: the content of a file, and the entry that names it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

__all__ = ["Content", "MediaEntry"]


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a media file.

    Attributes:
        data: The bytes.
        suffix: The file's suffix, such as `.png`.
        content_type: Its MIME type.
        meta: JSON that readers need without opening the file, such as width and height.
        images: Contents that it refers to by their `file`.
    """

    data: bytes
    suffix: str
    content_type: str
    meta: dict[str, Any]
    images: tuple[Content, ...] = ()

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def file(self) -> str:
        """Name of the file, made from the SHA-256."""
        return f"{self.sha256}{self.suffix}"

    @property
    def num_bytes(self) -> int:
        """Length of the content and all its images."""
        return len(self.data) + sum(len(image.data) for image in self.images)


@dataclasses.dataclass(frozen=True)
class MediaEntry:
    """A logged medium, as observers receive it.

    Attributes:
        name: The name of the series.
        kind: image, figure, histogram, text, table, audio, video, point_cloud or html.
        step: Its step.
        time: When it was logged, in seconds since 1970.
        content: The content; None if it could not be created.
    """

    name: str
    kind: str
    step: int | float
    time: float
    content: Content | None
