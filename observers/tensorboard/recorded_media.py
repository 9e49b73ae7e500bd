"""Media of a run as observers got them, read back from its folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from observers.record.media_entry import Content, MediaEntry
from observers.record.media_files import media_path
from observers.record.regular_file import read_regular
from observers.record.schema import MEDIA, read_json_lines

__all__ = ["recorded_media"]


def recorded_media(folder: Path, start: float) -> Iterator[MediaEntry]:
    """Yield what a run logged beside numbers, in the order of logging.

    Args:
        folder: The run's folder.
        start: When the run started, seconds since 1970.

    Raises:
        OSError: If a content is not there.
        RecordError: If a name leads out of the folder.
    """
    for row in read_json_lines(folder / MEDIA):
        path = media_path(folder, row["file"])
        images = tuple(_image(media_path(folder, file)) for file in row.get("images", ()))
        content = Content(read_regular(path), path.suffix, row["content_type"], row["meta"], images)
        yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _image(path: Path) -> Content:
    """Return an image of a table's cell; its size is in the head of the PNG.

    Source: https://www.w3.org/TR/png/#11IHDR
    """
    data = read_regular(path)
    width, height = struct.unpack(">II", data[16:24])
    return Content(data, path.suffix, "image/png", {"width": width, "height": height})
