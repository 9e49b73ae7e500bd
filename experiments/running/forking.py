"""Forked children of a run: they log metrics into their parent's record, and change nothing else of it.

A child has a copy of everything its parent had: the run, its observers, open files, signal handlers. The run lets go of
all that in the child. A child that returns from the function it was forked in ends there.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import NoReturn, ParamSpec, Protocol, TypeVar

__all__ = ["Forked", "Owner", "ending_children", "watch"]

_log = logging.getLogger(__name__)

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
    """Return `function` such that a child forked in it ends instead of returning.

    The code after it belongs to the parent: its captured output, the end of its record, its exit handlers.
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
