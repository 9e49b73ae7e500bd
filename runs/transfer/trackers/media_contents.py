"""Contents of media, made from what trackers store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from observers.media.kinds import binned
from observers.media.pixels import png_size
from observers.media.table import Table
from observers.record.media_files import Content
from observers.record.regular_file import read_regular

__all__ = ["file_content", "histogram_content", "png_content", "table_content"]

# Files that are media as they are: the kind here, and the MIME type.
_FILES = {
    ".html": ("html", "text/html; charset=utf-8"),
    ".mp4": ("video", "video/mp4"),
    ".wav": ("audio", "audio/wav"),
    ".webm": ("video", "video/webm"),
}


def file_content(path: Path) -> tuple[str, Content]:
    """Return the kind and content of a file that records can show: PNG, WAV, MP4, WebM or HTML.

    Args:
        path: The file.

    Raises:
        ValueError: If it is another one.
        OSError: If it cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix == ".png":
        return "image", png_content(read_regular(path))
    if suffix not in _FILES:
        raise ValueError(f"got a file {suffix or path.name!r}, expected .png, {', '.join(_FILES)}")
    kind, content_type = _FILES[suffix]
    return kind, Content(read_regular(path), suffix, content_type, {})


def png_content(data: bytes) -> Content:
    """Return the content of an image.

    Args:
        data: A PNG file.

    Raises:
        ValueError: If this is no PNG file.
    """
    width, height = png_size(data)
    return Content(data, ".png", "image/png", {"width": width, "height": height})


def histogram_content(counts: Any, edges: Any) -> Content:
    """Return the content of a histogram.

    Args:
        counts: Numbers, (bins,).
        edges: Bounds of the bins, (bins + 1,), ascending.

    Raises:
        ValueError: If these are no histogram.
    """
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    if counts.ndim != 1 or not len(counts) or edges.shape != (len(counts) + 1,):
        raise ValueError(f"got arrays of shapes {counts.shape} and {edges.shape}, expected (bins,) and (bins + 1,)")
    if not (np.isfinite(counts).all() and np.isfinite(edges).all()):
        raise ValueError("got bounds or counts that are not finite")
    return Content(json.dumps(binned(counts, edges)).encode(), ".json", "application/json", {})


def table_content(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Content:
    """Return the content of a table; cells that are no numbers and no texts become JSON.

    Args:
        columns: Names of the columns.
        rows: Rows with a cell for each column.

    Raises:
        MediaError: If these are no table.
    """
    plain = (str, int, float, type(None))
    return Table(
        columns, [[cell if isinstance(cell, plain) else json.dumps(cell) for cell in row] for row in rows]
    ).encode()
