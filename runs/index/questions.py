"""Questions to the index, as SQL: which runs meet conditions, in what order, with what values."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from runs.errors import FilterError
from runs.index.fields import (
    BIG,
    BOOL,
    JSON,
    LONG,
    NAN,
    NULL,
    NUMBER,
    OF_CONFIG,
    OF_INFO,
    OF_RUN,
    OF_SUMMARY,
    TEXT,
    decode,
    encode,
)
from runs.query.filters import AllOf, Condition, Filter, Not, OneOf
from runs.query.names import full_name

__all__ = ["entries", "fields", "find", "has_field"]

# A run that is stored as RUNNING and whose process is gone stands in temp.dead.
_TRUE_STATUS = """(SELECT key, run, kind, CASE WHEN value = 'RUNNING' AND run IN temp.dead THEN 'DEAD' ELSE value END
    AS value FROM field)"""
_ORDER = f"""s.kind IS NULL, CASE s.kind WHEN {BIG} THEN {NUMBER} ELSE s.kind END,
    CASE s.kind WHEN {BIG} THEN CAST(s.value AS REAL) ELSE s.value END"""
# The number of no key: the run's name is its id, and stands in the table of runs.
_OF_NAME = -1
_NAMES = f"(SELECT {_OF_NAME} AS key, id AS run, {TEXT} AS kind, CAST(name AS TEXT) AS value FROM run)"


def find(
    connection: sqlite3.Connection,
    tree: Filter,
    sort: str | None,
    limit: int,
    columns: Sequence[str],
) -> list[dict[str, Any]]:
    """Return name and `columns` of the runs that a filter is true of; see `Index.find`."""
    where, values = _matching(connection, tree)
    direction = "DESC" if sort and sort.startswith("-") else "ASC"
    order, source, before = "", "", []
    name = full_name(sort.removeprefix("-")) if sort else "_id"
    if name != "_id":
        key = _key(connection, name)
        source = f"LEFT JOIN {_table(connection, key)} s ON s.key = ? AND s.run = r.id"
        before = [key]
        order = f"{_ORDER} {direction},"
    # Of equal runs the order is that of the store: 9 comes before 10.
    ids = f"length(r.name) {direction}, r.name {direction}" if name == "_id" else "length(r.name), r.name"
    query = f"""SELECT r.id, r.name FROM run r {source} WHERE r.is_readable AND {where}
        ORDER BY {order} {ids} LIMIT ?"""
    rows = connection.execute(query, [*before, *values, limit]).fetchall()
    found = {number: {"name": os.fsdecode(name), **dict.fromkeys(columns)} for number, name in rows}
    for column in columns:
        _fill(connection, column, found)
    return list(found.values())


def fields(connection: sqlite3.Connection) -> list[str]:
    """Return the full names of all fields."""
    prefixes = {OF_CONFIG: "config.", OF_SUMMARY: "summary."}
    rows = connection.execute("SELECT origin, name FROM key WHERE EXISTS (SELECT 1 FROM field WHERE key = key.id)")
    return sorted(prefixes.get(origin, "") + name for origin, name in rows)


def has_field(connection: sqlite3.Connection, name: str) -> bool:
    """Tell whether a run has the field of that full name, or one below it."""
    if name == "_id":
        return True
    origin, own = _origin(name)
    query = """SELECT 1 FROM key WHERE origin = ? AND (name = ? OR (name > ? AND name < ?))
        AND EXISTS (SELECT 1 FROM field WHERE key = key.id) LIMIT 1"""
    return connection.execute(query, (origin, own, f"{own}.", f"{own}/")).fetchone() is not None


def entries(connection: sqlite3.Connection, name: str) -> list[str]:
    """Return the full names of the fields below the field `name`, a full name."""
    origin, own = _origin(name)
    # What begins with "own." lies between it and "own/", as / comes behind the dot.
    query = "SELECT name FROM key WHERE origin = ? AND name > ? AND name < ? ORDER BY name"
    rows = connection.execute(query, (origin, f"{own}.", f"{own}/"))
    return [name + row[0].removeprefix(own) for row in rows]


def _fill(connection: sqlite3.Connection, column: str, found: dict[int, dict[str, Any]]) -> None:
    """Put the values of one column into the rows found so far."""
    key = _key(connection, full_name(column))
    numbers = list(found)
    for start in range(0, len(numbers), 10_000):
        part = numbers[start : start + 10_000]
        marks = ",".join("?" * len(part))
        query = f"SELECT run, kind, value FROM {_table(connection, key)} WHERE key = ? AND run IN ({marks})"
        for run, kind, value in connection.execute(query, [key, *part]):
            found[run][column] = decode(kind, value)


def _key(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the number of a field by its full name; None if no run has it."""
    if name == "_id":
        return _OF_NAME
    origin, own = _origin(name)
    found = connection.execute("SELECT id FROM key WHERE name = ? AND origin = ?", (own, origin)).fetchone()
    return found[0] if found else None


