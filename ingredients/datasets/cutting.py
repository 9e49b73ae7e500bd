"""Samples drawn for a part: one by one, group by group, or by time; a share of them, or a fold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sacristan.ingredients.datasets.split_rules import Fold, Rule
from sacristan.ingredients.errors import DataError

__all__ = ["Cutter"]

# Groups are dealt in random order this often at most, and so that about so many are dealt in all; the best one counts.
_DEALS, _DEALT = 20, 20_000
# Classes are balanced over groups if there are at most so many counts of a class in a group.
_MAX_COUNTS = 20_000_000


@dataclasses.dataclass
class Cutter:
    """Draws shares and folds of samples by a rule, with labels to balance and codes of groups or times (samples,)."""

    rule: Rule
    labels: np.ndarray | None
    codes: np.ndarray | None
    rng: np.random.Generator

    def cut(self, free: np.ndarray, share: float, num_left: int) -> np.ndarray:
        """Return about `share` of `free`, so that the rest can be cut into `num_left` parts."""
        if self.codes is None:
            return _draw(free, self.labels, share, self.rng)
        if not share or not len(free):
            return free[:0]
        codes = self.codes[free]
        self._check_enough(codes, num_left + 1)
        if self.rule.kind == "group":
            return free[_dealt(codes, self._labels_of(free), [1 - share, share], self.rng, num_left) == 1]
        edges = _edges(codes)[num_left - 1 :]
        edge = edges[np.abs(edges - len(free) * (1 - share)).argmin()]
        return free[np.argsort(codes, kind="stable")[edge:]]

    def fold(self, free: np.ndarray, fold: Fold) -> tuple[np.ndarray, np.ndarray]:
        """Return a fold of `free`, and the samples that are then in no part."""
        count, by_time = fold.count, self.rule.kind == "time"
        codes = np.arange(len(free)) if self.codes is None else self.codes[free]
        self._check_enough(codes, count + by_time)
        if by_time:
            order, size, edges = np.argsort(codes, kind="stable"), len(free) / (count + 1), _edges(codes)
            bounds, first = [], 0
            for number in range(1, count + 1):
                # The nearest change of the time that leaves one for each of the later folds.
                reach = edges[first : len(edges) - (count - number)]
                first += int(np.abs(reach - number * size).argmin()) + 1
                bounds.append(int(edges[first - 1]))
            start, end = [*bounds, len(free)][fold.number - 1 : fold.number + 1]
            return free[order[start:end]], free[order[end:]]
        if self.codes is None:
            numbers = np.empty(len(free), np.int64)
            numbers[np.lexsort((self.rng.permutation(len(free)), self._labels_of(free)))] = np.arange(len(free)) % count
        else:
            numbers = _dealt(codes, self._labels_of(free), [1 / count] * count, self.rng)
        return free[numbers == fold.number - 1], free[:0]

    def _labels_of(self, free: np.ndarray) -> np.ndarray:
        return np.zeros(len(free), np.int8) if self.labels is None else self.labels[free]

    def _check_enough(self, codes: np.ndarray, least: int) -> None:
        count = len(np.unique(codes))
        if count < least:
            kinds = {"random": "samples", "group": "groups", "time": "different times"}
            raise DataError(
                f"data.split={self.rule.text}: there are {count} {kinds[self.rule.kind]} to split, expected at least "
                f"{least}; ask for fewer folds or parts, or give more data"
            )


def _edges(codes: np.ndarray) -> np.ndarray:
    """Return the positions in sorted codes where the next code starts."""
    return np.cumsum(np.unique(codes, return_counts=True)[1])[:-1]


def _draw(free: np.ndarray, labels: np.ndarray | None, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw round(share * len(free)) of `free`; stratified by class, if given, with the largest remainder method."""
    total = round(share * len(free))
    if labels is None:
        return rng.permutation(free)[:total]
    classes, inverse = np.unique(labels[free], return_inverse=True)
    exact = np.bincount(inverse, minlength=len(classes)) * share
    quota = np.floor(exact).astype(int)
    by_remainder = np.lexsort((rng.permutation(len(classes)), -(exact - quota)))
    quota[by_remainder[: total - quota.sum()]] += 1
    return np.concatenate([rng.permutation(free[inverse == k])[: quota[k]] for k in range(len(classes))] or [free[:0]])


def _dealt(
    codes: np.ndarray, labels: np.ndarray, shares: Sequence[float], rng: np.random.Generator, num_first: int = 1
) -> np.ndarray:
    """Assign groups to bins so that every bin gets about its share of the samples, and of every class.

    `codes` and `labels` are the group and class of each sample, and the result is its bin, all (samples,). The first
    bin gets at least `num_first` groups, the others at least one.

    Each group goes to the bin that lacks its samples most. Of several random orders of the groups, the best counts. All
    arithmetic is on integers, so every machine gets the same bins.
    """
    groups, codes = np.unique(codes, return_inverse=True)
    classes, labels = np.unique(labels, return_inverse=True)
    if len(groups) * len(classes) > _MAX_COUNTS:
        classes, labels = classes[:1], np.zeros_like(labels)
    shape = len(groups), len(classes)
    counts = np.bincount(codes * shape[1] + labels, minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.concatenate([counts, counts.sum(1, keepdims=True)], 1).astype(np.int64)
    totals = counts.sum(0)
    # The same share of a rare class counts as much as that of a common one.
    scale = (len(codes) // totals) ** 2
    scaled = counts * scale
    wanted = np.rint(np.outer(shares, totals)).astype(np.int64)
    best, least = np.zeros(len(groups), np.int64), None
    for _ in range(min(_DEALS, _DEALT // len(groups) + 1)):
        bins, lacking = np.empty(len(groups), np.int64), wanted.copy()
        owed = [num_first] + [1] * (len(shares) - 1)
        for left, group in zip(range(len(groups), 0, -1), rng.permutation(len(groups)).tolist(), strict=True):
            scores = lacking @ scaled[group]
            if left <= sum(owed):
                scores = np.where(np.array(owed) > 0, scores, np.iinfo(np.int64).min)
            chosen = int(scores.argmax())
            bins[group] = chosen
            lacking[chosen] -= counts[group]
            owed[chosen] = max(owed[chosen] - 1, 0)
        error = int((lacking**2 @ scale).sum())
        if least is None or error < least:
            best, least = bins, error
    return best[codes]
