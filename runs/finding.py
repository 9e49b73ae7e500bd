"""Questions to the index, as SQL: which runs meet conditions, in what order, with what values."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from runs.errors import StoreError
from runs.fields import BIG, BOOL, JSON, LONG, NAN, NULL, NUMBER, OF_CONFIG, OF_RUN, TEXT, decode, encode

__all__ = ["OPERATORS", "Condition", "Prepared", "find", "prepare"]

Condition = tuple[str, str, Any]
Encoded = list[tuple[int, Any]]
Prepared = tuple[str, str, Encoded]
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in")

# A run that is stored as RUNNING and whose process is gone stands in temp.dead.
_TRUE_STATUS = """(SELECT key, run, kind, CASE WHEN value = 'RUNNING' AND run IN temp.dead THEN 'DEAD' ELSE value END
    AS value FROM field)"""
_ORDER = f"""s.kind IS NULL, CASE s.kind WHEN {BIG} THEN {NUMBER} ELSE s.kind END,
    CASE s.kind WHEN {BIG} THEN CAST(s.value AS REAL) ELSE s.value END"""


def find(
    connection: sqlite3.Connection,
    conditions: Iterable[Prepared],
    sort: str | None,
    limit: int,
    columns: Sequence[str],
) -> list[dict[str, Any]]:
    """Return name and `columns` of the runs that meet all conditions; see `Index.find`."""
    where, values = ["r.is_readable"], []
    for condition in conditions:
        text, new = _matching(connection, *condition)
        where.append(text)
        values += new
    order, source, before = "", "", []
    if sort:
        key = _key(connection, sort.removeprefix("-"))
        source = f"LEFT JOIN {_table(connection, key)} s ON s.key = ? AND s.run = r.id"
        before = [key]
        order = f"{_ORDER} {'DESC' if sort.startswith('-') else 'ASC'},"
    query = f"""SELECT r.id, r.name FROM run r {source} WHERE {" AND ".join(where)}
        ORDER BY {order} length(r.name), r.name LIMIT ?"""
    rows = connection.execute(query, [*before, *values, limit]).fetchall()
    found = {number: {"name": os.fsdecode(name), **dict.fromkeys(columns)} for number, name in rows}
    for column in columns:
        _fill(connection, column, found)
    return list(found.values())


def _fill(connection: sqlite3.Connection, column: str, found: dict[int, dict[str, Any]]) -> None:
    """Put the values of one column into the rows found so far."""
    key = _key(connection, column)
    numbers = list(found)
    for start in range(0, len(numbers), 10_000):
        part = numbers[start : start + 10_000]
        marks = ",".join("?" * len(part))
        query = f"SELECT run, kind, value FROM {_table(connection, key)} WHERE key = ? AND run IN ({marks})"
        for run, kind, value in connection.execute(query, [key, *part]):
            found[run][column] = decode(kind, value)


def _key(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the number of a field; `config.NAME` means the config's where the run has one of that name itself."""
    found = connection.execute("SELECT id FROM key WHERE name = ? ORDER BY origin LIMIT 1", (name,)).fetchone()
    if found is None and name.startswith("config."):
        query = "SELECT id FROM key WHERE name = ? AND origin = ?"
        found = connection.execute(query, (name.removeprefix("config."), OF_CONFIG)).fetchone()
    return found[0] if found else None


def _table(connection: sqlite3.Connection, key: int | None) -> str:
    status = connection.execute("SELECT id FROM key WHERE name = 'status' AND origin = ?", (OF_RUN,)).fetchone()
    return _TRUE_STATUS if status and status[0] == key else "field"


def prepare(condition: Condition) -> Prepared:
    """Return a condition with its value encoded, or for `in` all its values.

    Raises:
        StoreError: If it makes no sense.
    """
    name, operator, value = condition
    if operator not in OPERATORS:
        raise StoreError(f"got operator {operator!r}, expected one of {', '.join(OPERATORS)}")
    if operator == "in":
        return str(name), operator, [encode(each) for each in value]
    kind, encoded = encode(value)
    if operator not in ("==", "!=") and kind in (JSON, LONG, NULL):
        raise StoreError(f"{name} {operator}: got {value!r:.80}, expected a number or a text to compare with")
    return str(name), operator, [(kind, encoded)]


def _matching(connection: sqlite3.Connection, name: str, operator: str, values: Encoded) -> tuple[str, list[Any]]:
    """Return a condition as SQL, and its values."""
    key = _key(connection, name)
    runs = f"SELECT run FROM {_table(connection, key)} WHERE key = ?"
    if operator not in ("==", "!=", "in"):
        text, new = _in_range(operator, *values[0])
        return f"r.id IN ({runs} AND ({text}))", [key, *new]
    parts = [_equal(runs, key, kind, value) for kind, value in values]
    text = " OR ".join([text for text, _ in parts] or ["0"])
    return f"{'NOT ' if operator == '!=' else ''}({text})", [value for _, new in parts for value in new]


def _equal(runs: str, key: int | None, kind: int, value: Any) -> tuple[str, list[Any]]:
    if kind == NULL:  # what is missing and what is null are the same to those who ask
        return f"r.id NOT IN ({runs} AND kind <> {NULL})", [key]
    if kind == NAN:
        return f"r.id IN ({runs} AND kind = {NAN})", [key]
    return f"r.id IN ({runs} AND kind = ? AND value = ?)", [key, kind, value]


def _in_range(operator: str, kind: int, value: Any) -> tuple[str, list[Any]]:
    if kind in (TEXT, BOOL):
        return f"kind = ? AND value {operator} ?", [kind, value]
    if kind == NAN:
        return "0", []
    number = value if kind == NUMBER else float(value)
    text = f"kind = {NUMBER} AND value {operator} ? OR kind = {BIG} AND CAST(value AS REAL) {operator} ?"
    return text, [number, number]
