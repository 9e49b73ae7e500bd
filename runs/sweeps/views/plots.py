"""Plots of a sweep: an interactive page that needs nothing but a browser, and pictures.

history        values over the trials, and the best so far
pareto         with several objectives, the trials that no other trial beats in all of them
parallel       parallel coordinates: a line for each trial, through the values of its parameters
importances    the share of each parameter in the variation, by fANOVA and by mean decrease in impurity
slices         values over each parameter
contours       values over pairs of the most important parameters
intermediate   values that trials reported while they ran, pruned ones included
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.files import make_folder, replacing
from sacristan.runs.errors import PlotError, naming_os_errors, needing_extra
from sacristan.runs.query.texts import count_text
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.study.samplers import without_experimental_warnings
from sacristan.runs.sweeps.views.study_view import StudyView, make_study_view, most_important, thinned

if TYPE_CHECKING:
    from optuna import Study

PAGE = "sweep.html"
# Larger numbers make the page too large; contours grow with the square.
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
    """Draw a study as `sweep.html` with all plots, and a PNG file of each; return the files, the page first.

    Plots that the study has no values for, such as contours of a single parameter, are left out. Existing files are
    replaced. Without a `spec`, quantiles are drawn instead of values. If no trial has ended, this raises PlotError.
    """
    with needing_extra("sweeps", "a plot of a sweep"), without_experimental_warnings():
        import matplotlib  # noqa: F401, needed by the pictures, and asked for before the work
        import plotly  # noqa: F401

        view = make_study_view(study, spec)
    if not view.complete:
        raise PlotError(f"there is nothing to plot: {_summary(study)}; wait until a trial has ended")
    from sacristan.runs.sweeps.views.pictures import make_pictures

    folder = Path(folder)
    hint = "; give another folder"
    with naming_os_errors(f"{folder} cannot be written", hint, PlotError):
        make_folder(folder)  # before the work, which takes seconds
    contents = [(PAGE, _page(view, title).encode())]
    contents += [(f"{name}.png", content) for name, content in make_pictures(view, title)]
    with naming_os_errors(f"{folder} cannot be written", hint, PlotError):
        for name, content in contents:
            with replacing(folder / name) as stream:
                stream.write(content)
    return [folder / name for name, _ in contents]


def _summary(study: Study) -> str:
    states = Counter(trial.state.name.lower() for trial in study.get_trials(deepcopy=False))
    if not states:
        return "no trials"
    return f"{count_text(states.total(), 'trial')}: {', '.join(f'{num} {state}' for state, num in states.items())}"


def _page(view: StudyView, title: str) -> str:
    parts = []
    for number, (heading, figure) in enumerate(_figures(view)):
        figure.update_layout(title=heading, template="plotly_white", height=figure.layout.height or 520)
        # The library is 4 MB: the first figure brings it for all.
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=f"plot-{number}"))
    return _PAGE.format(title=html.escape(title), summary=_summary(view.study), figures="\n".join(parts))


def _figures(view: StudyView) -> Iterator[tuple[str, Any]]:
    """Yield each figure of plotly with its heading."""
    with without_experimental_warnings():
        from optuna import visualization

        for place in range(len(view.metrics)):
            yield from _figures_of_metric(view, place)
        study = view.study
        if 1 < len(view.metrics) < 4:
            figure = visualization.plot_pareto_front(study, target_names=list(view.metrics))
            yield figure.layout.title.text, figure
        reporting = tuple(trial for trial in study.get_trials(deepcopy=False) if trial.intermediate_values)
        if len(view.metrics) == 1 and reporting:
            few, shown = thinned(study, reporting, _MOST_CURVES)
            heading = f"Intermediate values: {view.metrics[0]}{_share(shown, reporting)}"
            yield heading, visualization.plot_intermediate_values(few)


def _figures_of_metric(view: StudyView, place: int) -> Iterator[tuple[str, Any]]:
    from optuna import visualization

    study, metric, parameters = view.study, view.metrics[place], list(view.parameters)
    target: dict[str, Any] = {"target_name": metric}
    if len(view.metrics) > 1:
        target["target"] = lambda trial: trial.values[place]
    yield f"History: {metric}", visualization.plot_optimization_history(study, **target)
    if not parameters:
        return
    yield f"Parallel coordinates: {metric}", visualization.plot_parallel_coordinate(study, parameters, **target)
    if view.importances[place]:
        yield f"Importances: {metric}", _importances(view.importances[place])
    yield f"Slices: {metric}", visualization.plot_slice(study, parameters, **target)
    top = most_important(view, place)
    if len(top) > 1:
        few, shown = thinned(study, view.complete, _MOST_IN_CONTOURS)
        figure = visualization.plot_contour(few, top, **target).update_layout(height=400 if len(top) == 2 else 900)
        yield f"Contours: {metric}{_share(shown, view.complete)}", figure


def _share(shown: tuple[Any, ...], trials: tuple[Any, ...]) -> str:
    """Say how many of the trials are shown, if not all of them."""
    return "" if len(shown) == len(trials) else f", of {len(shown)} of {len(trials)} trials"


def _importances(importances: dict[str, dict[str, float]]) -> Any:
    from plotly import graph_objects

    bars = [
        graph_objects.Bar(name=method, orientation="h", x=list(shares.values())[::-1], y=list(shares)[::-1])
        for method, shares in importances.items()
    ]
    return graph_objects.Figure(bars).update_layout(xaxis_title="share of the variation", legend_title="by")
