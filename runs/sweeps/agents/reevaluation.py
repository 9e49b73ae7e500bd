"""Rerun the best points of a sweep on fresh seeds, as separate sweeps, and judge them by those runs.

The winner of many points is partly luck: its value in the search is too good. So the finalists run again on seeds that
the search did not use, and only those values count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from sacristan.runs.comparison.inference import (
    MeanDifference,
    Sample,
    are_paired,
    holm,
    num_to_tell_apart,
    repetition_test,
    sample,
)
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.engines import supervise
from sacristan.runs.sweeps.spec.fields import identity
from sacristan.runs.sweeps.spec.search import Objective
from sacristan.runs.sweeps.study.continuing import take_up
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Watcher, say


def best_on_fresh_seeds(
    place: Place,
    watcher: Watcher,
    agent_options: AgentOptions,
    workers: Sequence[dict[str, str]],
    num_seeds: int,
    log: Path,
) -> int:
    """Rerun the best points of a sweep on seeds that the search did not use; print and return the number of the best.

    The runs of trial 7 of the sweep `abc` belong to a sweep `abc-final-7`; its finished runs are not repeated.
    """
    definition, spec = watcher.definition, watcher.spec
    if len(spec.objectives) != 1:
        raise SweepError(
            f"sweep.reseed: got a sweep with {len(spec.objectives)} objectives, expected one, by which a point is best"
        )
    (objective,) = spec.objectives
    points = watcher.study.points()
    complete = [
        (number, point.parameters, point.values[0])
        for number, point in points.items()
        if point.state == "COMPLETE" and point.is_feasible
    ]
    chosen = choose_finalists(complete, objective.goal)
    if not chosen:
        raise SweepError(f"sweep {definition.id}: no trial has finished yet; wait for one, or see: sweep.status")
    seeds = fresh_seeds(definition.seed, num_seeds, [0, *(definition.seed + index for index in range(spec.seeds))])
    values: dict[str, dict[int, float]] = {}
    for number in chosen:
        final = _final_sweep(definition, objective, number, points[number].parameters, seeds)
        values[f"trial {number}"] = _values(place, final, agent_options, workers, log)
    judgement = judge(values, objective.goal)
    for finalist in judgement.finalists:
        say(_line(finalist))
    say(judgement.text)
    return int(judgement.finalists[0].name.removeprefix("trial "))


def _values(
    place: Place, final: Definition, agent_options: AgentOptions, workers: Sequence[dict[str, str]], log: Path
) -> dict[int, float]:
    """Run the final of one trial, and return the values of the objective by seed."""
    number, seeds = final.id.rpartition("-")[2], final.spec["parameters"]["seed"]["values"]
    with contextlib.closing(place.home(final.id)) as home:
        if not home.create(final):  # perhaps with other seeds, of which more may have run
            num_taken = Watcher(home).study.num_taken()
            take_up(home, dataclasses.replace(final, count=max(len(seeds), num_taken)))
    say(f"trial {number} on {len(seeds)} fresh seeds: sacristan ls --sweep {final.id}")
    points = supervise(place, final.id, agent_options, workers, log).points.values()
    return {point.parameters["seed"]: point.values[0] for point in points if point.state == "COMPLETE"}


def _line(finalist: Finalist) -> str:
    sample = finalist.sample
    width = "" if sample.low is None else f", {sample.low:.6g} to {sample.high:.6g} ({CONFIDENCE:.0%})"
    mean = "no value" if sample.mean is None else f"mean {sample.mean:.6g} of {sample.n}{width}"
    p = "" if finalist.p_holm is None else f"; p = {finalist.p_holm:.3g} against the best"
    return f"{finalist.name}: {mean}{p}"


def _final_sweep(
    definition: Definition, objective: Objective, number: int, parameters: Mapping[str, Any], seeds: Sequence[int]
) -> Definition:
    """Return the sweep that runs one point of another sweep on each of some seeds."""
    fixed = {key: {"value": value} for key, value in parameters.items()}
    document = {
        "method": "grid",
        "metric": {"name": objective.name, "goal": objective.goal},
        "parameters": {**fixed, "seed": {"values": list(seeds)}},
    }
    id, count = f"{definition.id}-final-{number}", len(seeds)
    return dataclasses.replace(definition, id=id, spec=document, count=count, earlier=(), has_retried=False)


# ---------------------------------------------------------------------- the judgement


# Of intervals and tests; and the probability with which `num_needed` seeds find a difference.
CONFIDENCE, POWER = 0.95, 0.8


@dataclasses.dataclass(frozen=True)
class Finalist:
    """A point that was run again.

    `test` compares the best finalist's values with these; None for the best one itself. `p_holm` is its p, corrected
    for the number of pairs of finalists; None if there is no p.
    """

    name: str
    sample: Sample
    test: MeanDifference | None = None
    p_holm: float | None = None
    is_worse: bool = False


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The result of running finalists again, best mean first.

    `num_needed` are the seeds that the first two each need to be told apart with a probability of `POWER`, if
    difference and spread are as measured; None if the two seem equal, or have too few values.
    """

    finalists: tuple[Finalist, ...]
    num_needed: int | None
    text: str


