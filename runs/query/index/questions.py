"""Questions to an index, answered in SQL: which runs a filter chooses, in what order, with what values.

`sacristan.runs.query.index.file` describes the tables.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sacristan.observers.record.json_text import is_large
from sacristan.runs.query import DURATION, full_name
from sacristan.runs.query.conditions import leaves
from sacristan.runs.query.filters import SEARCHED, AllOf, Condition, Filter, Not, OneOf, Question, Words
from sacristan.runs.query.index.fields import (
    BIG,
    BOOL,
    HUGE,
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
    residual,
)

Sql = tuple[str, list[Any]]

# The field `status`; temp.dead has the runs whose record says RUNNING and whose process is gone.
_TRUE_STATUS = """(SELECT key, run, kind, CASE WHEN value = 'RUNNING' AND run IN temp.dead THEN 'DEAD' ELSE value END
    AS value FROM field)"""
# The field `duration`; temp.lasting has that of runs whose record says RUNNING.
_LASTING = f"""(SELECT key, run, kind, value FROM field WHERE run NOT IN (SELECT run FROM temp.lasting)
    UNION ALL SELECT {{key}}, run, {NUMBER}, seconds FROM temp.lasting WHERE seconds IS NOT NULL)"""
# Instead of the number of a key: the run's name is its id, and stands in the table of runs.
_OF_NAME = -1
# The same for the duration, while no run has ended.
_OF_DURATION = -2
_NAMES = f"(SELECT {_OF_NAME} AS key, id AS run, {TEXT} AS kind, CAST(name AS TEXT) AS value FROM run)"
# SQLite allows a thousand terms in one statement, and 32,766 values.
_MAX_CONDITIONS = 200
# Order of the kinds in a sorted column: numbers, booleans, texts, and then the rest by their ids.
_KINDS = f"""CASE WHEN s.kind IN ({NUMBER}, {BIG}) THEN 0 WHEN s.kind IN ({BOOL}, {TEXT}) THEN s.kind
    WHEN s.kind = {HUGE} THEN {TEXT} ELSE {NAN} END"""
_VALUES = f"""CASE WHEN s.kind = {BIG} THEN CAST(s.value AS REAL)
    WHEN s.kind <= {TEXT} OR s.kind = {HUGE} THEN s.value END {{0}},
    CASE s.kind WHEN {BIG} THEN RESIDUAL(s.value) ELSE 0 END {{0}}"""


def split_name(name: str) -> tuple[int, str]:
    """Return the origin of a field, and its name there."""
    for prefix, origin in (("config.", OF_CONFIG), ("summary.", OF_SUMMARY)):
        if name.startswith(prefix):
            return origin, name.removeprefix(prefix)
    return (OF_INFO if name.startswith("info.") else OF_RUN), name


def origin_of(name: str) -> int:
    """Return the origin of a field by its full name."""
    return split_name(name)[0]


def key_of(connection: sqlite3.Connection, name: str) -> int | None:
    """Return the number of a field in the table of keys, by its full name; None if no run has the field.

    It is negative for the id, and for a duration that no row holds.
    """
    if name == "_id":
        return _OF_NAME
    origin, own = split_name(name)
    row = connection.execute("SELECT id FROM key WHERE name = ? AND origin = ?", (own, origin)).fetchone()
    return row[0] if row else _OF_DURATION if name == DURATION else None


def table_of(connection: sqlite3.Connection, key: int | None) -> str:
    """Return the SQL table with columns `key`, `run`, `kind` and `value` of a key; in it, dead runs are DEAD."""
    if key == _OF_NAME:
        return _NAMES
    if key == _OF_DURATION:
        return _LASTING.format(key=key)
    query = "SELECT name FROM key WHERE id = ? AND origin = ? AND name IN ('status', ?)"
    row = connection.execute(query, (key, OF_RUN, DURATION)).fetchone()
    return "field" if row is None else _TRUE_STATUS if row[0] == "status" else _LASTING.format(key=key)


def names_below(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the fields below a mapping: numbers of keys by the names in their origin, such as `optimizer.lr`."""
    origin, own = split_name(name)
    query = "SELECT name, id FROM key WHERE origin = ? AND name > ? AND name < ?"
    return dict(connection.execute(query, (origin, f"{own}.", f"{own}/")).fetchall())


