"""Actions of the commands of the ingredient `sweep`, once their config is read; they print for the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs.sweeps.agents.agent_process import work
from runs.sweeps.agents.engines import Engine
from runs.sweeps.agents.finals import best_on_fresh_seeds
from runs.sweeps.agents.trials import Means
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.continuing import join, retry_failed, take_up
from runs.sweeps.study.own_storage import check_storage
from runs.sweeps.study.place import Place
from runs.sweeps.study.points import representative
from runs.sweeps.study.samplers import check_extra
from runs.sweeps.study.undelivered import deliver, undelivered_lines
from runs.sweeps.views.status import Status, Watcher, check_not_all_failed, command_line, say, say_all, status_lines

__all__ = ["best_trials", "join_sweep", "run_sweep", "stop_sweep"]


def run_sweep(
    place: Place,
    spec: Spec,
    definition: Definition,
    means: Means,
    workers: Sequence[dict[str, str]],
    engine: Engine,
    check_settings: Callable[[Sequence[str], Mapping[str, Any]], object],
    retries_failed: bool = False,
) -> Status:
    """Start a sweep, continue or extend it, and run agents until it is done.

    Args:
        place: Where sweeps are kept.
        spec: The spec of the sweep.
        definition: The sweep as the command asks for it.
        means: What the agents work with.
        workers: For each agent, variables to set for its runs.
        engine: Where the agents run.
        check_settings: Checks settings of a point, given those of all runs, before the first trial.
        retries_failed: Whether agents run points again that failed earlier.

    Returns:
        The status of the sweep after the last agent has ended.

    Raises:
        RunsError: If the sweep is another one, cannot be written, or all of its trials have failed.
        OSError: If its folder cannot be written.
        KeyboardInterrupt: After a Ctrl-C, when the runs have saved their states.
    """
    engine.check_extras()
    check_extra(spec)
    _note(spec.notes)
    if spec.program is not None and Path(spec.program).name != Path(definition.script).name:
        _note([f"program {spec.program} is not used: the runs are those of {definition.script}"])
    definition.check_parameters(spec.parameters)
    for settings in representative(spec):
        check_settings(definition.settings, settings)
    check_storage(definition)  # before anything is written
    definition = _created(place, definition, retries_failed)
    log = _log(place, definition.id)
    try:
        status = engine.run(place, definition, means, workers, log)
    except KeyboardInterrupt:
        if engine.name != "slurm":  # whose job continues
            say(f"interrupted; to continue sweep {definition.id}, give the same command again")
        raise
    if not getattr(sys.stdout, "isatty", bool)():  # a terminal shows them already
        say_all(status_lines(status, spec.objective_names))
    deliver(place, definition.id)
    say_all(undelivered_lines(place, definition.id))
    check_not_all_failed(status, log.parent)
    return status


def _created(place: Place, definition: Definition, retries_failed: bool) -> Definition:
    """Write a sweep down, or take up one that is there; return its definition."""
    with contextlib.closing(place.home(definition.id)) as home:
        if not home.create(definition):
            definition, notes = take_up(home, definition)
            _note(notes)
            if retries_failed:
                _note(retry_failed(home, definition))
            home.stop(False)
        say(f"sweep {definition.id} in {home.where}; its runs: python -m runs ls --sweep {definition.id}")
    return definition


def join_sweep(place: Place, id: str, means: Means, experiment: str) -> int:
    """Work on a sweep that was started elsewhere, as one agent, until nothing is left to take.

    Args:
        place: Where the sweep is kept.
        id: The sweep's id.
        means: What the agent works with; the script lies in `means.lab` here.
        experiment: Name of the experiment that the agent was started by.

    Returns:
        How many points the agent has seen through.

    Raises:
        RunsError: If there is no such sweep, or it belongs to another experiment or script.
    """
    with contextlib.closing(place.home(id)) as home:
        _note_place(home.definition(), means, experiment)
    return work(place, id, means)


def stop_sweep(place: Place, id: str) -> None:
    """Let agents finish the current runs of a sweep, and start none.

    Args:
        place: Where the sweep is kept.
        id: The sweep's id.

    Raises:
        RunsError: If there is no such sweep, or it cannot be written.
    """
    with contextlib.closing(place.home(id)) as home:
        home.definition()
        home.stop()
    say(f"sweep {id}: no more runs are started; to continue: sweep.run with sweep.id={id}")


def best_trials(
    place: Place,
    id: str,
    experiment: str,
    num_seeds: int | None,
    make_means: Callable[[Spec], Means],
    workers: Sequence[dict[str, str]],
) -> dict[str, Any] | None:
    """Print the best trials of a sweep, and the commands that run them again.

    Args:
        place: Where the sweep is kept.
        id: The sweep's id.
        experiment: Name of the experiment that the command was given to.
        num_seeds: Fresh seeds to rerun and judge the best three points on; None judges by the sweep alone.
        make_means: Returns what agents work with, if there are fresh seeds.
        workers: For each agent, variables to set for its runs.

    Returns:
        The parameters of the best trial; None if there is none.

    Raises:
        RunsError: If there is no such sweep, or the finals cannot be run.
    """
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        spec, best = watcher.spec, list(watcher.look().best)
        if not best:
            judges_nothing = "it judges nothing, so no trial is the best; give it a metric"
            say(f"sweep {id}: {'no trial has finished yet' if spec.objectives else judges_nothing}")
            return None
        if num_seeds is not None:
            means = make_means(spec)
            _note_place(watcher.definition, means, experiment)
            number = best_on_fresh_seeds(place, watcher, means, workers, num_seeds, _log(place, id))
            best = [watcher.study.points()[number]]
    for point in best:
        for objective, value in zip(spec.objectives, point.values, strict=True):
            say(f"trial {point.number}: {objective.name} {value:.6g} in the sweep")
        say(f"  {command_line(watcher.definition, point)}")
    return dict(best[0].parameters)


def _log(place: Place, id: str) -> Path:
    """Return the file that runs of a sweep print to on this machine, in a folder that is created."""
    folder = place.base / "sweeps" / id
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "output.log"


def _note_place(definition: Definition, means: Means, experiment: str) -> None:
    """Say where runs of a sweep that was started elsewhere have their code from."""
    _note(join(definition, experiment, means.lab or Path(definition.base)))


def _note(notes: Sequence[str]) -> None:
    say_all(f"note: {note}" for note in notes)
