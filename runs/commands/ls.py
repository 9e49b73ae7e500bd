"""`ls`: runs as a table, newest first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    is_terminal,
    print_json,
    print_row,
    print_table,
    print_text,
    print_to_stderr,
)
from sacristan.runs.documents.run_documents import COLUMNS, LISTED, Listing, list_runs, listed_run
from sacristan.runs.query.texts import (
    MISSING,
    STATUS_STYLES,
    count_text,
    duration_text,
    is_number,
    time_text,
    value_text,
)

if TYPE_CHECKING:
    from sacristan.runs.stores import Run, Store

JSON = LISTED
# Differing settings are not looked for among more runs than these.
_MAX_COMPARED = 200
_ON_A_SCREEN = 50
# Differing settings in a pipe, and on a terminal, whose width leaves out the last ones.
_IN_A_PIPE, _ON_A_TERMINAL = 4, 8
_EPILOG = """Name fields as in the record (config.optimizer.lr, summary.val/loss.min, host.hostname) or shorter
(optimizer.lr, val/loss.min, host). A condition is NAME, one of = != < <= > >= ~ (a regular expression), and a value.
Put a name with spaces, commas or operators between backticks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    terminal.add_selection(parser)
    parser.add_argument("--columns", metavar="A,B,...", help=f"fields to show ({','.join(COLUMNS)})")
    help = f"maximum number of runs, 0 for all (on a terminal {_ON_A_SCREEN}, else all)"
    parser.add_argument("--limit", type=terminal.bound, metavar="N", help=help)
    help = "also list runs that were rejected before training; conditions find them anyway"
    parser.add_argument("--refused", action="store_true", help=help)
    parser.add_argument("--follow", action="store_true", help="then print each new or changed run, until Ctrl-C")
    terminal.add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """List the runs, once or forever."""
    columns = terminal.names_in(arguments.columns) if arguments.columns else COLUMNS
    limit = terminal.limit_in(arguments, _ON_A_SCREEN if is_terminal() and not arguments.json else 0)
    terminal.conditions_in(arguments)  # rejects invalid ones before a store is opened
    with terminal.open_given(arguments) as store:
        if arguments.follow:
            return _follow(store, arguments, columns, limit)
        listing = _find(store, arguments, columns, limit)
        if arguments.json:
            _note_broken(listing.unlisted() if listing.is_filtered else {})
            print_json(listing.documents())
        else:
            _print_tables(listing, store, are_usual=not arguments.columns)
            if listing.has_more:
                print_text(f"({limit} runs; there are more: --limit 0 shows all)", "dim")
            if listing.num_hidden:
                are, them = ("is", "it") if listing.num_hidden == 1 else ("are", "them")
                hidden = count_text(listing.num_hidden, "refused run")
                print_text(f"({hidden} {are} not listed; --refused lists {them})", "dim")
    return 0


def _find(store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int | None) -> Listing:
    def usual(shown: Sequence[Run]) -> Sequence[str]:
        return columns if arguments.columns else _usual_columns(shown, arguments)

    filters, is_all = terminal.conditions_in(arguments), arguments.refused
    return list_runs(store, filters, arguments.sort, limit, columns, with_refused=is_all, columns_of=usual)


# ---------------------------------------------------------------------- tables


def _print_tables(listing: Listing, store: Store, *, are_usual: bool) -> None:
    rows, broken = listing.rows, listing.broken
    if rows:
        names = _filled_columns(rows, listing.columns) if are_usual else list(listing.columns)
        values = [[row[name] for name in names] for _, row in rows]
        cells = [_cells(run, names, row) for (run, _), row in zip(rows, values, strict=True)]
        print_table(_header(names, values, are_usual=are_usual), cells, are_chosen=True)
    elif listing.is_filtered:
        print_text("no run matches the conditions")
    elif not (broken or listing.num_hidden):
        print_text(f"there is no run in {store.where} yet")
    if listing.is_filtered:
        unlisted = listing.unlisted()
        _note_broken(unlisted)
        broken = {id: why for id, why in broken.items() if id not in unlisted}
    if broken:
        print_text("cannot be read completely:", "red")
        print_table([Column(is_kept=True), Column()], [[Cell(id), Cell(why)] for id, why in broken.items()], indent=2)


