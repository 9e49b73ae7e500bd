"""Samples in tar files in the layout of webdataset: members with one name, such as `7.jpg` and `7.cls`, form a sample.

All member headers are read at the start, so workers can read any sample and a run can resume in the middle of an epoch.
Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.samples import Source
from sacristan.ingredients.datasets.source_checks import as_list, reading
from sacristan.ingredients.datasets.source_settings import SourceSettings
from sacristan.ingredients.datasets.splitting import by_name, files_by_part
from sacristan.ingredients.errors import DataError

__all__ = ["TarShards", "decode", "read_tar"]

_NUMBERS = ("cls", "cls2", "id", "index", "inx")
_IMAGES = ("jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm")


class TarShards:
    """A map-style dataset of the samples in tar files.

    Items are dicts of decoded members by file ending, and of `__key__`, their common name; or tuples of chosen fields.

    Args:
        files: Uncompressed tar files.
        fields: Endings of the members to read as tuples; None reads all members as dicts.

    Attributes:
        shards: Index into `files` for each sample, int64 (samples,).
        targets: Content of the `.cls` members, if every sample has one.
        fingerprint: SHA-256 of the names and sizes of all members, and of the labels.
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
        self._check_fields()
        if self._samples and all("cls" in members for _, _, members in self._samples):
            self.targets = [self._field(place, key, "cls", *members["cls"]) for place, key, members in self._samples]
            total.update(repr(self.targets).encode())
        self.fingerprint = total.hexdigest()

    def _check_fields(self) -> None:
        for name, (_, key, members) in itertools.product(self.fields or (), self._samples):
            if name not in members:
                raise DataError(f"data.columns: the sample {key} has no member .{name}; it has {', '.join(members)}")

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        place, key, members = self._samples[index]
        names = list(members) if self.fields is None else self.fields
        values = [self._field(place, key, name, *members[name]) for name in names]
        return {"__key__": key, **dict(zip(names, values, strict=True))} if self.fields is None else tuple(values)

    def _field(self, place: int, key: str, name: str, offset: int, size: int) -> Any:
        # Opened each time: workers would share the position of an open file.
        with self.files[place].open("rb") as stream:
            stream.seek(offset)
            content = stream.read(size)
        try:
            return decode(name, content)
        except (ValueError, OSError, SyntaxError) as error:
            raise DataError(f"data.path: {key}.{name} in {self.files[place]} cannot be read: {error}") from error


def _samples_of(file: Path) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Return the samples of a tar file in order: the name, and offset and size of each member by its ending."""
    samples: list[tuple[str, dict[str, tuple[int, int]]]] = []
    advice = "; download it again, or unpack what is compressed"
    with (
        reading(file, "a tar file", tarfile.TarError, OSError, advice=advice),
        tarfile.open(file, "r:") as archive,
    ):
        for member in archive:
            folder, slash, name = member.name.rpartition("/")
            stem, _, ending = name.partition(".")
            if not (member.isfile() and stem and ending):
                continue
            key = f"{folder}{slash}{stem}"
            if not samples or samples[-1][0] != key:
                samples.append((key, {}))
            samples[-1][1][ending.lower()] = (member.offset_data, member.size)
    return samples


def decode(ending: str, content: bytes) -> Any:
    """Decode a member by the last part of its file ending, such as `jpg`, without executing code.

    `cls`, `id` and `index` give an int, `txt` a str, `npy` an array, `json` its value, images a uint8 array (height,
    width, 3), or (height, width) if grey, unknown endings the bytes. Raises `ValueError` or `OSError` for invalid
    content.
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


def read_tar(path: Path, settings: SourceSettings) -> Source:
    """Read a tar file, or all tar files below a folder; samples are read on demand, each with its shard.

    `train`, `val` and `test` in file names are parts. `settings.columns` are the endings of the members to read.
    """
    parts = sorted(files_by_part(path, "*.tar", "tar").items(), key=lambda part: part[0] or 0)
    shards = {code: TarShards(files, as_list(settings.columns)) for code, files in parts}
    return from_factory(by_name(shards), f"data.path={path}", **settings.for_items)
