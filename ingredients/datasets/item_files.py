"""Files that are read item by item: tables of Hugging Face and Parquet, and tar files in the layout of webdataset.

pyarrow keeps the tables; packages are imported when needed. In tar files, members with one name, such as `7.jpg` and
`7.cls`, form a sample. All member headers are read at the start, so workers can read any sample and a run can resume in
the middle of an epoch. Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.samples import Source, SourceSettings, from_arrays
from sacristan.ingredients.datasets.source_checks import TARGET_NAMES, as_list, reading, refuse_column
from sacristan.ingredients.datasets.splitting import PARTS, by_name, files_by_part
from sacristan.ingredients.datasets.structured import is_stream
from sacristan.ingredients.errors import DataError, LabError

_NUMBERS = ("cls", "cls2", "id", "index", "inx")
_IMAGES = ("jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm")


class Rows:
    """The rows of a `datasets.Dataset` or `pyarrow.Table` as dicts by column, or pairs of the only one and the target.

    The column of `weights` becomes an attribute. `targets` are known if they are integers or text, `classes` if the
    table names them.
    """

    def __init__(
        self, table: Any, columns: Sequence[str], target: str | None, weights: str | None, *, is_pair: bool
    ) -> None:
        self.table = table
        self.columns = list(columns)
        self.target = target
        self.is_pair = is_pair
        self.classes = _classes(table, target) or ()
        if hasattr(table, "_fingerprint"):
            self.fingerprint = str(table._fingerprint)
        if target is not None:
            values = _arrow(table).column(target).to_pylist()
            if all(isinstance(value, int | str) for value in values):
                self.targets = values
        if weights in table.column_names:
            setattr(self, str(weights), _arrow(table).column(weights).to_pylist())

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        row = self.table.slice(index, 1).to_pylist()[0] if _is_arrow(self.table) else self.table[index]
        if self.is_pair:
            return _as_array(row[self.columns[0]]), row[self.target]
        return {name: _as_array(row[name]) for name in self.columns}


def read_parquet(path: Path, settings: SourceSettings) -> Source:
    """Read a Parquet file, or all files below a folder; `train`, `val` and `test` in their names are parts."""
    arrow = require("pyarrow", "parquet", "data.name=parquet")
    files = files_by_part(path, "*.parquet", "Parquet")
    tables = {part: [_read_file(file) for file in group] for part, group in files.items()}
    try:
        joined = {part: arrow.concat_tables(group) for part, group in tables.items()}
    except ValueError as error:
        raise DataError(f"data.path: the Parquet files in {path} differ in their columns: {error}") from error
    return _from_tables(joined, f"data.path={path}", settings)


def _read_file(file: Path) -> Any:
    parquet = require("pyarrow.parquet", "parquet", "data.name=parquet")
    with reading(file, "Parquet", OSError, ValueError):
        return parquet.ParquetFile(file).read()


def read_hugging_face(path: Path | None, settings: SourceSettings) -> Source:
    """Read a Hugging Face dataset from a folder or `huggingface:NAME`; numeric inputs are kept in memory."""
    name = settings.name.partition(":")[2]
    label = f"data.name={settings.name}"
    datasets = require("datasets", "huggingface", label)
    if bool(name) == (path is not None):
        raise DataError(f"{label}: got data.path={path}, expected data.name=huggingface:NAME, or a folder in data.path")
    try:
        if path is not None and any((path / file).exists() for file in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(path))
        else:
            loaded = datasets.load_dataset(name or str(path), **settings.options)
    except LabError:
        raise
    except Exception as error:
        raise DataError(
            f"{label}: it cannot be loaded: {str(error).splitlines()[0]}; check its name and data.options"
        ) from error
    if not isinstance(loaded, Mapping):
        return _from_tables({None: loaded}, label, settings)
    parts: dict[int | None, Any] = {PARTS[word]: part for word, part in loaded.items() if word in PARTS}
    if PARTS["train"] not in parts:
        raise DataError(
            f"{label}: it has the parts {', '.join(loaded)}, expected train; choose one by data.options.split="
        )
    return _from_tables(parts, label, settings)


def _from_tables(tables: Mapping[int | None, Any], where: str, settings: SourceSettings) -> Source:
    """Return tables, by the code of their part, as a source, with the values to split by."""
    first = next(iter(tables.values()))
    if is_stream(first):
        return from_factory(by_name(tables), where, **settings.for_items)
    column = settings.split_column
    if column is not None and column not in first.column_names and settings.trained is None:
        refuse_column("data.split", where, [column], first.column_names)
    source = _from_rows(tables, where, settings)
    if column not in first.column_names:
        return source
    values = [value for table in tables.values() for value in _arrow(table).column(column).to_pylist()]
    return dataclasses.replace(source, split_values=np.array([*values, None], object)[:-1])


def _from_rows(tables: Mapping[int | None, Any], where: str, settings: SourceSettings) -> Source:
    """Return numeric columns as inputs beside the target; other rows as pairs, if one column is chosen, or as dicts."""
    first, weights = next(iter(tables.values())), settings.weights
    inputs, target = _chosen_columns(list(first.column_names), where, settings)
    if target is not None and settings.is_plain and inputs and all(_is_numeric(first, name) for name in inputs):
        return _numeric(tables, where, inputs, target, settings)
    is_pair = target is not None and settings.columns is not None and len(inputs) == 1
    columns = inputs if is_pair or target is None else [*inputs, target]
    rows = {part: Rows(table, columns, target, weights, is_pair=is_pair) for part, table in tables.items()}
    return from_factory(by_name(rows), where, **settings.for_items | {"target": target})


def _chosen_columns(names: list[str], where: str, settings: SourceSettings) -> tuple[list[str], str | None]:
    chosen = as_list(settings.columns)
    for setting, wanted in (("data.target", as_list(settings.key)), ("data.columns", chosen)):
        if wanted and not set(wanted) <= set(names):
            refuse_column(setting, where, wanted, names)
    target = settings.key or next((name for name in TARGET_NAMES if name in names), None)
    trained = () if settings.trained is None else settings.trained.features or ()
    others = [name for name in names if name != settings.split_column or name in trained]
    return [name for name in chosen or others if name not in (target, settings.weights)], target


def _numeric(
    tables: Mapping[int | None, Any], where: str, inputs: list[str], target: str, settings: SourceSettings
) -> Source:
    arrows = {part: _arrow(table) for part, table in tables.items()}
    arrays = [
        (part, np.stack([table.column(name).to_numpy() for name in inputs], 1), _values(table, target))
        for part, table in arrows.items()
    ]
    first, weights = next(iter(tables.values())), settings.weights
    return dataclasses.replace(
        from_arrays(arrays, where, settings.dtype),
        classes=_classes(first, target),
        features=tuple(inputs),
        target_names=(target,),
        weights=np.concatenate([_values(table, weights) for table in arrows.values()])
        if weights in first.column_names
        else None,
    )


def _is_arrow(table: Any) -> bool:
    return hasattr(table, "to_pylist")


def _arrow(table: Any) -> Any:
    return table if _is_arrow(table) else table.with_format("arrow")[:]


def _values(table: Any, name: str | None) -> np.ndarray:
    values = table.column(name).to_numpy()
    is_text = values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    return values.astype(str) if is_text else values


def _is_numeric(table: Any, name: str) -> bool:
    types = require("pyarrow", "parquet", "a table").types
    kind = (table.schema if _is_arrow(table) else table.features.arrow_schema).field(name).type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _classes(table: Any, target: str | None) -> tuple[str, ...] | None:
    names = getattr(getattr(table, "features", {}).get(target), "names", None)
    return tuple(names) if names else None


def _as_array(value: Any) -> Any:
    """Return a list of numbers as an array, anything else unchanged."""
    if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        return np.asarray(value)
    return value


class TarShards:
    """A map-style dataset of the samples in uncompressed tar files: dicts by file ending, or tuples of some `fields`.

    The dicts have a `__key__`, the common name of the members. `shards` (samples,) int64 are indices into `files`,
    `targets` the `.cls` members if every sample has one; `fingerprint` covers names and sizes of members, and labels.
    """

    def __init__(self, files: Sequence[Path], fields: Sequence[str] | None = None) -> None:
        self.files = list(files)
        self.fields = None if fields is None else list(fields)
        self._samples: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        total = hashlib.sha256()
        for number, file in enumerate(self.files):
            for key, members in _samples_of(file):
                self._samples.append((number, key, members))
                total.update(repr((file.name, key, [(name, size) for name, (_, size) in members.items()])).encode())
        self.shards = np.array([number for number, _, _ in self._samples], np.int64)
        for name, (_, key, members) in itertools.product(self.fields or (), self._samples):
            if name not in members:
                raise DataError(f"data.columns: the sample {key} has no member .{name}; it has {', '.join(members)}")
        if self._samples and all("cls" in members for _, _, members in self._samples):
            self.targets = [self._field(number, key, "cls", *members["cls"]) for number, key, members in self._samples]
            total.update(repr(self.targets).encode())
        self.fingerprint = total.hexdigest()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        number, key, members = self._samples[index]
        names = list(members) if self.fields is None else self.fields
        values = [self._field(number, key, name, *members[name]) for name in names]
        return {"__key__": key, **dict(zip(names, values, strict=True))} if self.fields is None else tuple(values)

    def _field(self, number: int, key: str, name: str, offset: int, size: int) -> Any:
        # Opened each time: workers would share the position of an open file.
        with self.files[number].open("rb") as stream:
            stream.seek(offset)
            content = stream.read(size)
        try:
            return decode(name, content)
        except (ValueError, OSError, SyntaxError) as error:
            raise DataError(f"data.path: {key}.{name} in {self.files[number]} cannot be read: {error}") from error


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
    """Decode a member by the last part of its file ending, without executing code; ValueError or OSError if invalid.

    `cls`, `id` and `index` give an int, `txt` a str, `npy` an array, `json` its value, images uint8 (height, width, 3),
    or (height, width) if grey, unknown endings the bytes.
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
    """Read tar files, with `train`, `val` and `test` in their names as parts; `columns` are endings of members."""
    parts = sorted(files_by_part(path, "*.tar", "tar").items(), key=lambda part: part[0] or 0)
    shards = {code: TarShards(files, as_list(settings.columns)) for code, files in parts}
    return from_factory(by_name(shards), f"data.path={path}", **settings.for_items)
