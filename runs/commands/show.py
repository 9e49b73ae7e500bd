"""`show`: one run on one screen."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.commands.terminal import add_json, add_run, open_given
from sacristan.runs.commands.terminal.outcomes import print_problems
from sacristan.runs.commands.terminal.text import Cell, Column, print_json, print_table, print_text
from sacristan.runs.documents.run_documents import SHOWN, shown_run
from sacristan.runs.query import REFUSED, dotted, list_of, mapping_of, mappings_in
from sacristan.runs.query.texts import STATUS_STYLES, duration_text, is_number, list_text, time_text, value_text

if TYPE_CHECKING:
    from sacristan.runs.stores import Run

JSON = SHOWN
_MAX_LINES, _MAX_CHARACTERS = 12, 80
# Entries of `info` that are printed in another form.
_FOLDED = " …"
_PRINTED = ("ranks", "alerts", "alert_level")
_STATISTICS = ("count", "last", "min", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_run(parser)
    parser.add_argument("--config", action="store_true", help="also show settings at their defaults")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Show the run."""
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        print_problems({run.id: "; ".join(damage)} if (damage := run.damage()) else {})
        if arguments.json:
            print_json(shown_run(run))
            return 0
        _print_head(run)
        _print_ranks(run)
        _print_sessions(run)
        _print_alerts(run)
        _print_config(run, is_whole=arguments.config)
        _print_metrics(run)
        _print_other_values(run)
        _print_info(run)
        _print_failure(run)
    return 0


def _print_head(run: Run) -> None:
    print_text(f"run {run.id}  {run.name}  {run.command}".rstrip(), "bold")
    rows = [[Cell(name, "dim"), cell] for name, cell in _facts(run) if cell.text]
    print_table([Column(is_kept=True), Column(is_kept=True)], rows, indent=2)


def _facts(run: Run) -> Iterator[tuple[str, Cell]]:
    yield "display name", Cell(run.display_name, "bold")
    yield "status", Cell(_status(run), STATUS_STYLES.get(run.status, ""))
    start, stop = time_text(run.start_time, exact=True), time_text(run.stop_time, exact=True)
    yield "time", Cell(f"{start} to {stop}, {duration_text(run.duration_s)}")
    yield "result", Cell("" if run.result is None else value_text(run.result, exact=is_number(run.result)))
    yield "uid", Cell(run.uid or "")
    yield "store", Cell(run.store.where)
    yield "user", Cell(str(run.get("user") or ""))
    yield "host", Cell(run.host)
    words = run["command_line"]
    yield "command", Cell(shlex.join(map(str, words)) if isinstance(words, list) else "")
    yield "git", Cell(_git(run))
    yield "sweep", Cell(_sweep(run))
    yield "tags", Cell(", ".join(run.tags))
    yield "note", Cell(run.note)
    yield "parent", Cell(_parent(run))
    yield "children", Cell(list_text((child.id for child in run.children()), _MAX_LINES))
    for entry in run.reproductions:
        yield from _reproduction(run, entry)
    yield "artifacts", Cell(list_text(run.artifacts, _MAX_LINES))
    yield "checkpoints", Cell(list_text(run.checkpoints, _MAX_LINES))
    yield "resources", Cell(list_text(run.resources, _MAX_LINES))
    left_out = list_of(mapping_of(run.document.get("imported")).get("left_out"))
    yield "not imported", Cell("; ".join(map(str, left_out[:_MAX_LINES])), "yellow")


def _parent(run: Run) -> str:
    parent = run["parent"]
    if not parent:
        return ""
    there = run.parent
    return f"{there.id} ({parent})" if there else f"{parent}, which is not in this store"


