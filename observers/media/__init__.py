"""Media that a run can log beside numbers: images, histograms, tables, sounds, videos and so on.

A new kind is a module here, with a class that derives from `Media`, and a line in this file. Recording, delivery,
copies and archives handle it without changes. TensorBoard and the board show its file by its content type, `image/png`
as an image, unless `observers.tensorboard.events` or `runs.board.media_page` have a form for the kind.

The modules are loaded when a class is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["Audio", "Figure", "Histogram", "Html", "Image", "Media", "PointCloud", "Table", "Text", "Video"]

# The module of each class.
HOMES = {
    "Audio": "observers.media.audio",
    "Figure": "observers.media.kinds",
    "Histogram": "observers.media.kinds",
    "Html": "observers.media.kinds",
    "Image": "observers.media.kinds",
    "Media": "observers.media.kinds",
    "PointCloud": "observers.media.point_clouds",
    "Table": "observers.media.table",
    "Text": "observers.media.kinds",
    "Video": "observers.media.video",
}

if TYPE_CHECKING:
    from observers.media.audio import Audio
    from observers.media.kinds import Figure, Histogram, Html, Image, Media, Text
    from observers.media.point_clouds import PointCloud
    from observers.media.table import Table
    from observers.media.video import Video
else:

    def __getattr__(name: str) -> object:
        if name not in HOMES:
            raise AttributeError(f"module 'observers.media' has no attribute {name!r}")
        return getattr(importlib.import_module(HOMES[name]), name)
