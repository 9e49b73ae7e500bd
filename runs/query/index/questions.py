"""Questions to an index, answered in SQL: which runs a filter chooses, in what order, with what values."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from sacristan.runs.query.filters import Filter, Question, Words, leaves
from sacristan.runs.query.index.fields import OF_CONFIG, OF_SUMMARY
from sacristan.runs.query.index.filter_sql import filter_sql, key_of, names_below, origin_of, split_name, table_of
from sacristan.runs.query.index.values import BIG, BOOL, HUGE, NAN, NUMBER, TEXT, decode
from sacristan.runs.query.names import full_name

__all__ = ["count", "entries", "fields", "find", "has_field", "origins_in"]

# Order of the kinds in a sorted column: numbers, booleans, texts, and then the rest by their ids.
_KINDS = f"""CASE WHEN s.kind IN ({NUMBER}, {BIG}) THEN 0 WHEN s.kind IN ({BOOL}, {TEXT}) THEN s.kind
    WHEN s.kind = {HUGE} THEN {TEXT} ELSE {NAN} END"""
_VALUES = f"""CASE WHEN s.kind = {BIG} THEN CAST(s.value AS REAL)
    WHEN s.kind <= {TEXT} OR s.kind = {HUGE} THEN s.value END {{0}},
    CASE s.kind WHEN {BIG} THEN RESIDUAL(s.value) ELSE 0 END {{0}}"""


def find(connection: sqlite3.Connection, question: Question) -> list[dict[str, Any]]:
    """Return the runs that a question asks for; the connection holds a reader's lock. See `Index.answer`."""
    connection.execute("DELETE FROM temp.wanted")
    where, values = filter_sql(connection, question.tree)
    direction = "DESC" if question.descending else "ASC"
    order, source, before = "", "", []
    if question.by != "_id":
        key = key_of(connection, question.by)
        source = f"LEFT JOIN {table_of(connection, key)} s ON s.key = ? AND s.run = r.id"
        before = [key]
        order = f"{_KINDS}, {_VALUES.format(direction)},"
    # Ties keep the order of the store: 9 before 10, and numbers before texts.
    of_ids = direction if question.by == "_id" else "ASC"
    ids = f"r.number IS NULL {of_ids}, r.number {of_ids}, r.name {of_ids}"
    query = f"""SELECT r.id, r.name FROM run r {source} WHERE r.is_readable AND {where}
        ORDER BY {order} {ids} LIMIT ? OFFSET ?"""
    limit = -1 if question.limit is None else question.limit
    rows = connection.execute(query, [*before, *values, limit, question.offset]).fetchall()
    found = {number: {"name": os.fsdecode(name), **dict.fromkeys(question.columns)} for number, name in rows}
    for column in question.columns:
        _fill(connection, column, found)
    return list(found.values())


def count(connection: sqlite3.Connection, tree: Filter, limit: int | None = None) -> int:
    """Return the number of runs that a filter chooses."""
    connection.execute("DELETE FROM temp.wanted")
    where, values = filter_sql(connection, tree)
    query = f"SELECT count(*) FROM (SELECT 1 FROM run r WHERE r.is_readable AND {where} LIMIT ?)"
    return connection.execute(query, [*values, -1 if limit is None else limit]).fetchone()[0]


def origins_in(question: Question) -> set[int]:
    """Return the origins of the fields that a question reads."""
    # Words may stand in any text of a config.
    words = {OF_CONFIG} if any(isinstance(leaf, Words) for leaf in leaves(question.tree)) else set()
    return set(map(origin_of, question.names)) | words


def fields(connection: sqlite3.Connection) -> list[str]:
    """Return the full names of all fields, sorted."""
    prefixes = {OF_CONFIG: "config.", OF_SUMMARY: "summary."}
    rows = connection.execute("SELECT origin, name FROM key WHERE EXISTS (SELECT 1 FROM field WHERE key = key.id)")
    return sorted(prefixes.get(origin, "") + name for origin, name in rows)


def has_field(connection: sqlite3.Connection, name: str) -> bool:
    """Tell whether a run has a field, or one below it."""
    if name == "_id":
        return True
    origin, own = split_name(name)
    query = """SELECT 1 FROM key WHERE origin = ? AND (name = ? OR (name > ? AND name < ?))
        AND EXISTS (SELECT 1 FROM field WHERE key = key.id) LIMIT 1"""
    return connection.execute(query, (origin, own, f"{own}.", f"{own}/")).fetchone() is not None


def entries(connection: sqlite3.Connection, name: str) -> list[str]:
    """Return the full names of the fields below a mapping, sorted."""
    own = split_name(name)[1]
    return [name + below.removeprefix(own) for below in sorted(names_below(connection, name))]


def _fill(connection: sqlite3.Connection, column: str, found: dict[int, dict[str, Any]]) -> None:
    """Add the values of one column to the rows."""
    key = key_of(connection, full_name(column))
    numbers = list(found)
    for start in range(0, len(numbers), 10_000):
        part = numbers[start : start + 10_000]
        marks = ",".join("?" * len(part))
        query = f"SELECT run, kind, value FROM {table_of(connection, key)} WHERE key = ? AND run IN ({marks})"
        for run, kind, value in connection.execute(query, [key, *part]):
            found[run][column] = decode(kind, value)
