"""One process, one run: Sacred keeps a run's config and random stream on the captured functions themselves.

Two runs in threads would mix configs, points and output, so the second one is rejected. A run that another one starts
on the same thread has the functions to itself, and gives them back as they were.

A forked child logs metrics into its parent's record, and changes nothing else of it. It has a copy of everything its
parent had: the run, its observers, open files, signal handlers. The run lets go of all that in the child. A child that
returns from the function it was forked in ends there.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import NoReturn, ParamSpec, Protocol, TypeVar

import sacred
from sacred.run import Run

from sacristan.ingredients.errors import ConcurrentRunError

_log = logging.getLogger(__name__)

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


# ---------------------------------------------------------------------- forked children

P = ParamSpec("P")
T = TypeVar("T")


class Forked(Protocol):
    """A run, which reacts when its process forks; neither method may raise."""

    def before_fork(self) -> None:
        """Prepare for a fork."""

    def after_fork_in_child(self) -> None:
        """Release everything that belongs to the parent."""


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(run: Forked) -> None:
    """Call the methods of a run, held by a weak reference, at each fork of this process, in parent and child."""
    _register()
    _watched.add(run)


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)


def _before() -> None:
    for run in list(_watched):
        run.before_fork()


def _in_child() -> None:
    for run in list(_watched):
        run.after_fork_in_child()


class Owner:
    """The process that started a run and owns its record."""

    def __init__(self) -> None:
        self.is_child = False
        self._has_warned = False

    def check(self, action: str, error: type[Exception]) -> None:
        """Raise `error` in a forked child, for an action that only the owner may take."""
        if self.is_child:
            raise error(f"process {os.getpid()} is a forked child of the run and cannot {action}; do it in the parent")

    def leaves_out(self, item: str) -> bool:
        """Return whether this is a forked child, in which `item` is not recorded; warn once if so."""
        if self.is_child and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "process %d is a forked child of the run: %s is not recorded, nor is anything else of a child but "
                "metrics; record it in the parent",
                os.getpid(),
                item,
            )
        return self.is_child


def ending_children(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` such that a child forked in it ends there: the code after it is its parent's."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        owner = os.getpid()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if os.getpid() != owner:
                _end(error)
            raise
        if os.getpid() != owner:
            _end(None)
        return result

    return call


def _end(error: BaseException | None) -> NoReturn:
    """End this process as Python would, but without its parent's exit handlers."""
    code: int = 0
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:
            code = 120  # as Python does
    os._exit(code & 0xFF)
