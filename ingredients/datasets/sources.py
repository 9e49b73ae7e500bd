"""Sources of data by name: bundled sets, files, torchvision, Hugging Face, a user's factory.

Sources use numpy, so that data can be inspected without torch. A source holds arrays in memory, or a map-style dataset
(`len`, `[index] -> (input, target)`) that is read item by item.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gzip
import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import import_object, is_dotted_path
from sacristan.ingredients.datasets.arrow_tables import read_hugging_face, read_parquet
from sacristan.ingredients.datasets.csv_arguments import PACKED
from sacristan.ingredients.datasets.csv_table import read_csv
from sacristan.ingredients.datasets.factories import from_code, from_torchvision
from sacristan.ingredients.datasets.files import read_idx, read_npz
from sacristan.ingredients.datasets.image_folder import read_image_folder
from sacristan.ingredients.datasets.samples import Source
from sacristan.ingredients.datasets.source_settings import SourceSettings
from sacristan.ingredients.datasets.tar_shards import read_tar
from sacristan.ingredients.datasets.texts import read_texts
from sacristan.ingredients.errors import DataError

__all__ = ["BUNDLED", "FILES", "check_options", "check_source", "kind_of", "load_source", "read_bundled", "read_digits"]

BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A kind of file that data come from.

    Attributes:
        read: Reads a path with `SourceSettings`; the path may be None for `text` alone.
        settings: The settings that it reads, besides `data.name`; others are rejected.
        suffixes: File endings that select this kind, also compressed, as in `.csv.gz`.
    """

    read: Callable[[Any, SourceSettings], Source]
    settings: tuple[str, ...]
    suffixes: tuple[str, ...] = ()


_OF_ITEMS = ("path", "columns", "target", "dtype", "collate", "weights")
_OF_CSV = ("path", "target", "columns", "categorical", "encoding", "missing", "na_values", "csv", "dtype", "weights")
# Each kind of file by its `data.name`. To add one, add a row here.
FILES = {
    "npz": FileKind(read_npz, ("path", "dtype", "weights", "split"), (".npz",)),
    "csv": FileKind(read_csv, (*_OF_CSV, "split"), (".csv", ".tsv", ".tab")),
    "text": FileKind(read_texts, ("path", "target", "columns", "options", "csv", "split"), (".jsonl",)),
    "idx": FileKind(read_idx, ("path", "dtype")),
    "image_folder": FileKind(read_image_folder, ("path", "image_size", "split")),
    "tar": FileKind(read_tar, _OF_ITEMS, (".tar",)),
    "parquet": FileKind(read_parquet, (*_OF_ITEMS, "split"), (".parquet",)),
}
# Settings that each kind of data reads.
_READ = {name: kind.settings for name, kind in FILES.items()} | {
    "huggingface": (*_OF_ITEMS, "split", "options"),
    "torchvision:NAME": ("path", "options", "dtype", "collate"),
    "package.module:factory": ("options", "dtype", "collate", "target", "weights", "split"),
}
# Values of settings that ask for nothing.
_UNSET: tuple = (None, {}, [], "float32", "one_hot", "refuse", "random")


def kind_of(path: str | None) -> str:
    """Return the `data.name` for a file or folder, by its ending or content.

    Without a path or for an unknown ending it is `digits`; for a folder without known files, `image_folder`.

    >>> kind_of("configs/iris.csv")
    'csv'
    """
    if path is None:
        return "digits"
    where = Path(path).expanduser()
    if where.is_dir():
        return _kind_of_folder(where)
    suffix = (where.with_suffix("") if where.suffix.lower() in PACKED else where).suffix.lower()
    return next((name for name, kind in FILES.items() if suffix in kind.suffixes), "digits")


