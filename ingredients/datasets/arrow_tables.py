"""Tables with named columns: Hugging Face's data sets, and Parquet files. Their packages are imported when needed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingredients.config.construct import require
from ingredients.config.nearest import nearest
from ingredients.datasets.factories import from_factory
from ingredients.datasets.samples import Source, from_arrays
from ingredients.datasets.splitting import PARTS, by_name
from ingredients.datasets.streams import is_stream
from ingredients.errors import DataError, LabError

__all__ = ["Rows", "from_tables", "read_hugging_face", "read_parquet"]

# Columns that hold the target, where none is named.
_TARGETS = ("label", "labels", "target", "targets")


class Rows:
    """The rows of a table as a map-style dataset: dicts by column, or pairs of one column and the target.

    Args:
        table: A data set of Hugging Face, or a table of pyarrow.
        columns: The columns to read.
        target: The column of the target, if there is one.
        weights: The column of the weights, which becomes an attribute.
        is_pair: Whether items are pairs.

    Attributes:
        targets: What the target's column holds, if it holds whole numbers or texts.
        classes: The names of the classes, if the table says them.
        fingerprint: That of the table, if it has one.
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
        row = self.table.slice(index, 1).to_pylist()[0] if hasattr(self.table, "to_pylist") else self.table[index]
        if self.is_pair:
            return _value(row[self.columns[0]]), row[self.target]
        return {name: _value(row[name]) for name in self.columns}


def read_parquet(path: Path) -> dict[int | None, Any]:
    """Return the tables of a Parquet file, or of those in a folder, by the code of their part.

    A part is a folder `train`, `val` or `test`, or the first word of a file's name, such as `train-0.parquet`.

    Raises:
        DataError: If there are none, they cannot be read, or some belong to a part and others do not.
    """
    parquet = require("pyarrow.parquet", "parquet", "data.name=parquet")
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise DataError(f"data.path: {path} has no Parquet files in it; expected files like train-0.parquet")
    parts: dict[int | None, list[Any]] = {}
    for file in files:
        words = [*(file.relative_to(path).parts[:-1] if path.is_dir() else ()), re.split(r"[^a-zA-Z]", file.stem)[0]]
        part = next((PARTS[word] for word in words if word in PARTS), None)
        try:
            parts.setdefault(part, []).append(parquet.ParquetFile(file).read())
        except (OSError, ValueError) as error:
            raise DataError(f"data.path: {file} cannot be read as Parquet: {error}") from error
    if None in parts and len(parts) > 1:
        raise DataError(
            f"data.path: some Parquet files in {path} are for train, val or test by their names, and others are not; "
            "rename those"
        )
    joined = require("pyarrow", "parquet", "data.name=parquet").concat_tables
    try:
        return {part: joined(tables) for part, tables in parts.items()}
    except ValueError as error:
        raise DataError(f"data.path: the Parquet files in {path} differ in their columns: {error}") from error


def read_hugging_face(name: str | None, path: Path | None, options: Mapping[str, Any]) -> dict[int | None, Any]:
    """Return the tables, or streams, of a data set of Hugging Face by the code of their part.

    Args:
        name: Its name on the hub, or that of a builder such as `csv`; None reads `path`.
        path: A folder: written by `save_to_disk`, or as `load_dataset` takes it.
        options: Further arguments of `datasets.load_dataset`.

    Raises:
        DataError: If it cannot be loaded, or has no training part.
    """
    label = f"data.name=huggingface{f':{name}' if name else ''}"
    datasets = require("datasets", "huggingface", label)
    if (name is None) == (path is None):
        raise DataError(f"{label}: got data.path={path}, expected data.name=huggingface:NAME, or a folder in data.path")
    try:
        if path is not None and any((path / file).exists() for file in ("dataset_dict.json", "state.json")):
            made = datasets.load_from_disk(str(path))
        else:
            made = datasets.load_dataset(name or str(path), **options)
    except LabError:
        raise
    except Exception as error:
        raise DataError(
            f"{label}: it cannot be loaded: {str(error).splitlines()[0]}; check its name and data.options"
        ) from error
    if not isinstance(made, Mapping):
        return {None: made}
    parts: dict[int | None, Any] = {PARTS[word]: part for word, part in made.items() if word in PARTS}
    if PARTS["train"] not in parts:
        raise DataError(
            f"{label}: it has the parts {', '.join(made)}, expected train; choose one by data.options.split="
        )
    return parts


