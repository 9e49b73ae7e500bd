"""Commands that show one part of a run: `config`, `log`, `metrics`, `sources`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.commands.terminal import add_json, add_metrics, add_run, number, open_given
from sacristan.runs.commands.terminal.outcomes import CONTENTS, add_contents, list_or_get
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    OutputFilter,
    harmless,
    is_coloured,
    is_terminal,
    print_json,
    print_table,
    print_text,
)
from sacristan.runs.documents.run_documents import METRICS, Output, curves_of, output_of, statistics_of
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import cell_text, count_text, duration_text, value_text

if TYPE_CHECKING:
    from sacristan.observers.record.points import Series
    from sacristan.runs.stores import Run, Store

_POLL_S = 0.5
_RANK = number(int, lambda value: value >= 0, "the number of a rank, from 0")
_LOG_EPILOG = """\
A terminal gets text, colours and the returns of progress bars, and no other escape sequences. A file or
a pipe gets the output byte for byte."""
_STATISTICS = ("count", "last", "last_step", "min", "min_step", "max", "max_step", "mean")
_ON_A_SCREEN = 20
_POINTS = number(int, lambda value: value == 0 or value >= 4, "at least 4, or 0 for all")


class Config:
    """`config`: the config of a run, as YAML."""

    JSON = Annotated[Any, "The config, an object; with NAME that entry, of any type."]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument("name", nargs="?", metavar="NAME", help="only this entry, such as optimizer.lr")
        add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.stores.settings import flat_config

        with open_given(arguments) as store:
            run = store.get(arguments.run)
            value: Any = run.get("config")
            if arguments.name:
                value = run.get(f"config.{arguments.name}")
                if value is None and arguments.name not in flat_config(run):
                    command = typed_command(store.where, "config", run.id)
                    raise RunsError(f"the config of run {run.id} has no {arguments.name!r}; see: {command}")
        if arguments.json:
            print_json(value)
        elif isinstance(value, dict):
            print(_yaml(value), end="")
        else:
            print_text(value_text(value, exact=True))
        return 0


def _yaml(document: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    if any(harmless(line) != line for line in text.splitlines()):
        text = yaml.safe_dump(document, sort_keys=False, width=120)
    return text


class Log:
    """`log`: the terminal output of a run."""

    JSON = Output

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _LOG_EPILOG
        add_run(parser)
        help = "print the output of this rank; 0 is the run's own output"
        parser.add_argument("--rank", type=_RANK, default=0, metavar="N", help=help)
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--follow", action="store_true", help="print output as it arrives, until the run ends or Ctrl-C"
        )
        add_json(group)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        with open_given(arguments) as store:
            run = store.get(arguments.run)
            if arguments.rank and arguments.follow:
                raise RunsError(f"--rank {arguments.rank} --follow: the output of rank 0 alone can be followed")
            output = _output_of(run, arguments.rank)
            if arguments.json:
                print_json(output_of(run, output))
                return 0
            output_filter = OutputFilter(colours=is_coloured()) if is_terminal() else None
            try:
                if arguments.follow:
                    _follow(store, run, output_filter)
                else:
                    _write_output(output(), output_filter)
            finally:
                _write_output(b"", output_filter, is_last=True)
        return 0


def _output_of(run: Run, rank: int) -> Callable[[], bytes]:
    if rank == 0:
        return lambda: run.read_output()[0]
    outputs = run.rank_outputs
    if rank not in outputs:
        there = ", ".join(map(str, outputs)) or "none but 0, as it was one process, or its folder is elsewhere"
        raise RunsError(f"run {run.id}: got --rank {rank}, but there are: {there}")
    return outputs[rank].read


def _follow(store: Store, run: Run, output_filter: OutputFilter | None) -> None:
    position = 0
    while True:
        # Looked at before the output, so that what comes last is read.
        now = store.get(run.id)
        is_over = now.status not in ("RUNNING", "QUEUED")
        data, position = now.read_output(position)
        _write_output(data, output_filter)
        if is_over:
            return
        time.sleep(_POLL_S)


def _write_output(data: bytes, output_filter: OutputFilter | None, *, is_last: bool = False) -> None:
    sys.stdout.flush()
    if output_filter is not None:
        sys.stdout.write(output_filter.take(data, is_last=is_last))
    elif data:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


class Metrics:
    """`metrics`: a summary of all metrics of a run, or the points of some."""

    JSON = METRICS

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        add_metrics(parser, "metrics whose points to show")
        help = f"at most N points, including the extremes, 0 for all (on a terminal {_ON_A_SCREEN}, else all)"
        parser.add_argument("--points", type=_POINTS, metavar="N", help=help)
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--csv", action="store_true", help="print CSV: name,step,time_s,value; of all metrics if none is named"
        )
        add_json(group)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        count = _count(arguments)
        with open_given(arguments) as store:
            run = store.get(arguments.run)
            names = arguments.names or (run.metrics if arguments.csv else [])
            if arguments.csv:
                _print_csv((name, run.metric(name, count or None)) for name in names)
            elif arguments.json:
                print_json(curves_of(run, names, count or None) if names else statistics_of(run))
            else:
                _print_points_or_summary(run, names, count)
        return 0


def _count(arguments: argparse.Namespace) -> int:
    if arguments.points is not None:
        return arguments.points
    return _ON_A_SCREEN if is_terminal() and not (arguments.json or arguments.csv) else 0


def _print_points_or_summary(run: Run, names: Sequence[str], count: int) -> None:
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


class Sources:
    """`sources`: the source files of a run."""

    JSON = CONTENTS

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_contents(parser, "sources that a run was made of")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        return list_or_get(arguments, "sources", lambda run: run.sources)