def filter_sql(connection: sqlite3.Connection, tree: Filter) -> Sql:
    """Return a filter as an SQL condition on the table `run r`, never NULL, and the values of its placeholders.

    It may fill the connection's tables temp.wanted and temp.chosen.
    """
    if _size(tree) > _MAX_CONDITIONS:
        chosen = _chosen(connection, tree)
        connection.execute("DELETE FROM temp.chosen")
        connection.executemany("INSERT INTO temp.chosen VALUES (?)", ((run,) for run in chosen))
        return "r.id IN temp.chosen", []
    return _as_sql(connection, tree)


def _size(tree: Filter) -> int:
    return sum(len(leaf.words) if isinstance(leaf, Words) else 1 for leaf in leaves(tree))


def _chosen(connection: sqlite3.Connection, tree: Filter) -> set[int]:
    """Return the numbers of the runs that a filter of any size chooses."""
    if _size(tree) <= _MAX_CONDITIONS:
        where, values = _as_sql(connection, tree)
        return {run for (run,) in connection.execute(f"SELECT r.id FROM run r WHERE {where}", values)}
    if isinstance(tree, Not):
        return {run for (run,) in connection.execute("SELECT id FROM run")} - _chosen(connection, tree.part)
    if isinstance(tree, Words):
        tree = AllOf(tuple(map(Words, tree.words)))
    assert not isinstance(tree, Condition)  # its size is 1
    chosen = [_chosen(connection, part) for part in _in_statements(tree)]
    return set.intersection(*chosen) if isinstance(tree, AllOf) else set.union(*chosen)


def _in_statements(tree: AllOf | OneOf) -> Iterator[Filter]:
    """Yield the parts of a filter, small ones joined up to the size of a statement."""
    together: list[Filter] = []
    for part in tree.parts:
        if _size(part) > _MAX_CONDITIONS:
            yield part
            continue
        if sum(map(_size, together)) + _size(part) > _MAX_CONDITIONS:
            yield type(tree)(tuple(together))
            together = []
        together.append(part)
    if together:
        yield type(tree)(tuple(together))


def _as_sql(connection: sqlite3.Connection, tree: Filter) -> Sql:
    if isinstance(tree, Condition):
        return _condition(connection, tree)
    if isinstance(tree, Words):
        return _words(tree)
    if isinstance(tree, Not):
        text, values = _as_sql(connection, tree.part)
        return f"NOT ({text})", values
    word, empty = (" AND ", "1") if isinstance(tree, AllOf) else (" OR ", "0")
    parts = [_as_sql(connection, part) for part in tree.parts]
    return f"({word.join(text for text, _ in parts) or empty})", [value for _, new in parts for value in new]


def _words(tree: Words) -> Sql:
    marks = ", ".join("?" * len(SEARCHED))
    searched = f"SELECT id FROM key WHERE origin = {OF_CONFIG} OR origin = {OF_RUN} AND name IN ({marks})"
    having = f"SELECT run FROM field WHERE kind = {TEXT} AND key IN ({searched}) AND instr(lower(value), lower(?))"
    is_tag = f"origin = {OF_RUN} AND name LIKE 'tags.%' AND instr(lower(substr(name, 6)), lower(?))"
    part = f"r.id IN ({having} UNION ALL SELECT run FROM field WHERE key IN (SELECT id FROM key WHERE {is_tag}))"
    values = [value for word in tree.words for value in (*SEARCHED, word, word)]
    return f"({' AND '.join([part] * len(tree.words)) or '1'})", values


def _condition(connection: sqlite3.Connection, condition: Condition) -> Sql:
    name, operator, value = condition.name, condition.operator, condition.value
    if operator == "in":
        return _is_in(connection, name, value)
    if name == "_id":
        return _on_id(operator, value)
    key = key_of(connection, name)
    runs = f"SELECT run FROM {table_of(connection, key)} WHERE key = ?"
    if operator == "==" and value is None:
        return _is_nothing(connection, name, f"{runs} AND kind <> {NULL}", key)
    if operator == "~":
        return f"r.id IN ({runs} AND kind IN ({TEXT}, {HUGE}) AND value REGEXP ?)", [key, value]
    test, bound = _test(operator, value)
    return f"r.id IN ({runs} AND ({test}))", [key, *bound]