def from_tables(
    parts: Mapping[int | None, Any],
    where: str,
    *,
    columns: str | Sequence[str] | None,
    target: str | None,
    dtype: str = "float32",
    **how: Any,
) -> Source:
    """Return tables as a source.

    Columns of numbers become inputs beside the target's. Where others are read, one column and a target become pairs,
    if it is chosen by name, and rows are dicts otherwise.

    Args:
        parts: The tables by the code of their part.
        where: The setting that names them, for messages.
        columns: The columns to read; None takes all.
        target: The column of the target; None takes `label`, `labels`, `target` or `targets`, if there is one.
        dtype: What inputs become: `float32`, or `int64` for whole numbers.
        **how: Further arguments of `from_factory`.

    Raises:
        DataError: If a column is missing.
    """
    first = next(iter(parts.values()))
    if is_stream(first):
        return from_factory(by_name(parts), where, dtype, target=target, **how)
    there = list(first.column_names)
    chosen = [columns] if isinstance(columns, str) else columns
    for setting, names in (("data.target", [target] if target else []), ("data.columns", chosen or [])):
        for name in names:
            if name not in there:
                near = nearest(name, there)
                hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(there)}"
                raise DataError(f"{setting}: {where} has no column {name!r}; {hint}")
    target = target or next((name for name in _TARGETS if name in there), None)
    inputs = [name for name in chosen or there if name not in (target, how.get("weights"))]
    is_plain = target is not None and how.get("collate") is None and how.get("task") != "custom"
    if is_plain and inputs and all(_is_numeric(first, name) for name in inputs):
        return _numeric(parts, where, inputs, str(target), dtype, how.get("weights"))
    is_pair = target is not None and chosen is not None and len(inputs) == 1
    read = inputs if is_pair or target is None else [*inputs, target]
    rows = {part: Rows(table, read, target, how.get("weights"), is_pair=is_pair) for part, table in parts.items()}
    return from_factory(by_name(rows), where, dtype, target=target, **how)


def _numeric(
    parts: Mapping[int | None, Any], where: str, inputs: list[str], target: str, dtype: str, weights: str | None
) -> Source:
    arrays = []
    for part, table in parts.items():
        arrow = _arrow(table)
        values = np.stack([arrow.column(name).to_numpy() for name in inputs], 1)
        arrays.append((part, values, _plain(arrow.column(target))))
    source = from_arrays(arrays, where, dtype)
    first = next(iter(parts.values()))
    weighed = (
        [_plain(_arrow(table).column(weights)) for table in parts.values()] if weights in first.column_names else []
    )
    return dataclasses.replace(
        source,
        classes=_classes(first, target),
        features=tuple(inputs),
        target_names=(target,),
        weights=np.concatenate(weighed) if weighed else None,
    )


def _arrow(table: Any) -> Any:
    """Return a table of pyarrow."""
    return table if hasattr(table, "to_pylist") else table.with_format("arrow")[:]


def _plain(column: Any) -> np.ndarray:
    values = column.to_numpy()
    return values.astype(str) if values.dtype.kind == "O" and all(isinstance(one, str) for one in values) else values


def _is_numeric(table: Any, name: str) -> bool:
    types = require("pyarrow", "parquet", "a table").types
    schema = table.schema if hasattr(table, "to_pylist") else table.features.arrow_schema
    kind = schema.field(name).type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _classes(table: Any, target: str | None) -> tuple[str, ...] | None:
    names = getattr(getattr(table, "features", {}).get(target), "names", None)
    return tuple(names) if names else None


def _value(value: Any) -> Any:
    """Return lists of numbers as arrays."""
    if isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
        return np.asarray(value)
    return value