def _origin(name: str) -> tuple[int, str]:
    """Return whose field a full name is, and what it is called there."""
    for prefix, origin in (("config.", OF_CONFIG), ("summary.", OF_SUMMARY)):
        if name.startswith(prefix):
            return origin, name.removeprefix(prefix)
    return (OF_INFO if name.startswith("info.") else OF_RUN), name


def _table(connection: sqlite3.Connection, key: int | None) -> str:
    if key == _OF_NAME:
        return _NAMES
    status = connection.execute("SELECT id FROM key WHERE name = 'status' AND origin = ?", (OF_RUN,)).fetchone()
    return _TRUE_STATUS if status and status[0] == key else "field"


def _matching(connection: sqlite3.Connection, tree: Filter) -> tuple[str, list[Any]]:
    """Return a filter as SQL that is true or false of every run, and its values."""
    if isinstance(tree, Not):
        text, values = _matching(connection, tree.part)
        return f"NOT ({text})", values
    if isinstance(tree, AllOf | OneOf):
        parts = [_matching(connection, part) for part in tree.parts]
        word, empty = (" AND ", "1") if isinstance(tree, AllOf) else (" OR ", "0")
        return f"({word.join(text for text, _ in parts) or empty})", [value for _, new in parts for value in new]
    return _condition(connection, tree)


def _condition(connection: sqlite3.Connection, condition: Condition) -> tuple[str, list[Any]]:
    name, operator, value = condition.name, condition.operator, condition.value
    if operator == "in":
        return _matching(connection, OneOf(tuple(Condition(name, "==", each) for each in value)))
    if operator == "!=":
        return _matching(connection, Not(Condition(name, "==", value)))
    key = _key(connection, name)
    runs = f"SELECT run FROM {_table(connection, key)} WHERE key = ?"
    if operator == "==" and value is None:
        # What is missing and what is null are the same to those who ask.
        return f"r.id NOT IN ({runs} AND kind <> {NULL})", [key]
    if name == "_id" and operator == "==":
        value = str(value)
    kind, encoded = encode(value)
    if operator == "~":
        return f"r.id IN ({runs} AND kind = {TEXT} AND value REGEXP ?)", [key, value]
    if operator == "==":
        text, new = ("kind = ?", [kind]) if kind == NAN else ("kind = ? AND value = ?", [kind, encoded])
        return f"r.id IN ({runs} AND {text})", [key, *new]
    return _in_range(name, operator, runs, key, kind, encoded)


def _in_range(name: str, operator: str, runs: str, key: int | None, kind: int, encoded: Any) -> tuple[str, list[Any]]:
    if kind in (JSON, LONG, NULL):
        raise FilterError(f"{name} {operator}: got {encoded!r}, expected a number or a text to compare with")
    if kind in (TEXT, BOOL):
        return f"r.id IN ({runs} AND kind = ? AND value {operator} ?)", [key, kind, encoded]
    if kind == NAN:
        return "0", []
    number = encoded if kind == NUMBER else float(encoded)
    compared = f"(kind = {NUMBER} AND value {operator} ?) OR (kind = {BIG} AND CAST(value AS REAL) {operator} ?)"
    return f"r.id IN ({runs} AND ({compared}))", [key, number, number]
