"""`ls`: runs as a table, newest first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runs.commands.terminal.arguments import add_json, bound, open_given
from runs.commands.terminal.selection import add_selection, conditions_in, find_chosen, limit_in, names_in
from runs.commands.terminal.strict_json import print_json
from runs.commands.terminal.tables import Cell, Column, print_row, print_table
from runs.commands.terminal.text import is_terminal, print_text, print_to_stderr
from runs.query.names import REFUSED
from runs.query.texts import (
    MISSING,
    STATUS_STYLES,
    count_text,
    duration_text,
    is_number,
    time_text,
    utc,
    value_text,
)

if TYPE_CHECKING:
    from runs.stores.run import Run
    from runs.stores.store import Store

__all__ = ["add_arguments", "main"]

_COLUMNS = ("name", "command", "status", "start", "duration", "result", "tags")
# Of more runs than these the settings that differ are not looked for.
_MAX_COMPARED = 200
_ON_A_SCREEN = 50
_EPILOG = """Name fields as in the record (config.optimizer.lr, summary.val/loss.min, host.hostname) or shorter
(optimizer.lr, val/loss.min, host). A condition is NAME, one of = != < <= > >= ~ (a regular expression), and a value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    add_selection(parser)
    parser.add_argument("--columns", metavar="A,B,...", help=f"fields to show ({','.join(_COLUMNS)})")
    help = f"maximum number of runs, 0 for all (on a terminal {_ON_A_SCREEN}, else all)"
    parser.add_argument("--limit", type=bound, metavar="N", help=help)
    help = "also list runs that were rejected before training; conditions find them anyway"
    parser.add_argument("--refused", action="store_true", help=help)
    parser.add_argument("--follow", action="store_true", help="then print each new or changed run, until Ctrl-C")
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """List the runs, once or for ever."""
    given = arguments.columns
    columns = names_in(given) if given else _COLUMNS
    limit = limit_in(arguments, _ON_A_SCREEN if is_terminal() and not arguments.json else 0) or 0
    is_filtered = bool(conditions_in(arguments))  # what makes no sense is refused before a store is opened
    with open_given(arguments) as store:
        if arguments.follow:
            return _follow(store, arguments, columns, limit)
        # One more tells whether there are more.
        is_hiding = not (is_filtered or arguments.refused)
        also = [{REFUSED: {"$ne": True}}] if is_hiding else []
        found = find_chosen(store, arguments, (*columns, "uid"), limit + 1 if limit else None, also)
        num_hidden = store.count({REFUSED: True}) if is_hiding else 0
        broken = dict(store.unreadable())
        shown = found[:limit] if limit else found
        if not given:
            columns = _usual_columns(shown, arguments)
        if arguments.json:
            _print_json(shown, broken, columns, is_filtered)
        else:
            if shown or not num_hidden:
                _print_table(store, shown, broken, columns, not given, is_filtered)
            if len(found) > len(shown):
                print_text(f"({limit} runs; there are more: --limit 0 shows all)", "dim")
            if num_hidden:
                are, them = ("is", "it") if num_hidden == 1 else ("are", "them")
                what = count_text(num_hidden, "refused run")
                print_text(f"({what} {are} not listed; --refused lists {them})", "dim")
    return 0


# ---------------------------------------------------------------------- JSON


def _print_json(shown: Sequence[Run], broken: dict[str, str], columns: Sequence[str], is_filtered: bool) -> None:
    from runs.stores.rows import read_rows

    found, problems = read_rows(shown, columns)
    broken |= {id: why for id, why in problems.items() if id not in broken}
    rows = [_document(run, row, broken.pop(run.id, None)) for run, row in found]
    if is_filtered:
        _note_broken(broken)
    else:
        empty = dict.fromkeys(columns)
        rows += [{"id": id, "uid": None, **empty, "unreadable": why} for id, why in broken.items()]
    print_json(rows)


def _document(run: Run, values: Mapping[str, Any], problem: str | None) -> dict[str, Any]:
    from runs.query.names import TIMES, full_name

    times = {name: utc(value) for name, value in values.items() if full_name(name) in TIMES}
    return {"id": run.id, "uid": run.uid, **values, **times, "unreadable": problem}


# ---------------------------------------------------------------------- tables


