"""One process, one run: Sacred keeps a run's config and random stream on the captured functions themselves.

Two runs in threads would mix configs, points and output, so the second one is rejected. A run that another one starts
on the same thread has the functions to itself, and gives them back as they were.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import sacred
from sacred.run import Run

from sacristan.ingredients.errors import ConcurrentRunError

__all__ = ["check_nested", "given_back", "only_run"]

# The attributes that a run sets on captured functions.
_STATE = ("config", "logger", "rnd", "run")

# The experiments that run now, each with the run that started it; and the process and thread that they run in.
_running: list[tuple[sacred.Experiment, Run | None]] = []
_place: tuple[int, int] = (0, 0)
_changing = threading.Lock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


@contextlib.contextmanager
def only_run(experiment: sacred.Experiment) -> Iterator[None]:
    """Reserve this process for the run in the block, and for the runs that it starts itself on the same thread."""
    global _place
    with _changing:
        before, _place = _place, _checked_place(experiment)
        is_nested = bool(_running)
        _running.append((experiment, _running[-1][0].current_run if is_nested else None))
    try:
        with given_back(experiment) if is_nested else contextlib.nullcontext():
            yield
    finally:
        with _changing:
            _running.pop()
            _place = before


def _checked_place(experiment: sacred.Experiment) -> tuple[int, int]:
    """Return this process and thread; reject a second thread that runs an experiment."""
    here = (os.getpid(), threading.get_ident())
    # A forked child is a process of its own, and a run in it belongs to that of its parent.
    if _running and _place[0] == here[0] and _place != here:
        wanted, running = (os.fsdecode(each.path) for each in (experiment, _running[-1][0]))
        raise ConcurrentRunError(
            f"{wanted}: another thread of this process runs {running}, and Sacred keeps the config of a run on the "
            "functions themselves, so that the two would mix; start a process for each run"
        )
    return here


def check_nested(run: Run) -> None:
    """Record the parent of a nested run before it starts; reject a run whose observer is recording another run."""
    outer = [other for _, other in _running if other is not None and other.status == "RUNNING"]
    at_work = [id(observer) for other in outer for observer in other.observers]
    if not run.unobserved and {*map(id, run.observers)} & {*at_work}:
        raise ConcurrentRunError(
            f"{run.experiment_info['name']}: this run has observers that record the run which starts it, and would end "
            "that one's record; start it from an Experiment with observers of its own, or as a process"
        )
    if outer and outer[-1].meta_info.get("uid"):
        run.meta_info.setdefault("parent", outer[-1].meta_info["uid"])


@contextlib.contextmanager
def given_back(experiment: sacred.Experiment) -> Iterator[None]:
    """Restore the captured functions and the current run after the block, which computes a config or starts a run."""
    ingredients = {id(ingredient): ingredient for ingredient, _ in experiment.traverse_ingredients()}
    functions = [function for ingredient in ingredients.values() for function in ingredient.captured_functions]
    states = [{name: getattr(function, name) for name in _STATE} for function in functions]
    run = experiment.current_run
    try:
        yield
    finally:
        experiment.current_run = run
        for function, state in zip(functions, states, strict=True):
            for name, value in state.items():
                setattr(function, name, value)
