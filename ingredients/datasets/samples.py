"""Raw data: `Source`, the settings of its reader, map-style datasets with their abilities, and moments of inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from sacristan.configs.files import find_file
from sacristan.ingredients.datasets.source_checks import check_whole, exact_floats
from sacristan.ingredients.datasets.split_rules import SplitRule
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.fitted import Preparation, TableColumns

Task = Literal["auto", "classification", "regression", "multilabel", "segmentation", "custom"]

# float32 loses digits where it rounds values by more than this share of their deviation.
_ROUNDING = 1e-4
# A deviation below this share of the mean is float64's own rounding.
_CONSTANT = 2.0**-46
# Values of a block.
_BLOCK = 2**18


@dataclasses.dataclass(frozen=True)
class Source:
    """Raw data, before splitting and normalising.

    Attributes:
        inputs: Array (samples, *shape) of int64, float32, float64 (see `exact_floats`), or bytes that become float32
            (see `as_floats`); or a map-style dataset of (input, target) or of samples of any structure; or `Streams` of
            those.
        targets: Array (samples,) or (samples, outputs): class labels of any type, or numbers; None without targets.
            For samples of any structure: labels (samples,) to stratify and balance by, or None.
        classes: Names of the classes by label 0, 1, ...; None infers them from the targets.
        part: Array (samples,) of TRAIN, VAL, TEST if the source is split already.
        features: Names of the input columns.
        target_names: Names of the target columns.
        names: Names of the samples, such as their files, or their positions.
        digest: SHA-256 of the content of a dataset; arrays are hashed directly.
        missing: Array (samples,) with the number of NaN and infinite values in the inputs of a dataset; arrays are
            counted directly.
        table: Encoding of the inputs, if they come from a table.
        is_structured: Whether samples have any structure and stay unconverted.
        collate: Function that makes a batch of samples of any structure.
        lengths: Array (samples,) with the length of the sequence in each sample.
        weights: Array (samples,) of sampling weights.
        shards: Array (samples,) with the number of the file that holds each sample.
        split_values: Array (samples,) of the groups or times that `data.split` asks for.
        item_shape: Shape of the first tensor of each sample of any structure; () if shapes differ.
    """

    inputs: Any
    targets: np.ndarray | None
    classes: tuple[str, ...] | None = None
    part: np.ndarray | None = None
    features: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | tuple[int, ...] | None = None
    digest: str | None = None
    missing: np.ndarray | None = None
    table: TableColumns | None = None
    is_structured: bool = False
    collate: Callable[[list], Any] | None = None
    lengths: np.ndarray | None = None
    weights: np.ndarray | None = None
    shards: np.ndarray | None = None
    split_values: np.ndarray | None = None
    item_shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """Type that inputs become: `float32`, or `int64` for integers, which are not normalised."""
        return "int64" if np.dtype(getattr(self.inputs, "dtype", np.float32)) == np.int64 else "float32"

    @property
    def in_memory(self) -> bool:
        """True if the inputs are one array."""
        return isinstance(self.inputs, np.ndarray)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.inputs)


def from_arrays(
    parts: Sequence[tuple[int | None, np.ndarray, np.ndarray | None]], where: str, dtype: str = "float32"
) -> Source:
    """Join (part, inputs, targets) triples; part None leaves the split to the lab. Images have channels first."""
    _check_parts(parts, where)
    codes, all_inputs, all_targets = zip(*parts, strict=True)
    sizes = [len(inputs) for inputs in all_inputs]
    return Source(
        as_samples(np.concatenate(all_inputs), where, dtype),
        None if any(targets is None for targets in all_targets) else np.concatenate(all_targets),
        part=None if None in codes else np.repeat(np.array(codes, np.int8), sizes),
    )


def _check_parts(parts: Sequence[tuple[int | None, np.ndarray, np.ndarray | None]], where: str) -> None:
    for _, inputs, targets in parts:
        if 0 in (np.ndim(inputs), 1 if targets is None else np.ndim(targets)):
            raise DataError(f"{where}: got a single number, expected arrays with one row per sample")
        if targets is not None and len(inputs) != len(targets):
            raise DataError(f"{where}: got {len(inputs)} inputs and {len(targets)} targets, expected as many of each")
    shapes = {tuple(inputs.shape[1:]) for _, inputs, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"{where}: the parts have inputs of different shapes {sorted(shapes)}, expected one shape")


def as_samples(inputs: np.ndarray, where: str, dtype: str = "float32") -> np.ndarray:
    """Convert inputs (samples, ...) to `dtype`, with images as (samples, channels, height, width).

    uint8 of 3 dimensions, or of 4 with 1, 3 or 4 channels last, are images. For `float32`, bytes stay bytes, and
    numbers that float32 would round stay float64 until they are normalised.
    """
    if inputs.dtype.kind not in "biuf":
        raise DataError(f"{where}: got inputs of type {inputs.dtype}, expected numbers; encode text as numbers first")
    check_whole(inputs.dtype, where, dtype)
    inputs = _channels_first(inputs)
    if dtype == "int64":
        return np.ascontiguousarray(inputs, np.int64)
    return np.ascontiguousarray(inputs) if inputs.dtype == np.uint8 else exact_floats(inputs)


def _channels_first(inputs: np.ndarray) -> np.ndarray:
    if inputs.ndim < 2 or (inputs.ndim == 3 and inputs.dtype == np.uint8):
        return inputs[:, None]
    if inputs.ndim == 4 and inputs.shape[-1] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4):
        return np.moveaxis(inputs, -1, 1)
    return inputs


def as_floats(inputs: np.ndarray) -> np.ndarray:
    """Convert bytes to float32, images (samples, channels, height, width) to 0 to 1; other inputs stay unchanged."""
    if inputs.dtype != np.uint8:
        return inputs
    floats = inputs.astype(np.float32)
    return floats / np.float32(255) if inputs.ndim == 4 else floats


# Number of values, mean, and sum of squared deviations from it, of each channel of images or each feature.
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


def statistics(inputs: Any, train: np.ndarray, *, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the training inputs, per channel of images, else per feature.

    `inputs` are (samples, *shape) or a dataset, which may have `moments(indices)`. The results are float32 (float64 if
    `exact`) and broadcast with one input. NaN and infinity are left out. A constant gets the deviation 1, found
    exactly, because float64 sums of one float32 value are exact up to 2**29 samples. Blocks are merged as in Chan,
    Golub, LeVeque (1979), http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf
    """
    dtype = np.float64 if exact else np.float32
    mean, std = _mean_and_std(_merged(_moments(inputs, train, dtype)))
    std = np.where(std > (_CONSTANT * np.abs(mean) if exact else 0), std, 1.0)
    one = inputs[0] if isinstance(inputs, np.ndarray) else inputs[int(train[0])][0]
    shape = (-1, 1, 1) if one.ndim == 3 else one.shape
    return mean.astype(dtype).reshape(shape), std.astype(dtype).reshape(shape)


