"""Splitting samples into train, val and test, so that it can be done again and told from another split."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingredients.config.seed import numpy_stream
from ingredients.errors import DataError

_log = logging.getLogger(__name__)

__all__ = ["PARTS", "SPLITS", "TEST", "TRAIN", "VAL", "Split", "by_name", "other_split", "split"]

TRAIN, VAL, TEST = 0, 1, 2
SPLITS = ("train", "val", "test")
# What files and folders call the parts.
PARTS = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST, "t10k": TEST}

# The settings of the data ingredient that a split follows from, beside its seed.
_SETTINGS = ("limit", "val_fraction", "test_fraction", "stratify")


def by_name(parts: Mapping[int | None, Any]) -> Any:
    """Return parts by their names, of those by their codes; of None the part itself, which the lab splits."""
    return parts[None] if None in parts else {SPLITS[code]: part for code, part in parts.items() if code is not None}


def other_split(how: str, remedy: str, ingredient: str = "data") -> str:
    """Return what to say of a state that was trained on another split.

    Args:
        how: What is other with it.
        remedy: What to do.
        ingredient: That of the data.
    """
    return (
        f"{ingredient}: the state that this run starts from was trained {how}, and another split could test on samples "
        f"that it was trained on; {remedy}, or ask for a split of its own: {ingredient}.new_split=True"
    )


@dataclasses.dataclass(frozen=True)
class Split:
    """How data were drawn and split: enough to do it again, and to tell whether it was done alike.

    Attributes:
        seed: Seed of the streams that data are drawn from: `factory`, `limit`, `statistics`.
        split_seed: Seed of the stream `split`.
        limit, val_fraction, test_fraction, stratify: As in the config of the data ingredient.
        data: SHA-256 of the content; None if it is not known.
        digest: SHA-256 of the samples of each part; None if it is not known.
        ingredient: The ingredient of the data, whose settings these are.
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
        """Return the split that a config of the data ingredient asks for.

        Args:
            config: The config.
            seed: Seed of the experiment; `config.split_seed` goes before it for the split alone.
        """
        split_seed = seed if config["split_seed"] is None else config["split_seed"]
        return cls(seed, split_seed, **{name: config[name] for name in _SETTINGS})

    def differing(self, config: Mapping[str, Any]) -> list[str]:
        """Return the settings, with our values, that `config` has otherwise. One without a split seed has ours."""
        names = [name for name in _SETTINGS if name in config and config[name] != getattr(self, name)]
        if config.get("split_seed") not in (None, self.split_seed):
            names.append("split_seed")
        return [f"{self.ingredient}.{name}={getattr(self, name)}" for name in names]

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a config of the data's ingredient that splits otherwise.

        Raises:
            DataError: If it does.
        """
        differing = self.differing(config)
        if differing:
            raise DataError(other_split(f"with {', '.join(differing)}", "take those settings", self.ingredient))

    def check_start(self, start: Split, where: str) -> None:
        """Refuse a state to start from that was trained on other data than these, or on other samples of them.

        Args:
            start: The split of the state.
            where: What these data are called.

        Raises:
            DataError: If it was.
        """
        if start.data is not None and self.data is not None and start.data != self.data:
            how = f"on data with the fingerprint {start.data[:12]}, and {where} has {self.data[:12]}"
            raise DataError(other_split(how, "take the same data", self.ingredient))
        if start.digest not in (None, self.digest):
            remedy = "take the versions of the lab and of numpy that it was trained with"
            raise DataError(other_split("on samples that are drawn otherwise here", remedy, self.ingredient))

    def told_from(self, start: Split) -> list[str]:
        """Return what of the split of a state to start from is another one here, after a warning of it."""
        found = start.differing(dataclasses.asdict(self))
        if start.seed != self.seed:
            found.append(f"seed={start.seed}")
        if start.data is not None and start.data != self.data:
            found.append(f"data {start.data[:12]}")
        if found:
            _log.warning(
                "%s.new_split=True: samples are split otherwise than for the state that this run starts from, which "
                "had %s; the test part may hold samples that it was trained on",
                self.ingredient,
                ", ".join(found),
            )
        return found

    def is_like(self, other: Split) -> bool:
        """Tell whether another split has the same samples in the same parts, as far as that is known."""
        if None not in (self.data, other.data) and self.data != other.data:
            return False
        if None not in (self.digest, other.digest):
            return self.digest == other.digest
        plain = [dataclasses.replace(split, data=None, digest=None) for split in (self, other)]
        return plain[0] == plain[1]

    def indices(self, targets: np.ndarray, part: np.ndarray | None, task: str) -> dict[str, np.ndarray]:
        """Return the indices of each part; see `split`. Only classes are stratified."""
        stratify = self.stratify and task == "classification"
        return split(targets, part, self.val_fraction, self.test_fraction, stratify, self.split_seed)

    def drawn(self, data: str, indices: Mapping[str, np.ndarray]) -> Split:
        """Return this split as it was drawn from data with the fingerprint `data`."""
        total = hashlib.sha256()
        for name in SPLITS:
            total.update(f"{name} {len(indices[name])}".encode() + indices[name].astype("<i8").tobytes())
        return dataclasses.replace(self, data=data, digest=total.hexdigest())


def check_fractions(val_fraction: float, test_fraction: float) -> None:
    """Refuse shares that are none.

    Raises:
        DataError: If one is not at least 0 and below 1.
    """
    for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"data.{name}: got {fraction}, expected at least 0 and below 1")


def split(
    targets: np.ndarray, part: np.ndarray | None, val_fraction: float, test_fraction: float, stratify: bool, seed: int
) -> dict[str, np.ndarray]:
    """Split samples into train, val and test, by the stream `split` of `seed`.

    Args:
        targets: Labels (samples,) to stratify by, or anything of that length.
        part: TRAIN, VAL or TEST of each sample where the source says so; what it leaves out is cut from train.
        val_fraction: Share of all samples for val, or of the train part where test is given.
        test_fraction: Share of all samples for test, unless the source has a test part.
        stratify: Whether every part gets its share of every class.
        seed: Seed of the experiment, or of the split alone.

    Returns:
        Sorted indices of each of `train`, `val` and `test`.

    Raises:
        DataError: If the fractions leave nothing to train on.
    """
    check_fractions(val_fraction, test_fraction)
    where = np.full(len(targets), TRAIN, np.int8) if part is None else part.copy()
    rng = numpy_stream(seed, "split")
    for code, fraction in ((TEST, test_fraction), (VAL, val_fraction)):
        if part is not None and (part == code).any():
            continue
        free = np.flatnonzero(where == TRAIN)
        # Of what is left after test, val still gets its share of the whole.
        share = fraction / (1 - test_fraction) if code == VAL and part is None else fraction
        where[_draw(free, targets, min(share, 1.0), stratify, rng)] = code
    indices = {name: np.flatnonzero(where == code) for name, code in zip(SPLITS, (TRAIN, VAL, TEST), strict=True)}
    if not len(indices["train"]):
        raise DataError(
            f"data.val_fraction, data.test_fraction: nothing is left to train on: of {len(targets)} samples, all went "
            "to val and test; lower them"
        )
    return indices


def _draw(free: np.ndarray, targets: np.ndarray, share: float, stratify: bool, rng: np.random.Generator) -> np.ndarray:
    """Draw round(share * len(free)) of `free`, class by class if asked to, largest remainders first."""
    total = round(share * len(free))
    if not stratify:
        return rng.permutation(free)[:total]
    labels, inverse = np.unique(targets[free], return_inverse=True)
    exact = np.bincount(inverse, minlength=len(labels)) * share
    quota = np.floor(exact).astype(int)
    by_remainder = np.lexsort((rng.permutation(len(labels)), -(exact - quota)))
    quota[by_remainder[: total - quota.sum()]] += 1
    return np.concatenate([rng.permutation(free[inverse == k])[: quota[k]] for k in range(len(labels))] or [free[:0]])