def _reproduction(run: Run, entry: dict[str, Any]) -> Iterator[tuple[str, Cell]]:
    from sacristan.runs.rerun.verdict import COLOURS

    is_by = entry.get("by") == run.uid
    name, other = ("reproduces", "of") if is_by else ("reproduced", "by")
    verdict = str(entry.get("verdict"))
    how = f"{entry.get('mode')}, {time_text(entry.get('time'))}"
    text = f"{verdict}, {other} run {entry.get(f'{other}_id')} ({how})"
    yield name, Cell(f"{text}: {entry['reason']}" if entry.get("reason") else text, COLOURS.get(verdict, ""))


def _print_ranks(run: Run) -> None:
    ranks = mappings_in(run.get("info.ranks"))
    if not ranks:
        return
    print_text("ranks", "bold")
    names = ("rank", "host", "pid", "device")
    rows = [[Cell(f"  {rank.get('rank')}"), *(Cell(str(rank.get(name))) for name in names[1:])] for rank in ranks]
    print_table([Column(f"  {names[0]}"), *map(Column, names[1:])], rows)


def _print_sessions(run: Run) -> None:
    if not run.sessions:
        return
    print_text("sessions", "bold")
    columns = [Column(name, is_number=name == "step") for name in ("  start", "duration", "status", "step", "host")]
    rows = [[*map(Cell, _session_texts(session)), Cell(_session_changes(session))] for session in run.sessions]
    print_table([*columns, Column("changed")], rows)


def _session_texts(session: Mapping[str, Any]) -> list[str]:
    from sacristan.runs.query import time_of

    start, stop = time_of(session.get("start_time")), time_of(session.get("stop_time"))
    by = session.get("interrupted_by")
    return [
        f"  {time_text(start, exact=True)}",
        duration_text((stop - start).total_seconds() if start and stop else None),
        f"{session.get('status')}{f' by {by}' if by else ''}",
        value_text(session.get("step")),
        "@".join(str(session[name]) for name in ("user", "host") if session.get(name)),
    ]


def _session_changes(session: Mapping[str, Any]) -> str:
    """Return in a few words what differs from the first session."""
    names = [*(session.get("changed_sources") or ())]
    for part, entries in mapping_of(session.get("changed_environment")).items():
        names += [f"{part} {name}" for name in mapping_of(entries)]
    return list_text(names, _MAX_LINES)


def _print_alerts(run: Run) -> None:
    if not run.alerts:
        return
    print_text("alerts", "bold")
    for alert in run.alerts:
        style = {"error": "red", "warning": "yellow"}.get(alert["level"], "")
        for line in alert["text"].splitlines():
            print_text(f"  {time_text(alert['time'], exact=True)}  {alert['level']}  {line}", style)


def _status(run: Run) -> str:
    name = run["meta.interrupted_by"]
    refused = " (rejected before training)" if run[REFUSED] is True else ""
    return f"{run.status} by {name}" if name else f"{run.status}{refused}"


def _sweep(run: Run) -> str:
    """Return the sweep and trial of the run, and the values that the sweep chose."""
    from sacristan.runs.stores.settings import show

    sweep = run.get("meta.sweep")
    if not isinstance(sweep, Mapping):
        return ""
    attempt = sweep.get("attempt")
    again = f", attempt {attempt}" if isinstance(attempt, int) and attempt > 1 else ""
    values = " ".join(f"{name}={show(value)}" for name, value in mapping_of(sweep.get("parameters")).items())
    return f"{sweep.get('id')}, trial {sweep.get('trial')}{again}{f': {values}' if values else ''}"


def _git(run: Run) -> str:
    git = mapping_of(run.provenance.get("git"))
    if not git.get("commit"):
        return f"no commit recorded: {git['problem']}" if git.get("problem") else ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    return f"{git['commit']}{branch}{', with uncommitted changes' if git.get('dirty') else ''}"


