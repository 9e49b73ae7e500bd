"""`Source`: raw data, as they come from a file, a folder, a data set or a user's function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingredients.datasets.whole_numbers import check_whole, tell_merged
from ingredients.errors import DataError

if TYPE_CHECKING:
    from ingredients.datasets.table_columns import TableColumns

__all__ = ["Source", "Task", "as_floats", "as_samples", "from_arrays"]

Task = Literal["auto", "classification", "regression", "multilabel", "segmentation", "custom"]


@dataclasses.dataclass(frozen=True)
class Source:
    """Raw data, before splitting and normalising.

    Attributes:
        inputs: Array (samples, *shape) of float32, int64, or bytes that become float32 (see `as_floats`), or a
            map-style dataset of (input, target), or of samples of any structure, or `Streams` of those.
        targets: Array (samples,) or (samples, outputs): class labels of any type, or numbers; None for no targets.
            Of samples of any structure, labels (samples,) to stratify and balance by, or None.
        classes: Names of the classes by label 0, 1, ...; None to read them off the targets.
        part: Array (samples,) of TRAIN, VAL, TEST where the source itself says so, else None.
        features: Names of the inputs' columns, if they have any.
        target_names: Names of the targets' columns, if they have any.
        names: Names of the samples, such as their files, if they have any.
        digest: SHA-256 of the content of a dataset; arrays are hashed as they are.
        table: The columns that the inputs are made of, if they come from a table.
        missing: Array (samples,) of how many values of a dataset's inputs are NaN or infinite; arrays are counted as
            they are.
        is_structured: Whether samples are of any structure, and left as they are.
        collate: What makes a batch of samples of any structure.
        lengths: Array (samples,) of lengths of sequences, if samples have any.
        weights: Array (samples,) of how often samples are to be drawn, in proportion, if there are any.
        shards: Array (samples,) of the file that each sample lies in, if they lie in some.
        item_shape: Shape of the first tensor of every sample of any structure; () where they differ.
    """

    inputs: Any
    targets: np.ndarray | None
    classes: tuple[str, ...] | None = None
    part: np.ndarray | None = None
    features: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    digest: str | None = None
    missing: np.ndarray | None = None
    table: TableColumns | None = None
    is_structured: bool = False
    collate: Callable[[list], Any] | None = None
    lengths: np.ndarray | None = None
    weights: np.ndarray | None = None
    shards: np.ndarray | None = None
    item_shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """Type that inputs become: `float32`, or `int64` for whole numbers, which are not normalised."""
        found = np.dtype(getattr(self.inputs, "dtype", np.float32))
        return "float32" if found == np.uint8 else found.name

    @property
    def in_memory(self) -> bool:
        """Whether the inputs are one array."""
        return isinstance(self.inputs, np.ndarray)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.inputs)


def from_arrays(
    parts: Sequence[tuple[int | None, np.ndarray, np.ndarray | None]], where: str, dtype: str = "float32"
) -> Source:
    """Join (part, inputs, targets) triples into one source.

    Args:
        parts: A part of None leaves the split to the lab. If one has no targets, the source has none.
        where: The setting that names them, for messages.
        dtype: What inputs become: `float32`, or `int64` for whole numbers.

    Raises:
        DataError: If they are no rows of numbers, or not as many of each.
    """
    for _, inputs, targets in parts:
        if not inputs.ndim or (targets is not None and not targets.ndim):
            raise DataError(f"{where}: got a single number, expected arrays with one row per sample")
        if targets is not None and len(inputs) != len(targets):
            raise DataError(f"{where}: got {len(inputs)} inputs and {len(targets)} targets, expected as many of each")
    shapes = {tuple(inputs.shape[1:]) for _, inputs, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"{where}: the parts have inputs of different shapes {sorted(shapes)}, expected one shape")
    inputs = as_samples(np.concatenate([inputs for _, inputs, _ in parts]), where, dtype)
    there = [targets for _, _, targets in parts if targets is not None]
    joined = np.concatenate(there) if len(there) == len(parts) else None
    given = [part for part, _, _ in parts]
    part = None
    if None not in given:
        part = np.concatenate([np.full(len(inputs), part, np.int8) for part, inputs, _ in parts])
    return Source(inputs, joined, part=part)


def as_samples(inputs: np.ndarray, where: str, dtype: str = "float32") -> np.ndarray:
    """Return inputs as `dtype`, images as (samples, channels, height, width); bytes for float32 stay bytes."""
    if inputs.dtype.kind not in "biuf":
        raise DataError(f"{where}: got inputs of type {inputs.dtype}, expected numbers; encode text as numbers first")
    check_whole(inputs.dtype, where, dtype)
    if inputs.ndim < 2:
        inputs = inputs[:, None]
    is_bytes = inputs.dtype == np.uint8
    if inputs.ndim == 3 and is_bytes:
        inputs = inputs[:, None]
    elif inputs.ndim == 4 and inputs.shape[-1] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4):
        inputs = np.moveaxis(inputs, -1, 1)
    if dtype == "int64":
        return np.ascontiguousarray(inputs, np.int64)
    tell_merged(inputs, where)
    return np.ascontiguousarray(inputs, np.uint8 if is_bytes else np.float32)


def as_floats(inputs: np.ndarray) -> np.ndarray:
    """Return inputs of which some are bytes as float32; those of images (samples, channels, height, width) 0 to 1."""
    if inputs.dtype != np.uint8:
        return inputs
    floats = inputs.astype(np.float32)
    return floats / np.float32(255) if inputs.ndim == 4 else floats
