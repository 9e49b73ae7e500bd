"""Texts with a target each, from a csv, JSON lines, a folder of classes, or the docstrings that come with Python."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingredients.config.construct import build
from ingredients.datasets.csv_cells import read_cells, typed
from ingredients.datasets.csv_table import read_targets, refuse_column
from ingredients.datasets.fitted import Preparation
from ingredients.datasets.samples import Source
from ingredients.datasets.vocabulary import PADDING, Vocabulary
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["Texts", "read_texts"]

# Packages of the standard library, for want of other texts.
_PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
# Columns that targets, and texts, are looked for in, in this order.
_TARGETS = ("label", "labels", "target", "targets")
_TEXT = "text"
_FILES = "*.txt"


class Texts:
    """Texts as sequences of codes of different lengths; a map-style dataset, and batches of it.

    Args:
        words: The words of each text, as `Vocabulary.split` returns them.
        vocabulary: What they are encoded by.
    """

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
        """Shape of the longest text that there may be."""
        return (self.vocabulary.max_length,)

    @property
    def lengths(self) -> np.ndarray:
        """Words of each text (texts,)."""
        return np.array([len(codes) for codes in self._codes], np.int64)

    def fitted(self, indices: np.ndarray) -> Texts:
        """Return the texts encoded by the words of some of them: those to train on."""
        return Texts(self.words, self.vocabulary.fitted(self.words[index] for index in indices.tolist()))

    def rows_at(self, indices: np.ndarray) -> Texts:
        """Return some of the texts."""
        return Texts([self.words[index] for index in indices.tolist()], self.vocabulary)

    def batch_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the codes of some texts, int64 (texts, words of the longest), filled up with `PADDING`."""
        found = [self._codes[index] for index in indices.tolist()]
        batch = np.full((len(found), max(map(len, found), default=0)), PADDING, np.int64)
        for row, codes in zip(batch, found, strict=True):
            row[: len(codes)] = codes
        return batch


def read_texts(
    path: Path | None,
    target: str | None = None,
    column: str | None = None,
    options: Mapping[str, Any] = {},
    trained: Preparation | None = None,
    *,
    needs_targets: bool = True,
) -> Source:
    """Read texts.

    Args:
        path: A csv, JSON lines (`.jsonl`), a folder with a folder of `*.txt` for each class; to predict also a `.txt`
            with a text on each line, or a folder of `*.txt`. None reads docstrings of Python's standard library, whose
            targets are the packages that they come from.
        target: Column of the targets; None takes the one that the model was trained on, label, or the last.
        column: Column of the texts; None takes the one that the model was trained on, text, or the first.
        options: Fields of `Vocabulary`.
        trained: What the data of the model were prepared by; its vocabulary goes before `options`.
        needs_targets: Whether each text has to have a target.

    Raises:
        DataError: If there are no texts, or no targets.
    """
    vocabulary = None if trained is None else trained.vocabulary
    if vocabulary is None:
        if "words" in options:
            raise DataError("data.options.words: the words are those of the training part; leave it out")
        vocabulary = build(Vocabulary, options, "data.options", DataError)
    column_names: tuple[str, str | None] | None = None
    names: tuple[str, ...] | None = None
    targets: np.ndarray | None = None
    if path is None:
        texts, targets = _docstrings()
    elif path.is_dir():
        texts, targets, names = _read_folder(path)
    elif path.suffix.lower() == ".txt":
        texts = [line for line in _read(path).splitlines() if line.strip()]
    else:
        is_csv = path.suffix.lower() != ".jsonl"
        frame = read_cells(path) if is_csv else _read_lines(path)
        column_names = _columns_of(list(frame.columns), target, column, trained, path)
        frame = typed(frame, as_text=column_names[:1]) if is_csv else frame
        texts = _texts_of(frame, column_names[0], path)
        if column_names[1] is not None:
            targets = read_targets(frame, [column_names[1]], path, needs_targets=needs_targets)
    if needs_targets and targets is None:
        raise DataError(
            f"data.path={path}: its texts have no targets; give a csv or .jsonl with a column of them, or a folder "
            "with a folder for each class"
        )
    found = Texts([vocabulary.split(text) for text in texts], vocabulary)
    text, named = column_names or (None, None)
    return Source(
        found,
        targets,
        features=None if text is None else (text,),
        target_names=None if named is None else (named,),
        names=names,
        digest=_digest(texts, targets),
        lengths=found.lengths,
    )


def _docstrings() -> tuple[list[str], np.ndarray]:
    """Return the docstrings of some packages of the standard library, and the packages; nothing is imported."""
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, str] = {}
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.setdefault(ast.get_docstring(node) or "", package)
    found.pop("", None)
    return list(found), np.array(list(found.values()))


def _read_folder(folder: Path) -> tuple[list[str], np.ndarray | None, tuple[str, ...]]:
    files = sorted(folder.rglob(_FILES))
    if not files:
        raise DataError(f"data.path={folder}: has no files {_FILES}; give a folder with some, or a csv or .jsonl")
    names = [file.relative_to(folder) for file in files]
    texts, classes = [_read(file) for file in files], [name.parts[0] for name in names if len(name.parts) > 1]
    targets = np.array(classes) if len(classes) == len(names) else None
    return texts, targets, tuple(name.as_posix() for name in names)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.path: {file} cannot be read as text in UTF-8: {error}") from error


def _read_lines(path: Path) -> pandas.DataFrame:
    import pandas

    try:
        return pandas.read_json(path, lines=True, dtype=False)
    except (ValueError, OSError) as error:
        raise DataError(f"data.path: {path} cannot be read as JSON lines: {error}") from error


def _columns_of(
    columns: list[str], target: str | None, column: str | None, trained: Preparation | None, path: Path
) -> tuple[str, str | None]:
    """Return which column holds the texts, and which the targets; None if none does."""
    if trained is not None:
        column = column or (trained.features or (None,))[0]
        target = target or (trained.target_names or (None,))[0]
    text = column or next((name for name in columns if name == _TEXT), None)
    usual = next((name for name in _TARGETS if name in columns), None)
    if trained is None:
        target = target or usual or next((name for name in reversed(columns) if name != text), None)
    elif target not in columns:
        target = usual
    text = text or next((name for name in columns if name != target), _TEXT)
    if text not in columns:
        refuse_column("data.columns", path, [text], columns)
    if target is not None and target not in columns:
        refuse_column("data.target", path, [target], columns)
    return text, None if target == text else target


def _texts_of(frame: pandas.DataFrame, column: str, path: Path) -> list[str]:
    missing = np.flatnonzero(frame[column].isna())
    if len(missing):
        raise DataError(
            f"data.path={path}: {len(missing)} texts are missing in the column {column}, the first in row "
            f"{missing[0] + 1}; fill them in or remove those rows"
        )
    return [str(text) for text in frame[column]]


def _digest(texts: Sequence[str], targets: np.ndarray | None) -> str:
    total = hashlib.sha256()
    for number, text in enumerate(texts):
        total.update(
            f"{len(text)} {text} {'' if targets is None else targets[number]}\0".encode(errors="surrogatepass")
        )
    return total.hexdigest()
