"""A cache of facts about images, so that a start reads only images that are new or have changed.

Each folder of images has one JSON file in the folder `SACRISTAN_CACHE` (empty disables the cache), by default
`$XDG_CACHE_HOME/sacristan` or `~/.cache/sacristan` (on Windows `sacristan` in `%LOCALAPPDATA%`). An image is recognised
by name, size, and modification and change times. Images that changed within the last seconds are not cached, because
they may change again within one tick of the clock. The file is replaced atomically; of two processes, the later wins.
Damaged files are ignored; if the folder cannot be written, each start reads all images. Above 256 MB in total, the
least recently used files are removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import replacing

__all__ = ["ImageCache", "ImageFacts"]

_log = logging.getLogger(__name__)

_VARIABLE = "SACRISTAN_CACHE"
_FORMAT = 2
_MAX_BYTES = 256 * 2**20
# Clocks of file systems tick every 2 seconds at worst.
_SETTLED_NS = 3_000_000_000


@dataclasses.dataclass
class ImageFacts:
    """Facts about an image.

    Attributes:
        digest: SHA-256 of the file, hexadecimal.
        size: Width and height, pixels.
        mode: Pixel format, as PIL names it.
        moments: The `Moments` of its pixels, as lists, by the way it is decoded.
    """

    digest: str
    size: tuple[int, int]
    mode: str
    moments: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)


class ImageCache:
    """Facts about the images of one folder, kept between processes."""

    def __init__(self, root: Path) -> None:
        self._folder = _default_folder()
        name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
        self._path = None if self._folder is None else self._folder / f"images-{name}.json"
        self._known = self._read()
        self._stamps: dict[str, list[int]] = {}
        self._facts: dict[str, ImageFacts] = {}
        self._is_changed = False

    def known(self, name: str, file: Path) -> ImageFacts | None:
        """Return the cached facts about an image, by its path below the root; None if it is new or has changed."""
        status = file.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        self._stamps[name] = stamp
        entry = self._known.get(name)
        if not isinstance(entry, dict) or entry.get("stamp") != stamp:
            return None
        try:
            size = (int(entry["size"][0]), int(entry["size"][1]))
            facts = ImageFacts(str(entry["digest"]), size, str(entry["mode"]), dict(entry["moments"]))
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        self._facts[name] = facts
        return facts

    def add(self, name: str, facts: ImageFacts) -> None:
        """Add facts about an image that the cache lacked. `name` is its path below the root."""
        self._facts[name] = facts
        self._is_changed = True

    def touch(self) -> None:
        """Mark facts as changed, so that `save` writes them."""
        self._is_changed = True

    def save(self) -> None:
        """Write the facts for other processes; a failure costs time only."""
        if self._path is None or self._folder is None:
            return
        try:
            if not self._is_changed:
                os.utime(self._path)
                return
            settled = time.time_ns() - _SETTLED_NS
            images = {
                name: {"stamp": self._stamps[name], **dataclasses.asdict(facts)}
                for name, facts in self._facts.items()
                if max(self._stamps[name][1:]) < settled
            }
            content = json.dumps({"format": _FORMAT, "images": images}).encode()
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path, durable=False) as stream:
                stream.write(content)
            self._is_changed = False
            _drop_oldest(self._folder, self._path)
        except OSError as error:
            _log.debug("%s: the facts about images cannot be written: %s", self._path, error)

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] == _FORMAT and isinstance(content["images"], dict):
                return content["images"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            _log.debug("%s: cannot be read, so all images are read again: %s", self._path, error)
        return {}


def _default_folder() -> Path | None:
    configured = os.environ.get(_VARIABLE)
    if configured is not None:
        return Path(configured).expanduser() if configured else None
    top = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return (Path(top) if top else Path.home() / ".cache") / "sacristan"
    except RuntimeError:  # there is no home
        return None


def _drop_oldest(folder: Path, newest: Path) -> None:
    """Remove the least recently used files of the cache until its size is within the limit."""
    files: Sequence[tuple[float, int, Path]] = sorted(
        (file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("images-*.json") if file != newest
    )
    total = newest.stat().st_size + sum(size for _, size, _ in files)
    for _, size, file in files:
        if total <= _MAX_BYTES:
            break
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        total -= size
