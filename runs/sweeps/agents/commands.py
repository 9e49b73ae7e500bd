"""Actions of the commands of the ingredient `sweep`, once their config is read; they print for the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.agent_process import work
from sacristan.runs.sweeps.agents.engines import Engine
from sacristan.runs.sweeps.agents.reevaluation import best_on_fresh_seeds
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.study.continuing import join, retry_failed, take_up
from sacristan.runs.sweeps.study.home import Place, check_storage
from sacristan.runs.sweeps.study.points import representative
from sacristan.runs.sweeps.study.samplers import check_extra
from sacristan.runs.sweeps.views import Status, Watcher, check_not_all_failed, say, say_all, status_lines


def run_sweep(
    place: Place,
    spec: Spec,
    definition: Definition,
    agent_options: AgentOptions,
    workers: Sequence[dict[str, str]],
    engine: Engine,
    check_settings: Callable[[Sequence[str], Mapping[str, Any]], object],
    retries_failed: bool = False,
) -> Status:
    """Start a sweep, continue or extend it, and run agents until it is done.

    `workers` holds the environment variables of each agent's runs. `check_settings` checks the settings of a point,
    given those of all runs, before the first trial.
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
        status = engine.run(place, definition, agent_options, workers, log)
    except KeyboardInterrupt:
        if engine.name != "slurm":  # whose job continues
            say(f"interrupted; to continue sweep {definition.id}, give the same command again")
        raise
    if not getattr(sys.stdout, "isatty", bool)():  # a terminal shows them already
        say_all(status_lines(status, spec.objective_names))
    place.deliver_ended(definition.id)
    say_all(_undelivered_lines(place, definition.id))
    check_not_all_failed(status, log.parent, "--retry-failed" if definition.is_script else "sweep.retry_failed=True")
    return status


def _created(place: Place, definition: Definition, retries_failed: bool) -> Definition:
    """Create a sweep, or continue the existing one; return its definition."""
    with contextlib.closing(place.home(definition.id)) as home:
        if not home.create(definition):
            definition, notes = take_up(home, definition)
            _note(notes)
            if retries_failed:
                _note(retry_failed(home, definition))
            home.stop(False)
        say(f"sweep {definition.id} in {home.where}; its runs: sacristan ls --sweep {definition.id}")
    return definition


def join_sweep(place: Place, id: str, agent_options: AgentOptions, experiment: str) -> int:
    """Work as one agent on a sweep that was started elsewhere, and return how many points this agent has finished."""
    with contextlib.closing(place.home(id)) as home:
        _note_place(home.definition(), agent_options, experiment)
    return work(place, id, agent_options)


def stop_sweep(place: Place, id: str) -> None:
    """Let the agents of a sweep finish their current runs, and start no others."""
    with contextlib.closing(place.home(id)) as home:
        home.definition()
        home.stop()
    say(f"sweep {id}: no more runs are started; to continue, give the command that started it again")


def best_trials(
    place: Place,
    id: str,
    experiment: str,
    num_seeds: int | None,
    make_agent_options: Callable[[Spec], AgentOptions],
    workers: Sequence[dict[str, str]],
) -> dict[str, Any] | None:
    """Print the best trials of a sweep, and the commands that run them again.

    The best three points are rerun on `num_seeds` fresh seeds and judged by these; None judges by the sweep alone.
    Returns the parameters of the best trial, None if there is none.
    """
    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        spec, best = watcher.spec, list(watcher.look().best)
        if not best:
            judges_nothing = "it judges nothing, so no trial is the best; give it a metric"
            say(f"sweep {id}: {'no trial has finished yet' if spec.objectives else judges_nothing}")
            return None
        if num_seeds is not None:
            agent_options = make_agent_options(spec)
            _note_place(watcher.definition, agent_options, experiment)
            number = best_on_fresh_seeds(place, watcher, agent_options, workers, num_seeds, _log(place, id))
            best = [watcher.study.points()[number]]
    for point in best:
        for objective, value in zip(spec.objectives, point.values, strict=True):
            say(f"trial {point.number}: {objective.name} {value:.6g} in the sweep")
        say(f"  {watcher.definition.command_line(point.parameters)}")
    return dict(best[0].parameters)


def _log(place: Place, id: str) -> Path:
    """Return the file that runs of a sweep print to on this machine, in a folder that is created."""
    folder = place.folder(id)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "output.log"


def _note_place(definition: Definition, agent_options: AgentOptions, experiment: str) -> None:
    """Log where the runs of a sweep that was started elsewhere have their code from."""
    _note(join(definition, experiment, agent_options.lab or Path(definition.base)))


def _note(notes: Sequence[str]) -> None:
    say_all(f"note: {note}" for note in notes)


# ---------------------------------------------------------------------- reading a sweep


def show_status(place: Place, id: str | None) -> None:
    """Print the status of a sweep, or of all sweeps, where each unreadable one takes one line."""
    ids = place.ids() if id is None else [id]
    if not ids:
        say("there is no sweep yet; start one: sweep.run with sweep.over='{lr: [1e-3, 1e-2]}', or sacristan sweep FILE")
    for each in ids:
        try:
            with contextlib.closing(place.home(each)) as home:
                watcher = Watcher(home)
                lines = status_lines(watcher.look(), watcher.spec.objective_names)
                say_all([*lines, *_undelivered_lines(place, each)])
        except SweepError as error:
            if id is not None:
                raise
            say(f"sweep {each}: {error}")


def plot_sweep(place: Place, id: str) -> None:
    """Draw a sweep, one page for the browser and a picture of each plot, and print their paths."""
    from sacristan.runs.sweeps.views.plots import draw

    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        folder = place.folder(id) / "plots"
        say_all(
            map(str, draw(watcher.study.optuna, folder, f"{watcher.definition.experiment}, sweep {id}", watcher.spec))
        )


def _undelivered_lines(place: Place, id: str) -> list[str]:
    """Return a line with the number of ended runs that only this machine has, and the command that delivers them."""
    labels = place.undelivered(id)
    if not labels:
        return []
    runs = f"{len(labels)} runs are" if len(labels) > 1 else "1 run is"
    where = ", ".join(dict.fromkeys(labels.values()))
    what, url = (where, f" --url {where}") if place.copies_runs else (f"MongoDB at {where}", "")
    return [f"{runs} not delivered to {what}; deliver: sacristan sync {place.base}{url}"]
