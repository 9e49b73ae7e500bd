"""Cached facts about the images of a folder, so that a start reads only those that are new or have changed.

One JSON file a folder of images, in the folder that `SACRISTAN_CACHE` names (empty: none is kept), else in
`$XDG_CACHE_HOME/sacristan` or `~/.cache/sacristan` (on Windows `sacristan` in `%LOCALAPPDATA%`). An image is known by
its name, size, and times of change; one that changed within the last seconds is not, as it may change again within the
same tick of the clock. The file is replaced as a whole, so that of two processes the later one's stays; one that cannot
be read counts for none, and where it cannot be written, each start reads all. The files that were not used for longest
go once all together are above 256 MB.
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

from observers.record.atomic_file import replacing

__all__ = ["ImageCache", "ImageFacts"]

_log = logging.getLogger(__name__)

_VARIABLE = "SACRISTAN_CACHE"
_FORMAT = 2
_MAX_BYTES = 256 * 2**20
# Clocks of file systems tick every 2 seconds at worst.
_SETTLED_NS = 3_000_000_000


@dataclasses.dataclass
class ImageFacts:
    """Facts about one image.

    Attributes:
        digest: SHA-256 of the file, in hexadecimal.
        size: Width and height, pixels.
        mode: PIL's name for the type of its pixels.
        moments: By how it is decoded, number, mean and sum of squares of the pixels of each channel.
    """

    digest: str
    size: tuple[int, int]
    mode: str
    moments: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)


class ImageCache:
    """The facts of the images of one folder, kept between processes.

    Args:
        root: The folder of images.
        folder: Where to keep them; by default that of the user.
    """

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self._folder = _default_folder() if folder is None else folder
        name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
        self._path = None if self._folder is None else self._folder / f"images-{name}.json"
        self._known = self._read()
        self._stamps: dict[str, list[int]] = {}
        self._facts: dict[str, ImageFacts] = {}
        self._is_changed = False

    def known(self, name: str, file: Path) -> ImageFacts | None:
        """Return what is known of an image as it is now; None if nothing is.

        Raises:
            OSError: If it is not there.
        """
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
        """Take in what a look at an image found, after `known` did not."""
        self._facts[name] = facts
        self._is_changed = True

    def touch(self) -> None:
        """Note that facts that are here have changed."""
        self._is_changed = True

    def save(self) -> None:
        """Keep what is known for other processes; where that fails, nothing is lost but time."""
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
            _log.debug("%s: what is known of the images is not kept: %s", self._path, error)

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
            _log.debug("%s: cannot be read, so all images are looked at: %s", self._path, error)
        return {}


def _default_folder() -> Path | None:
    named = os.environ.get(_VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    top = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return (Path(top) if top else Path.home() / ".cache") / "sacristan"
    except RuntimeError:  # there is no home
        return None


def _drop_oldest(folder: Path, newest: Path) -> None:
    """Remove files of a cache that were not used for longest, until all together are small enough."""
    found: Sequence[tuple[float, int, Path]] = sorted(
        (file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("images-*.json") if file != newest
    )
    total = newest.stat().st_size + sum(size for _, size, _ in found)
    for _, size, file in found:
        if total <= _MAX_BYTES:
            break
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        total -= size
