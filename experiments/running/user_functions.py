"""The user's functions as a run calls them: they can be interrupted, and end well in children and other ranks."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

import wrapt
from sacred.run import Run

from sacristan.configs.importing import resume_collection
from sacristan.experiments.running.one_run import ending_children
from sacristan.experiments.running.ranks import ending_together
from sacristan.experiments.running.signals import Signals
from sacristan.ingredients.ranks.world import Notices
from sacristan.observers.file.sacred_form import plain

__all__ = ["guarded", "guarded_main", "printable", "seed_torch_later", "within"]

_log = logging.getLogger(__name__)


def guarded(function: Callable, signals: Signals, notices: Notices | None) -> Callable:
    """Return a user's function such that signals may end it, and children and other ranks end with it."""
    return signals.interruptible(ending_children(ending_together(notices, function)))


def guarded_main(
    run: Run, signals: Signals, notices: Notices | None, note_exit: Callable[[SystemExit], None]
) -> Callable:
    """Return the main function of a run, guarded; if it fails, it drops its variables.

    They would live as long as the error. Workers of a loader would be among them, which hold the output that Sacred
    waits for. A debugger needs them, and keeps them.

    After `sys.exit(0)`, the function returns None and calls `note_exit` with the error, which the run raises once it is
    completed.
    """
    function = run.main_function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        resume_collection()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, SystemExit) and (error.code in (None, 0)):
                note_exit(error)
                return None
            if not (run.pdb or run.debug):
                traceback.clear_frames(error.__traceback__)
            raise

    return guarded(call, signals, notices)


def within(context: Callable[[], contextlib.AbstractContextManager[None]], function: Callable) -> Callable:
    """Return a function whose calls are in a context of their own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


def printable(result: Any) -> Any:
    """Return a result that Sacred can print: the result itself or, with a warning, plain values if it has no text."""
    try:
        f"{result}"
    except Exception as error:
        plain_result = plain(result)
        _log.warning(
            "the result, a %s, has no text (%s: %s); it is noted as %.200r",
            type(result).__name__,
            type(error).__name__,
            error,
            plain_result,
        )
        return plain_result
    return result


def seed_torch_later(run: Run) -> None:
    """Seed torch when the run imports it, as Sacred seeds what is imported before; nothing after the run has ended."""
    if "torch" in sys.modules:
        return

    def seed(torch: Any) -> None:
        if run.stop_time is None:
            torch.manual_seed(run.config["seed"])

    wrapt.register_post_import_hook(seed, "torch")
