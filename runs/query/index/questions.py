"""Questions to the index, as SQL: which runs meet conditions, in what order, with what values."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from observers.record.storable import is_large
from runs.query.filters import SEARCHED, AllOf, Condition, Filter, Not, OneOf, Words, names_in, num_conditions
from runs.query.index.fields import (
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
from runs.query.names import full_name
from runs.query.times import DURATION

__all__ = ["count", "entries", "fields", "find", "has_field", "origin_of", "origins_in"]

# A run that is stored as RUNNING and whose process is gone stands in temp.dead.
_TRUE_STATUS = """(SELECT key, run, kind, CASE WHEN value = 'RUNNING' AND run IN temp.dead THEN 'DEAD' ELSE value END
    AS value FROM field)"""
# How long a run that says RUNNING has lasted stands in temp.lasting.
_LASTING = f"""(SELECT key, run, kind, value FROM field WHERE run NOT IN (SELECT run FROM temp.lasting)
    UNION ALL SELECT {{key}}, run, {NUMBER}, seconds FROM temp.lasting WHERE seconds IS NOT NULL)"""
# Numbers, booleans, texts, and then the rest by its ids.
_KINDS = f"""CASE WHEN s.kind IN ({NUMBER}, {BIG}) THEN 0 WHEN s.kind IN ({BOOL}, {TEXT}) THEN s.kind
    WHEN s.kind = {HUGE} THEN {TEXT} ELSE {NAN} END"""
_VALUES = f"""CASE WHEN s.kind = {BIG} THEN CAST(s.value AS REAL)
    WHEN s.kind <= {TEXT} OR s.kind = {HUGE} THEN s.value END {{0}},
    CASE s.kind WHEN {BIG} THEN RESIDUAL(s.value) ELSE 0 END {{0}}"""
# The number of no key: the run's name is its id, and stands in the table of runs.
_OF_NAME = -1
# The same of the duration, where no run has ended.
_OF_DURATION = -2
# SQLite takes a thousand terms in one statement, and 32,766 values.
_MAX_CONDITIONS = 200
_NAMES = f"(SELECT {_OF_NAME} AS key, id AS run, {TEXT} AS kind, CAST(name AS TEXT) AS value FROM run)"


def find(
    connection: sqlite3.Connection,
    tree: Filter,
    sort: str | None,
    limit: int,
    columns: Sequence[str],
    offset: int = 0,
) -> list[dict[str, Any]]:
    """Return name and `columns` of the runs that a filter is true of; see `Index.find`."""
    connection.execute("DELETE FROM temp.wanted")
    where, values = _matching(connection, tree)
    direction = "DESC" if sort and sort.startswith("-") else "ASC"
    order, source, before = "", "", []
    name = full_name(sort.removeprefix("-")) if sort else "_id"
    if name != "_id":
        key = _key(connection, name)
        source = f"LEFT JOIN {_table(connection, key)} s ON s.key = ? AND s.run = r.id"
        before = [key]
        order = f"{_KINDS}, {_VALUES.format(direction)},"
    # Of equal runs the order is that of the store: 9 comes before 10, and numbers before texts.
    of_ids = direction if name == "_id" else "ASC"
    ids = f"r.number IS NULL {of_ids}, r.number {of_ids}, r.name {of_ids}"
    query = f"""SELECT r.id, r.name FROM run r {source} WHERE r.is_readable AND {where}
        ORDER BY {order} {ids} LIMIT ? OFFSET ?"""
    rows = connection.execute(query, [*before, *values, limit, offset]).fetchall()
    found = {number: {"name": os.fsdecode(name), **dict.fromkeys(columns)} for number, name in rows}
    for column in columns:
        _fill(connection, column, found)
    return list(found.values())


def origins_in(tree: Filter, names: Iterable[str] = ()) -> set[int]:
    """Return whose fields a filter looks at, and further fields by their full names."""
    # A word may stand in any text of a config.
    words = {OF_CONFIG} if _has_words(tree) else set()
    return {origin_of(name) for name in (*names_in(tree), *names)} | words


def count(connection: sqlite3.Connection, tree: Filter, limit: int | None = None) -> int:
    """Return how many runs a filter is true of, `limit` at most."""
    connection.execute("DELETE FROM temp.wanted")
    where, values = _matching(connection, tree)
    query = f"SELECT count(*) FROM (SELECT 1 FROM run r WHERE r.is_readable AND {where} LIMIT ?)"
    return connection.execute(query, [*values, -1 if limit is None else limit]).fetchone()[0]


def fields(connection: sqlite3.Connection) -> list[str]:
    """Return the full names of all fields."""
    prefixes = {OF_CONFIG: "config.", OF_SUMMARY: "summary."}
    rows = connection.execute("SELECT origin, name FROM key WHERE EXISTS (SELECT 1 FROM field WHERE key = key.id)")
    return sorted(prefixes.get(origin, "") + name for origin, name in rows)


def origin_of(name: str) -> int:
    """Return whose field a full name is."""
    return _split(name)[0]


def has_field(connection: sqlite3.Connection, name: str) -> bool:
    """Tell whether a run has the field of that full name, or one below it."""
    if name == "_id":
        return True
    origin, own = _split(name)
    query = """SELECT 1 FROM key WHERE origin = ? AND (name = ? OR (name > ? AND name < ?))
        AND EXISTS (SELECT 1 FROM field WHERE key = key.id) LIMIT 1"""
    return connection.execute(query, (origin, own, f"{own}.", f"{own}/")).fetchone() is not None


def entries(connection: sqlite3.Connection, name: str) -> list[str]:
    """Return the full names of the fields below the field `name`, a full name."""
    own = _split(name)[1]
    return [name + below.removeprefix(own) for below in sorted(_names_below(connection, name))]


def _names_below(connection: sqlite3.Connection, name: str) -> dict[str, int]:
    """Return the fields below the field of that full name, each by its own name, with their numbers."""
    origin, own = _split(name)
    # What begins with "own." lies between it and "own/", as / comes behind the dot.
    query = "SELECT name, id FROM key WHERE origin = ? AND name > ? AND name < ?"
    return dict(connection.execute(query, (origin, f"{own}.", f"{own}/")).fetchall())


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
    origin, own = _split(name)
    found = connection.execute("SELECT id FROM key WHERE name = ? AND origin = ?", (own, origin)).fetchone()
    return found[0] if found else _OF_DURATION if name == DURATION else None


def _has_words(tree: Filter) -> bool:
    if isinstance(tree, Words | Condition):
        return isinstance(tree, Words)
    return any(map(_has_words, (tree.part,) if isinstance(tree, Not) else tree.parts))


def _split(name: str) -> tuple[int, str]:
    """Return whose field a full name is, and what it is called there."""
    for prefix, origin in (("config.", OF_CONFIG), ("summary.", OF_SUMMARY)):
        if name.startswith(prefix):
            return origin, name.removeprefix(prefix)
    return (OF_INFO if name.startswith("info.") else OF_RUN), name


def _table(connection: sqlite3.Connection, key: int | None) -> str:
    if key == _OF_NAME:
        return _NAMES
    if key == _OF_DURATION:
        return _LASTING.format(key=key)
    query = "SELECT name FROM key WHERE id = ? AND origin = ? AND name IN ('status', ?)"
    found = connection.execute(query, (key, OF_RUN, DURATION)).fetchone()
    return "field" if found is None else _TRUE_STATUS if found[0] == "status" else _LASTING.format(key=key)


def _matching(connection: sqlite3.Connection, tree: Filter) -> tuple[str, list[Any]]:
    """Return a filter as SQL that is true or false of every run, and its values."""
    if num_conditions(tree) > _MAX_CONDITIONS:
        chosen = _chosen(connection, tree)
        connection.execute("DELETE FROM temp.chosen")
        connection.executemany("INSERT INTO temp.chosen VALUES (?)", ((run,) for run in chosen))
        return "r.id IN temp.chosen", []
    return _as_sql(connection, tree)


def _chosen(connection: sqlite3.Connection, tree: Filter) -> set[int]:
    """Return the runs that a filter of any size is true of, by their numbers."""
    if num_conditions(tree) <= _MAX_CONDITIONS:
        where, values = _as_sql(connection, tree)
        return {run for (run,) in connection.execute(f"SELECT r.id FROM run r WHERE {where}", values)}
    if isinstance(tree, Not):
        return {run for (run,) in connection.execute("SELECT id FROM run")} - _chosen(connection, tree.part)
    if isinstance(tree, Words):
        return set.intersection(*(_chosen(connection, Words(word)) for word in tree.words))
    assert not isinstance(tree, Condition)  # which is one
    found = [_chosen(connection, part) for part in _in_statements(tree)]
    return set.intersection(*found) if isinstance(tree, AllOf) else set.union(*found)


def _in_statements(tree: AllOf | OneOf) -> Iterator[Filter]:
    """Yield the parts of a filter, as many small ones together as a statement takes."""
    together: list[Filter] = []
    for part in tree.parts:
        if num_conditions(part) > _MAX_CONDITIONS:
            yield part
            continue
        if sum(map(num_conditions, together)) + num_conditions(part) > _MAX_CONDITIONS:
            yield type(tree)(tuple(together))
            together = []
        together.append(part)
    if together:
        yield type(tree)(tuple(together))


def _as_sql(connection: sqlite3.Connection, tree: Filter) -> tuple[str, list[Any]]:
    if isinstance(tree, Not):
        text, values = _as_sql(connection, tree.part)
        return f"NOT ({text})", values
    if isinstance(tree, AllOf | OneOf):
        parts = [_as_sql(connection, part) for part in tree.parts]
        word, empty = (" AND ", "1") if isinstance(tree, AllOf) else (" OR ", "0")
        return f"({word.join(text for text, _ in parts) or empty})", [value for _, new in parts for value in new]
    return _words(tree) if isinstance(tree, Words) else _condition(connection, tree)


def _words(wanted: Words) -> tuple[str, list[Any]]:
    """Return the condition that texts of a run contain all words."""
    marks = ", ".join("?" * len(SEARCHED))
    searched = f"SELECT id FROM key WHERE origin = {OF_CONFIG} OR origin = {OF_RUN} AND name IN ({marks})"
    having = f"SELECT run FROM field WHERE kind = {TEXT} AND key IN ({searched}) AND instr(lower(value), lower(?))"
    is_tag = f"origin = {OF_RUN} AND name LIKE 'tags.%' AND instr(lower(substr(name, 6)), lower(?))"
    part = f"r.id IN ({having} UNION ALL SELECT run FROM field WHERE key IN (SELECT id FROM key WHERE {is_tag}))"
    values = [value for word in wanted.words for value in (*SEARCHED, word, word)]
    return f"({' AND '.join([part] * len(wanted.words)) or '1'})", values


def _condition(connection: sqlite3.Connection, condition: Condition) -> tuple[str, list[Any]]:
    name, operator, value = condition.name, condition.operator, condition.value
    if operator == "in":
        return _is_in(connection, name, value)
    if operator == "!=":
        return _as_sql(connection, Not(Condition(name, "==", value)))
    if name == "_id":
        return _on_id(operator, value)
    key = _key(connection, name)
    runs = f"SELECT run FROM {_table(connection, key)} WHERE key = ?"
    if operator == "==" and value is None:
        return _is_nothing(connection, name, f"{runs} AND kind <> {NULL}", key)
    if operator == "~":
        return f"r.id IN ({runs} AND kind IN ({TEXT}, {HUGE}) AND value REGEXP ?)", [key, value]
    test, bound = _test(operator, value)
    return f"r.id IN ({runs} AND ({test}))", [key, *bound]


def _on_id(operator: str, value: Any) -> tuple[str, list[Any]]:
    """Return a condition on the ids, of which the numbers are compared with numbers, and the others with texts."""
    if operator == "~":
        return "CAST(r.name AS TEXT) REGEXP ?", [value]
    if isinstance(value, str):
        return f"(r.number IS NULL AND CAST(r.name AS TEXT) {_in_sql(operator)} ?)", [value]
    if not isinstance(value, int | float) or value != value:
        return "0", []
    # No number of a run is beyond 64 bits.
    bound = float(value) if isinstance(value, int) and is_large(value) else value
    return f"(r.number IS NOT NULL AND r.number {_in_sql(operator)} ?)", [bound]


def _in_sql(operator: str) -> str:
    return "=" if operator == "==" else operator


def _test(operator: str, value: Any) -> tuple[str, list[Any]]:
    """Return the test of one value, with `kind` and `value` for that of a run."""
    kind, encoded = encode(value)
    if kind == NAN:
        return (f"kind = {NAN}", []) if operator == "==" else ("0", [])
    if kind in (JSON, LONG):
        return f"kind IN ({JSON}, {LONG}) AND value = ?", [encoded]
    compare = _in_sql(operator)
    if kind == TEXT:
        return f"kind IN ({TEXT}, {HUGE}) AND value {compare} ?", [encoded]
    if kind == BOOL:
        return f"kind = {BOOL} AND value {compare} ?", [encoded]
    near, rest = float(value), residual(value) if kind == BIG else 0
    number = ("(value, 0)", "(?, ?)", [near, rest]) if kind == BIG else ("value", "?", [value])
    text = f"""(kind = {NUMBER} AND {number[0]} {compare} {number[1]})
        OR (kind = {BIG} AND (CAST(value AS REAL), RESIDUAL(value)) {compare} (?, ?))"""
    return text, [*number[2], near, _residual_of(value)]


def _residual_of(value: int | float) -> int:
    return residual(value) if isinstance(value, int) else 0


def _is_nothing(connection: sqlite3.Connection, name: str, runs: str, key: int | None) -> tuple[str, list[Any]]:
    """Return the condition that a field is missing or null, which to those who ask are one; a mapping is neither."""
    if not _names_below(connection, name):
        return f"r.id NOT IN ({runs})", [key]
    origin, own = _split(name)
    below = "SELECT id FROM key WHERE origin = ? AND name > ? AND name < ?"
    mapping = f"SELECT run FROM field WHERE key IN ({below})"
    return f"r.id NOT IN ({runs} UNION ALL {mapping})", [key, origin, f"{own}.", f"{own}/"]


def _is_in(connection: sqlite3.Connection, name: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the condition that a field has one of any number of values; those are put into `temp.wanted`."""
    rows = {row for value in values if value is not None for row in _equals(value)}
    # The next list takes its number from the rows there are, so one that writes none must not ask for a number.
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


