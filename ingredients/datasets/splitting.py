"""Splits into train, val and test, which can be repeated and compared."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.ingredients.config.seed import numpy_stream
from sacristan.ingredients.datasets.split_rules import RANDOM, Cutter, Fold, SplitRule, default_test_fraction
from sacristan.ingredients.errors import DataError

_log = logging.getLogger(__name__)

TRAIN, VAL, TEST = 0, 1, 2
_UNUSED = -1
SPLITS = ("train", "val", "test")
# Names of the parts in files and folders.
PARTS = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST, "t10k": TEST}

# Settings of the data ingredient that determine a split, besides its seed.
_SETTINGS = ("limit", "val_fraction", "test_fraction", "stratify", "split", "fold")


def by_name(parts: Mapping[int | None, Any]) -> Any:
    """Return parts by name instead of code; a single part without a code, which the lab splits, as it is."""
    return parts[None] if None in parts else {SPLITS[code]: part for code, part in parts.items() if code is not None}


def files_by_part(path: Path, pattern: str, kind: str) -> dict[int | None, list[Path]]:
    """Return the sorted files below a path by the code of their part: `train` and so on as folder or first word."""
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

    `seed` is that of the streams `factory`, `limit` and `statistics`, `split_seed` of the stream `split`. `data` and
    `digest` are the SHA-256 of the content and of the sample indices of each part; None if unknown.
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
    split: str = "random"
    fold: str | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], seed: int) -> Split:
        """Return the split that a config of the data ingredient describes; earlier versions have no `split` and `fold`.

        Folds use split seed 0 by default, so that those of runs with different seeds fit together.
        """
        config = {"split": "random", "fold": None, **config}
        split_seed = config["split_seed"]
        if split_seed is None:
            split_seed = seed if config["fold"] is None else 0
        return cls(seed, split_seed, **{name: config[name] for name in _SETTINGS})

    @property
    def limit_seed(self) -> int:
        return self.seed if self.fold is None else self.split_seed

    def differing(self, config: Mapping[str, Any]) -> list[str]:
        """Return `ingredient.name=value` of this split where `config`, or fields of another split, differs."""
        names = [name for name in _SETTINGS if name in config and config[name] != getattr(self, name)]
        if config.get("split_seed") not in (None, self.split_seed):
            names.append("split_seed")
        return [f"{self.ingredient}.{name}={getattr(self, name)}" for name in names]

    def check(self, config: Mapping[str, Any]) -> None:
        """Reject a config that describes another split than this one, which belongs to a state to start from."""
        differing = self.differing(config)
        if differing:
            raise _other_split(f"with {', '.join(differing)}", "use those settings", self.ingredient)

    def check_start(self, start: Split, where: str) -> None:
        """Reject a state to start from that was trained on other data, or on other samples of the same data."""
        if start.data is not None and self.data is not None and start.data != self.data:
            difference = f"on data with the fingerprint {start.data[:12]}, and {where} has {self.data[:12]}"
            raise _other_split(difference, "use the same data", self.ingredient)
        if start.digest not in (None, self.digest):
            rule = SplitRule.parse(self.split)
            versions = "use the versions of the lab and of numpy that it was trained with"
            remedy = versions if rule.column is None else f"restore the values of {rule.column!r}, or {versions}"
            raise _other_split("on samples that are drawn differently here", remedy, self.ingredient)

    def warn_of_new(self, start: Split) -> list[str]:
        """Warn of the differences between this split and that of a state to start from, and return those of `start`."""
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

    def indices(
        self, targets: np.ndarray, part: np.ndarray | None, task: str, values: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return the indices of each part, stratified for `classification`; `values` are groups or times, or None."""
        rule, stratify = SplitRule.parse(self.split), self.stratify and task == "classification"
        codes = None if rule.kind == "random" else rule.codes(values, len(targets))
        fractions, fold = (self.val_fraction, self.test_fraction), Fold.parse(self.fold)
        indices = split(targets, part, *fractions, stratify, self.split_seed, rule=rule, codes=codes, fold=fold)
        if codes is not None and values is not None:
            _check_apart(rule, codes, values, indices)
        return indices

    def drawn(self, data: str, indices: Mapping[str, np.ndarray]) -> Split:
        """Return this split with the fingerprints of its data (`data`, a SHA-256) and of the sample indices."""
        total = hashlib.sha256()
        for name in SPLITS:
            total.update(f"{name} {len(indices[name])}".encode() + indices[name].astype("<i8").tobytes())
        return dataclasses.replace(self, data=data, digest=total.hexdigest())


