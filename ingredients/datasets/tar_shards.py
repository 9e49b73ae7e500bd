"""Samples in tar files, laid out as by webdataset: members of one name, such as `7.jpg` and `7.cls`, are a sample.

The headers of all members are read at the start, so that any sample can be read, by any worker, and a training resumes
in the middle of an epoch. Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingredients.config.construct import require
from ingredients.datasets.splitting import PARTS
from ingredients.errors import DataError

__all__ = ["TarShards", "decode", "read_tar"]

_NUMBERS = ("cls", "cls2", "id", "index", "inx")
_IMAGES = ("jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm")


class TarShards:
    """A map-style dataset of the samples in tar files.

    Items are dicts of what the members hold, by their endings, and `__key__`, the name that they have in common; or
    tuples of some fields.

    Args:
        files: The tar files, not compressed.
        fields: Endings of the members to read, for tuples of them; None reads all, for dicts.

    Attributes:
        shards: The place in `files` of each sample.
        targets: What the members `.cls` hold, if each sample has one.
        fingerprint: SHA-256 over names and sizes of all members, and the labels.

    Raises:
        DataError: If a file is no tar file, or lacks a field.
    """

    def __init__(self, files: Sequence[Path], fields: Sequence[str] | None = None) -> None:
        self.files = list(files)
        self.fields = None if fields is None else list(fields)
        self._samples: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        total = hashlib.sha256()
        for place, file in enumerate(self.files):
            for key, members in _samples_of(file):
                self._samples.append((place, key, members))
                total.update(repr((file.name, key, [(name, size) for name, (_, size) in members.items()])).encode())
        self.shards = np.array([place for place, _, _ in self._samples], np.int64)
        for name in self.fields or ():
            self._check_field(name)
        if self._samples and all("cls" in members for _, _, members in self._samples):
            self.targets = [self._field(place, key, "cls", *members["cls"]) for place, key, members in self._samples]
            total.update(repr(self.targets).encode())
        self.fingerprint = total.hexdigest()

    def _check_field(self, name: str) -> None:
        lacking = next((key for _, key, members in self._samples if name not in members), None)
        if lacking is not None:
            has = next(members for _, key, members in self._samples if key == lacking)
            raise DataError(f"data.columns: the sample {lacking} has no member .{name}; it has {', '.join(has)}")

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        place, key, members = self._samples[index]
        names = list(members) if self.fields is None else self.fields
        values = [self._field(place, key, name, *members[name]) for name in names]
        return {"__key__": key, **dict(zip(names, values, strict=True))} if self.fields is None else tuple(values)

    def _field(self, place: int, key: str, name: str, offset: int, size: int) -> Any:
        # Opened each time: a file that workers share would have one position for all.
        with self.files[place].open("rb") as stream:
            stream.seek(offset)
            content = stream.read(size)
        try:
            return decode(name, content)
        except (ValueError, OSError, SyntaxError) as error:
            raise DataError(f"data.path: {key}.{name} in {self.files[place]} cannot be read: {error}") from error


def _samples_of(file: Path) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Return the samples of a tar file in order: name, and offset and size of each member by its ending."""
    found: list[tuple[str, dict[str, tuple[int, int]]]] = []
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                if not member.isfile() or not stem or not ending:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if not found or found[-1][0] != key:
                    found.append((key, {}))
                found[-1][1][ending.lower()] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"data.path: {file} cannot be read as a tar file: {error}; fetch it again, or unpack what is compressed"
        ) from error
    return found


def decode(ending: str, content: bytes) -> Any:
    """Return what a member holds, by its ending; of one that is not known its bytes. Nothing in it is executed.

    Numbers (`cls`, `id`, `index`) become ints, `txt` a str, `json` what it says, `npy` an array, images uint8 arrays
    (height, width, 3), or (height, width) if they are grey.

    Raises:
        ValueError, OSError: If it cannot be read.
    """
    kind = ending.rpartition(".")[2]
    readers: dict[str, Callable[[bytes], Any]] = {
        **dict.fromkeys(_NUMBERS, int),
        **dict.fromkeys(("txt", "text"), lambda text: text.decode()),
        **dict.fromkeys(_IMAGES, _image),
        "json": json.loads,
        "npy": lambda array: np.load(io.BytesIO(array), allow_pickle=False),
    }
    return readers.get(kind, bytes)(content)


def _image(content: bytes) -> np.ndarray:
    image = require("PIL.Image", "images", "data.name=tar")
    from PIL import ImageOps

    try:
        with image.open(io.BytesIO(content)) as opened:
            upright = ImageOps.exif_transpose(opened)
            return np.array(upright if upright.mode in ("L", "RGB") else upright.convert("RGB"))
    except image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def read_tar(path: Path, fields: str | Sequence[str] | None = None) -> dict[int | None, TarShards]:
    """Return the shards of a folder, or one file, by the code of their part; None leaves the split to the lab.

    A part is a folder `train`, `val` or `test`, or the first word of a name, such as `train-000.tar`.

    Raises:
        DataError: If there are none, or some belong to a part and others do not.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*.tar"))
    if not files:
        raise DataError(f"data.path: {path} has no tar files in it; expected files like train-000.tar")
    chosen = [fields] if isinstance(fields, str) else fields
    parts: dict[int | None, list[Path]] = {}
    for file in files:
        words = [*(file.relative_to(path).parts[:-1] if path.is_dir() else ()), re.split(r"[^a-zA-Z0-9]", file.stem)[0]]
        parts.setdefault(next((PARTS[word] for word in words if word in PARTS), None), []).append(file)
    if None in parts and len(parts) > 1:
        raise DataError(
            f"data.path: {parts[None][0]} belongs to no part, and others are for train, val or test by their names; "
            "rename it, or move it away"
        )
    return {part: TarShards(shards, chosen) for part, shards in sorted(parts.items(), key=lambda one: one[0] or 0)}
