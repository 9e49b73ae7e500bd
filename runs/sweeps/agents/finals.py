"""Finals: rerun the best points of a sweep on fresh seeds, as separate sweeps, and judge them by those runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs.errors import SweepError
from runs.sweeps.agents.supervising import supervise
from runs.sweeps.agents.trials import Means
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.finalists import Judgement, choose_finalists, fresh_seeds, judge
from runs.sweeps.spec.objectives import Objective
from runs.sweeps.study.place import Place
from runs.sweeps.views.status import Watcher, say

__all__ = ["finals"]


def finals(
    place: Place,
    watcher: Watcher,
    means: Means,
    workers: Sequence[dict[str, str]],
    *,
    num_seeds: int,
    num_finalists: int = 3,
    log: Path,
    show: Callable[[str], None] = say,
) -> Judgement:
    """Run the best points of a sweep again on seeds that the search did not use, and judge them by those runs alone.

    The runs of trial 7 of the sweep `abc` belong to a sweep `abc-final-7`; its finished runs are not repeated.

    Args:
        place: Where sweeps are kept.
        watcher: Watches the sweep.
        means: What the agents work with.
        workers: For each agent, variables to set for its runs.
        num_seeds: Runs of each finalist.
        num_finalists: Most points to run again.
        log: A file for what the runs print.
        show: Takes lines.

    Returns:
        The finalists, best first, with a comparison of each with the best.

    Raises:
        SweepError: If the sweep has several objectives or none, or no complete trial.
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
    chosen = choose_finalists(complete, objective.goal, num_finalists)
    if not chosen:
        raise SweepError(f"sweep {definition.id}: no trial has finished yet; wait for one, or see: sweep.status")
    seeds = fresh_seeds(definition.seed, num_seeds, [0, *(definition.seed + index for index in range(spec.seeds))])
    values: dict[str, dict[int, float]] = {}
    for number in chosen:
        final = _final_sweep(definition, objective, number, points[number].parameters, seeds)
        with contextlib.closing(place.home(final.id)) as home:
            if not home.create(final):  # perhaps with fewer seeds
                home.replace(final)
        show(f"trial {number} on {num_seeds} fresh seeds: python -m runs ls --sweep {final.id}")
        status = supervise(place, final.id, means, workers, log, show)
        values[f"trial {number}"] = {
            point.parameters["seed"]: point.values[0] for point in status.points.values() if point.state == "COMPLETE"
        }
    return judge(values, objective.goal)


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
    return dataclasses.replace(definition, id=f"{definition.id}-final-{number}", spec=document, count=None)
