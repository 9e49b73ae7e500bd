"""Images in folders, one folder per class."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ingredients.config.construct import require
from ingredients.errors import DataError

__all__ = ["ImageFolder"]


class ImageFolder:
    """A map-style dataset over `root/CLASS/*.png`, or `root/{train,val,test}/CLASS/*.png`, decoded when read.

    Items are (image, label): image a float32 array (channels, height, width) in 0 to 1, label an int.
    """

    suffixes = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

    def __init__(self, root: Path, image_size: int | None, part_names: Mapping[str, int]) -> None:
        require("PIL", "images", "data.name=image_folder")
        if image_size is not None and image_size < 1:
            raise DataError(f"data.image_size: got {image_size}, expected at least 1, or None to keep the images' size")
        self.root = root
        self.image_size = image_size
        parts = {word: part for word, part in part_names.items() if (root / word).is_dir()}
        roots: list[tuple[Path, int | None]] = [(root / word, part) for word, part in parts.items()] or [(root, None)]
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
        self._grey = all(mode in ("L", "1") or mode.startswith("I") for mode in modes)

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
        return np.ascontiguousarray(pixels), int(self.targets[index])


def _folders(top: Path) -> list[Path]:
    return sorted(folder for folder in top.iterdir() if folder.is_dir() and not folder.name.startswith("."))