def _is_wanted(connection: sqlite3.Connection, name: str, number: int) -> tuple[str, list[Any]]:
    """Return the condition that a field has one of the values in `temp.wanted` under that number."""
    if name == "_id":
        wanted = "SELECT value FROM temp.wanted WHERE number = ? AND kind = ?"
        text = f"""(r.number IS NOT NULL AND r.number IN ({wanted})
            OR r.number IS NULL AND CAST(r.name AS TEXT) IN ({wanted}))"""
        return text, [number, NUMBER, number, TEXT]
    key = _key(connection, name)
    text = f"""r.id IN (SELECT f.run FROM {_table(connection, key)} f JOIN temp.wanted w
        ON w.number = ? AND w.kind = f.kind AND w.value = f.value WHERE f.key = ?)"""
    return text, [number, key]


def _equals(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield kinds and values that stand for what is equal to a value; none for a NaN."""
    kind, encoded = encode(value)
    if kind in (JSON, LONG):
        yield from ((JSON, encoded), (LONG, encoded))
    elif kind != NAN:
        yield kind, encoded
    if kind == TEXT:
        yield HUGE, encoded
    if kind == BIG and _residual_of(value) == 0:
        yield NUMBER, float(value)
    if isinstance(value, float) and value.is_integer() and is_large(int(value)):
        yield BIG, str(int(value))
