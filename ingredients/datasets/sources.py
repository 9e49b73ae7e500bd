"""Where data come from: bundled sets, files, folders of images, torchvision, a user's factory.

Everything here is numpy, so that data can be looked at without torch. A source gives either arrays, which are kept in
memory, or a map-style dataset (`len`, `[index] -> (input, target)`), which is read item by item.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gzip
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingredients.config.construct import build, import_object, is_dotted_path
from ingredients.config.nearest import nearest
from ingredients.config.seed import global_stream
from ingredients.datasets.arrow_tables import from_tables, read_hugging_face, read_parquet
from ingredients.datasets.csv_table import read_csv
from ingredients.datasets.factories import from_factory, from_torchvision
from ingredients.datasets.files import read_idx, read_image_folder, read_npz
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source
from ingredients.datasets.splitting import by_name
from ingredients.datasets.tar_shards import read_tar
from ingredients.datasets.texts import read_texts
from ingredients.errors import DataError

__all__ = ["BUNDLED", "FILES", "check_options", "check_source", "kind_of", "load_source", "read_bundled", "read_digits"]

BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What is asked of a kind of file; see `load_source`."""

    target: str | Sequence[str] | None
    image_size: int | None
    options: Mapping[str, Any]
    trained: Preparation | None
    columns: str | Sequence[str] | None
    categorical: str | Sequence[str] | None
    encoding: str
    missing: str
    na_values: Sequence[str]
    dtype: str
    task: str
    collate: Callable[[list], Any] | None
    weights: str | None
    needs_targets: bool

    @property
    def key(self) -> str | None:
        """The name of the target, where there is one."""
        return self.target if isinstance(self.target, str) else None

    @property
    def of_items(self) -> dict[str, Any]:
        """What sources of items take beside their columns and dtype."""
        return {"task": self.task, "target": self.key, "collate": self.collate, "weights": self.weights}


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A kind of file that data come from.

    Attributes:
        read: Reads one, by its path; a text may be without.
        settings: Those that it reads, beside `data.name`; others are refused.
        suffix: The ending of its files, from which `data.name` follows; None if `kind_of` tells it otherwise.
    """

    read: Callable[[Any, _Asked], Source]
    settings: tuple[str, ...]
    suffix: str | None = None


def _read_npz(path: Path, asked: _Asked) -> Source:
    return read_npz(path, needs_targets=asked.needs_targets, dtype=asked.dtype, weights=asked.weights)


def _read_csv(path: Path, asked: _Asked) -> Source:
    return read_csv(
        path,
        asked.target,
        asked.trained,
        columns=asked.columns,
        categorical=asked.categorical,
        encoding=asked.encoding,
        missing=asked.missing,
        na_values=asked.na_values,
        dtype=asked.dtype,
        weights=asked.weights,
        needs_targets=asked.needs_targets,
    )


def _read_text(path: Path | None, asked: _Asked) -> Source:
    columns = asked.columns
    column = columns if isinstance(columns, str | None) else next(iter(columns), None)
    return read_texts(path, asked.key, column, asked.options, asked.trained, needs_targets=asked.needs_targets)


def _read_idx(path: Path, asked: _Asked) -> Source:
    return read_idx(path, needs_targets=asked.needs_targets, dtype=asked.dtype)


def _read_image_folder(path: Path, asked: _Asked) -> Source:
    return read_image_folder(path, asked.image_size, asked.trained, needs_targets=asked.needs_targets)


def _read_tar(path: Path, asked: _Asked) -> Source:
    shards = by_name(read_tar(path, asked.columns))
    return from_factory(shards, f"data.path={path}", asked.dtype, **asked.of_items)


def _read_parquet(path: Path, asked: _Asked) -> Source:
    parts = read_parquet(path)
    return from_tables(parts, f"data.path={path}", columns=asked.columns, dtype=asked.dtype, **asked.of_items)


_OF_ITEMS = ("path", "columns", "target", "dtype", "collate", "weights")
# Each kind of file, by its `data.name`. A new one is a row here.
FILES = {
    "npz": FileKind(_read_npz, ("path", "dtype", "weights"), ".npz"),
    "csv": FileKind(
        _read_csv,
        ("path", "target", "columns", "categorical", "encoding", "missing", "na_values", "dtype", "weights"),
        ".csv",
    ),
    "text": FileKind(_read_text, ("path", "target", "columns", "options"), ".jsonl"),
    "idx": FileKind(_read_idx, ("path", "dtype")),
    "image_folder": FileKind(_read_image_folder, ("path", "image_size")),
    "tar": FileKind(_read_tar, _OF_ITEMS, ".tar"),
    "parquet": FileKind(_read_parquet, _OF_ITEMS, ".parquet"),
}
# Settings that each kind of data reads; those of code are in `_READ_OF_CODE`.
_READ = {name: kind.settings for name, kind in FILES.items()} | {"huggingface": (*_OF_ITEMS, "options")}
_OF_CODE = ["torchvision:NAME", "package.module:factory"]
_READ_OF_CODE = dict.fromkeys(("options", "dtype", "collate"), _OF_CODE)
_READ_OF_CODE |= {"path": _OF_CODE[:1], "target": _OF_CODE[1:], "weights": _OF_CODE[1:]}
# Values of settings that ask for nothing.
_UNSET: tuple = (None, {}, [], "float32", "one_hot", "refuse")


def kind_of(path: str | None) -> str:
    """Return the kind of data that a path is of, by its ending; the digits without one, or if that does not tell.

    >>> kind_of("configs/iris.csv")
    'csv'
    """
    if path is None:
        return "digits"
    where = Path(path).expanduser()
    if where.is_dir():
        if any(where.glob("*-idx?-ubyte*")):
            return "idx"
        if any(where.glob("*.parquet")) or any(where.glob("*/*.parquet")):
            return "parquet"
        if any((where / name).exists() for name in ("dataset_dict.json", "state.json")):
            return "huggingface"
        return "tar" if any(where.glob("*.tar")) or any(where.glob("*/*.tar")) else "image_folder"
    suffix = where.suffix.lower()
    return next((name for name, kind in FILES.items() if kind.suffix == suffix), "digits")


def check_options(name: str, **given: Any) -> None:
    """Refuse settings that the data called `name` do not read, rather than to train on other data than were meant.

    Args:
        name: As in the config of the data ingredient.
        **given: `path`, `target`, `columns`, `categorical`, `encoding`, `missing`, `na_values`, `dtype`, `options`,
            `image_size`, `collate` and `weights`.

    Raises:
        DataError: If one of them is set in vain.
    """
    if name in BUNDLED:
        read: tuple[str, ...] = ()
    elif name.startswith("huggingface:"):
        read = tuple(key for key in _READ["huggingface"] if key != "path")
    elif name.startswith("torchvision:"):
        read = ("path", "options", "dtype", "collate")
    else:
        read = _READ.get(name, ("options", "dtype", "collate", "target", "weights"))
    for key, value in given.items():
        if key in read or value in _UNSET:
            continue
        readers = [kind for kind, keys in _READ.items() if key in keys] + _READ_OF_CODE.get(key, [])
        raise DataError(
            f"data.{key}: got {value!r}, which data.name={name} does not read; leave it out, or write data.name= with "
            f"one that does: {', '.join(readers)}"
        )


def load_source(
    name: str,
    path: str | None = None,
    target: str | Sequence[str] | None = None,
    image_size: int | None = None,
    options: Mapping[str, Any] = {},
    seed: int = 0,
    trained: Preparation | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    encoding: str = "one_hot",
    missing: str = "refuse",
    na_values: Sequence[str] = (),
    dtype: str = "float32",
    task: str = "auto",
    collate: Callable[[list], Any] | None = None,
    weights: str | None = None,
    needs_targets: bool = True,
) -> Source:
    """Load the data called `name`.

    A factory that draws from the global generators draws from the stream `factory` of `seed`.

    Args:
        name, path, target, image_size, options: As in the config of the data ingredient.
        seed: Seed of the experiment.
        trained: What the data of a model were prepared by that these are for, too.
        columns, categorical, encoding, missing, na_values, dtype, task, weights: As in the config; those of `trained`
            go before them.
        collate: What makes a batch of samples of any structure, if it is given.
        needs_targets: Whether files have to hold targets.

    Raises:
        DataError: If there are no such data, or they cannot be read.
    """
    if name in BUNDLED:
        return _bundled(name)
    check_source(name, path)
    if trained is not None:
        dtype, task = trained.dtype, trained.task
    where = None if path is None else Path(path).expanduser()
    asked = _Asked(
        target=target,
        image_size=image_size,
        options=options,
        trained=trained,
        columns=columns,
        categorical=categorical,
        encoding=encoding,
        missing=missing,
        na_values=na_values,
        dtype=dtype,
        task=task,
        collate=collate,
        weights=weights,
        needs_targets=needs_targets,
    )
    if name in FILES:
        return FILES[name].read(where, asked)
    if name.partition(":")[0] == "huggingface":
        parts = read_hugging_face(name.partition(":")[2] or None, where, options)
        return from_tables(parts, f"data.name={name}", columns=columns, dtype=dtype, **asked.of_items)
    if name.startswith("torchvision:"):
        return from_torchvision(name.partition(":")[2], path, options, dtype, task=task, collate=collate)
    with global_stream(seed, "factory"):
        made = build(import_object(name, "data.name"), options, "data.options", DataError)
    return from_factory(made, f"data.name={name}", dtype, **asked.of_items)


def check_source(name: str, path: str | None) -> None:
    """Refuse data that are not there, before they are read.

    Raises:
        DataError, ConfigError: If there are no such data.
    """
    if name in (*FILES, "huggingface"):
        if path is None and name == "text":
            return
        if path is None:
            raise DataError(f"data.path: got None, but data.name={name} reads from a path; write data.path=...")
        if not Path(path).expanduser().exists():
            raise DataError(f"data.path: there is no {path!r} (from {Path.cwd()}); check the path")
    elif name in BUNDLED or name.startswith(("torchvision:", "huggingface:")):
        return
    elif Path(name).suffix in (".npz", ".csv"):
        raise DataError(f"data.name: got {name!r}, which is a path; write data.path={name}")
    elif is_dotted_path(name):
        factory = import_object(name, "data.name")
        if not callable(factory):
            raise DataError(f"data.name: {name} is a {type(factory).__name__}, expected a function that makes the data")
    else:
        known = [*BUNDLED, *FILES, "huggingface:NAME", "torchvision:NAME", "package.module:factory"]
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
        raise DataError(f"data.name: got {name!r}, which is unknown; {hint}")


def _bundled(name: str) -> Source:
    return copy.deepcopy(read_bundled(name))  # what is done to it is nobody else's


@functools.cache
def read_bundled(name: str) -> Source:
    """Read a bundled data set once in a process: runs one after the other, and forked ones, need not parse it again."""
    if name == "digits":
        images, labels = read_digits()
        return Source((images / 16).astype(np.float32)[:, None], labels, tuple(map(str, range(10))))
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    classes = tuple(map(str, bunch.target_names)) if hasattr(bunch, "target_names") else None
    return Source(bunch.data.astype(np.float32), bunch.target, classes, features=tuple(map(str, bunch.feature_names)))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images (1797, 8, 8) of handwritten digits, grey values from 0 to 16, and their labels (1797,).

    Source: https://archive.ics.uci.edu/dataset/80, as scikit-learn has it. Its `load_digits` reads the same file, after
    an import that takes a second, a fifth of what a short training takes.
    """
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    file = Path(*folders or (), "datasets", "data", "digits.csv.gz")
    if not file.is_file():  # in a version that keeps it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
