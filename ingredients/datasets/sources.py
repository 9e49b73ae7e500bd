"""Sources of data by name: bundled sets, files, torchvision, Hugging Face, a user's factory; and descriptions of data.

Sources use numpy, so that data can be inspected without torch. A source holds arrays in memory, as those of npz and idx
files, or a map-style dataset (`len`, `[index] -> (input, target)`) that is read item by item. `data.stats` prints
descriptions of prepared data, and of files that cannot be trained on.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gzip
import importlib.util
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacristan.configs.files import find_file
from sacristan.configs.map import abbreviated
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.construct import import_object, is_dotted_path, require
from sacristan.ingredients.datasets.csv_cells import PACKED, read_cells, typed
from sacristan.ingredients.datasets.csv_table import read_csv
from sacristan.ingredients.datasets.factories import from_code, from_torchvision
from sacristan.ingredients.datasets.image_folder import image_files, read_image_folder
from sacristan.ingredients.datasets.item_files import read_hugging_face, read_parquet, read_tar
from sacristan.ingredients.datasets.preparation import Prepared
from sacristan.ingredients.datasets.samples import Sequences, Source, SourceSettings, from_arrays
from sacristan.ingredients.datasets.source_checks import reading
from sacristan.ingredients.datasets.splitting import PARTS, SPLITS, TEST, TRAIN
from sacristan.ingredients.datasets.structured import Streams
from sacristan.ingredients.datasets.texts import read_texts
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

# A part of the data: its code, inputs, targets.
_Part = tuple[int | None, np.ndarray, np.ndarray | None]
# Names of the arrays of inputs and targets, in order of preference.
_ARRAYS = (("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels"))

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")
_OF_ITEMS = ("path", "columns", "target", "dtype", "collate", "weights")
_OF_CSV = ("path", "target", "columns", "categorical", "encoding", "missing", "na_values", "csv", "dtype", "weights")
# Values of settings that ask for nothing.
_UNSET: tuple = (None, {}, [], "float32", "one_hot", "refuse", "random")
_HEADER = ["name", "type", "values", "missing", "distinct", "range"]
# Distinct values of larger arrays take too long to count.
_MAX_COUNTED = 1_000_000


def _read_npz(path: Path, settings: SourceSettings) -> Source:
    """Read `x` and `y`, or `x_train` and so on, and weights (samples,); to predict, `x` or `x_test` may stand alone."""
    arrays = _load_arrays(path)
    source = _source_of(arrays, path, needs_targets=settings.needs_targets, dtype=settings.dtype)
    source = dataclasses.replace(source, split_values=_split_values(arrays, source, settings))
    weights = arrays.get(str(settings.weights))
    if weights is None:
        return source
    is_train = np.ones(source.num_samples, bool) if source.part is None else source.part == TRAIN
    if weights.shape != (is_train.sum(),) or weights.dtype.kind not in "biuf":
        raise DataError(
            f"data.weights={settings.weights}: got an array of shape {weights.shape} and type {weights.dtype}, "
            f"expected {is_train.sum()} numbers, one per sample"
        )
    whole = np.zeros(source.num_samples)
    whole[is_train] = weights
    return dataclasses.replace(source, weights=whole)


def _split_values(arrays: dict[str, np.ndarray], source: Source, settings: SourceSettings) -> np.ndarray | None:
    """Return the groups or times to split by: one array, or one for each part, such as `patient_train`."""
    name = settings.split_column
    if name is None or name in arrays or source.part is None:
        return None if name is None else arrays.get(name)
    by_part = {code: arrays[f"{name}_{word}"] for word, code in PARTS.items() if f"{name}_{word}" in arrays}
    codes = list(dict.fromkeys(source.part.tolist()))
    return np.concatenate([by_part[code] for code in codes]) if by_part.keys() >= set(codes) else None


def _source_of(arrays: dict[str, np.ndarray], path: Path, *, needs_targets: bool, dtype: str) -> Source:
    candidates = (_parts_of(arrays, *names, needs_targets=needs_targets) for names in _ARRAYS)
    parts: list[_Part] = next(filter(None, candidates), [])
    if not parts and not needs_targets:
        parts += [(None, arrays[inputs], None) for inputs, _ in _ARRAYS if inputs in arrays][:1]
    if parts:
        return from_arrays(parts, f"data.path: {path}", dtype)
    raise DataError(
        f"data.path: {path} holds {', '.join(arrays) or 'no arrays'}; "
        + ("expected x and y, or x_train, y_train, x_test, y_test" if needs_targets else "expected x, or x_test")
    )


def _parts_of(arrays: dict[str, np.ndarray], inputs: str, targets: str, *, needs_targets: bool) -> list[_Part]:
    """Return the (part, inputs, targets) triples of arrays that are called like a pair of names."""
    if inputs in arrays and targets in arrays:
        return [(None, arrays[inputs], arrays[targets])]
    if not needs_targets and f"{inputs}_test" in arrays and f"{targets}_test" not in arrays:
        return [(TEST, arrays[f"{inputs}_test"], None)]
    return [
        (part, arrays[f"{inputs}_{word}"], arrays[f"{targets}_{word}"])
        for word, part in PARTS.items()
        if f"{inputs}_{word}" in arrays and f"{targets}_{word}" in arrays
    ]


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name, without executing code."""
    with reading(path, ".npz", Exception), np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _read_idx(path: Path, settings: SourceSettings) -> Source:
    """Read images (samples, 1, height, width) and labels in MNIST's IDX format: http://yann.lecun.com/exdb/mnist.

    `path` is a folder with files such as `train-images-idx3-ubyte`, gzipped or not, or a file; names may define parts.
    """
    folder = path if path.is_dir() else path.parent
    parts = []
    for images in sorted(folder.glob("*images*idx3*")):
        if images.suffix == ".gz" and images.with_suffix("").exists():
            continue
        part = next((PARTS[word] for word in images.name.split("-") if word in PARTS), None)
        parts.append((part, _read_idx_array(images), _labels_of(images, needs_targets=settings.needs_targets)))
    if not parts:
        raise DataError(
            f"data.path: {folder} has no files like train-images-idx3-ubyte(.gz), which data.name=idx reads"
        )
    return from_arrays(parts, f"data.path: {folder}", settings.dtype)


