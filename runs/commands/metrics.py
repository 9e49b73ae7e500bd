"""`metrics`: a summary of all metrics of a run, or the points of some."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from runs.commands.terminal.arguments import add_json, add_metrics, add_run, number, open_given
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.tables import Cell, Column, print_table
from runs.commands.terminal.text import is_terminal, print_text
from runs.query.texts import cell_text, count_text, duration_text, value_text

if TYPE_CHECKING:
    from observers.record.points.points import Series
    from runs.stores.run import Run

__all__ = ["add_arguments", "main"]

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
    """Print a summary of all metrics, or the points of those that are named."""
    count = arguments.points
    if count is None:
        count = _ON_A_SCREEN if is_terminal() and not (arguments.json or arguments.csv) else 0
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        names = arguments.names or (run.metrics if arguments.csv else [])
        if arguments.csv:
            _print_csv(run, names, count or None)
        elif arguments.json:
            print_json({"id": run.id, "uid": run.uid, "metrics": _document(run, names, count or None)})
        elif names:
            for name in names:
                _print_points(run, name, count or None)
        else:
            _print_summary(run)
    return 0


def _document(run: Run, names: list[str], count: int | None) -> dict[str, Any]:
    """Return the summary of all metrics, or the points of `names`."""
    if not names:
        return run.summary
    found = {}
    for name in names:
        series = run.metric(name, count)
        found[name] = {
            "steps": series.steps.tolist(),
            "times_s": series.times.tolist(),
            "values": series.values.tolist(),
        }
    return found


def _print_csv(run: Run, names: list[str], count: int | None) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("name", "step", "time_s", "value"))
    for name in names:
        series = run.metric(name, count)
        columns = (series.steps.tolist(), series.times.tolist(), series.values.tolist())
        writer.writerows((cell_text(name), *row) for row in zip(*columns, strict=True))


def _print_points(run: Run, name: str, count: int | None) -> None:
    series = run.metric(name)
    chosen = series if count is None else run.metric(name, count)
    all_points = count_text(len(series), "point")
    of = f"{len(chosen)} of {all_points}" if len(chosen) < len(series) else all_points
    print_text(f"{name}: {of}", "bold")
    print_table([Column(title, is_number=True) for title in ("step", "time", "value")], _rows(chosen))


def _rows(series: Series) -> list[list[Cell]]:
    columns = (series.steps.tolist(), series.times.tolist(), series.values.tolist())
    return [
        [Cell(value_text(step)), Cell(duration_text(None if time != time else time)), Cell(value_text(value))]
        for step, time, value in zip(*columns, strict=True)
    ]


def _print_summary(run: Run) -> None:
    if not run.summary:
        print_text(f"run {run.id} has no metrics")
        return
    columns = [Column("name", is_kept=True), *(Column(name, is_number=True) for name in _STATISTICS)]
    rows = [
        [Cell(name), *(Cell(value_text(summary.get(each))) for each in _STATISTICS)]
        for name, summary in sorted(run.summary.items(), key=lambda item: (item[0].startswith("system/"), item[0]))
    ]
    print_table(columns, rows)
