"""Forked children of a run: what they log goes to their parent's record, which is nobody else's.

A child has a copy of all that its parent had: the run, its observers, files that are open, handlers of signals. In the
child, a run lets go of all of that when it is forked; and where the child leaves what it was forked in, it ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import NoReturn, ParamSpec, Protocol, TypeVar

__all__ = ["Forked", "ending_children", "watch"]

P = ParamSpec("P")
T = TypeVar("T")


class Forked(Protocol):
    """Is told when its process forks; neither method may raise."""

    def before_fork(self) -> None:
        """Get ready for a child."""

    def after_fork_in_child(self) -> None:
        """Let go of what is the parent's."""


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(run: Forked) -> None:
    """Tell `run` of forks for as long as it lives."""
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


def ending_children(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function`, where a child that was forked in it ends instead of leaving it.

    What follows is the parent's: its captured output, the end of its record, its exit handlers.
    """

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
    """End this process as Python would, but for what was registered by its parent."""
    code: int = 0
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)
