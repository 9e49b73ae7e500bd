"""Finals: rerun the best points of a sweep on fresh seeds, as separate sweeps, and judge them by those runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.agents.supervising import supervise
from sacristan.runs.sweeps.agents.trials import Means
from sacristan.runs.sweeps.spec.definition import Definition
from sacristan.runs.sweeps.spec.finalists import CONFIDENCE, Finalist, choose_finalists, fresh_seeds, judge
from sacristan.runs.sweeps.spec.objectives import Objective
from sacristan.runs.sweeps.study.continuing import take_up
from sacristan.runs.sweeps.study.place import Place
from sacristan.runs.sweeps.views.status import Watcher, say

__all__ = ["best_on_fresh_seeds"]


def best_on_fresh_seeds(
    place: Place, watcher: Watcher, means: Means, workers: Sequence[dict[str, str]], num_seeds: int, log: Path
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
        values[f"trial {number}"] = _values(place, final, means, workers, log)
    judgement = judge(values, objective.goal)
    for finalist in judgement.finalists:
        say(_line(finalist))
    say(judgement.text)
    return int(judgement.finalists[0].name.removeprefix("trial "))


def _values(
    place: Place, final: Definition, means: Means, workers: Sequence[dict[str, str]], log: Path
) -> dict[int, float]:
    """Run the final of one trial, and return the values of the objective by seed."""
    number, seeds = final.id.rpartition("-")[2], final.spec["parameters"]["seed"]["values"]
    with contextlib.closing(place.home(final.id)) as home:
        if not home.create(final):  # perhaps with other seeds, of which more may have run
            num_taken = Watcher(home).study.num_taken()
            take_up(home, dataclasses.replace(final, count=max(len(seeds), num_taken)))
    say(f"trial {number} on {len(seeds)} fresh seeds: sacristan ls --sweep {final.id}")
    points = supervise(place, final.id, means, workers, log).points.values()
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
