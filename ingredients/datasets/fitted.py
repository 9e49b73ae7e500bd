"""`Preparation`: how data are prepared for a model, fitted on its training part and kept in its checkpoints.

Its `Vocabulary` has the words of texts as codes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sacristan.configs.map import abbreviated
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.datasets.table_columns import TableColumns
from sacristan.ingredients.errors import DataError

__all__ = ["PADDING", "UNKNOWN_WORD", "Preparation", "Vocabulary", "scaled"]

# Codes for padding and for words that are not in the vocabulary.
PADDING, UNKNOWN_WORD = 0, 1

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Codes of words: word k of `words` has the code k + 2, others `UNKNOWN_WORD`; `PADDING` pads texts.

    Attributes:
        words: Known words, most frequent first; empty before `fitted`.
        max_words: Maximum number of known words.
        min_count: Minimum number of occurrences of a known word.
        max_length: Number of words read from a text, its first ones.
        lowercase: Whether to convert texts to lower case.
    """

    words: tuple[str, ...] = ()
    max_words: int = 20_000
    min_count: int = 2
    max_length: int = 256
    lowercase: bool = True

    def __post_init__(self) -> None:
        for name in ("max_words", "min_count", "max_length"):
            if getattr(self, name) < 1:
                raise DataError(f"data.options.{name}: got {getattr(self, name)}, expected at least 1")

    @property
    def num_codes(self) -> int:
        """Number of codes."""
        return len(self.words) + 2

    def split(self, text: str) -> list[str]:
        """Return the first `max_length` words of a text; punctuation marks are words."""
        return _WORD.findall(text.lower() if self.lowercase else text)[: self.max_length]

    def fitted(self, texts: Iterable[Sequence[str]]) -> Vocabulary:
        """Return this vocabulary with the most frequent words of the training texts; ties are sorted alphabetically."""
        counts = Counter(word for text in texts for word in text)
        by_frequency = sorted((-count, word) for word, count in counts.items() if count >= self.min_count)
        return dataclasses.replace(self, words=tuple(word for _, word in by_frequency[: self.max_words]))

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Return the codes of words, int64 (words,); an empty text has one unknown word."""
        return np.array([self._codes.get(word, UNKNOWN_WORD) for word in words] or [UNKNOWN_WORD], np.int64)

    @functools.cached_property
    def _codes(self) -> dict[str, int]:
        return {word: code for code, word in enumerate(self.words, UNKNOWN_WORD + 1)}


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The preparation of a model's training data; other data for the model must be prepared the same way.

    Attributes:
        task: classification, regression, multilabel, segmentation or custom.
        input_shape: Shape of one input.
        classes: Names of the classes; empty for regression.
        class_counts: Training samples of each class or label; empty for regression.
        features: Names of the input columns, if any.
        target_names: Names of the target columns, if any.
        mean, std: Mean and deviation of the inputs, shaped to broadcast with one input; None if inputs are not
            normalised. float64 if float32 would lose digits of the inputs, which are then normalised in float64.
        target_mean, target_std: The same for regression targets (outputs,).
        num_targets: Number of classes, labels, or target values.
        image_size: Height and width that images of a folder were resized to, pixels; None keeps their size.
        split: The split whose training part it was fitted on.
        dtype: Type of the inputs: float32, or int64 for integers, which are not normalised.
        table: Encoding of the columns of a table.
        vocabulary: Codes of the words of texts.
        csv: Arguments of `pandas.read_csv` that the data were read with.
    """

    task: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    features: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    mean: np.ndarray | None
    std: np.ndarray | None
    target_mean: np.ndarray | None
    target_std: np.ndarray | None
    num_targets: int
    image_size: int | None
    split: Split
    dtype: str = "float32"
    table: TableColumns | None = None
    vocabulary: Vocabulary | None = None
    csv: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def exact_inputs(self) -> bool:
        """True if inputs are normalised in float64."""
        return self.mean is not None and self.mean.dtype == np.float64

    @property
    def exact_targets(self) -> bool:
        """True if targets are normalised in float64."""
        return self.target_mean is not None and self.target_mean.dtype == np.float64

    def scaled(self, inputs: np.ndarray) -> np.ndarray:
        """Return inputs (samples, *shape) as a model gets them, but for missing values."""
        return inputs if self.dtype != "float32" else scaled(inputs, self.mean, self.std)

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as tensors and plain values, for a checkpoint."""
        import torch

        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arrays = {name: torch.from_numpy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
        parts = {
            "split": dataclasses.asdict(self.split),
            "table": None if self.table is None else self.table.state_dict(),
            "vocabulary": None if self.vocabulary is None else dataclasses.asdict(self.vocabulary),
        }
        return state | arrays | parts

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Preparation:
        """Return the preparation that `state_dict` described.

        A state of another version may have unknown entries, which are ignored; `TypeError` if one is missing.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        entries = {name: value for name, value in state.items() if name in names}
        arrays = {
            name: entries[name].numpy()
            for name in ("mean", "std", "target_mean", "target_std")
            if entries.get(name) is not None
        }
        kinds = {"split": Split, "table": TableColumns, "vocabulary": Vocabulary}
        parts = {name: kind(**entries[name]) for name, kind in kinds.items() if entries.get(name) is not None}
        return cls(**entries | arrays | parts)

    def column_order(self, columns: Sequence[str], where: str, *, of_table: bool = False) -> list[int]:
        """Return the positions of the model's features among the columns of other inputs."""
        features = self.table.columns if of_table and self.table is not None else self.features or ()
        missing = [name for name in features if name not in columns]
        kinds = {"missing": missing, "unknown": [name for name in columns if name not in features]}
        faults = [f"{kind}: {abbreviated(names)}" for kind, names in kinds.items() if names]
        if faults:
            raise DataError(
                f"{where}: the columns are not those that the checkpoint was trained on; {'; '.join(faults)}; rename, "
                "add or remove them (their order does not matter)"
            )
        return list(map(list(columns).index, features))

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        """Reject inputs whose shape differs from those the model was trained on."""
        if tuple(shape) == self.input_shape:
            return
        hint = ""
        if len(shape) == len(self.input_shape) == 3 and len({*self.input_shape[1:]}) == 1:
            hint = f"; resize images of a folder with data.image_size={self.input_shape[1]}"
        raise DataError(
            f"{where}: got inputs of shape {_shape(shape)}, expected {_shape(self.input_shape)} as the checkpoint was "
            f"trained on{hint}"
        )


def scaled(values: np.ndarray, mean: np.ndarray | None, std: np.ndarray | None) -> np.ndarray:
    """Return normalised values, float32; they are normalised in the precision of the mean."""
    if mean is None or std is None:
        return values.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):
        return ((values.astype(mean.dtype, copy=False) - mean) / std).astype(np.float32, copy=False)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
