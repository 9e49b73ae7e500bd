"""Contents of media, made from what trackers store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.observers.media.arrays import png_size
from sacristan.observers.media.kinds import binned
from sacristan.observers.media.table import Table
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.media_files import Content

__all__ = ["file_content", "histogram_content", "png_content", "table_content"]

# Files that are media as they are: the kind here, and the MIME type.
_FILES = {
    ".html": ("html", "text/html; charset=utf-8"),
    ".mp4": ("video", "video/mp4"),
    ".wav": ("audio", "audio/wav"),
    ".webm": ("video", "video/webm"),
}


def file_content(path: Path) -> tuple[str, Content]:
    """Return the kind and content of a PNG, WAV, MP4, WebM or HTML file; others are a ValueError."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        return "image", png_content(read_regular(path))
    if suffix not in _FILES:
        raise ValueError(f"got a file {suffix or path.name!r}, expected .png, {', '.join(_FILES)}")
    kind, content_type = _FILES[suffix]
    return kind, Content(read_regular(path), suffix, content_type, {})


def png_content(data: bytes) -> Content:
    """Return the content of an image; data that are no PNG file are a ValueError."""
    width, height = png_size(data)
    return Content(data, ".png", "image/png", {"width": width, "height": height})


def histogram_content(counts: Any, edges: Any) -> Content:
    """Return a histogram of counts (bins,) and ascending edges (bins + 1,); anything else is a ValueError."""
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    if counts.ndim != 1 or not len(counts) or edges.shape != (len(counts) + 1,):
        raise ValueError(f"got arrays of shapes {counts.shape} and {edges.shape}, expected (bins,) and (bins + 1,)")
    if not (np.isfinite(counts).all() and np.isfinite(edges).all()):
        raise ValueError("got bounds or counts that are not finite")
    return Content(json.dumps(binned(counts, edges)).encode(), ".json", "application/json", {})


def table_content(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Content:
    """Return the content of a table; cells that are neither numbers nor texts become JSON."""
    plain = (str, int, float, type(None))
    return Table(
        columns, [[cell if isinstance(cell, plain) else json.dumps(cell) for cell in row] for row in rows]
    ).encode()
