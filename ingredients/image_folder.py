"""Images in folders, one folder per class."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ingredients.construct import require
from ingredients.errors import DataError

__all__ = ["ImageFolder"]


class ImageFolder:
    """A map-style dataset over `root/CLASS/*.png`, or `root/{train,val,test}/CLASS/*.png`, decoded when read.

    Items are (image, label): image a float32 array (channels, height, width) in 0 to 1, label an int.
    """

    suffixes = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

    def __init__(self, root: Path, image_size: int | None, part_names: Mapping[str, int]) -> None:
        require("PIL", "images", "data.name=image_folder")
        self.root = root
        self.image_size = image_size
        parts = {word: part for word, part in part_names.items() if (root / word).is_dir()}
        roots = [(root / word, part) for word, part in parts.items()] or [(root, None)]
        found = [
            (file, folder.name, part)
            for top, part in roots
            for folder in _folders(top)
            for file in self._images(folder)
        ]
        if not found:
            raise DataError(f"data.path: {root} has no images in it; expected files like CLASS/name.png")
        self.files = [file for file, _, _ in found]
        self.classes = tuple(sorted({name for _, name, _ in found}))
        self.targets = np.array([self.classes.index(name) for _, name, _ in found])
        self.part = np.array([part for _, _, part in found], np.int8) if parts else None
        self._check_sizes()

    def _images(self, folder: Path) -> list[Path]:
        return sorted(file for file in folder.rglob("*") if file.suffix.lower() in self.suffixes)

    def _check_sizes(self) -> None:
        from PIL import Image

        sizes, modes = {}, set()
        for file in self.files:
            try:
                with Image.open(file) as image:
                    sizes.setdefault(image.size, file)
                    modes.add(image.mode)
            except OSError as error:
                raise DataError(f"data.path: {file} cannot be read as an image: {error}") from error
        if len(sizes) > 1 and self.image_size is None:
            (one, first), (other, second) = list(sizes.items())[:2]
            raise DataError(
                f"data.path: {first} is {one} and {second} is {other} pixels; resize all with data.image_size=N"
            )
        self._mode = "L" if modes <= {"L", "1", "I;16"} else "RGB"

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

        with Image.open(self.files[index]) as image:
            image = image.convert(self._mode)
            if self.image_size is not None:
                image = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.float32) / np.float32(255)
        pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
        return np.ascontiguousarray(pixels), int(self.targets[index])


def _folders(top: Path) -> list[Path]:
    return sorted(folder for folder in top.iterdir() if folder.is_dir() and not folder.name.startswith("."))
