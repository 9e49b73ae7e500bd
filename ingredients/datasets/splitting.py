"""Splits into train, val and test, which can be repeated and compared."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingredients.config.seed import numpy_stream
from ingredients.errors import DataError

__all__ = ["PARTS", "SPLITS", "TEST", "TRAIN", "VAL", "Split", "by_name", "check_fractions", "files_by_part", "split"]

_log = logging.getLogger(__name__)

TRAIN, VAL, TEST = 0, 1, 2
SPLITS = ("train", "val", "test")
# Names of the parts in files and folders.
PARTS = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST, "t10k": TEST}

# Settings of the data ingredient that determine a split, besides its seed.
_SETTINGS = ("limit", "val_fraction", "test_fraction", "stratify")


def by_name(parts: Mapping[int | None, Any]) -> Any:
    """Return parts by name instead of code; a single part without a code, which the lab splits, as it is."""
    return parts[None] if None in parts else {SPLITS[code]: part for code, part in parts.items() if code is not None}


def files_by_part(path: Path, pattern: str, kind: str) -> dict[int | None, list[Path]]:
    """Group the files of a folder by part.

    A part is a folder `train`, `val` or `test`, or the first word of a file's name, as in `train-0.tar`.

    Args:
        path: A folder, searched recursively, or a single file.
        pattern: Glob for the files, such as `*.tar`.
        kind: What to call the files in messages.

    Returns:
        Sorted files by the code of their part; the code None if they belong to no part.

    Raises:
        DataError: If there are no files, or only some belong to a part.
    """
    files = [path] if path.is_file() else sorted(path.rglob(pattern))
    if not files:
        raise DataError(f"data.path: {path} has no {kind} files in it; expected files like train-0{pattern[1:]}")
    top = path.parent if path.is_file() else path
    parts: dict[int | None, list[Path]] = {}
    for file in files:
        parts.setdefault(_part_of(file.relative_to(top)), []).append(file)
    if None in parts and len(parts) > 1:
        raise DataError(
            f"data.path: {parts[None][0]} belongs to no part, but other files are named for train, val or test; rename "
            "it, or move it away"
        )
    return parts


def _part_of(name: Path) -> int | None:
    words = (*name.parts[:-1], *(re.split(separator, name.stem)[0] for separator in ("[^a-zA-Z0-9]", "[^a-zA-Z]")))
    return next((PARTS[word] for word in words if word in PARTS), None)


def _other_split(difference: str, remedy: str, ingredient: str) -> DataError:
    return DataError(
        f"{ingredient}: the state that this run starts from was trained {difference}, so another split could test on "
        f"samples that it was trained on; {remedy}, or accept a new split: {ingredient}.new_split=True"
    )


@dataclasses.dataclass(frozen=True)
class Split:
    """The drawing and splitting of data: enough to repeat a split, and to compare it with another.

    Attributes:
        seed: Seed of the streams `factory`, `limit` and `statistics`.
        split_seed: Seed of the stream `split`.
        limit, val_fraction, test_fraction, stratify: As in the config of the data ingredient.
        data: SHA-256 of the content; None if unknown.
        digest: SHA-256 of the sample indices of each part; None if unknown.
        ingredient: The ingredient that has these settings.
    """

    seed: int
    split_seed: int
    limit: int | None
    val_fraction: float
    test_fraction: float
    stratify: bool
    data: str | None = None
    digest: str | None = None
    ingredient: str = "data"

    @classmethod
    def of(cls, config: Mapping[str, Any], seed: int) -> Split:
        """Return the split that a config of the data ingredient describes.

        Args:
            config: The config.
            seed: Seed of the experiment; `config.split_seed` replaces it for the split alone.
        """
        split_seed = seed if config["split_seed"] is None else config["split_seed"]
        return cls(seed, split_seed, **{name: config[name] for name in _SETTINGS})

    def differing(self, config: Mapping[str, Any]) -> list[str]:
        """Return the settings that differ in `config`, as `ingredient.name=value` with the values of this split.

        Args:
            config: A config of the data ingredient, or the fields of another split. `split_seed` None does not differ.
        """
        names = [name for name in _SETTINGS if name in config and config[name] != getattr(self, name)]
        if config.get("split_seed") not in (None, self.split_seed):
            names.append("split_seed")
        return [f"{self.ingredient}.{name}={getattr(self, name)}" for name in names]

    def check(self, config: Mapping[str, Any]) -> None:
        """Reject a config that describes another split than this one, that of a state to start from.

        Args:
            config: The config of the data ingredient.

        Raises:
            DataError: If a setting differs.
        """
        differing = self.differing(config)
        if differing:
            raise _other_split(f"with {', '.join(differing)}", "use those settings", self.ingredient)

    def check_start(self, start: Split, where: str) -> None:
        """Reject a state to start from that was trained on other data, or on other samples of the same data.

        Args:
            start: The split of the state.
            where: The setting that names the data here, for the message.

        Raises:
            DataError: If the fingerprints of the data or of the split differ.
        """
        if start.data is not None and self.data is not None and start.data != self.data:
            difference = f"on data with the fingerprint {start.data[:12]}, and {where} has {self.data[:12]}"
            raise _other_split(difference, "use the same data", self.ingredient)
        if start.digest not in (None, self.digest):
            remedy = "use the versions of the lab and of numpy that it was trained with"
            raise _other_split("on samples that are drawn differently here", remedy, self.ingredient)

    def warn_of_new(self, start: Split) -> list[str]:
        """Warn of the differences between this split and that of a state to start from, and return them.

        Args:
            start: The split of the state.

        Returns:
            The settings that differ, with the values of `start`; empty if there are none.
        """
        differences = start.differing(dataclasses.asdict(self))
        if start.seed != self.seed:
            differences.append(f"seed={start.seed}")
        if start.data is not None and start.data != self.data:
            differences.append(f"data {start.data[:12]}")
        if differences:
            _log.warning(
                "%s.new_split=True: the samples are split differently than for the state that this run starts from, "
                "which had %s; the test part may hold samples that it was trained on",
                self.ingredient,
                ", ".join(differences),
            )
        return differences

    def is_like(self, other: Split) -> bool:
        """Return whether another split has the same samples in the same parts, as far as fingerprints are known."""
        if None not in (self.data, other.data) and self.data != other.data:
            return False
        if None not in (self.digest, other.digest):
            return self.digest == other.digest
        plain = [dataclasses.replace(split, data=None, digest=None) for split in (self, other)]
        return plain[0] == plain[1]

    def indices(self, targets: np.ndarray, part: np.ndarray | None, task: str) -> dict[str, np.ndarray]:
        """Return the sample indices of each part; see `split`.

        Args:
            targets: Labels (samples,), or anything of that length.
            part: TRAIN, VAL or TEST of each sample where the source is split already, else None.
            task: The task; only `classification` is stratified.
        """
        stratify = self.stratify and task == "classification"
        return split(targets, part, self.val_fraction, self.test_fraction, stratify, self.split_seed)

    def drawn(self, data: str, indices: Mapping[str, np.ndarray]) -> Split:
        """Return this split with the fingerprints of its data and of the indices drawn from them.

        Args:
            data: SHA-256 of the content.
            indices: Sample indices of `train`, `val` and `test`.
        """
        total = hashlib.sha256()
        for name in SPLITS:
            total.update(f"{name} {len(indices[name])}".encode() + indices[name].astype("<i8").tobytes())
        return dataclasses.replace(self, data=data, digest=total.hexdigest())


def check_fractions(val_fraction: float, test_fraction: float) -> None:
    """Check the shares of the validation and test parts.

    Raises:
        DataError: If one is not at least 0 and below 1.
    """
    for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"data.{name}: got {fraction}, expected at least 0 and below 1")


def split(
    targets: np.ndarray, part: np.ndarray | None, val_fraction: float, test_fraction: float, stratify: bool, seed: int
) -> dict[str, np.ndarray]:
    """Split samples into train, val and test with the stream `split` of `seed`.

    Args:
        targets: Labels (samples,) to stratify by, or anything of that length.
        part: TRAIN, VAL or TEST of each sample where the source is split already; missing parts are cut from train.
        val_fraction: Share of all samples for val, or of the train part if the source is split already.
        test_fraction: Share of all samples for test, unless the source has a test part.
        stratify: Whether every part gets its share of every class.
        seed: Seed of the experiment, or of the split alone.

    Returns:
        Sorted sample indices of `train`, `val` and `test`.

    Raises:
        DataError: If the fractions leave nothing to train on.
    """
    check_fractions(val_fraction, test_fraction)
    codes = np.full(len(targets), TRAIN, np.int8) if part is None else part.copy()
    rng = numpy_stream(seed, "split")
    for code, fraction in ((TEST, test_fraction), (VAL, val_fraction)):
        if part is not None and (part == code).any():
            continue
        free = np.flatnonzero(codes == TRAIN)
        # val gets its share of the whole, although test is cut already.
        share = fraction / (1 - test_fraction) if code == VAL and part is None else fraction
        codes[_draw(free, targets, min(share, 1.0), stratify, rng)] = code
    indices = {name: np.flatnonzero(codes == code) for name, code in zip(SPLITS, (TRAIN, VAL, TEST), strict=True)}
    if not len(indices["train"]):
        raise DataError(
            f"data.val_fraction, data.test_fraction: nothing is left to train on: of {len(targets)} samples, all went "
            "to val and test; lower them"
        )
    return indices


def _draw(free: np.ndarray, targets: np.ndarray, share: float, stratify: bool, rng: np.random.Generator) -> np.ndarray:
    """Draw round(share * len(free)) of `free`; stratified by class with the largest remainder method."""
    total = round(share * len(free))
    if not stratify:
        return rng.permutation(free)[:total]
    labels, inverse = np.unique(targets[free], return_inverse=True)
    exact = np.bincount(inverse, minlength=len(labels)) * share
    quota = np.floor(exact).astype(int)
    by_remainder = np.lexsort((rng.permutation(len(labels)), -(exact - quota)))
    quota[by_remainder[: total - quota.sum()]] += 1
    return np.concatenate([rng.permutation(free[inverse == k])[: quota[k]] for k in range(len(labels))] or [free[:0]])
