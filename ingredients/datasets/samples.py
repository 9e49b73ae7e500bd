"""`Source`: raw data as a file, a folder, a data set or a user's function provides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sacristan.ingredients.datasets.source_checks import check_whole, exact_floats
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.table_columns import TableColumns

__all__ = ["Source", "Task", "as_floats", "as_samples", "from_arrays"]


Task = Literal["auto", "classification", "regression", "multilabel", "segmentation", "custom"]


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
    """Join (part, inputs, targets) triples into one source with inputs (samples, *shape), images channels first.

    Part None leaves the split to the lab. If one triple has no targets, the source has none.
    """
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

    uint8 of 3 dimensions, or of 4 with 1, 3 or 4 channels last, are images. For `float32`, bytes stay bytes (see
    `as_floats`), and numbers that float32 would round stay float64 until they are normalised.
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
