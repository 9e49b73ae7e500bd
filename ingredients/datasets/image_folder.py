"""Images in folders, one folder per class, and a cache of facts about them: a start reads only new or changed images.

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
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.samples import Moments, Source, SourceSettings, moments_of
from sacristan.ingredients.datasets.source_checks import reading
from sacristan.ingredients.datasets.split_rules import values_in_names
from sacristan.ingredients.datasets.splitting import PARTS
from sacristan.ingredients.errors import DataError
from sacristan.observers.record.files import replacing

if TYPE_CHECKING:
    from PIL import Image

_log = logging.getLogger(__name__)

_VARIABLE = "SACRISTAN_CACHE"
_FORMAT = 2
_MAX_BYTES = 256 * 2**20
# Clocks of file systems tick every 2 seconds at worst.
_SETTLED_NS = 3_000_000_000

# The EXIF tag of the orientation, and its values for a quarter turn.
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
# Threads that read images; decoding and hashing release the GIL.
_NUM_THREADS = min(8, os.cpu_count() or 1)
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclasses.dataclass
class ImageFacts:
    """Facts about an image."""

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


def image_files(folder: Path) -> list[Path]:
    """Return the images below a folder, at any depth, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)


def read_image_folder(path: Path, settings: SourceSettings) -> Source:
    """Read a folder of images per class; a trained model determines size and channels. See `ImageFolder`."""
    if not path.is_dir():
        raise DataError(f"data.path: {path} is a file, expected a folder with one folder of images per class")
    trained, size, channels, known_classes = settings.trained, settings.image_size, None, None
    if trained is not None:
        size = trained.image_size if size is None else size
        channels = trained.input_shape[0] if len(trained.input_shape) == 3 else None
        known_classes = None if settings.needs_targets else trained.classes
    images = ImageFolder(path, size, channels=channels, known_classes=known_classes)
    return Source(
        images,
        images.targets,
        images.classes,
        images.part,
        digest=images.digest(),
        names=images.names,
        split_values=values_in_names(images.names, settings.rule, strict=trained is None),
    )


class ImageFolder:
    """A map-style dataset of `root/CLASS/*.png`, or `root/{train,val,test}/CLASS/*.png`, decoded when read.

    Items are (image, label): float32 (channels, height, width) from 0 to 1, and an int, -1 without classes. Images keep
    their size if `image_size` is None, and are read in grey if all are. With `known_classes`, images outside of folders
    of these classes have no class. `names` are paths below the root; `classes` and `targets` (images,) are None without
    classes, and `part`, the code of each image's part, without folders for parts.
    """

    def __init__(
        self,
        root: Path,
        image_size: int | None,
        *,
        channels: int | None = None,
        known_classes: Sequence[str] | None = None,
    ) -> None:
        require("PIL", "images", "data.name=image_folder")
        if image_size is not None and image_size < 1:
            raise DataError(f"data.image_size: got {image_size}, expected at least 1, or None to keep the images' size")
        self.root = root
        self.image_size = image_size
        images = _find_images(root, known_classes)
        self.files = [file for file, _, _ in images]
        self.names = tuple(file.relative_to(root).as_posix() for file in self.files)
        classes = sorted({name for _, name, _ in images})
        has_classes, has_parts = classes != [""], images[0][2] is not None
        self.classes = tuple(classes) if has_classes else None
        self.targets = np.array([classes.index(name) for _, name, _ in images]) if has_classes else None
        self.part = np.array([part for _, _, part in images], np.int8) if has_parts else None
        self._cache = ImageCache(root)
        self._facts = self._read_facts()
        self._check_sizes(channels)
        self._cache.save()

    def _read_facts(self) -> list[ImageFacts]:
        """Return the facts about each image; threads read those that are not cached."""
        cached = [self._cache.known(name, file) for name, file in zip(self.names, self.files, strict=True)]
        new = [index for index, facts in enumerate(cached) if facts is None]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for index, facts in zip(new, pool.map(_facts_of, [self.files[index] for index in new]), strict=True):
                cached[index] = facts
                self._cache.add(self.names[index], facts)
        return [facts for facts in cached if facts is not None]

    def _check_sizes(self, channels: int | None) -> None:
        sizes: dict[tuple[int, int], Path] = {}
        modes: dict[str, Path] = {}
        for file, facts in zip(self.files, self._facts, strict=True):
            sizes.setdefault(facts.size, file)
            modes.setdefault(facts.mode, file)
        if len(sizes) > 1 and self.image_size is None:
            (one, first), (other, second) = list(sizes.items())[:2]
            raise DataError(
                f"data.path: {first} is {one} and {second} is {other} pixels; resize all with data.image_size=N"
            )
        if "F" in modes:
            raise DataError(
                f"data.path: {modes['F']} holds floating-point pixels, expected 8 or 16 bits; use data.name=npz"
            )
        coloured = [file for mode, file in modes.items() if not re.fullmatch("L|1|I.*", mode)]
        self.are_bytes = not any(mode.startswith("I") for mode in modes)
        self._grey = not coloured if channels is None else channels == 1
        if self._grey and coloured:
            _log.warning("data.path: %s is in colour, but is read in grey, as the checkpoint was trained", coloured[0])

    def digest(self) -> str:
        """Return the SHA-256 of every file's relative path and content."""
        total = hashlib.sha256()
        for name, facts in zip(self.names, self._facts, strict=True):
            total.update(name.encode() + b"\0" + bytes.fromhex(facts.digest))
        return total.hexdigest()

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        """Yield the moments of decoded images, see `moments_of`; threads read those that are not cached."""
        key = f"{'grey' if self._grey else 'colour'} {self.image_size}"
        numbers = [int(index) for index in indices]
        if new := [number for number in numbers if key not in self._facts[number].moments]:
            self._read_moments(key, new)
        for number in numbers:
            count, mean, squares = map(np.array, self._facts[number].moments[key])
            yield count, mean, squares

    def _read_moments(self, key: str, places: Sequence[int]) -> None:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            read = pool.map(lambda index: moments_of(self[index][0][None]), places)
            for index, moments in zip(places, read, strict=True):
                self._facts[index].moments[key] = [values.tolist() for values in moments]
        self._cache.touch()
        self._cache.save()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, deep = self._decoded(index)
        pixels = np.asarray(image, np.float32) / np.float32(65535 if deep else 255)
        if pixels.ndim == 2:
            pixels = np.repeat(pixels[None], 1 if self._grey else 3, axis=0)
        else:
            pixels = np.moveaxis(pixels, -1, 0)
        return np.ascontiguousarray(pixels), -1 if self.targets is None else int(self.targets[index])

    def bytes_at(self, index: int) -> np.ndarray:
        """Return an image as uint8 (height, width, channels); only if `are_bytes`."""
        pixels = np.asarray(self._decoded(index)[0])
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def _decoded(self, index: int) -> tuple[Any, bool]:
        """Return an upright image in the mode and size of this dataset, and whether it has more than 8 bits."""
        from PIL import Image, ImageOps

        image: Image.Image
        with _opened(self.files[index]) as opened:
            # 16 bits of grey are converted to F, since L would clip them at 255.
            deep = opened.mode.startswith("I")
            mode = "F" if deep else "L" if self._grey else "RGB"
            with reading(self.files[index], "an image", OSError, SyntaxError):
                is_upright = _orientation(opened) == 1
                opened.load()
                # Converting to the same mode would copy.
                image = opened if is_upright else ImageOps.exif_transpose(opened)
                image = image if image.mode == mode else image.convert(mode)
            if self.image_size is not None:
                image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
            return image, deep