def check_split(config: Mapping[str, Any]) -> None:
    """Check the settings of a split before anything is read."""
    _check_fractions(config["val_fraction"], config["test_fraction"])
    rule = SplitRule.parse(config["split"])
    share = default_test_fraction(rule.text, config["fold"])
    if config["fold"] is not None and abs(config["test_fraction"] - share) > 0.005:
        raise DataError(
            f"data.test_fraction: got {config['test_fraction']}, but data.fold={config['fold']} tests on "
            f"{share:.3g} of the samples; leave it out"
        )


def _check_fractions(val_fraction: float, test_fraction: float) -> None:
    for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise DataError(f"data.{name}: got {fraction}, expected at least 0 and below 1")


def _check_apart(rule: SplitRule, codes: np.ndarray, values: np.ndarray, indices: Mapping[str, np.ndarray]) -> None:
    """Reject parts that share a group, or a later one that does not begin after the end of an earlier one."""
    filled = [name for name in SPLITS if len(indices[name])]
    for index, (name, later) in enumerate(itertools.pairwise(filled)):
        ends, starts = codes[indices[name]], codes[indices[later]]
        if rule.kind == "time" and ends.max() >= starts.min():
            end, start = (
                values[indices[part][pick]] for part, pick in ((name, ends.argmax()), (later, starts.argmin()))
            )
            raise DataError(
                f"data.split={rule.text}: the {name} part ends at {end}, and the {later} part begins at {start}; "
                "expected train before val before test; move those samples, set the fraction of a part that cannot be "
                "cut to 0, or use data.split=random"
            )
        for other in filled[index + 1 :] if rule.kind == "group" else ():
            both = np.flatnonzero(np.isin(codes[indices[other]], ends))
            if len(both):
                group = str(values[indices[other][both[0]]])
                raise DataError(
                    f"data.split={rule.text}: {group!r} is in the {name} and in the {other} part of the data, which "
                    "are split already; move it to one of them, or use data.split=random"
                )


def split(
    targets: np.ndarray,
    part: np.ndarray | None,
    val_fraction: float,
    test_fraction: float,
    stratify: bool,
    seed: int,
    *,
    rule: SplitRule = RANDOM,
    codes: np.ndarray | None = None,
    fold: Fold | None = None,
) -> dict[str, np.ndarray]:
    """Split samples into sorted indices of train, val and test, with the stream `split` of `seed`.

    `targets`, `part` and `codes` are (samples,). `part` is TRAIN, VAL or TEST if the source is split already; missing
    parts are then cut from train, and `val_fraction` is a share of train. `fold` becomes the test part, or the val part
    if the source has a test part. Samples after the test part of a fold by time are in no part.
    """
    _check_fractions(val_fraction, test_fraction)
    parts = np.full(len(targets), TRAIN, np.int8) if part is None else part.copy()
    rng = numpy_stream(seed, "split")
    shares = {TEST: test_fraction, VAL: val_fraction}
    missing = [code for code in shares if part is None or not (part == code).any()]
    if fold is not None and not missing:
        raise DataError(
            "data.fold: the data have a val and a test part already, so no fold can be cut; leave data.fold out"
        )
    cutter = Cutter(rule, targets if stratify else None, codes, rng)
    for code in missing:
        free = np.flatnonzero(parts == TRAIN)
        # val gets its share of the whole, although test is cut already.
        share = shares[code] / (1 - test_fraction) if code == VAL and part is None else shares[code]
        if fold is not None and code == missing[0]:
            chosen, unused = cutter.fold(free, fold)
            parts[unused] = _UNUSED
        else:
            num_left = 1 + sum(shares[other] > 0 for other in missing[missing.index(code) + 1 :])
            chosen = cutter.cut(free, min(share, 1.0), num_left)
        parts[chosen] = code
    indices = {name: np.flatnonzero(parts == code) for name, code in zip(SPLITS, (TRAIN, VAL, TEST), strict=True)}
    if not len(indices["train"]):
        raise DataError(
            f"data.val_fraction, data.test_fraction: nothing is left to train on: of {len(targets)} samples, all went "
            "to val and test; lower them"
        )
    return indices
