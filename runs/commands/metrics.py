"""`metrics`: a summary of all metrics of a run, or the points of some."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.commands.terminal.arguments import add_json, add_metrics, add_run, number, open_given
from sacristan.runs.commands.terminal.tables import Cell, Column, print_table
from sacristan.runs.commands.terminal.text import is_terminal, print_json, print_text
from sacristan.runs.documents.run_documents import METRICS, curves_of, statistics_of
from sacristan.runs.query.texts import cell_text, count_text, duration_text, value_text

if TYPE_CHECKING:
    from sacristan.observers.record.points.points import Series
    from sacristan.runs.stores.run import Run

__all__ = ["JSON", "add_arguments", "main"]

JSON = METRICS
_STATISTICS = ("count", "last", "last_step", "min", "min_step", "max", "max_step", "mean")
_ON_A_SCREEN = 20
_POINTS = number(int, lambda value: value == 0 or value >= 4, "at least 4, or 0 for all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    add_metrics(parser, "metrics whose points to show")
    help = f"at most N points, including the extremes, 0 for all (on a terminal {_ON_A_SCREEN}, else all)"
    parser.add_argument("--points", type=_POINTS, metavar="N", help=help)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--csv", action="store_true", help="print CSV: name,step,time_s,value; of all metrics if none is named"
    )
    add_json(group)


def main(arguments: argparse.Namespace) -> int:
    """Print a summary of all metrics, or the points of the named ones."""
    count = _count(arguments)
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        names = arguments.names or (run.metrics if arguments.csv else [])
        if arguments.csv:
            _print_csv((name, run.metric(name, count or None)) for name in names)
        elif arguments.json:
            print_json(curves_of(run, names, count or None) if names else statistics_of(run))
        else:
            _print(run, names, count)
    return 0


def _count(arguments: argparse.Namespace) -> int:
    if arguments.points is not None:
        return arguments.points
    return _ON_A_SCREEN if is_terminal() and not (arguments.json or arguments.csv) else 0


def _print(run: Run, names: Sequence[str], count: int) -> None:
    others = run.other_values()
    if not names:
        _print_summary(run, others)
    metrics = run.metrics if others else ()
    for name in names:
        if name not in others or name in metrics:
            series = run.metric(name, count or None)
            _print_points(name, series, len(run.metric(name)) if count else len(series))
        if name in others:
            print_text(f"{name}: values that are no numbers", "bold")
            rows = [[Cell(value_text(step)), Cell(value_text(value))] for step, value in others[name]]
            print_table([Column("step", is_number=True), Column("value")], rows)


def _lists(series: Series) -> tuple[list[Any], ...]:
    return series.steps.tolist(), series.times.tolist(), series.values.tolist()


def _print_csv(points: Iterable[tuple[str, Series]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("name", "step", "time_s", "value"))
    for name, series in points:
        writer.writerows((cell_text(name), *row) for row in zip(*_lists(series), strict=True))


def _print_points(name: str, series: Series, num_points: int) -> None:
    every = count_text(num_points, "point")
    print_text(f"{name}: {f'{len(series)} of {every}' if len(series) < num_points else every}", "bold")
    rows = [
        [Cell(value_text(step)), Cell(duration_text(None if time != time else time)), Cell(value_text(value))]
        for step, time, value in zip(*_lists(series), strict=True)
    ]
    print_table([Column(title, is_number=True) for title in ("step", "time", "value")], rows)


def _print_summary(run: Run, others: Mapping[str, Sequence[Any]]) -> None:
    if others:
        counts = ", ".join(f"{name} ({len(values)})" for name, values in others.items())
        print_text(f"values that are no numbers, which are shown if you name a metric: {counts}")
    statistics = run.statistics()
    if not statistics:
        print_text(f"run {run.id} has no metrics")
        return
    columns = [Column("name", is_kept=True), *(Column(name, is_number=True) for name in _STATISTICS)]
    rows = [
        [Cell(name), *(Cell(value_text(summary.get(each))) for each in _STATISTICS)]
        for name, summary in sorted(statistics.items(), key=lambda item: (item[0].startswith("system/"), item[0]))
    ]
    print_table(columns, rows)