def _print_table(
    store: Store,
    shown: Sequence[Run],
    broken: dict[str, str],
    columns: Sequence[str],
    are_usual: bool,
    is_filtered: bool,
) -> None:
    from runs.stores.rows import read_rows

    found, problems = read_rows(shown, columns)
    broken |= {id: why for id, why in problems.items() if id not in broken}
    if not found and (is_filtered or not broken):
        print_text("no run matches the conditions" if is_filtered else f"there is no run in {store.where} yet")
    if found:
        names = _filled_columns(found, columns) if are_usual else list(columns)
        rows = [[row[name] for name in names] for _, row in found]
        print_table(_header(names, rows), [_cells(run, names, row) for (run, _), row in zip(found, rows, strict=True)])
    if is_filtered:
        ids = {run.id for run in shown}
        _note_broken({id: why for id, why in broken.items() if id not in ids})
        broken = {id: why for id, why in broken.items() if id in ids}
    if broken:
        print_text("cannot be read completely:", "red")
        print_table([Column(is_kept=True), Column()], [[Cell(id), Cell(why)] for id, why in broken.items()], indent=2)


def _usual_columns(shown: Sequence[Run], arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the usual columns; in a table those by which people know the runs apart, too, and what it is sorted by."""
    from runs.query.names import full_name, short_name
    from runs.stores.settings import telling_settings

    if arguments.json or arguments.follow:
        return _COLUMNS
    if arguments.sweep is not None or len(shown) <= _MAX_COMPARED:
        names = telling_settings(shown)
    else:
        names = []
    sorted_by = short_name(full_name(arguments.sort.removeprefix("-")))
    wanted = [*_COLUMNS[:-1], sorted_by, *names, _COLUMNS[-1]]
    known = {full_name(name) for name in _COLUMNS} | {"_id"}
    return tuple(dict.fromkeys(name for name in wanted if name in _COLUMNS or full_name(name) not in known))


def _filled_columns(found: Sequence[tuple[Run, Mapping[str, Any]]], names: Sequence[str]) -> list[str]:
    """Return the columns in which a run has something."""
    return [name for name in names if name == "status" or any(row[name] not in (None, []) for _, row in found)]


def _header(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Column]:
    columns = [Column(name, is_number=_is_numeric(name, [row[i] for row in rows])) for i, name in enumerate(names)]
    return [Column("id", is_kept=True), *columns]


def _is_numeric(name: str, values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return name == "duration" or (bool(there) and all(map(is_number, there)))


def _cells(run: Run, names: Sequence[str], row: Sequence[Any]) -> list[Cell]:
    return [Cell(run.id), *map(_cell, names, row)]


def _cell(name: str, value: Any) -> Cell:
    from runs.query.names import TIMES, full_name

    full = full_name(name)
    if name == "duration":
        return Cell(duration_text(value))
    if full in TIMES:
        return Cell(time_text(value))
    if full == "status":
        return Cell(value_text(value), STATUS_STYLES.get(str(value), ""))
    if full == "tags" and isinstance(value, list):
        return Cell(", ".join(map(str, value)) or MISSING)
    return Cell(value_text(value))


def _note_broken(broken: dict[str, str]) -> None:
    if broken:
        what = count_text(len(broken), "run")
        print_to_stderr(f"note: {what} cannot be read completely; ls without conditions says why")


# ---------------------------------------------------------------------- following


def _follow(store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int) -> int:
    """Print the newest runs, the last one last, and then a line for each that is new or has changed, for ever."""
    from runs.stores.rows import read_rows

    conditions, in_json = conditions_in(arguments), arguments.json
    found, _ = read_rows(find_chosen(store, arguments, columns), columns)
    known = {run.id: _state(row) for run, row in found}
    shown = (found[:limit] if limit else found)[::-1]
    rows = [[row[name] for name in columns] for _, row in shown]
    header = _header(columns, rows)
    widths: Sequence[int] = ()
    if in_json:
        for run, values in shown:
            print_json(_document(run, values, run.problem), in_one_line=True)
    elif not shown:
        print_text("no run matches the conditions yet" if conditions else f"there is no run in {store.where} yet")
        sys.stdout.flush()
    else:
        cells = [_cells(run, columns, row) for (run, _), row in zip(shown, rows, strict=True)]
        widths = print_table(header, cells)
    for changed in store.watch(conditions):
        for run, values in read_rows([changed], columns)[0]:
            state = _state(values)
            if known.get(run.id) == state:
                continue
            known[run.id] = state
            if in_json:
                print_json(_document(run, values, run.problem), in_one_line=True)
            else:
                line = _cells(run, columns, [values[name] for name in columns])
                widths = print_row(header, line, widths) if widths else print_table(header, [line])
    return 0


def _state(row: Mapping[str, Any]) -> str:
    """Return what makes a line news; that time passes is none."""
    return repr([value for name, value in row.items() if name not in ("duration", "heartbeat")])
