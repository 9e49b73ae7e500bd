"""Texts with targets, from a csv, JSON lines, a folder of classes, or the docstrings that come with Python."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sacristan.ingredients.config.construct import build
from sacristan.ingredients.datasets.csv_cells import read_cells, typed
from sacristan.ingredients.datasets.csv_table import read_targets
from sacristan.ingredients.datasets.fitted import PADDING, Vocabulary
from sacristan.ingredients.datasets.samples import Source, SourceSettings
from sacristan.ingredients.datasets.source_checks import TARGET_NAMES, as_list, reading, refuse_column
from sacristan.ingredients.datasets.split_rules import values_in_names
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

# Packages of the standard library whose docstrings serve as example texts.
_PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
_TEXT = "text"  # the usual column of texts
_FILES = "*.txt"


class Texts:
    """Texts as sequences of codes: a map-style dataset that also makes padded batches."""

    dtype = "int64"

    def __init__(self, words: Sequence[Sequence[str]], vocabulary: Vocabulary) -> None:
        self.words = words
        self.vocabulary = vocabulary
        self._codes = [vocabulary.encode(text) for text in words]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._codes[index], 0

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of the longest possible text: (words,)."""
        return (self.vocabulary.max_length,)

    @property
    def lengths(self) -> np.ndarray:
        """Number of words of each text, int64 (texts,)."""
        return np.array([len(codes) for codes in self._codes], np.int64)

    def fitted(self, indices: np.ndarray) -> Texts:
        """Return the texts with a vocabulary fitted on those at `indices` (texts,), the training part."""
        return Texts(self.words, self.vocabulary.fitted(self.words[index] for index in indices.tolist()))

    def rows_at(self, indices: np.ndarray) -> Texts:
        return Texts([self.words[index] for index in indices.tolist()], self.vocabulary)

    def batch_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the codes of texts as one array int64 (texts, words of the longest), padded with `PADDING`."""
        texts = [self._codes[index] for index in indices.tolist()]
        batch = np.full((len(texts), max(map(len, texts), default=0)), PADDING, np.int64)
        for row, codes in zip(batch, texts, strict=True):
            row[: len(codes)] = codes
        return batch


def read_texts(path: Path | None, settings: SourceSettings) -> Source:
    """Read texts and their targets into a source of `Texts`, whose vocabulary is empty until it is fitted.

    `path` is a csv, JSON lines (`.jsonl`), or a folder with a folder of `*.txt` per class; to predict, also a `.txt`
    with one text a line, or a folder of `*.txt`. None reads docstrings of Python's standard library, whose targets are
    their packages. The column of texts defaults to that of training, `text`, or the first; the target to that of
    training, `label`, or the last. A trained model's vocabulary overrides `options`.
    """
    vocabulary = _vocabulary(settings)
    read = _read_any(path, settings)
    if settings.needs_targets and read.targets is None:
        raise DataError(
            f"data.path={path}: its texts have no targets; give a csv or .jsonl with a column of them, or a folder "
            "with a folder for each class"
        )
    texts = Texts([vocabulary.split(text) for text in read.texts], vocabulary)
    return Source(
        texts,
        read.targets,
        features=None if read.column is None else (read.column,),
        target_names=None if read.target is None else (read.target,),
        names=read.names,
        split_values=read.split_values,
        digest=_digest(read.texts, read.targets),
        lengths=texts.lengths,
    )


def _vocabulary(settings: SourceSettings) -> Vocabulary:
    if settings.trained is not None and settings.trained.vocabulary is not None:
        return settings.trained.vocabulary
    if "words" in settings.options:
        raise DataError("data.options.words: the words come from the training part; leave it out")
    return build(Vocabulary, settings.options, "data.options", DataError)


@dataclasses.dataclass(frozen=True)
class _Read:
    """Texts as they were read: targets (texts,), names of the files, columns of a table, values to split by."""

    texts: list[str]
    targets: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    column: str | None = None
    target: str | None = None
    split_values: np.ndarray | None = None


def _read_any(path: Path | None, settings: SourceSettings) -> _Read:
    if path is None:
        return _docstrings()
    if path.is_dir():
        return _read_folder(path, settings)
    if path.suffix.lower() == ".txt":
        return _Read([line for line in _read(path).splitlines() if line.strip()])
    return _read_table(path, settings)


def _read_table(path: Path, settings: SourceSettings) -> _Read:
    is_csv = path.suffix.lower() != ".jsonl"
    frame = read_cells(path, csv=settings.csv) if is_csv else _read_lines(path)
    column = settings.split_column
    if column is not None and column not in frame.columns and settings.trained is None:
        refuse_column("data.split", path, [column], list(frame.columns))
    values = frame[column].to_numpy(object) if column in frame.columns else None
    text, target = _columns_of([name for name in frame.columns if name != column], settings, path)
    frame = typed(frame, as_text=[text], csv=settings.csv) if is_csv else frame
    texts = _texts_of(frame, text, path)
    if target is None:
        return _Read(texts, column=text, split_values=values)
    targets = read_targets(frame, [target], path, needs_targets=settings.needs_targets)
    return _Read(texts, targets, column=text, target=target, split_values=values)


def _docstrings() -> _Read:
    """Return the docstrings of some packages of the standard library, and the packages; imports nothing."""
    root = Path(sysconfig.get_path("stdlib"))
    packages: dict[str, str] = {}
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    packages.setdefault(ast.get_docstring(node) or "", package)
    packages.pop("", None)
    return _Read(list(packages), np.array(list(packages.values())))


def _read_folder(folder: Path, settings: SourceSettings) -> _Read:
    files = sorted(folder.rglob(_FILES))
    if not files:
        raise DataError(f"data.path={folder}: has no files {_FILES}; give a folder with some, or a csv or .jsonl")
    names = [file.relative_to(folder) for file in files]
    texts, classes = [_read(file) for file in files], [name.parts[0] for name in names if len(name.parts) > 1]
    targets = np.array(classes) if len(classes) == len(names) else None
    paths = tuple(name.as_posix() for name in names)
    values = values_in_names(paths, settings.rule, strict=settings.trained is None)
    return _Read(texts, targets, paths, split_values=values)


def _read(file: Path) -> str:
    with reading(file, "text in UTF-8", OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8")


def _read_lines(path: Path) -> pandas.DataFrame:
    import pandas

    with reading(path, "JSON lines", ValueError, OSError):
        return pandas.read_json(path, lines=True, dtype=False)


def _columns_of(columns: list[str], settings: SourceSettings, path: Path) -> tuple[str, str | None]:
    """Return the column of texts, and that of targets or None."""
    trained = None if settings.trained is None else settings.trained.features
    text = next(iter(as_list(settings.columns) or trained or ()), _TEXT if _TEXT in columns else None)
    target = _target_of(columns, text, settings)
    text = text or next((name for name in columns if name != target), _TEXT)
    for setting, name in (("data.columns", text), ("data.target", target)):
        if name is not None and name not in columns:
            refuse_column(setting, path, [name], columns)
    return text, None if target == text else target


def _target_of(columns: list[str], text: str | None, settings: SourceSettings) -> str | None:
    usual = next((name for name in TARGET_NAMES if name in columns), None)
    if settings.trained is None:
        return settings.key or usual or next((name for name in reversed(columns) if name != text), None)
    target = settings.key or next(iter(settings.trained.target_names or ()), None)
    return target if target in columns else usual


def _texts_of(frame: pandas.DataFrame, column: str, path: Path) -> list[str]:
    missing = np.flatnonzero(frame[column].isna())
    if len(missing):
        raise DataError(
            f"data.path={path}: {len(missing)} texts are missing in the column {column}, the first in row "
            f"{missing[0] + 1}; fill them in, or remove those rows"
        )
    return [str(text) for text in frame[column]]


def _digest(texts: Sequence[str], targets: np.ndarray | None) -> str:
    total = hashlib.sha256()
    for number, text in enumerate(texts):
        total.update(
            f"{len(text)} {text} {'' if targets is None else targets[number]}\0".encode(errors="surrogatepass")
        )
    return total.hexdigest()