def _labels_of(images: Path, *, needs_targets: bool) -> np.ndarray | None:
    """Return the labels in the file beside images, gzipped or not; None without one."""
    plain = images.with_name(images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1"))
    labels = next((file for file in (plain, plain.with_name(f"{plain.name}.gz")) if file.exists()), None)
    if labels is None and needs_targets:
        raise DataError(f"data.path: {images} has no labels beside it; expected {plain.name}, gzipped or not")
    return None if labels is None else _read_idx_array(labels)


def _read_idx_array(path: Path) -> np.ndarray:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"data.path: {path} cannot be read: {error}; download it again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(f"data.path: {path} is not in the IDX format; expected two zero bytes and a type at its start")
    kind, ndim = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    shape = np.frombuffer(raw, ">u4", ndim, 4) if len(raw) >= 4 + 4 * ndim else np.zeros(0, ">u4")
    expected = 4 + 4 * ndim + math.prod(int(size) for size in shape) * kind.itemsize
    if len(shape) < ndim or len(raw) != expected:
        raise DataError(f"data.path: {path} has {len(raw)} bytes, expected {expected} by its header; download it again")
    return np.frombuffer(raw, kind, offset=4 + 4 * ndim).reshape([int(size) for size in shape])


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A kind of file by `suffixes`, also compressed: what reads it, and which settings besides `data.name` apply."""

    read: Callable[[Any, SourceSettings], Source]
    settings: tuple[str, ...]
    suffixes: tuple[str, ...] = ()


# Each kind of file by its `data.name`. To add one, add a row here.
FILES = {
    "npz": FileKind(_read_npz, ("path", "dtype", "weights", "split"), (".npz",)),
    "csv": FileKind(read_csv, (*_OF_CSV, "split"), (".csv", ".tsv", ".tab")),
    "text": FileKind(read_texts, ("path", "target", "columns", "options", "csv", "split"), (".jsonl",)),
    "idx": FileKind(_read_idx, ("path", "dtype")),
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


def kind_of(path: str | None) -> str:
    """Return the `data.name` for a path: of its ending or content, `image_folder` for a folder, otherwise `digits`.

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
        names = [*BUNDLED, *FILES, "huggingface:NAME", "torchvision:NAME", "package.module:factory"]
        raise DataError(f"data.name: got {name!r}, which is unknown; {suggestion(name, names)}")


def _check_path(name: str, path: str | None) -> None:
    if path is None and name != "text":
        raise DataError(f"data.path: got None, but data.name={name} reads from a path; write data.path=...")
    file = SourceSettings(name, path).file
    if file is not None and not file.exists():
        raise DataError(f"data.path: there is no {path!r} (from {Path.cwd()}); check the path")


@functools.cache
def read_bundled(name: str) -> Source:
    """Read a bundled dataset, once per process and its forks; callers that change it use `load_source`."""
    if name == "digits":
        images, labels = read_digits()
        return Source((images / 16).astype(np.float32)[:, None], labels, tuple(map(str, range(10))))
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    classes = tuple(map(str, bunch.target_names)) if hasattr(bunch, "target_names") else None
    return Source(bunch.data.astype(np.float32), bunch.target, classes, features=tuple(map(str, bunch.feature_names)))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return grey images (1797, 8, 8) of digits, from 0 to 16, and labels (1797,), from scikit-learn's files.

    Its own `load_digits` takes a second to import. Source: https://archive.ics.uci.edu/dataset/80
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


def describe(prepared: Prepared) -> dict[str, Any]:
    """Describe prepared data, for `data.stats`.

    The keys are `task`, `classes`, `input_shape`, `dtype`, `fingerprint`, and `splits`: the `count` of samples,
    `classes` (counts) or `targets` (lowest and highest), and `mean`, `std` and number of `missing` values of the inputs
    as trained on; NaN for structured samples and texts.
    """
    by = prepared.preparation
    if isinstance(prepared.inputs, Streams):
        nothing = {"mean": math.nan, "std": math.nan, "missing": 0}
        parts = prepared.inputs.parts.items()
        splits = {SPLITS[code]: {"count": part.length or 0, **nothing} for code, part in parts}
    else:
        splits = {name: _describe_split(prepared, index) for name, index in prepared.indices.items()}
    return {
        "task": by.task,
        "classes": list(by.classes),
        "input_shape": list(by.input_shape),
        "dtype": by.dtype,
        "fingerprint": prepared.fingerprint,
        "splits": splits,
    }


def _describe_split(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    row = {"count": len(index), **_describe_inputs(prepared, index)}
    targets, by = prepared.targets[index], prepared.preparation
    if by.task == "multilabel":
        row["classes"] = targets.sum(0).astype(int).tolist()
    elif by.task == "regression" and len(index):
        if by.target_std is not None:
            targets = targets * by.target_std + by.target_mean
        row["targets"] = [float(targets.min()), float(targets.max())]
    elif by.task != "regression" and by.classes and prepared.has_targets:
        row["classes"] = np.bincount(targets[targets >= 0], minlength=len(by.classes)).tolist()
    return row


def _describe_inputs(prepared: Prepared, index: np.ndarray) -> dict[str, Any]:
    missing, count, total, squares = 0, 0, 0.0, 0.0
    has_moments = prepared.preparation.task != "custom" and not isinstance(prepared.inputs, Sequences)
    for part in np.array_split(index, math.ceil(len(index) / 256)) if has_moments and len(index) else ():
        values = prepared.values(part)
        good = values[np.isfinite(values)].astype(np.float64)
        missing += values.size - good.size
        count, total, squares = count + good.size, total + float(good.sum()), squares + float((good**2).sum())
    mean = total / count if count else math.nan
    std = math.sqrt(max(squares / count - mean**2, 0)) if count else math.nan
    return {"mean": mean, "std": std, "missing": missing}


def survey(name: str, path: str, csv: Mapping[str, Any] = {}) -> list[list[Any]] | None:
    """Describe columns of a csv, arrays, or folders of images as rows and a header; None for other kinds."""
    where = find_file(Path(path).expanduser())
    if name == "image_folder" and where.is_dir():
        return [["folder", "images", "sizes"], *_of_folders(where)]
    rows: Iterable[list[Any]]
    if name == "csv":
        frame = typed(read_cells(where, csv=csv), csv=csv)
        rows = (_of_column(frame[column]) for column in frame.columns)
    elif name == "npz":
        rows = (_of_array(key, array) for key, array in _load_arrays(where).items())
    elif name == "idx":
        files = sorted((where if where.is_dir() else where.parent).glob("*-idx?-ubyte*"))
        rows = (_of_array(file.name, _read_idx_array(file)) for file in files)
    else:
        return None
    return [_HEADER, *rows]


def _of_column(column: pandas.Series) -> list[Any]:
    kind = {"b": "bools", "i": "integers", "u": "integers", "f": "numbers"}.get(column.dtype.kind, "text")
    present = column.dropna()
    if kind == "text":
        shown = abbreviated(present.astype(str).value_counts().index, 3)
    else:
        shown = _range(present.to_numpy())
    return [column.name, kind, len(present), len(column) - len(present), int(present.nunique()), shown]


def _of_array(name: str, array: np.ndarray) -> list[Any]:
    is_number = array.dtype.kind in "biuf"
    missing = int(array.size - np.isfinite(array).sum()) if is_number else 0
    distinct = len(np.unique(array)) if array.size <= _MAX_COUNTED and array.dtype.kind != "O" else ""
    shape = "x".join(map(str, array.shape))
    return [name, f"{array.dtype} {shape}", array.size, missing, distinct, _range(array) if is_number else ""]


def _range(values: np.ndarray) -> str:
    if values.dtype.kind == "b":
        values = values.astype(int)
    values = values[np.isfinite(values)]
    return f"{values.min():.6g} to {values.max():.6g}" if values.size else "none"


def _of_folders(top: Path) -> Iterator[list[Any]]:
    image = require("PIL.Image", "images", "data.name=image_folder")
    by_folder: dict[str, list[Path]] = {}
    for file in image_files(top):
        by_folder.setdefault(file.parent.relative_to(top).as_posix(), []).append(file)
    for folder, files in by_folder.items():
        sizes: Counter[str] = Counter()
        for file in files:
            try:
                with image.open(file) as opened:
                    sizes["x".join(map(str, opened.size))] += 1
            except (OSError, image.DecompressionBombError):
                sizes["unreadable"] += 1
        yield [folder, len(files), abbreviated((f"{size} ({count})" for size, count in sizes.most_common()), 3)]