def _on_id(operator: str, value: Any) -> Sql:
    """Return a condition on the id, which compares numbers with numbers and texts with texts."""
    if operator == "~":
        return "CAST(r.name AS TEXT) REGEXP ?", [value]
    if isinstance(value, str):
        return f"(r.number IS NULL AND CAST(r.name AS TEXT) {operator} ?)", [value]
    if not isinstance(value, int | float) or value != value:
        return "0", []
    # No run has a number beyond 64 bits.
    bound = float(value) if isinstance(value, int) and is_large(value) else value
    return f"(r.number IS NOT NULL AND r.number {operator} ?)", [bound]


def _test(operator: str, value: Any) -> Sql:
    """Return the test that a field's `kind` and `value` must pass."""
    kind, encoded = encode(value)
    if kind == NAN:
        return (f"kind = {NAN}", []) if operator == "==" else ("0", [])
    if kind in (JSON, LONG):
        return f"kind IN ({JSON}, {LONG}) AND value = ?", [encoded]
    if kind == TEXT:
        return f"kind IN ({TEXT}, {HUGE}) AND value {operator} ?", [encoded]
    if kind == BOOL:
        return f"kind = {BOOL} AND value {operator} ?", [encoded]
    near, rest = float(value), residual(value) if isinstance(value, int) else 0
    number = ("(value, 0)", "(?, ?)", [near, rest]) if kind == BIG else ("value", "?", [value])
    text = f"""(kind = {NUMBER} AND {number[0]} {operator} {number[1]})
        OR (kind = {BIG} AND (CAST(value AS REAL), RESIDUAL(value)) {operator} (?, ?))"""
    return text, [*number[2], near, rest]


def _is_nothing(connection: sqlite3.Connection, name: str, runs: str, key: int | None) -> Sql:
    """Return the condition that a field is missing or null; a mapping is neither."""
    if not names_below(connection, name):
        return f"r.id NOT IN ({runs})", [key]
    origin, own = split_name(name)
    below = "SELECT id FROM key WHERE origin = ? AND name > ? AND name < ?"
    mapping = f"SELECT run FROM field WHERE key IN ({below})"
    return f"r.id NOT IN ({runs} UNION ALL {mapping})", [key, origin, f"{own}.", f"{own}/"]


def _is_in(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> Sql:
    """Return the condition that a field has one of any number of values, which go into temp.wanted."""
    rows = {row for value in values if value is not None for row in _equals(value)}
    # The next list gets its number from the rows there are, so one that writes no rows must not ask for a number.
    parts: list[str] = []
    bound: list[Any] = []
    if rows:
        number = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM temp.wanted").fetchone()[0]
        connection.executemany(
            "INSERT INTO temp.wanted VALUES (?, ?, ?)", ((number, kind, value) for kind, value in rows)
        )
        text, bound = _is_wanted(connection, name, number)
        parts.append(text)
    special = [None] * (None in values) + [math.nan] * any(value != value for value in values)
    for value in special:
        text, new = _condition(connection, Condition(name, "==", value))
        parts.append(text)
        bound += new
    return f"({' OR '.join(parts) or '0'})", bound


def _is_wanted(connection: sqlite3.Connection, name: str, number: int) -> Sql:
    """Return the condition that a field has one of the values in temp.wanted under a number."""
    if name == "_id":
        wanted = "SELECT value FROM temp.wanted WHERE number = ? AND kind = ?"
        text = f"""(r.number IS NOT NULL AND r.number IN ({wanted})
            OR r.number IS NULL AND CAST(r.name AS TEXT) IN ({wanted}))"""
        return text, [number, NUMBER, number, TEXT]
    key = key_of(connection, name)
    text = f"""r.id IN (SELECT f.run FROM {table_of(connection, key)} f JOIN temp.wanted w
        ON w.number = ? AND w.kind = f.kind AND w.value = f.value WHERE f.key = ?)"""
    return text, [number, key]


def _equals(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield kind and value of everything in an index that equals a value; nothing for NaN."""
    kind, encoded = encode(value)
    if kind in (JSON, LONG):
        yield from ((JSON, encoded), (LONG, encoded))
    elif kind != NAN:
        yield kind, encoded
    if kind == TEXT:
        yield HUGE, encoded
    elif kind == BIG and residual(value) == 0:
        yield NUMBER, float(value)
    elif isinstance(value, float) and value.is_integer() and is_large(int(value)):
        yield BIG, str(int(value))


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
    entries = {number: {"name": os.fsdecode(name), **dict.fromkeys(question.columns)} for number, name in rows}
    for column in question.columns:
        _fill(connection, column, entries)
    return list(entries.values())


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
