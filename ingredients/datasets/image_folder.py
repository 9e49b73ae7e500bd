"""Images in folders, one folder per class."""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingredients.config.construct import require
from ingredients.datasets.image_cache import ImageCache, ImageFacts
from ingredients.datasets.moments import Moments, moments_of
from ingredients.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ImageFolder", "image_files"]

# The EXIF tag that says how a camera was held, and its values for a quarter turn.
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)

_log = logging.getLogger(__name__)

# Threads that look at images; decoding and hashing leave Python's lock to others.
_NUM_THREADS = min(8, os.cpu_count() or 1)
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and those below it, sorted."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)


class ImageFolder:
    """A map-style dataset over `root/CLASS/*.png`, or `root/{train,val,test}/CLASS/*.png`, decoded when read.

    Items are (image, label): image a float32 array (channels, height, width) in 0 to 1, label an int, or -1 if the
    images have none.

    Args:
        root: The folder.
        image_size: Height and width that images are resized to, pixels; None keeps their size.
        part_names: What folders of train, val and test are called, and their codes.
        channels: 1 for grey images, 3 for colour; None is grey if all are.
        known_classes: If given, images need no class: where some lie outside of folders, or no folder is called like
            one of these classes, they have none.

    Attributes:
        files: The images, in order.
        names: The same, below the root.
        classes: Names of the classes; None for none.
        targets: Labels (images,); None for none.
        part: Code of each image's part; None without such folders.
        are_bytes: Whether `bytes_at` can be called: none of the images has more than 8 bits a channel.

    Raises:
        DataError: If there are no images, one cannot be read, or they differ in size and are not resized.
    """

    def __init__(
        self,
        root: Path,
        image_size: int | None,
        part_names: Mapping[str, int],
        *,
        channels: int | None = None,
        known_classes: Sequence[str] | None = None,
    ) -> None:
        require("PIL", "images", "data.name=image_folder")
        if image_size is not None and image_size < 1:
            raise DataError(f"data.image_size: got {image_size}, expected at least 1, or None to keep the images' size")
        self.root = root
        self.image_size = image_size
        parts = {word: part for word, part in part_names.items() if (root / word).is_dir()}
        roots: list[tuple[Path, int | None]] = [(root / word, part) for word, part in parts.items()] or [(root, None)]
        if known_classes is not None and any(self._has_no_classes(top, known_classes) for top, _ in roots):
            found = [(file, "", part) for top, part in roots for file in image_files(top)]
        else:
            found = [
                (file, folder.name, part)
                for top, part in roots
                for folder in _folders(top)
                for file in image_files(folder)
            ]
        if not found:
            expected = "files like CLASS/name.png" if known_classes is None else "some, such as name.png"
            raise DataError(f"data.path: {root} has no images in it; expected {expected}")
        self.files = [file for file, _, _ in found]
        self.names = tuple(file.relative_to(root).as_posix() for file in self.files)
        classes = tuple(sorted({name for _, name, _ in found}))
        has_classes = classes != ("",)
        self.classes = classes if has_classes else None
        self.targets = np.array([classes.index(name) for _, name, _ in found]) if has_classes else None
        self.part = np.array([part for _, _, part in found], np.int8) if parts else None
        self._cache = ImageCache(root)
        self._facts = self._look()
        self._check_sizes(channels)
        self._cache.save()

    def _has_no_classes(self, top: Path, known: Sequence[str]) -> bool:
        is_any_alone = any(file.suffix.lower() in _SUFFIXES for file in top.iterdir())
        return is_any_alone or not any(folder.name in known for folder in _folders(top))

    def _look(self) -> list[ImageFacts]:
        """Return what there is to know of each image; those that are not known yet are read, by some threads."""
        found = [self._cache.known(name, file) for name, file in zip(self.names, self.files, strict=True)]
        new = [place for place, facts in enumerate(found) if facts is None]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for place, facts in zip(new, pool.map(_facts_of, [self.files[place] for place in new]), strict=True):
                found[place] = facts
                self._cache.add(self.names[place], facts)
        return [facts for facts in found if facts is not None]

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
        colour = next((file for mode, file in modes.items() if mode not in ("L", "1") and mode[0] != "I"), None)
        self.are_bytes = not any(mode.startswith("I") for mode in modes)
        self._grey = colour is None if channels is None else channels == 1
        if self._grey and colour is not None:
            _log.warning("data.path: %s is in colour, and is read in grey, as the checkpoint was trained on", colour)

    def digest(self) -> str:
        """Return the SHA-256 over every file's relative path and content."""
        total = hashlib.sha256()
        for name, facts in zip(self.names, self._facts, strict=True):
            total.update(name.encode() + b"\0" + bytes.fromhex(facts.digest))
        return total.hexdigest()

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        """Yield the moments of images, as they are decoded; those that are not known yet are read, by some threads."""
        key = f"{'grey' if self._grey else 'colour'} {self.image_size}"
        places = [int(index) for index in indices]
        new = [place for place in places if key not in self._facts[place].moments]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            read = pool.map(lambda place: moments_of(self[place][0][None]), new)
            for place, moments in zip(new, read, strict=True):
                self._facts[place].moments[key] = [values.tolist() for values in moments]
        if new:
            self._cache.touch()
            self._cache.save()
        for place in places:
            count, mean, squares = map(np.array, self._facts[place].moments[key])
            yield count, mean, squares

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
        """Return an image as uint8 (height, width, channels); see `are_bytes`."""
        pixels = np.asarray(self._decoded(index)[0])
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def _decoded(self, index: int) -> tuple[Any, bool]:
        """Return an image of PIL, upright, in the mode and size that is wanted, and whether it has more than 8 bits."""
        from PIL import Image, ImageOps

        image: Image.Image
        with _opened(self.files[index]) as opened:
            # 16 bits of grey go through F, since L would clip them at 255.
            deep = opened.mode.startswith("I")
            mode = "F" if deep else "L" if self._grey else "RGB"
            try:
                is_upright = _orientation(opened) == 1
                opened.load()
                # A conversion to the same mode would copy it.
                image = opened if is_upright else ImageOps.exif_transpose(opened)
                image = image if image.mode == mode else image.convert(mode)
            except (OSError, SyntaxError) as error:
                raise DataError(f"data.path: {self.files[index]} cannot be read as an image: {error}") from error
            if self.image_size is not None:
                image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
            return image, deep


def _facts_of(file: Path) -> ImageFacts:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"data.path: {file} cannot be read as an image: {error}") from error
    with _opened(io.BytesIO(content), file) as image:
        width, height = image.size
        size = (height, width) if _orientation(image) in _TURNED else (width, height)
        return ImageFacts(hashlib.sha256(content).hexdigest(), size, image.mode)


def _orientation(image: Image.Image) -> int:
    """Return how the camera was held, as EXIF has it, without reading pixels: those of a PNG may come before it."""
    return 1 if image.format == "PNG" and "exif" not in image.info else image.getexif().get(_ORIENTATION, 1)


def _opened(content: Path | io.BytesIO, file: Path | None = None) -> Image.Image:
    """Open an image, without its pixels.

    Raises:
        DataError: If it is none, or so large that PIL takes it for an attack; the message names `file`.
    """
    from PIL import Image

    try:
        return Image.open(content)
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"data.path: {file or content} cannot be read as an image: {error}") from error


def _folders(top: Path) -> list[Path]:
    return sorted(folder for folder in top.iterdir() if folder.is_dir() and not folder.name.startswith("."))