class Rounding:
    """The error of values as float32, beside their deviation: per channel of images, else per feature."""

    def __init__(self) -> None:
        self._moments: Moments = (np.zeros(()),) * 3
        self._error = np.zeros(())

    def add(self, block: np.ndarray) -> None:
        """Add values (samples, *shape)."""
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.nan_to_num(np.abs(block - block.astype(np.float32)), nan=0.0)
        self._error = np.maximum(self._error, _columns(error).max(1, initial=0.0))
        self._moments = _merged([self._moments, moments_of(block)])

    @property
    def matters(self) -> bool:
        """Whether float32 rounds the values of a feature, unless constant, by a noticeable share of its deviation."""
        mean, std = _mean_and_std(self._moments)
        return bool(((self._error > _ROUNDING * std) & (std > _CONSTANT * np.abs(mean))).any())


def float32_rounds(values: np.ndarray) -> bool:
    """Return whether float32 would lose digits of numbers (samples, *shape), see `Rounding`."""
    if values.dtype != np.float64 or not values.size:
        return False
    rounding = Rounding()
    for block in np.array_split(values, math.ceil(values.size / _BLOCK)):
        rounding.add(block)
    return rounding.matters


def _merged(parts: Iterable[Moments]) -> Moments:
    count = mean = squares = np.zeros(())
    for here, mean_here, squares_here in parts:
        total = np.maximum(count + here, 1)
        delta = mean_here - mean
        squares = squares + squares_here + delta**2 * count * here / total
        mean = mean + delta * here / total
        count = count + here
    return count, mean, squares