def _kind_of_folder(folder: Path) -> str:
    patterns = {
        "idx": ("*-idx?-ubyte*",),
        "parquet": ("*.parquet", "*/*.parquet"),
        "huggingface": ("dataset_dict.json", "state.json"),
        "tar": ("*.tar", "*/*.tar"),
    }
    for name, globs in patterns.items():
        if any(any(folder.glob(glob)) for glob in globs):
            return name
    return "image_folder"


def check_options(name: str, **settings: Any) -> None:
    """Reject settings that the data do not read, so that none is ignored silently; unset ones pass."""
    read = _read_by(name)
    for key, value in settings.items():
        if key not in read and value not in _UNSET:
            readers = [kind for kind, keys in _READ.items() if key in keys]
            raise DataError(
                f"data.{key}: got {value!r}, which data.name={name} does not read; leave it out, or set data.name to "
                f"one that does: {', '.join(readers)}"
            )


def _read_by(name: str) -> Collection[str]:
    if name in BUNDLED:
        return ()
    if name.startswith("huggingface:"):
        return {*_READ["huggingface"]} - {"path"}
    return _READ.get("torchvision:NAME" if name.startswith("torchvision:") else name, _READ["package.module:factory"])


def load_source(
    name: str, path: str | None = None, target: str | Sequence[str] | None = None, **settings: Any
) -> Source:
    """Load the data called `name`; bundled data are copied, so the caller may change them."""
    if name in BUNDLED:
        return copy.deepcopy(read_bundled(name))
    check_source(name, path)
    asked = SourceSettings(name, path, target, **settings)
    if name in FILES:
        return FILES[name].read(asked.file, asked)
    if name.partition(":")[0] == "huggingface":
        return read_hugging_face(asked.file, asked)
    if name.startswith("torchvision:"):
        return from_torchvision(name.partition(":")[2], asked)
    return from_code(name, asked)


def check_source(name: str, path: str | None) -> None:
    """Reject data that do not exist, before anything is read."""
    if name in BUNDLED or name.startswith(("torchvision:", "huggingface:")):
        return
    if name in (*FILES, "huggingface"):
        _check_path(name, path)
    elif Path(name).suffix in (".npz", ".csv", ".tsv", ".gz"):
        raise DataError(f"data.name: got {name!r}, which is a path; write data.path={name}")
    elif is_dotted_path(name):
        factory = import_object(name, "data.name")
        if not callable(factory):
            raise DataError(f"data.name: {name} is a {type(factory).__name__}, expected a function that makes the data")
    else:
        known = [*BUNDLED, *FILES, "huggingface:NAME", "torchvision:NAME", "package.module:factory"]
        raise DataError(f"data.name: got {name!r}, which is unknown; {suggestion(name, known)}")


def _check_path(name: str, path: str | None) -> None:
    if path is None and name != "text":
        raise DataError(f"data.path: got None, but data.name={name} reads from a path; write data.path=...")
    file = SourceSettings(name, path).file
    if file is not None and not file.exists():
        raise DataError(f"data.path: there is no {path!r} (from {Path.cwd()}); check the path")


@functools.cache
def read_bundled(name: str) -> Source:
    """Read a bundled dataset, once per process, so that later and forked runs need not parse it again.

    All callers share the result; use `load_source` for a copy.
    """
    if name == "digits":
        images, labels = read_digits()
        return Source((images / 16).astype(np.float32)[:, None], labels, tuple(map(str, range(10))))
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    classes = tuple(map(str, bunch.target_names)) if hasattr(bunch, "target_names") else None
    return Source(bunch.data.astype(np.float32), bunch.target, classes, features=tuple(map(str, bunch.feature_names)))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images (1797, 8, 8) of handwritten digits, grey values from 0 to 16, and their labels (1797,).

    Source: https://archive.ics.uci.edu/dataset/80, from scikit-learn's files. Its own `load_digits` takes a second to
    import, a fifth of a short training run.
    """
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    file = Path(*folders or (), "datasets", "data", "digits.csv.gz")
    if not file.is_file():  # another version of scikit-learn may keep the file elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
