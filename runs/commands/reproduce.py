"""`reproduce`: run a past run again, and compare it with the original."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.runs.commands.terminal import Parser, add_json, add_run, number, open_given, split_rest, typed_store
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    print_json,
    print_sources,
    print_table,
    print_text,
    print_to_stderr,
)
from sacristan.runs.documents.compared import RunKey, run_key
from sacristan.runs.errors import LaunchError, naming_os_errors
from sacristan.runs.query.texts import value_text
from sacristan.runs.rerun.environment import Differing
from sacristan.runs.rerun.verdict import Deviation, MetricVerdict, Tolerance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sacristan.runs.rerun import Record
    from sacristan.runs.rerun.planning import Plan
    from sacristan.runs.rerun.reproducing import Reproduction
    from sacristan.runs.rerun.verdict import Verdict

_EPILOG = """The exit code is 0 for IDENTICAL and WITHIN TOLERANCE, 1 for DIVERGED, and 2 if the run could not be
started. Times, output and metrics named system/... are not compared. If the password of a URL was not recorded,
give the URL at the end: with SETTING=URL."""
_DISTANCE = number(float, lambda value: value >= 0, "a number of at least 0, such as 1e-3")


class Reproduced(TypedDict):
    """A reproduction and its verdict."""

    of: Annotated[RunKey, "The run."]
    by: Annotated[RunKey, "The new run."]
    verdict: Annotated[str, "`IDENTICAL`, `WITHIN TOLERANCE` or `DIVERGED`."]
    text: Annotated[str, "The verdict in a line."]
    metrics: Annotated[list[MetricVerdict], "A verdict on each metric."]
    first: Annotated[Deviation | None, "The first point beyond the tolerance; null without one."]
    reasons: Annotated[list[str], "Other differences that count, in sentences."]
    largest: Annotated[list[Deviation], "The largest relative and absolute deviation."]
    tolerance: Annotated[Tolerance, "The allowed distance."]
    notes: Annotated[list[str], "Further sentences."]
    mode: Annotated[str, "`restored` for the recorded sources, `in place` for today's."]
    environment: Annotated[list[Differing], "Differences from the recorded environment."]
    sources: Annotated[dict[str, str], "A unified diff by path."]


class PlannedReproduction(TypedDict):
    """The plan; printed with `--dry`."""

    of: Annotated[RunKey, "The run."]
    mode: Annotated[str, "`restored` for the recorded sources, `in place` for today's."]
    commit: Annotated[str | None, "The git commit that is restored; null without one."]
    num_sources: Annotated[int | None, "Number of restored sources; null for today's."]
    command: Annotated[list[str], "The process: its words, its folder, and variables added to its environment."]
    cwd: Annotated[str, "The process: its words, its folder, and variables added to its environment."]
    variables: Annotated[dict[str, str], "The process: its words, its folder, and variables added to its environment."]
    notes: Annotated[list[str], "Further sentences."]
    environment: Annotated[list[Differing], "Differences from the recorded environment."]


class RecordedEnvironment(TypedDict):
    """The recorded packages; printed with `--env`."""

    requirements: Annotated[str, "The file that was written."]
    build: Annotated[str, "Command that builds the environment."]
    reproduce: Annotated[str, "Command that reproduces the run in it."]
    python: Annotated[str | None, "The recorded version of Python; null if unknown."]


JSON = Reproduced | PlannedReproduction | RecordedEnvironment


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.rest_begins = ("with",)
    add_run(parser)
    parser.add_argument("--in-place", action="store_true", help="use today's sources instead of the recorded ones")
    parser.add_argument("--dry", action="store_true", help="show the plan, and do nothing")
    help = "only write the recorded packages to FOLDER/requirements.txt, and print how to build that environment"
    parser.add_argument("--env", nargs="?", const="", metavar="FOLDER", help=help)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="restore into this empty folder, and keep it")
    help = "relative tolerance of metrics and the result (default: 0.001)"
    parser.add_argument("--rtol", type=_DISTANCE, default=1e-3, metavar="R", help=help)
    help = "absolute tolerance, added to the relative one (default: 0)"
    parser.add_argument("--atol", type=_DISTANCE, default=0.0, metavar="A", help=help)
    help = "relative tolerance of a metric, of a glob of metrics, or of `result`; inf ignores it; may be repeated"
    parser.add_argument("--tolerance", type=_tolerance, action="append", default=[], metavar="METRIC=R", help=help)
    add_json(parser)


def _tolerance(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected METRIC=R such as val/loss=1e-2")
    return name, _DISTANCE(value)


def main(arguments: argparse.Namespace) -> int:
    """Reproduce the run, and print the verdict."""
    from sacristan.runs.rerun import Record
    from sacristan.runs.rerun.planning import planned
    from sacristan.runs.rerun.reproducing import carry_out
    from sacristan.runs.rerun.verdict import DIVERGED

    arguments.error_code = 2
    tolerance = Tolerance(arguments.rtol, arguments.atol, dict(arguments.tolerance))
    settings, _ = split_rest(arguments.rest)
    with open_given(arguments) as store:
        record = Record(store.get(arguments.run))
        if arguments.env is not None:
            return _write_environment(record, arguments)
        with planned(record, tolerance, in_place=arguments.in_place, keep=arguments.keep, settings=settings) as plan:
            if arguments.dry:
                print_json(_plan_document(plan)) if arguments.json else _print_plan(plan)
                return 0
            _announce(plan)
            done = carry_out(plan, output=2)
            print_json(_document(done)) if arguments.json else _print(done)
    return 1 if done.verdict.verdict == DIVERGED else 0


# ---------------------------------------------------------------------- before


def _announce(plan: Plan) -> None:
    """Print the plan to stderr, with every difference from the recorded run."""
    lines = [f"reproducing run {plan.record.id}: {_sources_text(plan)}"]
    lines += [f"note: {note}" for note in (*plan.notes, *plan.environment.notes)]
    lines += [f"differs: {difference.text}" for difference in plan.environment.loud]
    num_quiet = len(plan.environment.differences) - len(plan.environment.loud)
    if num_quiet:
        lines.append(f"{num_quiet} differences that should not matter; --dry lists them")
    for line in lines:
        print_to_stderr(line)


def _sources_text(plan: Plan) -> str:
    if plan.restored is None:
        return f"today's sources, with {plan.script}"
    commit = f" and commit {plan.restored.commit[:12]}" if plan.restored.commit else ""
    return f"{plan.restored.num_sources} recorded sources{commit}, restored"


def _print_plan(plan: Plan) -> None:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in plan.launch.environment.items())
    where = plan.record.store.where
    facts = {
        "sources": _sources_text(plan),
        "command": plan.launch.text,
        "folder": str(plan.launch.cwd),
        "environment": variables,
        "record": f"{where}, through a temporary folder" if plan.is_staged else where,
    }
    print_text(f"run {plan.record.id} would be reproduced", "bold")
    print_table([Column(is_kept=True)] * 2, [[Cell(name, "dim"), Cell(text)] for name, text in facts.items()], indent=2)
    _print_sentences("note", (*plan.notes, *plan.environment.notes))
    differences = plan.environment.differences
    if not differences:
        print_text("the environment is the recorded one")
    _print_sentences("differs", [entry.text for entry in plan.environment.loud])
    _print_sentences("differs, and should not matter", [entry.text for entry in differences if not entry.is_loud])


def _print_sentences(title: str, sentences: Iterable[str]) -> None:
    sentences = list(sentences)
    if sentences:
        print_text(title, "bold")
    for sentence in sentences:
        print_text(f"  {sentence}")


def _write_environment(record: Record, arguments: argparse.Namespace) -> int:
    from sacristan.runs.rerun.environment import requirements

    text = requirements(record)
    folder = Path(arguments.env or f"reproduce-{record.id}")
    path = folder / "requirements.txt"
    with naming_os_errors(f"{path} cannot be written", "; give another folder to --env", LaunchError):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    python = "python" + ".".join(record.python.split(".")[:2]) if record.python else "python3"
    here = shlex.quote(str(folder / "venv"))
    build = f"{python} -m venv {here} && {here}/bin/python -m pip install -r {shlex.quote(str(path))}"
    again = f"{here}/bin/sacristan --store {typed_store(arguments)} reproduce {record.id}"
    if arguments.json:
        print_json(RecordedEnvironment(requirements=str(path), build=build, reproduce=again, python=record.python))
    else:
        print_text(build)
        print_text(again)
    return 0


# ---------------------------------------------------------------------- after


def _print(done: Reproduction) -> None:
    from sacristan.runs.rerun.verdict import COLOURS, DIVERGED, IDENTICAL

    verdict = done.verdict
    print_text(verdict.text, COLOURS[verdict.verdict])
    print_text(f"run {done.plan.record.id}, reproduced by run {done.run.id} ({done.plan.mode})")
    if verdict.verdict == DIVERGED and verdict.largest:
        print_text(verdict.largest_text)
    if verdict.verdict != IDENTICAL:
        _print_metrics(verdict)
    _print_sentences("also", verdict.reasons if verdict.first is not None else verdict.reasons[1:])
    _print_sentences("note", done.notes)
    if verdict.verdict != IDENTICAL:
        _print_sentences("environment", [entry.text for entry in (*done.plan.environment.loud, *done.flags)])
    if verdict.verdict == DIVERGED or done.plan.restored is None:
        print_sources(done.sources)


def _print_metrics(verdict: Verdict) -> None:
    from sacristan.runs.rerun.verdict import COLOURS

    numbers = [Column(name, is_number=True) for name in ("points", "deviating", "largest", "allowed")]
    rows = [
        [
            Cell(f"  {metric.name}"),
            Cell(metric.verdict, COLOURS[metric.verdict]),
            Cell(str(metric.num_points)),
            Cell(str(metric.num_deviating)),
            Cell(value_text(metric.largest_relative)),
            Cell(value_text(metric.rtol)),
        ]
        for metric in verdict.metrics
    ]
    if rows:
        print_table([Column("  metric"), Column("verdict", is_kept=True), *numbers], rows)


def _document(done: Reproduction) -> Reproduced:
    record, verdict = done.plan.record, done.verdict
    return {
        "of": run_key(record.run),
        "by": run_key(done.run),
        "verdict": verdict.verdict,
        "text": verdict.text,
        "metrics": list(verdict.metrics),
        "first": verdict.first,
        "reasons": list(verdict.reasons),
        "largest": list(verdict.largest),
        "tolerance": verdict.tolerance,
        "notes": [*done.plan.notes, *done.plan.environment.notes, *done.notes],
        "mode": done.plan.mode,
        "environment": [*done.plan.environment.differences, *done.flags],
        "sources": done.sources,
    }


def _plan_document(plan: Plan) -> PlannedReproduction:
    return {
        "of": run_key(plan.record.run),
        "mode": plan.mode,
        "commit": plan.restored.commit if plan.restored else None,
        "num_sources": plan.restored.num_sources if plan.restored else None,
        "command": plan.launch.words,
        "cwd": str(plan.launch.cwd),
        "variables": plan.launch.environment,
        "notes": [*plan.notes, *plan.environment.notes],
        "environment": list(plan.environment.differences),
    }
