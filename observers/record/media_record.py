"""Media of a run, such as images, sounds and tables, as they were logged, and how they are read."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from observers.errors import RecordError
from observers.record.json_text import parse_json
from observers.record.regular_file import read_regular
from observers.record.schema import MEDIA, MEDIA_FOLDER, read_json_lines

__all__ = ["MediaRecord", "media_path", "read_media", "read_table"]

_MEDIA_FILE = re.compile(rf"({MEDIA_FOLDER}/)?[0-9a-f]{{64}}\.[a-z0-9]{{1,8}}")


@dataclasses.dataclass(frozen=True)
class MediaRecord:
    """A medium as it was logged.

    Attributes:
        name: Name of the series.
        kind: image, figure, histogram, text, table, audio, video, point_cloud or html; a later version may
            have others.
        step: Its step.
        time: Seconds since the run started.
        path: The file; `read_table` reads that of a table, any JSON reader that of a histogram. Others are files of
            their kind: PNG, WAV, MP4, PLY, HTML.
        sha256: SHA-256 of the file.
        content_type: Its MIME type.
        meta: Width and height, sample rate, caption, number of rows, as the kind has it.
    """

    name: str
    kind: str
    step: int | float
    time: float
    path: Path
    sha256: str
    content_type: str
    meta: dict[str, Any]


def media_path(folder: Path, file: Any) -> Path:
    """Return where in a run's folder the content `file` of an entry, or of a table's cell, lies.

    Raises:
        RecordError: If that is not the name of a content, such as one that leads out of the folder.
    """
    if not isinstance(file, str) or not _MEDIA_FILE.fullmatch(file):
        raise RecordError(
            f"{folder / MEDIA}: got the file name {file!r}, expected {MEDIA_FOLDER}/SHA256.SUFFIX; it was not written "
            "by this program, remove the entry"
        )
    return folder / MEDIA_FOLDER / file.rpartition("/")[2]


def read_media(folder: str | Path) -> list[MediaRecord]:
    """Return the media that a run logged, in the order of logging, without opening their files.

    Args:
        folder: The folder of the run, such as `my_runs/3`.

    Returns:
        A `MediaRecord` for each, with its name, step, kind, caption and path.

    Raises:
        RecordError: If a name leads out of the folder.
    """
    folder = Path(folder)
    return [
        MediaRecord(
            **{key: row[key] for key in ("name", "kind", "step", "time", "sha256", "content_type", "meta")},
            path=media_path(folder, row["file"]),
        )
        for row in read_json_lines(folder / MEDIA)
    ]


def read_table(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a table's file; cells are numbers, texts, None, or the `Path` of an image.

    Raises:
        RecordError: If an image's name leads out of the folder.
    """
    table = parse_json(read_regular(path))

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return float(value["$number"]) if "$number" in value else media_path(path.parent.parent, value["$image"])
        return value

    return table["columns"], [[cell(value) for value in row] for row in table["rows"]]