def _print_config(run: Run, *, is_whole: bool) -> None:
    """Print the entries that were set, with their source; also the others if `is_whole`."""
    from sacristan.runs.stores.settings import flat_config, origins

    config = flat_config(run)
    if not config:
        return
    set_by = {name: origin for name, origin in origins(run).items() if name in config}
    others = [name for name in config if name not in set_by]
    # A record without origins does not tell which are at their defaults.
    is_known = set_by or (run.get("meta.origins") is not None and len(config) > _MAX_LINES)
    shown = [*set_by, *(others if is_whole or not is_known else ())]
    print_text("config", "bold")
    rows = [_setting_row(name, config[name], set_by.get(name, "")) for name in shown]
    print_table([Column(is_kept=True), Column(), Column()], rows)
    if len(shown) < len(config):
        count = f"{len(others)} more" if shown else f"all {len(others)} settings are"
        print_text(f"  {count} at their defaults: {typed_command(run.store.where, 'show', run.id, '--config')}", "dim")


def _setting_row(name: str, value: Any, set_by: str) -> list[Cell]:
    text = "None" if value is None else value_text(value, exact=True)
    style = "yellow" if set_by else ""
    return [Cell(f"  {name}", style), Cell(text, style), Cell(set_by, "dim")]


def _print_metrics(run: Run) -> None:
    statistics = {name: each for name, each in run.statistics().items() if not name.startswith("system/")}
    if not statistics:
        return
    print_text("metrics", "bold")
    columns = [Column("  name"), *(Column(name, is_number=True) for name in _STATISTICS)]
    rows = [
        [Cell(f"  {name}"), *(Cell(value_text(each.get(statistic))) for statistic in _STATISTICS)]
        for name, each in statistics.items()
    ]
    print_table(columns, rows)


def _print_other_values(run: Run) -> None:
    """For each metric with non-numeric values, print how many there are, and the last one."""
    others = list(run.other_values().items())
    if not others:
        return
    print_text("metrics with values that are no numbers", "bold")
    columns = [Column("  name"), Column("count", is_number=True), Column("step", is_number=True), Column("last")]
    rows = [
        [Cell(f"  {name}"), Cell(str(len(values))), Cell(value_text(values[-1][0])), Cell(_folded(values[-1][1]))]
        for name, values in others[:_MAX_LINES]
    ]
    print_table(columns, rows)
    if len(others) > _MAX_LINES:
        print_text(f"  {len(others) - _MAX_LINES} more: {typed_command(run.store.where, 'metrics', run.id)}", "dim")


def _print_info(run: Run) -> None:
    """Print the run's info, except the curves that are among its metrics."""
    from sacristan.runs.stores.run import STEPS

    curves = {name + end for name in run.statistics().keys() - run.summary.keys() for end in ("", STEPS)}
    left_out = {*curves, *_PRINTED, *(("metrics",) if mappings_in(run.info.get("metrics")) else ())}  # Sacred's ids
    info = dotted({name: value for name, value in run.info.items() if name not in left_out})
    if not info:
        return
    print_text("info", "bold")
    rows = [[Cell(f"  {name}"), Cell(_folded(value))] for name, value in list(info.items())[:_MAX_LINES]]
    print_table([Column(is_kept=True), Column()], rows)
    is_cut = any(cell.text.endswith(_FOLDED) for _, cell in rows)
    if is_cut or len(info) > _MAX_LINES:
        more = f"{len(info) - _MAX_LINES} more" if len(info) > _MAX_LINES else "in full"
        print_text(f"  {more}: {typed_command(run.store.where, 'show', run.id, '--json')}", "dim")


def _folded(value: Any) -> str:
    text = value_text(value, exact=True)
    if len(text) <= _MAX_CHARACTERS:
        return text
    size = f" ({len(value):,} entries)" if isinstance(value, list) else ""
    return f"{text[: _MAX_CHARACTERS - len(size)]}{size}{_FOLDED}"


def _print_failure(run: Run) -> None:
    trace = list_of(run["fail_trace"])
    if not trace:
        return
    lines = "".join(map(str, trace)).rstrip("\n").split("\n")
    print_text("failure" + (f", the last {_MAX_LINES} lines" if len(lines) > _MAX_LINES else ""), "bold red")
    for line in lines[-_MAX_LINES:]:
        print_text(f"  {line}")
