"""Images in folders, one folder per class."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ingredients.config.construct import require
from ingredients.errors import DataError

__all__ = ["ImageFolder", "image_files"]

_log = logging.getLogger(__name__)

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
        self._check_sizes(channels)

    def _has_no_classes(self, top: Path, known: Sequence[str]) -> bool:
        is_any_alone = any(file.suffix.lower() in _SUFFIXES for file in top.iterdir())
        return is_any_alone or not any(folder.name in known for folder in _folders(top))

    def _check_sizes(self, channels: int | None) -> None:
        from PIL import Image

        sizes: dict[tuple[int, int], Path] = {}
        modes: dict[str, Path] = {}
        for file in self.files:
            try:
                with Image.open(file) as image:
                    sizes.setdefault(image.size, file)
                    modes.setdefault(image.mode, file)
            except OSError as error:
                raise DataError(f"data.path: {file} cannot be read as an image: {error}") from error
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
        self._grey = colour is None if channels is None else channels == 1
        if self._grey and colour is not None:
            _log.warning("data.path: %s is in colour, and is read in grey, as the checkpoint was trained on", colour)

    def digest(self) -> str:
        """Return the SHA-256 over every file's relative path and content."""
        total = hashlib.sha256()
        for file in self.files:
            total.update(str(file.relative_to(self.root)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        with Image.open(self.files[index]) as opened:
            # 16 bits of grey go through F, since L would clip them at 255.
            deep = opened.mode.startswith("I")
            try:
                image = opened.convert("F" if deep else "L" if self._grey else "RGB")
            except (OSError, SyntaxError) as error:
                raise DataError(f"data.path: {self.files[index]} cannot be read as an image: {error}") from error
            if self.image_size is not None:
                image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.float32) / np.float32(65535 if deep else 255)
        if pixels.ndim == 2:
            pixels = np.repeat(pixels[None], 1 if self._grey else 3, axis=0)
        else:
            pixels = np.moveaxis(pixels, -1, 0)
        return np.ascontiguousarray(pixels), -1 if self.targets is None else int(self.targets[index])


def _folders(top: Path) -> list[Path]:
    return sorted(folder for folder in top.iterdir() if folder.is_dir() and not folder.name.startswith("."))