def _mean_and_std(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    count, mean, squares = moments
    return mean, np.sqrt(squares / np.maximum(count, 1))


def moments_of(block: np.ndarray) -> Moments:
    """Return the moments of a block of inputs (samples, *shape): per channel of images, else per feature."""
    columns = _columns(block)
    good = np.isfinite(columns)
    count = good.sum(1)
    values = np.where(good, columns, 0).astype(np.float64)
    mean = values.sum(1) / np.maximum(count, 1)
    return count, mean, (np.where(good, values - mean[:, None], 0) ** 2).sum(1)


def _columns(block: np.ndarray) -> np.ndarray:
    """Return the values (features, values of each) of a block."""
    is_image = block.ndim == 4
    return np.moveaxis(block, 1, 0).reshape(block.shape[1], -1) if is_image else block.reshape(len(block), -1).T


def _moments(inputs: Any, indices: np.ndarray, dtype: type) -> Iterator[Moments]:
    if isinstance(inputs, np.ndarray):
        blocks = np.array_split(indices, math.ceil(len(indices) / 256))
        yield from (moments_of(as_floats(inputs[part]).astype(dtype, copy=False)) for part in blocks)
    elif hasattr(inputs, "moments"):
        yield from inputs.moments(indices)
    else:
        yield from (moments_of(inputs[int(index)][0][None].astype(dtype, copy=False)) for index in indices)


@runtime_checkable
class ByteImages(Protocol):
    """Images that can be read as bytes, without random draws, so that whole batches are converted on the device."""

    @property
    def are_bytes(self) -> bool:
        """True if all images have at most 8 bits a channel, so that `bytes_at` can be called."""

    def bytes_at(self, index: int) -> np.ndarray:
        """Return an image as uint8 (height, width, channels)."""

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        """Yield the moments of the images at `indices`, decoded as `[index]` decodes them."""


@runtime_checkable
class Sequences(Protocol):
    """Sequences of different lengths, which a batch pads."""

    def batch_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the sequences at `indices` as one padded array (sequences, length of the longest)."""


class Joined:
    """Map-style datasets, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Any:
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


def joined(datasets: Sequence[Any]) -> Any:
    """Return datasets as one; a single one unchanged."""
    return datasets[0] if len(datasets) == 1 else Joined(datasets)


class Subset:
    """The items of a map-style dataset at some indices."""

    def __init__(self, dataset: Any, indices: np.ndarray) -> None:
        self.dataset = dataset
        self.indices = indices
        self.dtype = getattr(dataset, "dtype", "float32")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]


class _ByteSubset(Subset):
    """Some images of a dataset of `ByteImages`."""

    @property
    def are_bytes(self) -> bool:
        return self.dataset.are_bytes

    def bytes_at(self, index: int) -> np.ndarray:
        return self.dataset.bytes_at(int(self.indices[index]))

    def moments(self, indices: Sequence[int] | np.ndarray) -> Iterator[Moments]:
        return self.dataset.moments(self.indices[indices])


def subset(dataset: Any, indices: np.ndarray) -> Any:
    """Return some items of a dataset, by its `rows_at(indices)` if it has one, with the same abilities."""
    if hasattr(dataset, "rows_at"):
        return dataset.rows_at(indices)
    return (_ByteSubset if isinstance(dataset, ByteImages) else Subset)(dataset, indices)


@dataclasses.dataclass(frozen=True)
class SourceSettings:
    """The settings that readers of data get; `data.*` in the config documents those with the same name.

    With a `trained` preparation, its columns, categories, vocabulary, type, task and rule of the split override these;
    its arguments of `read_csv` hold where none are given. Factories that use the global generators draw from the stream
    `factory` of `seed`. `collate` makes a batch of samples of any structure.
    """

    name: str
    path: str | None = None
    target: str | Sequence[str] | None = None
    columns: str | Sequence[str] | None = None
    categorical: str | Sequence[str] | None = None
    encoding: str = "one_hot"
    missing: str = "refuse"
    na_values: Sequence[str] = ()
    csv: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    split: str = "random"
    dtype: str = "float32"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    image_size: int | None = None
    task: str = "auto"
    collate: Callable[[list], Any] | None = None
    weights: str | None = None
    seed: int = 0
    trained: Preparation | None = None
    needs_targets: bool = True

    def __post_init__(self) -> None:
        if self.trained is not None:
            object.__setattr__(self, "dtype", self.trained.dtype)
            object.__setattr__(self, "task", self.trained.task)
            object.__setattr__(self, "split", self.trained.split.split)
            object.__setattr__(self, "csv", {**self.trained.csv, **self.csv})

    @property
    def key(self) -> str | None:
        """The target as a single name; None if there are several or none."""
        return self.target if isinstance(self.target, str) else None

    @property
    def file(self) -> Path | None:
        """The file or folder to read, which may be one that ships with the lab; None without a path."""
        return None if self.path is None else find_file(Path(self.path).expanduser())

    @property
    def rule(self) -> SplitRule:
        return SplitRule.parse(self.split)

    @property
    def split_column(self) -> str | None:
        """The column with the groups or times to split by; None for a random split."""
        return self.rule.column

    @property
    def table(self) -> TableColumns | None:
        """The encoding of the table that the model was trained on; None without one."""
        return None if self.trained is None else self.trained.table

    @property
    def is_plain(self) -> bool:
        """True if samples are inputs and targets, which need no function to make a batch."""
        return self.collate is None and self.task != "custom"

    @property
    def for_items(self) -> dict[str, Any]:
        """The arguments of `from_factory` that sources of single items share."""
        return {
            "dtype": self.dtype,
            "task": self.task,
            "target": self.key,
            "collate": self.collate,
            "weights": self.weights,
            "split_column": self.split_column,
        }