def choose_finalists(trials: Iterable[tuple[int, Mapping[str, Any], float]], goal: str, num: int = 3) -> list[int]:
    """Return the numbers of the trials with the best points, the best one first.

    A point that several trials share counts once, with the mean of their values; the first of them represents it.
    `trials` holds number, point and value; NaN and infinities never win.
    """
    of_point: dict[str, list[tuple[int, float]]] = {}
    for number, point, value in sorted(trials, key=lambda trial: trial[0]):
        if math.isfinite(value):
            key = ",".join(f"{name}={identity(point[name])}" for name in sorted(point))
            of_point.setdefault(key, []).append((number, value))
    sign = -1.0 if goal == "maximize" else 1.0
    means = [(sign * math.fsum(value for _, value in same) / len(same), same[0][0]) for same in of_point.values()]
    return [number for _, number in sorted(means)[:num]]


def fresh_seeds(seed: int, num: int, used: Collection[int] = ()) -> list[int]:
    """Draw distinct seeds that are not in `used`; the same sweep gets the same ones."""
    random = np.random.default_rng([seed, 0x5EED])
    seeds: list[int] = []
    while len(seeds) < num:
        candidate = int(random.integers(1, 2**31 - 1))
        if candidate not in used and candidate not in seeds:
            seeds.append(candidate)
    return seeds


def judge(values: Mapping[str, Mapping[int, float]], goal: str) -> Judgement:
    """Judge finalists by their values on fresh seeds, given by finalist and seed.

    The best mean is tested against each of the others, in pairs where they share seeds, otherwise by Welch's t-test, as
    in `runs.compare`; p is corrected for the number of pairs of finalists (Holm). Values that are not finite do not
    count; no value at all raises SweepError.
    """
    finite = {name: {seed: float(v) for seed, v in of.items() if math.isfinite(v)} for name, of in values.items()}
    if not any(finite.values()):
        raise SweepError("no repetition of a finalist has a value; see why with: sacristan ls")
    samples = {name: sample(_array(of), CONFIDENCE) for name, of in finite.items()}
    names = sorted(samples, key=lambda name: _rank(samples[name].mean, goal))
    best = names[0]
    tests = {name: repetition_test(finite[best], finite[name], CONFIDENCE) for name in names[1:]}
    # The same values chose the best one, so any two finalists could have been the pair to tell apart.
    others = [repetition_test(finite[one], finite[two], CONFIDENCE) for one, two in combinations(names[1:], 2)]
    corrected = iter(holm([test.p for test in (*tests.values(), *others) if test.p is not None]))
    finalists = [Finalist(best, samples[best])]
    for name, test in tests.items():
        p = 1.0 if test.p is None else next(corrected)
        finalists.append(Finalist(name, samples[name], test, None if test.p is None else p, p < 1 - CONFIDENCE))
    num_needed = None
    if len(names) > 1 and tests[names[1]].p is not None:  # without a p the spread is unknown
        num_needed = _num_needed(finite[best], finite[names[1]])
    return Judgement(tuple(finalists), num_needed, _text(finalists[0], finalists[1:], num_needed))


def _rank(mean: float | None, goal: str) -> tuple[bool, float]:
    return mean is None, 0.0 if mean is None else -mean if goal == "maximize" else mean


def _array(values: Mapping[int, float]) -> np.ndarray:
    return np.array(list(values.values()))


def _num_needed(first: Mapping[int, float], second: Mapping[int, float]) -> int | None:
    if are_paired(first, second):
        differences = np.array([first[seed] - second[seed] for seed in first if seed in second])
        mean, std = float(differences.mean()), float(differences.std(ddof=1))
        return num_to_tell_apart(mean, std, confidence=CONFIDENCE, power=POWER)
    one, other = (sample(_array(values), CONFIDENCE) for values in (first, second))
    if one.mean is None or other.mean is None or one.std is None or other.std is None:
        return None
    return num_to_tell_apart(one.mean - other.mean, one.std, other.std, confidence=CONFIDENCE, power=POWER)


def _text(best: Finalist, others: list[Finalist], num_needed: int | None) -> str:
    if not others:
        return f"{best.name} is the only finalist"
    second = others[0]
    unclear = next((finalist for finalist in others if not finalist.is_worse), None)
    if unclear is None:
        names = second.name if len(others) == 1 else f"all {len(others)} others"
        worst = max(finalist.p_holm or 0.0 for finalist in others)
        return f"{best.name} is better than {names} (p = {worst:.2g}, n = {best.sample.n})"
    if unclear.test is not None and unclear.test.p is None:
        reason = unclear.test.reason.removesuffix(": no test is possible")
        return f"no test is possible between {best.name} and {unclear.name}: {reason}"
    result = (
        f"{best.name} and {unclear.name} cannot be told apart (p = {unclear.p_holm or 1.0:.2g}, n = {best.sample.n})"
    )
    if unclear is not second or num_needed is None:
        return result
    return f"{result}; {num_needed} seeds each would do with a probability of {POWER:.0%}, if they are what they seem"
