"""`SourceSettings`: what the data ingredient asks of a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs.files import find_file
from sacristan.ingredients.datasets.split_rules import SplitRule

if TYPE_CHECKING:
    from sacristan.ingredients.datasets.fitted import Preparation, TableColumns

__all__ = ["SourceSettings"]


@dataclasses.dataclass(frozen=True)
class SourceSettings:
    """The settings that readers of data get; `data.*` in the config documents those with the same name.

    Attributes:
        path: File or folder to read, as the user wrote it.
        target: Target column or columns; None leaves the choice to the reader.
        columns: Columns to read as inputs; None reads all but the target.
        categorical, encoding, missing, na_values: How to encode the columns of a table, see `TableColumns`.
        split: SplitRule of the split, which may name a column to read.
        dtype: Type of the inputs: `float32`, or `int64` for integers.
        options: Arguments of the factory or the class that makes the data.
        image_size: Height and width to resize images to, pixels; None keeps their size.
        task: The task, or `auto` to infer it from the targets.
        collate: Function that makes a batch of samples of any structure.
        weights: Column, array, key or attribute with the sampling weights.
        seed: Seed of the experiment; factories that use the global generators draw from its stream `factory`.
        trained: Preparation of a trained model. Its columns, categories, vocabulary, type, task and rule of
            the split override the settings above; its arguments of `read_csv` hold where none are given.
        needs_targets: Whether every sample must have a target.
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
        """The rule of the split."""
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
