"""`judge`: which of a sweep's best points is the best one, beyond the luck of a seed.

The best of many points is best by luck, too: its value in the search promises too much. So the finalists are run again
on seeds that the search did not use, and only those values count.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from runs.comparison.inference import MeanDifference, Sample, are_paired, holm, paired_test, sample, welch_test
from runs.comparison.power import num_to_tell_apart
from runs.errors import SweepError
from runs.sweeps.spec.checking import identity

__all__ = ["Finalist", "Judgement", "choose_finalists", "fresh_seeds", "judge"]


@dataclasses.dataclass(frozen=True)
class Finalist:
    """One of the points that were run again.

    Attributes:
        name: What it is called.
        sample: n, mean, std and interval over its seeds.
        test: The best finalist's values against these; None for the best one itself.
        p_holm: p of the test, corrected for the number of pairs of finalists; None if there is no p.
        is_worse: Whether the test finds it worse than the best one.
    """

    name: str
    sample: Sample
    test: MeanDifference | None = None
    p_holm: float | None = None
    is_worse: bool = False


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Result of repeating the finalists.

    Attributes:
        finalists: Best mean first.
        num_needed: Seeds that the first two would need each to be told apart with a probability of `power`, if their
            difference and spread are what they seem; None if they seem equal, or too few values are there to tell.
        power: That probability.
        confidence: Of intervals and tests.
        text: The same in one sentence.
    """

    finalists: tuple[Finalist, ...]
    num_needed: int | None
    power: float
    confidence: float
    text: str

    @property
    def is_clear(self) -> bool:
        """True if the first one is better than all others."""
        return all(finalist.is_worse for finalist in self.finalists[1:])


def choose_finalists(trials: Iterable[tuple[int, Mapping[str, Any], float]], goal: str, num: int = 3) -> list[int]:
    """Return the numbers of the trials with the best points, the best one first.

    A point that several trials had counts once, with the mean of their values; the first of them stands for it.

    Args:
        trials: Number, point and value of each trial that has one; NaN never wins.
        goal: `minimize` or `maximize`.
        num: At most as many are returned.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for number, point, value in sorted(trials, key=lambda trial: trial[0]):
        if math.isfinite(value):
            same = ",".join(f"{name}={identity(point[name])}" for name in sorted(point))
            found.setdefault(same, []).append((number, value))
    sign = -1.0 if goal == "maximize" else 1.0
    means = [(sign * math.fsum(value for _, value in of) / len(of), of[0][0]) for of in found.values()]
    return [number for _, number in sorted(means)[:num]]


def fresh_seeds(seed: int, num: int, used: Collection[int] = ()) -> list[int]:
    """Return seeds for repetitions, the same for the same sweep, and none of those used.

    Args:
        seed: The sweep's.
        num: How many.
        used: Seeds of the search.
    """
    random = np.random.default_rng([seed, 0x5EED])
    found: list[int] = []
    while len(found) < num:
        candidate = int(random.integers(1, 2**31 - 1))
        if candidate not in used and candidate not in found:
            found.append(candidate)
    return found


def judge(
    values: Mapping[str, Mapping[int, float]], goal: str, *, confidence: float = 0.95, power: float = 0.8
) -> Judgement:
    """Return what the values of finalists on fresh seeds show.

    The best mean is tested against each of the others, in pairs where they share seeds, else by Welch's t-test, as
    `runs.compare` does; p is corrected for the number of pairs of finalists (Holm).

    Args:
        values: For each finalist, by its name, the values by their seeds. What is not finite does not count.
        goal: `minimize` or `maximize`.
        confidence: Of intervals and tests, between 0 and 1.
        power: The probability with which `num_needed` is to find the difference.

    Raises:
        SweepError: If no finalist has a value.
    """
    finite = {
        name: {seed: float(value) for seed, value in of.items() if math.isfinite(value)} for name, of in values.items()
    }
    if not any(finite.values()):
        raise SweepError("no repetition of a finalist has a value; see why with: python -m runs ls")
    samples = {name: sample(np.array(list(of.values())), confidence) for name, of in finite.items()}
    names = sorted(samples, key=lambda name: _rank(samples[name].mean, goal))
    best = names[0]
    tests = {name: _test(finite[best], finite[name], confidence) for name in names[1:]}
    with_p = {name: test.p for name, test in tests.items() if test.p is not None}
    # Which one is the best was chosen by the same values, so that any two could have been the ones to be told apart.
    among_others = [_test(finite[one], finite[other], confidence).p for one, other in combinations(names[1:], 2)]
    all_p = [*with_p.values(), *(p for p in among_others if p is not None)]
    corrected = dict(zip(with_p, holm(all_p), strict=False))
    finalists = [
        Finalist(name, samples[name], tests[name], corrected.get(name), corrected.get(name, 1.0) < 1 - confidence)
        for name in names[1:]
    ]
    # Without a p nothing is known of the spread.
    can_tell = len(names) > 1 and names[1] in with_p
    num_needed = _num_needed(finite[best], finite[names[1]], confidence, power) if can_tell else None
    whole = (Finalist(best, samples[best]), *finalists)
    return Judgement(whole, num_needed, power, confidence, _text(whole, num_needed, power))


def _rank(mean: float | None, goal: str) -> tuple[bool, float]:
    return mean is None, 0.0 if mean is None else -mean if goal == "maximize" else mean


def _pairs(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of shared seeds, if the test is of these."""
    if not are_paired(first, second):
        return None
    shared = [seed for seed in first if seed in second]
    return np.array([first[seed] for seed in shared]), np.array([second[seed] for seed in shared])


def _test(first: Mapping[int, float], second: Mapping[int, float], confidence: float) -> MeanDifference:
    pairs = _pairs(first, second)
    if pairs is not None:
        return paired_test(*pairs, confidence)
    return welch_test(np.array(list(first.values())), np.array(list(second.values())), confidence)


def _num_needed(first: Mapping[int, float], second: Mapping[int, float], confidence: float, power: float) -> int | None:
    pairs = _pairs(first, second)
    if pairs is not None:
        differences = pairs[0] - pairs[1]
        mean, std = float(differences.mean()), float(differences.std(ddof=1))
        return num_to_tell_apart(mean, std, confidence=confidence, power=power)
    ours, theirs = (sample(np.array(list(of.values())), confidence) for of in (first, second))
    if ours.mean is None or theirs.mean is None or ours.std is None or theirs.std is None:
        return None
    return num_to_tell_apart(ours.mean - theirs.mean, ours.std, theirs.std, confidence=confidence, power=power)


def _text(finalists: tuple[Finalist, ...], num_needed: int | None, power: float) -> str:
    best = finalists[0]
    if len(finalists) == 1:
        return f"{best.name} is the only finalist"
    second = finalists[1]
    if all(finalist.is_worse for finalist in finalists[1:]):
        others = second.name if len(finalists) == 2 else f"all {len(finalists) - 1} others"
        worst = max(finalist.p_holm or 0.0 for finalist in finalists[1:])
        return f"{best.name} is better than {others} (p = {worst:.2g}, n = {best.sample.n})"
    if second.test is not None and second.test.p is None:
        return f"{best.name} and {second.name} cannot be told apart: {second.test.reason}"
    unclear = next(finalist for finalist in finalists[1:] if not finalist.is_worse)
    said = f"{best.name} and {unclear.name} cannot be told apart (p = {unclear.p_holm or 1.0:.2g}, n = {best.sample.n})"
    if unclear is not second or num_needed is None:
        return said
    return f"{said}; {num_needed} seeds each would do with a probability of {power:.0%}, if they are what they seem"
