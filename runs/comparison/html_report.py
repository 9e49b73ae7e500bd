"""`write_report`: runs as one HTML file without scripts or requests, for light and dark screens and for paper.

Everything that comes from a run is escaped, and the content security policy of the page lets nothing run or load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sacristan.runs.comparison.comparing import compare
from sacristan.runs.comparison.panels import View, make_panels
from sacristan.runs.comparison.report_sections import (
    curve_section,
    difference_section,
    rerun_section,
    run_section,
    statistics_section,
)
from sacristan.runs.drawing.markup import Markup, element
from sacristan.runs.drawing.output_file import check_output, writing
from sacristan.runs.errors import PlotError
from sacristan.runs.stores.run import Run

__all__ = ["write_report"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
# Maximum number of metrics to draw when none are named.
_MOST_METRICS = 12


@dataclasses.dataclass(frozen=True)
class _Contents:
    """The options of a report; see `write_report`."""

    title: str
    metrics: tuple[str, ...]
    view: View
    compared: str | None
    mode: str


def write_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    title: str = "Runs",
    metrics: Sequence[str] = (),
    by: Sequence[str] = (),
    over: Sequence[str] = (),
    compared: str | None = None,
    mode: str = "auto",
    x: str = "step",
    smoothing: float = 0.0,
    log_y: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write runs as one HTML file: tables, curves, statistics, differences of the configs, and commands to rerun them.

    Args:
        runs: At least one run, in the order to show them.
        path: The file, which is written as a whole or not at all.
        title: The title of the page.
        metrics: Metrics whose curves to draw; without any, all but those of the machine, twelve at most.
        by: Fields that define groups, whose means are drawn; without any, every run is drawn.
        over: Fields of a repetition, such as `seed`; see `compare`.
        compared: Field to compare the groups by, such as `val/accuracy.max`; None for no statistics.
        mode: The direction that is better: `max`, `min`, or `auto`, as the runs record it.
        x: `step`, `epoch`, `time` since the start, or `wall`, the time of day.
        smoothing: Weight of earlier points, from 0 to below 1, as in TensorBoard.
        log_y: Use logarithmic axes for values.
        overwrite: Whether to replace an existing file.

    Returns:
        The path.

    Raises:
        PlotError: If there are no runs, or none has a metric of `metrics`.
        ComparisonError: If the runs cannot be grouped or compared like this.
        StoreError: If a run cannot be read, the file exists already, or it cannot be written.

    Example:
        with open_store("my_runs") as store:
            write_report(store.find("status=COMPLETED", limit=10), "report.html", overwrite=True)
    """
    view = View(tuple(by), tuple(over), x, smoothing, log_y=log_y)
    contents = _Contents(title, tuple(metrics), view, compared, mode)
    path = Path(path)
    check_output(path, overwrite=overwrite)
    content = _page([run.listed() for run in runs], contents).encode()
    with writing(path, overwrite=overwrite) as stream:
        stream.write(content)
    return path


def _page(runs: list[Run], contents: _Contents) -> str:
    if not runs:
        raise PlotError("there are no runs to report on; see which there are with: sacristan ls")
    now = datetime.now(UTC)
    stores = ", ".join(dict.fromkeys(run.store.where for run in runs))
    about = f"{len(runs)} run{'s' * (len(runs) != 1)} of {stores}, {now:%Y-%m-%d %H:%M} UTC"
    body = element(
        "main",
        element("h1", contents.title),
        element("p", about, class_="about"),
        *_sections(runs, contents),
    )
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
        element("title", contents.title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _sections(runs: list[Run], contents: _Contents) -> Iterator[Markup]:
    yield run_section(runs)
    if contents.compared is not None:
        view = contents.view
        yield statistics_section(
            compare(runs, view.by, view.over, contents.compared, view.confidence, mode=contents.mode)
        )
    metrics = contents.metrics or _all_metrics(runs)
    if metrics:
        yield curve_section(make_panels(runs, metrics, contents.view), is_time=contents.view.x == "wall")
    if len(runs) > 1:
        yield difference_section(runs)
    yield rerun_section(runs)


def _all_metrics(runs: Sequence[Run]) -> list[str]:
    """Return the metrics of the experiments, losses and validations first."""
    names = {name for run in runs for name in run.metrics if not name.startswith("system/")}
    return sorted(names, key=lambda name: ("loss" not in name, not name.startswith("val/"), name))[:_MOST_METRICS]
