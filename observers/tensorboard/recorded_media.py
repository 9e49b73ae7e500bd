"""Media of a run, read back from its folder as observers received them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from observers.media.png import png_size
from observers.record.media_entry import Content, MediaEntry
from observers.record.media_files import media_path
from observers.record.regular_file import read_regular
from observers.record.schema import MEDIA, read_json_lines

__all__ = ["recorded_media"]


def recorded_media(folder: Path, start: float) -> Iterator[MediaEntry]:
    """Yield the media of a run in the order of logging.

    Args:
        folder: The run's folder.
        start: When the run started, in seconds since 1970.

    Raises:
        OSError: If a file is missing.
        RecordError: If a name leads out of the folder.
    """
    for row in read_json_lines(folder / MEDIA):
        path = media_path(folder, row["file"])
        images = tuple(_image(media_path(folder, file)) for file in row.get("images", ()))
        content = Content(read_regular(path), path.suffix, row["content_type"], row["meta"], images)
        yield MediaEntry(row["name"], row["kind"], row["step"], start + row["time"], content)


def _image(path: Path) -> Content:
    """Return the image of a table's cell."""
    data = read_regular(path)
    width, height = png_size(data)
    return Content(data, path.suffix, "image/png", {"width": width, "height": height})
