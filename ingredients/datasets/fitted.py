"""`Preparation`: how data are prepared for a model, fitted on its training part and kept in its checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sacristan.configs.map import abbreviated
from sacristan.ingredients.datasets.csv_cells import GAPS_OF_PANDAS, in_plain_notation, notation_advice
from sacristan.ingredients.datasets.source_checks import exact_floats
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

_log = logging.getLogger(__name__)

# A column with more values than this holds names or free text, not categories.
_MAX_CATEGORIES = 1000
# In fewer rows, categories may well all differ.
_MIN_ROWS = 50
# Names of columns that number samples, customers and so on.
_ID = re.compile(r"(^|[_ .-])(id|uuid|index)$", re.IGNORECASE)
# Codes for padding and for words that are not in the vocabulary.
PADDING, UNKNOWN_WORD = 0, 1

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The input columns of a table and their encoding, fitted on training data.

    `categories` are the values, as text, of each categorical column; "" stands for a missing value. `encoding`
    `one_hot` makes an input of 0 or 1 of each; `codes` an integer: value k of N has the code k + 1, an unknown value 0.
    `missing` `refuse` rejects missing values; `fill` makes missing categories a value of their own, leaves missing
    numbers NaN, which preparation fills with the training mean, and adds an input that is 1 there for each of the
    columns in `gaps`. If the columns were `chosen` by the config, other tables may have more. Categories are the text
    in the file if `verbatim`; tables of earlier versions named numbers as such. `na_values` mean a missing value,
    besides an empty cell.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    chosen: bool = False
    encoding: str = "one_hot"
    missing: str = "refuse"
    gaps: tuple[str, ...] = ()
    verbatim: bool = False
    na_values: tuple[str, ...] = GAPS_OF_PANDAS

    @classmethod
    def fitted(
        cls,
        frame: pandas.DataFrame,
        categorical: str | Sequence[str] | None,
        where: str,
        *,
        chosen: bool,
        encoding: str = "one_hot",
        missing: str = "refuse",
        verbatim: bool = False,
        na_values: tuple[str, ...] = GAPS_OF_PANDAS,
    ) -> TableColumns:
        """Return the encoding for a frame; `auto` selects text columns. Warns of ids, and of rare categories."""
        columns = tuple(frame.columns)
        names = _categorical(frame, categorical, where)
        filled = [name for name in columns if missing == "fill" and frame[name].isna().any()]
        categories = {name: tuple(map(_value_name, _distinct(frame[name]))) for name in names}
        _warn_of_unique(frame, categories, where)
        if not chosen:
            _warn_of_ids(frame[[name for name in columns if name not in categories]], where)
        categories |= {name: ("", *values) for name, values in categories.items() if name in filled}
        large = next((name for name, values in categories.items() if len(values) > _MAX_CATEGORIES), None)
        if large is not None:
            raise DataError(
                f"data.categorical: {large} of {where} has {len(categories[large]):,} values, expected at most "
                f"{_MAX_CATEGORIES:,}; leave it out with data.columns, or group its values"
            )
        gaps = tuple(name for name in filled if name not in categories)
        return cls(columns, categories, chosen, encoding, missing, gaps, verbatim, na_values)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs: COLUMN, COLUMN=VALUE for a one-hot value, COLUMN=missing for missing numbers."""
        return tuple(feature for name in self.columns for feature in self._features_of(name))

    def _features_of(self, name: str) -> list[str]:
        if name in self.categories and self.encoding == "one_hot":
            return [f"{name}={value}" for value in self.categories[name]]
        return [name, f"{name}=missing"] if name in self.gaps else [name]

    @property
    def code_counts(self) -> dict[int, int]:
        """Number of codes of each coded input, by its position among the inputs; for sizes of embeddings."""
        if self.encoding == "one_hot":
            return {}
        features = self.features
        return {features.index(name): len(values) + 1 for name, values in self.categories.items()}

    def encode(
        self, frame: pandas.DataFrame, dtype: str, where: str, *, strict: bool, csv: Mapping[str, Any] = {}
    ) -> np.ndarray:
        """Encode the columns of a frame, in any order, as (rows, features); float64 if float32 would round numbers.

        `strict` rejects unknown one-hot values; otherwise they are logged, and 0 as unknown codes always are.
        """
        for name in self.columns:
            if name not in self.categories and frame[name].dtype.kind not in "biuf":
                _refuse_text(frame[name], where, csv)
        parts = [self._encode(frame[name], name, dtype, where, strict=strict) for name in self.columns]
        return np.concatenate(parts, 1) if parts else np.zeros((len(frame), 0), dtype)

    def _encode(self, column: pandas.Series, name: str, dtype: str, where: str, *, strict: bool) -> np.ndarray:
        if name in self.categories:
            part = self._encode_categories(column, name, f"{where}: the column {name}", strict=strict)
        else:
            part = column.to_numpy()[:, None]
            if name in self.gaps:
                part = np.concatenate([part, np.isnan(part)], 1)
        if dtype == "int64" and part.dtype.kind == "f" and not (part == np.round(part)).all():
            raise DataError(
                f"data.dtype=int64: the column {name} of {where} holds fractions or lacks values, expected whole "
                "numbers; leave it out with data.columns, or use data.dtype=float32"
            )
        return exact_floats(part) if dtype == "float32" else part.astype(dtype)

    def _encode_categories(self, column: pandas.Series, name: str, where: str, *, strict: bool) -> np.ndarray:
        values, is_code = self.categories[name], self.encoding == "codes"
        fate = "its code is 0" if is_code else "all inputs of that column are 0"
        codes = _codes(column, values, where, strict=strict and not is_code, fate=fate)
        encoded = codes[:, None] if is_code else np.eye(len(values) + 1, dtype=np.float32)[codes, 1:]
        # An unknown missing value stays NaN, to be rejected or filled later; a code has 0 for it.
        if self.missing == "refuse" or (not is_code and "" not in values):
            encoded = np.where(column.isna().to_numpy()[:, None], np.nan, encoded)
        return encoded.astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for a checkpoint."""
        return {**dataclasses.asdict(self), "categories": dict(self.categories)}


def _categorical(frame: pandas.DataFrame, categorical: str | Sequence[str] | None, where: str) -> list[str]:
    """Return the categorical columns, after a check that no other column holds text."""
    columns = list(frame.columns)
    text = [name for name in columns if frame[name].dtype.kind not in "biuf"]
    names = text if categorical == "auto" else [categorical] if isinstance(categorical, str) else categorical or []
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise DataError(f"data.categorical: {where} has no input {unknown[0]!r}; its inputs are {abbreviated(columns)}")
    left = [name for name in text if name not in names]
    if left:
        quoted = ", ".join(f'"{name}"' for name in left)
        raise DataError(
            f"{where}: has text in the columns {abbreviated(left)}; read them as categories "
            f"(data.categorical='[{quoted}]'), or choose others with data.columns"
        )
    return list(names)


def _distinct(column: pandas.Series) -> list[Any]:
    """Return the sorted values of a column; texts that are all numbers are sorted as numbers."""
    import pandas

    values = sorted(column.dropna().unique().tolist())
    numbers = pandas.to_numeric(pandas.Series(values, dtype=object), errors="coerce")
    return values if numbers.isna().any() else [values[index] for index in numbers.argsort(kind="stable")]


def _warn_of_unique(frame: pandas.DataFrame, categories: Mapping[str, Sequence[str]], where: str) -> None:
    """Warn of categories that hardly any two rows share: names, dates, or numbers in an unknown format."""
    for name, values in categories.items():
        count = int(frame[name].notna().sum())
        if count >= _MIN_ROWS and len(values) > count / 2:
            is_text = frame[name].dtype.kind not in "biuf"
            notation = notation_advice(frame[name], {}, 1.0) if is_text else None
            _log.warning(
                "%s: the column %s has %d categories in %d rows, such as %s; names, dates, and numbers such as '3,14' "
                "teach a model nothing as categories: leave the column out with data.columns, or %s",
                where,
                name,
                len(values),
                count,
                abbreviated(list(map(repr, values[:3]))),
                f"read numbers by {notation}" if notation else "correct it",
            )


def _warn_of_ids(frame: pandas.DataFrame, where: str) -> None:
    """Warn of columns of distinct integers that are called an id or count the rows."""
    for name in frame.columns:
        values = frame[name].dropna()
        if len(values) < _MIN_ROWS or values.dtype.kind not in "iuf" or not values.is_unique or (values % 1 != 0).any():
            continue
        if int(values.max()) - int(values.min()) == len(values) - 1 or _ID.search(str(name)):
            _log.warning(
                "%s: the column %s looks like an id: every row has a different whole number there, which teaches a "
                "model nothing about other rows; leave the column out by naming the inputs with data.columns",
                where,
                name,
            )


def _value_name(value: Any) -> str:
    """Return a value as text; an integer as an int, though missing values make its column float."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _codes(column: pandas.Series, values: Sequence[str], where: str, *, strict: bool, fate: str) -> np.ndarray:
    """Return the position of each value in `values`, counted from 1, int64 (rows,); 0 for unknown values."""
    import pandas

    present = column.notna().to_numpy()
    names = np.array([_value_name(value) for value in column.tolist()], object)
    names[~present] = ""
    codes = pandas.Index(values, dtype=object).get_indexer(names) + 1
    unknown = sorted(set(names[present & (codes == 0)]))
    if unknown:
        text = f"{where} holds {abbreviated(unknown)}, which the checkpoint was not trained on"
        if strict:
            raise DataError(f"{text}; correct or remove those rows")
        _log.warning("%s; %s there", text, fate)
    return codes.astype(np.int64)


