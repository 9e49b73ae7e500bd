"""`reproduce`: run a past run again, and say whether the same comes out."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runs.commands.terminal.arguments import Parser, add_json, add_run, open_given, split_rest, where_of
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.tables import Cell, Column, print_table
from runs.commands.terminal.text import print_text, print_to_stderr, print_unified
from runs.errors import LaunchError
from runs.query.texts import value_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runs.rerun.environment import Differing, Environment
    from runs.rerun.planning import Plan
    from runs.rerun.reproducing import Reproduction
    from runs.rerun.verdict import Verdict
    from runs.stores.run import Run

__all__ = ["add_arguments", "main"]

_EPILOG = """The exit code is 0 for IDENTICAL and WITHIN TOLERANCE, 1 for DIVERGED, and 2 if it could not be run. Times,
output and metrics named system/... are not compared. A URL whose password was not recorded is given behind all else:
with SETTING=URL."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.rest_begins = ("with",)
    add_run(parser)
    parser.add_argument(
        "--in-place", action="store_true", help="take today's sources in the place of the recorded ones"
    )
    parser.add_argument("--dry", action="store_true", help="only show what would be done")
    help = "only write the recorded packages to FOLDER/requirements.txt, and print how to build that environment"
    parser.add_argument("--env", nargs="?", const="", metavar="FOLDER", help=help)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="restore into this empty folder, and leave it there"
    )
    help = "relative tolerance of metrics and the result (default: 0.001)"
    parser.add_argument("--rtol", type=_bound, default=1e-3, metavar="R", help=help)
    help = "absolute tolerance beside it (default: 0)"
    parser.add_argument("--atol", type=_bound, default=0.0, metavar="A", help=help)
    help = "relative tolerance of one metric, or of `result`; inf lets it not count; again for others"
    parser.add_argument("--tolerance", type=_tolerance, action="append", default=[], metavar="METRIC=R", help=help)
    add_json(parser)


