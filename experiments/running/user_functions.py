"""The user's functions as a run calls them: they can be interrupted, and end well in children and other ranks."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

import wrapt
from sacred.run import Run

from configs import collection
from experiments.running.forking import ending_children
from experiments.running.ranks import ending_together
from experiments.running.signals import Signals
from ingredients.ranks.notices import Notices
from observers.file.sacred_form import plain

__all__ = ["guarded", "guarded_main", "printable", "seed_torch_later"]

_log = logging.getLogger(__name__)


def guarded(function: Callable, signals: Signals, notices: Notices | None) -> Callable:
    """Return `function` such that signals may end it, and children and other ranks end with it.

    Args:
        function: A function that users write, or one that calls theirs.
        signals: The signals of the run.
        notices: Notices between the ranks; None in a process alone.
    """
    return signals.interruptible(ending_children(ending_together(notices, function)))


def guarded_main(
    run: Run, signals: Signals, notices: Notices | None, note_exit: Callable[[SystemExit], None]
) -> Callable:
    """Return the main function of a run, guarded; where it fails, it drops its variables.

    If it ends by `sys.exit(0)`, it returns None.

    They would live as long as the error. Workers of a loader would be among them, which hold the output that Sacred
    waits for. A debugger needs them.

    Args:
        run: The run.
        signals: Its signals.
        notices: Notices between its ranks; None in a process alone.
        note_exit: Called with the error of `sys.exit(0)`, which the run raises when it is completed.
    """
    function = run.main_function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        collection.resume()
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


def printable(result: Any) -> Any:
    """Return the result of a main function as Sacred can print it.

    Args:
        result: The result; None, or any object.

    Returns:
        The result itself, or plain values of it, with a warning, if it has no text.
    """
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
    """Seed torch when the run imports it, as Sacred seeds what is imported before the run.

    Args:
        run: The run; once it has ended, nothing is seeded.
    """
    if "torch" in sys.modules:
        return

    def seed(torch: Any) -> None:
        if run.stop_time is None:
            torch.manual_seed(run.config["seed"])

    wrapt.register_post_import_hook(seed, "torch")