def _refuse_text(column: pandas.Series, where: str, csv: Mapping[str, Any]) -> NoReturn:
    import pandas

    is_text = (pandas.to_numeric(in_plain_notation(column, csv), errors="coerce").isna() & column.notna()).to_numpy()
    row = int(np.argmax(is_text))
    raise DataError(
        f"{where}: has {column.iloc[row]!r} in the column {column.name}, row {row + 1}, where the checkpoint was "
        "trained on numbers; correct that row"
    )


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Codes of words: word k of `words` has the code k + 2, others `UNKNOWN_WORD`; `PADDING` pads texts.

    `words` are the most frequent ones, up to `max_words` that occur `min_count` times, and empty before `fitted`. Of a
    text, the first `max_length` words are read.
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
        classes, class_counts: Names and training samples of the classes or labels; empty for regression.
        features, target_names: Names of the input and target columns, if any.
        mean, std: Mean and deviation of the inputs, shaped to broadcast with one input; None if inputs are not
            normalised. float64 if float32 would lose digits of the inputs, which are then normalised in float64.
        target_mean, target_std: The same for regression targets (outputs,).
        num_targets: Number of classes, labels, or target values.
        image_size: Height and width that images of a folder were resized to, pixels; None keeps their size.
        split: The split whose training part it was fitted on.
        dtype: Type of the inputs: float32, or int64 for integers, which are not normalised.
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
        """Return a preparation from `state_dict`; ignore unknown entries, raise TypeError if one is missing."""
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
