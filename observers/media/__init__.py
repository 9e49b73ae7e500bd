"""Media that a run can log beside numbers: images, histograms, tables, sounds, videos and so on.

A new kind is a module here, with a class that derives from `Media`, and a line in this file. Recording, delivery,
copies and archives handle it without changes. TensorBoard and the board show its file by its content type, `image/png`
as an image, unless `sacristan.observers.tensorboard.run_events` or `sacristan.runs.board.media_page` have a form for
the kind.

The modules are loaded when a class is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["Audio", "Figure", "Histogram", "Html", "Image", "Media", "PointCloud", "Table", "Text", "Video"]

# The module of each class.
HOMES = {
    "Audio": "sacristan.observers.media.audio_and_video",
    "Figure": "sacristan.observers.media.kinds",
    "Histogram": "sacristan.observers.media.kinds",
    "Html": "sacristan.observers.media.kinds",
    "Image": "sacristan.observers.media.kinds",
    "Media": "sacristan.observers.media.kinds",
    "PointCloud": "sacristan.observers.media.point_clouds",
    "Table": "sacristan.observers.media.table",
    "Text": "sacristan.observers.media.kinds",
    "Video": "sacristan.observers.media.audio_and_video",
}

if TYPE_CHECKING:
    from sacristan.observers.media.audio_and_video import Audio, Video
    from sacristan.observers.media.kinds import Figure, Histogram, Html, Image, Media, Text
    from sacristan.observers.media.point_clouds import PointCloud
    from sacristan.observers.media.table import Table
else:

    def __getattr__(name: str) -> object:
        if name not in HOMES:
            raise AttributeError(f"module 'sacristan.observers.media' has no attribute {name!r}")
        return getattr(importlib.import_module(HOMES[name]), name)
