"""Plots of a sweep: one interactive page that needs nothing but a browser, and pictures.

history        values over the trials, and the best so far
pareto         of several objectives, the trials that no other one beats in all
parallel       parallel coordinates: a line for each trial, through the values of its parameters
importances    the parts that parameters have in the variation, by fANOVA and by mean decrease in impurity
slices         values over each parameter
contours       values over pairs of the most important parameters
intermediate   what trials reported on their way, those that were pruned too
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from observers.record.atomic_file import make_folder, replacing
from runs.errors import PlotError
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.extras import needing_extra
from runs.sweeps.study.samplers import without_experimental_warnings
from runs.sweeps.views.readable import Readable, make_readable, most_important, thinned

if TYPE_CHECKING:
    from optuna import Study

__all__ = ["PAGE", "draw"]

PAGE = "sweep.html"
# A page with more of them is too large: of contours it grows with the square.
_MOST_IN_CONTOURS, _MOST_CURVES = 150, 300
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 2em auto; max-width: 1200px; }} p {{ color: #555; }}</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
{figures}
</body>
</html>
"""


def draw(study: Study, folder: str | Path, title: str, spec: Spec | None = None) -> list[Path]:
    """Draw a study: `sweep.html` with all plots, and a PNG file of each.

    What cannot be drawn, such as contours of one parameter, is left out. Files of before are replaced.

    Args:
        study: The study, running or ended.
        folder: Where the files go; it is made if it is not there.
        title: Above all plots.
        spec: What the study searches: with it quantiles are drawn as the values they stand for, and metrics by name.

    Returns:
        The files, the page first.

    Raises:
        MissingExtraError: If Optuna, plotly or matplotlib is not installed.
        PlotError: If no trial has ended yet, or a file cannot be written.
    """
    with needing_extra("sweeps", "a plot of a sweep"), without_experimental_warnings():
        import matplotlib  # noqa: F401, asked for ahead of the work
        import plotly  # noqa: F401

        readable = make_readable(study, spec)
    if not readable.complete:
        raise PlotError(f"there is nothing to plot: {_summary(study)}; wait until a trial has ended")
    from runs.sweeps.views.pictures import make_pictures

    folder = Path(folder)
    written = []
    try:
        make_folder(folder)
        written.append(_write(folder / PAGE, _page(readable, title).encode()))
        for name, content in make_pictures(readable, title):
            written.append(_write(folder / f"{name}.png", content))
    except OSError as error:
        raise PlotError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    return written


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as stream:
        stream.write(content)
    return path


def _summary(study: Study) -> str:
    states = Counter(trial.state.name.lower() for trial in study.get_trials(deepcopy=False))
    total = f"{sum(states.values())} trial{'s' * (sum(states.values()) != 1)}"
    return f"{total}: {', '.join(f'{num} {state}' for state, num in states.items())}" if states else "no trials"


def _page(readable: Readable, title: str) -> str:
    parts = []
    for number, figure in enumerate(_figures(readable)):
        figure.update_layout(template="plotly_white", height=figure.layout.height or 520)
        # The library goes in once, with the first figure: 4 MB.
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=f"plot-{number}"))
    return _PAGE.format(title=html.escape(title), summary=_summary(readable.study), figures="\n".join(parts))


def _figures(readable: Readable) -> Iterator[Any]:
    with without_experimental_warnings():
        from optuna import visualization

        study, several = readable.study, len(readable.metrics) > 1
        parameters = list(readable.parameters)
        for place, metric in enumerate(readable.metrics):
            of: dict[str, Any] = {"target_name": metric}
            if several:
                of["target"] = lambda trial, place=place: trial.values[place]
            yield visualization.plot_optimization_history(study, **of).update_layout(title=f"History: {metric}")
            if not parameters:
                continue
            yield visualization.plot_parallel_coordinate(study, parameters, **of).update_layout(
                title=f"Parallel coordinates: {metric}"
            )
            if readable.importances[place]:
                yield _importances(readable.importances[place], metric)
            yield visualization.plot_slice(study, parameters, **of).update_layout(title=f"Slices: {metric}")
            top = most_important(readable, place)
            if len(top) > 1:
                few, shown = thinned(study, readable.complete, _MOST_IN_CONTOURS)
                yield visualization.plot_contour(few, top, **of).update_layout(
                    title=f"Contours: {metric}{_share(shown, readable.complete)}", height=400 if len(top) == 2 else 900
                )
        if several:
            if len(readable.metrics) < 4:
                yield visualization.plot_pareto_front(study, target_names=list(readable.metrics))
            return
        reporting = tuple(trial for trial in study.get_trials(deepcopy=False) if trial.intermediate_values)
        if reporting:
            few, shown = thinned(study, reporting, _MOST_CURVES)
            yield visualization.plot_intermediate_values(few).update_layout(
                title=f"Intermediate values: {readable.metrics[0]}{_share(shown, reporting)}"
            )


def _share(shown: tuple[Any, ...], trials: tuple[Any, ...]) -> str:
    """Return which part of the trials is shown, if it is not all."""
    return "" if len(shown) == len(trials) else f", of {len(shown)} of {len(trials)} trials"


def _importances(importances: dict[str, dict[str, float]], metric: str) -> Any:
    from plotly import graph_objects

    bars = [
        graph_objects.Bar(name=method, orientation="h", x=list(of.values())[::-1], y=list(of)[::-1])
        for method, of in importances.items()
    ]
    return graph_objects.Figure(bars).update_layout(
        title=f"Importances: {metric}", xaxis_title="part in the variation", legend_title="by"
    )
