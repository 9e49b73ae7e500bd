"""Commands that read sweeps: their status, and plots."""

from __future__ import annotations

import contextlib

from runs.errors import SweepError
from runs.sweeps.study.place import Place
from runs.sweeps.study.undelivered import undelivered_lines
from runs.sweeps.views.status import Watcher, say, say_all, status_lines

__all__ = ["plot_sweep", "show_status"]


def show_status(place: Place, id: str | None) -> None:
    """Print the status of a sweep, or of all sweeps.

    Args:
        place: Where sweeps are kept.
        id: The sweep's id; None for all of them, of which an unreadable one takes one line.

    Raises:
        RunsError: If the one sweep cannot be read.
    """
    ids = place.ids() if id is None else [id]
    if not ids:
        say("there is no sweep yet; start one: sweep.run with sweep.over='{lr: [1e-3, 1e-2]}'")
    for each in ids:
        try:
            with contextlib.closing(place.home(each)) as home:
                watcher = Watcher(home)
                lines = status_lines(watcher.look(), watcher.spec.objective_names)
                say_all([*lines, *undelivered_lines(place, each)])
        except SweepError as error:
            if id is not None:
                raise
            say(f"sweep {each}: {error}")


def plot_sweep(place: Place, id: str) -> None:
    """Draw a sweep, one page for the browser and a picture of each plot, and print their paths.

    Args:
        place: Where the sweep is kept.
        id: The sweep's id.

    Raises:
        RunsError: If there is no such sweep, or a package for drawing is not installed.
    """
    from runs.sweeps.views.plots import draw

    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        folder = place.base / "sweeps" / id / "plots"
        say_all(
            map(str, draw(watcher.study.optuna, folder, f"{watcher.definition.experiment}, sweep {id}", watcher.spec))
        )
