"""Commands that read sweeps: their status, and plots."""

from __future__ import annotations

import contextlib

from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.study.place import Place
from sacristan.runs.sweeps.study.undelivered import undelivered_lines
from sacristan.runs.sweeps.views.status import Watcher, say, say_all, status_lines

__all__ = ["plot_sweep", "show_status"]


def show_status(place: Place, id: str | None) -> None:
    """Print the status of a sweep, or of all sweeps, where each unreadable one takes one line."""
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
    """Draw a sweep, one page for the browser and a picture of each plot, and print their paths."""
    from sacristan.runs.sweeps.views.plots import draw

    with contextlib.closing(place.home(id)) as home:
        watcher = Watcher(home)
        folder = place.base / "sweeps" / id / "plots"
        say_all(
            map(str, draw(watcher.study.optuna, folder, f"{watcher.definition.experiment}, sweep {id}", watcher.spec))
        )