def _usual_columns(shown: Sequence[Run], arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the default columns; in a table also the settings that differ, and the field of the order."""
    from sacristan.runs.query import full_name, short_name
    from sacristan.runs.stores.settings import telling_settings

    if arguments.json or arguments.follow:
        return COLUMNS
    is_comparable = arguments.sweep is not None or len(shown) <= _MAX_COMPARED
    names = telling_settings(shown, _ON_A_TERMINAL if is_terminal() else _IN_A_PIPE) if is_comparable else []
    sorted_by = short_name(full_name(arguments.sort.removeprefix("-")))
    wanted = [*COLUMNS[:-1], sorted_by, *names, COLUMNS[-1]]
    fixed = {full_name(name) for name in COLUMNS} | {"_id"}
    return tuple(dict.fromkeys(name for name in wanted if name in COLUMNS or full_name(name) not in fixed))


def _filled_columns(rows: Sequence[tuple[Run, Mapping[str, Any]]], names: Sequence[str]) -> list[str]:
    return [name for name in names if name == "status" or any(row[name] not in (None, "", []) for _, row in rows)]


def _header(names: Sequence[str], rows: Sequence[Sequence[Any]], *, are_usual: bool = False) -> list[Column]:
    columns = [_column(name, [row[i] for row in rows], are_usual) for i, name in enumerate(names)]
    return [*([] if _has_id(names) else [Column("id", is_kept=True)]), *columns]


def _has_id(names: Sequence[str]) -> bool:
    """Tell whether the id is among the columns; otherwise it is the first one."""
    from sacristan.runs.query import full_name

    return "_id" in map(full_name, names)


def _column(name: str, values: Sequence[Any], is_usual: bool) -> Column:
    """Return the layout of a column; a default one with the same value in all runs is dropped first."""
    from sacristan.runs.query import TIMES, full_name

    full = full_name(name)
    is_spare = is_usual and full != "status" and len(values) > 1 and all(value == values[0] for value in values)
    is_kept = full in ("_id", "status")
    present = [value for value in values if value is not None]
    is_numeric = name == "duration" or (bool(present) and all(map(is_number, present)))
    return Column(name, is_numeric, is_kept, is_whole=full in TIMES, is_spare=is_spare)


def _cells(run: Run, names: Sequence[str], row: Sequence[Any]) -> list[Cell]:
    return [*([] if _has_id(names) else [Cell(run.id)]), *map(_cell, names, row)]


def _cell(name: str, value: Any) -> Cell:
    from sacristan.runs.query import TIMES, full_name

    full = full_name(name)
    if name == "duration":
        return Cell(duration_text(value))
    if full in TIMES:
        return Cell(time_text(value, short=is_terminal()))
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


def _follow(store: Store, arguments: argparse.Namespace, columns: Sequence[str], limit: int | None) -> int:
    """Print the newest runs, newest last, and then a line for each new or changed run, forever."""
    from sacristan.runs.stores import read_rows

    conditions = terminal.conditions_in(arguments)
    rows, _ = read_rows(terminal.find_chosen(store, arguments, columns), columns)
    states = {run.id: _state(row) for run, row in rows}
    lines = _Lines(columns, in_json=arguments.json)
    lines.print(rows[:limit][::-1])
    if not (rows or arguments.json):
        print_text("no run matches the conditions yet" if conditions else f"there is no run in {store.where} yet")
        sys.stdout.flush()
    for changed in store.watch(conditions):
        for run, row in read_rows([changed], columns)[0]:
            if states.get(run.id) != (state := _state(row)):
                states[run.id] = state
                lines.print([(run, row)])
    return 0


class _Lines:
    """Runs printed one by one: as lines of JSON, or as a growing table."""

    def __init__(self, columns: Sequence[str], *, in_json: bool) -> None:
        self._names, self._in_json = columns, in_json
        self._header: list[Column] = []
        self._widths: Sequence[int] = ()

    def print(self, rows: Sequence[tuple[Run, Mapping[str, Any]]]) -> None:
        if self._in_json:
            for run, row in rows:
                print_json(listed_run(run, row, run.problem), in_one_line=True)
            return
        values = [[row[name] for name in self._names] for _, row in rows]
        cells = [_cells(run, self._names, row) for (run, _), row in zip(rows, values, strict=True)]
        self._header = self._header or _header(self._names, values)
        if cells and not self._widths:
            self._widths = print_table(self._header, cells, are_chosen=True)
            return
        for line in cells:
            self._widths = print_row(self._header, line, self._widths)


def _state(row: Mapping[str, Any]) -> str:
    """Return the values whose change makes a line worth printing, without those that change as time passes."""
    return repr([value for name, value in row.items() if name not in ("duration", "heartbeat")])