def _facts_of(file: Path) -> ImageFacts:
    with reading(file, "an image", OSError):
        content = file.read_bytes()
    with _opened(io.BytesIO(content), file) as image:
        width, height = image.size
        size = (height, width) if _orientation(image) in _TURNED else (width, height)
        return ImageFacts(hashlib.sha256(content).hexdigest(), size, image.mode)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation without reading pixels, which may come before it in a PNG."""
    return 1 if image.format == "PNG" and "exif" not in image.info else image.getexif().get(_ORIENTATION, 1)


def _opened(content: Path | io.BytesIO, file: Path | None = None) -> Image.Image:
    """Open an image without reading its pixels; errors, also of an image that is too large for PIL, name `file`."""
    from PIL import Image

    with reading(file or content, "an image", OSError, Image.DecompressionBombError):
        return Image.open(content)


def _find_images(root: Path, known_classes: Sequence[str] | None) -> list[tuple[Path, str, int | None]]:
    """Return images as (file, class, code of the part); the class "" stands for none, None for no part."""
    parts: list[tuple[Path, int | None]] = [
        (root / word, part) for word, part in PARTS.items() if (root / word).is_dir()
    ]
    tops = parts or [(root, None)]
    is_flat = known_classes is not None and any(_has_no_classes(top, known_classes) for top, _ in tops)
    images = [image for top, part in tops for image in (_flat(top, part) if is_flat else _by_class(top, part))]
    if not images:
        expected = "files like CLASS/name.png" if known_classes is None else "some, such as name.png"
        raise DataError(f"data.path: {root} has no images in it; expected {expected}")
    return images


def _flat(top: Path, part: int | None) -> list[tuple[Path, str, int | None]]:
    return [(file, "", part) for file in image_files(top)]


def _by_class(top: Path, part: int | None) -> list[tuple[Path, str, int | None]]:
    return [(file, folder.name, part) for folder in _folders(top) for file in image_files(folder)]


def _has_no_classes(top: Path, classes: Sequence[str]) -> bool:
    has_images = any(file.suffix.lower() in _SUFFIXES for file in top.iterdir())
    return has_images or not any(folder.name in classes for folder in _folders(top))


def _folders(top: Path) -> list[Path]:
    return sorted(folder for folder in top.iterdir() if folder.is_dir() and not folder.name.startswith("."))