def _bound(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (number := float(text)) >= 0:
            return number
    raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 0 on, such as 1e-3")


def _tolerance(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected METRIC=R such as val/loss=1e-2")
    return name, _bound(number)


def main(arguments: argparse.Namespace) -> int:
    """Run it again, and print the verdict."""
    from runs.rerun.judging import check_tolerance
    from runs.rerun.planning import planned
    from runs.rerun.reproducing import carry_out
    from runs.rerun.verdict import DIVERGED, Tolerance

    arguments.error_code = 2
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        if arguments.env is not None:
            return _write_environment(run, arguments)
        tolerance = Tolerance(arguments.rtol, arguments.atol, dict(arguments.tolerance))
        check_tolerance(run, tolerance)
        settings, _ = split_rest(arguments.rest)
        with planned(run, store, in_place=arguments.in_place, keep=arguments.keep, settings=settings) as plan:
            if arguments.dry:
                print_json(_plan_document(plan)) if arguments.json else _print_plan(plan)
                return 0
            _announce(plan)
            sys.stdout.flush()
            done = carry_out(plan, tolerance, output=2)
            print_json(_document(done)) if arguments.json else _print(done)
    return 1 if done.verdict.verdict == DIVERGED else 0


# ---------------------------------------------------------------------- before


def _tell(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print_to_stderr(sentence)


def _announce(plan: Plan) -> None:
    """Say on stderr what is going to be done, and all that is not as it was."""
    _tell([f"reproducing run {plan.run.id}: {_sources_text(plan)}"])
    _tell(f"note: {note}" for note in (*plan.notes, *plan.environment.notes))
    _tell(f"differs: {one.text}" for one in plan.environment.loud)
    quiet = len(plan.environment.differences) - len(plan.environment.loud)
    if quiet:
        _tell([f"{quiet} differences that should not matter; --dry lists them"])
    _tell([plan.launch.text])


def _sources_text(plan: Plan) -> str:
    if plan.restored is None:
        return f"today's sources, with {plan.script}"
    commit = f" and commit {plan.restored.commit[:12]}" if plan.restored.commit else ""
    return f"{plan.restored.num_sources} recorded sources{commit}, restored"


def _print_plan(plan: Plan) -> None:
    print_text(f"run {plan.run.id} would be reproduced", "bold")
    rows = [("sources", _sources_text(plan)), ("command", plan.launch.text)]
    rows += [("folder", str(plan.launch.cwd)), ("environment", _variables(plan))]
    where = plan.run.store.where
    rows.append(("record", f"{where}, by way of a temporary folder" if plan.is_staged else where))
    print_table([Column(is_kept=True)] * 2, [[Cell(name, "dim"), Cell(text)] for name, text in rows], indent=2)
    _print_sentences("note", (*plan.notes, *plan.environment.notes))
    _print_environment(plan.environment)


def _variables(plan: Plan) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in plan.launch.environment.items())


def _print_environment(environment: Environment) -> None:
    if not environment.differences:
        print_text("the environment is the recorded one")
    for is_loud, title in ((True, "differs"), (False, "differs, and should not matter")):
        _print_sentences(title, [one.text for one in environment.differences if one.is_loud == is_loud])


def _print_sentences(title: str, sentences: Iterable[str]) -> None:
    sentences = list(sentences)
    if sentences:
        print_text(title, "bold")
    for sentence in sentences:
        print_text(f"  {sentence}")


def _write_environment(run: Run, arguments: argparse.Namespace) -> int:
    from runs.rerun.environment import python_of, requirements

    text = requirements(run)
    folder = Path(arguments.env or f"reproduce-{run.id}")
    path = folder / "requirements.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{path} cannot be written ({error.strerror}); give another folder to --env") from error
    version = python_of(run)
    python = "python" + ".".join(version.split(".")[:2]) if version else "python3"
    here = shlex.quote(str(folder / "venv"))
    build = f"{python} -m venv {here} && {here}/bin/python -m pip install -r {shlex.quote(str(path))}"
    again = f"{here}/bin/python -m runs --store {shlex.quote(_harmless_where(arguments))} reproduce {run.id}"
    if arguments.json:
        print_json({"requirements": str(path), "build": build, "reproduce": again, "python": version})
    else:
        print_text(build)
        print_text(again)
    return 0


def _harmless_where(arguments: argparse.Namespace) -> str:
    from observers.record.redaction import redact

    return redact(where_of(arguments))


# ---------------------------------------------------------------------- after


def _print(done: Reproduction) -> None:
    from runs.rerun.verdict import COLOURS, DIVERGED, IDENTICAL

    verdict = done.verdict
    print_text(verdict.text, COLOURS[verdict.verdict])
    print_text(f"run {done.plan.run.id}, reproduced by run {done.run.id} ({done.plan.mode})")
    if verdict.verdict == DIVERGED and verdict.largest:
        print_text(verdict.largest_text)
    if verdict.verdict != IDENTICAL:
        _print_metrics(verdict)
    shown = verdict.reasons if verdict.first is not None else verdict.reasons[1:]
    _print_sentences("also", shown)
    _print_sentences("note", done.notes)
    if verdict.verdict != IDENTICAL:
        _print_sentences("environment", [one.text for one in (*done.plan.environment.loud, *done.flags)])
    if done.sources and (verdict.verdict == DIVERGED or done.plan.restored is None):
        for name, text in done.sources.items():
            print_text(f"source {name}", "bold")
            print_unified(text)


def _print_metrics(verdict: Verdict) -> None:
    from runs.rerun.verdict import COLOURS

    titles = (Column("  metric"), Column("verdict", is_kept=True))
    numbers = [Column(name, is_number=True) for name in ("points", "deviating", "largest", "allowed")]
    rows = [
        [
            Cell(f"  {one.name}"),
            Cell(one.verdict, COLOURS[one.verdict]),
            Cell(str(one.num_points)),
            Cell(str(one.num_deviating)),
            Cell(value_text(one.largest_relative)),
            Cell(value_text(one.rtol)),
        ]
        for one in verdict.metrics
    ]
    if rows:
        print_table([*titles, *numbers], rows)


def _document(done: Reproduction) -> dict[str, Any]:
    """Return all of it in the form of `--json`."""
    verdict = done.verdict.as_json()
    return {
        "of": {"id": done.plan.run.id, "uid": done.plan.run.uid},
        "by": {"id": done.run.id, "uid": done.run.uid},
        **verdict,
        "text": done.verdict.text,
        "notes": [*done.plan.notes, *done.plan.environment.notes, *done.notes],
        "mode": done.plan.mode,
        "environment": _differences([*done.plan.environment.differences, *done.flags]),
        "sources": done.sources,
    }


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "of": {"id": plan.run.id, "uid": plan.run.uid},
        "mode": plan.mode,
        "commit": plan.restored.commit if plan.restored else None,
        "num_sources": plan.restored.num_sources if plan.restored else None,
        "command": plan.launch.words,
        "cwd": str(plan.launch.cwd),
        "variables": plan.launch.environment,
        "notes": [*plan.notes, *plan.environment.notes],
        "environment": _differences(plan.environment.differences),
    }


def _differences(differences: Iterable[Differing]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(one) for one in differences]
