"""Fields of a run's documents: dotted names, each with a value of a known kind.

The documents come from a disk that others write to. Nothing in them is executed, and whatever is odd (no JSON, invalid
UTF-8, endless nesting, gigabytes) ends as a sentence among the problems, never as an exception.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Collection
from pathlib import Path
from typing import Any

from observers.record.json_text import parse_json
from observers.record.regular_file import read_regular
from observers.record.schema import CONFIG, INFO, NOTES, RUN, SACRED_METRICS, SUMMARY
from observers.record.storable import is_large, is_text_only, storable_integer, storable_text
from runs.query.names import TIMES
from runs.query.serialized import read_serialized
from runs.query.times import DURATION, duration_s, time_text

__all__ = [
    "BIG",
    "BOOL",
    "HUGE",
    "JSON",
    "LEFT_OUT",
    "LONG",
    "MAX_FILE_BYTES",
    "MAX_METRICS_BYTES",
    "NAN",
    "NOT_HELD",
    "NULL",
    "NUMBER",
    "OF_CONFIG",
    "OF_INFO",
    "OF_RUN",
    "OF_SUMMARY",
    "ORIGINS",
    "TEXT",
    "Documents",
    "decode",
    "encode",
    "fields_of",
    "flatten",
    "is_indexed",
    "read_documents",
    "residual",
    "summary_of",
]

# Kinds of values, in the order in which a sorted column shows them. SQLite holds neither NaN nor integers beyond 64
# bits nor booleans, and a list is only text to it. LONG is a list that is longer than the index keeps, or that is equal
# to others that are written in another way, as [1.0] is to [1]. HUGE is an integer that is a text to questions.
NUMBER, BIG, BOOL, TEXT, JSON, LONG, NULL, NAN, HUGE = range(9)
# Stands for the value of what is LONG: the run's own file has it.
NOT_HELD = object()
# Whose field it is. Of equal names the first is meant: `status` is the run's, `config.status` an entry of that name.
OF_RUN, OF_CONFIG, OF_SUMMARY, OF_INFO = ORIGINS = range(4)

# No honest document is larger; it would only fill the memory.
MAX_FILE_BYTES = 16 * 2**20
# Sacred's own observer writes no summary. Beyond this many bytes (about 25,000 points) of metrics none is computed.
MAX_METRICS_BYTES = 2 * 2**20
MAX_LIST, MAX_NAME, MAX_FIELDS, MAX_DEPTH = 4096, 500, 10_000, 50

# Parts of run.json that are large or of no use in a question.
LEFT_OUT = frozenset(
    ("artifacts", "captured_out", "checkpoints", "delivery_turn", "exact", "fail_trace", "microseconds")
)
LEFT_OUT |= {"reproductions", "resources", "sessions", "warnings"}
LEFT_OUT |= {f"experiment.{name}" for name in ("dependencies", "repositories", "sources")}
LEFT_OUT |= {f"meta.{name}" for name in ("config_updates", "options")}


# Parts of a run that have files of their own, which are not read.
_ELSEWHERE = frozenset(("lease", "provenance"))


def is_indexed(name: str) -> bool:
    """Tell whether the field of that full name is one of those that an index has, if a run has it."""
    parts = name.split(".")
    return parts[0] not in _ELSEWHERE and not any(".".join(parts[:count]) in LEFT_OUT for count in (1, 2))


@dataclasses.dataclass
class Documents:
    """The files of a run as they are on the disk.

    Attributes:
        content: What is in each file, by its name; a file that is not there is missing.
        problems: What could not be read, one sentence each.
    """

    content: dict[str, bytes]
    problems: list[str]

    @property
    def digest(self) -> bytes:
        """A hash of all of it, to tell whether anything is new."""
        state = hashlib.blake2b(digest_size=16)
        for name, content in self.content.items():
            state.update(b"%s %d " % (name.encode(), len(content)))
            state.update(content)
        state.update("\n".join(self.problems).encode("utf-8", "replace"))
        return state.digest()


# What fields are made of: the file, whose fields it has, and what stands before their names.
_FILES = (
    (RUN, OF_RUN, ""),
    (NOTES, OF_RUN, ""),
    (CONFIG, OF_CONFIG, ""),
    (SUMMARY, OF_SUMMARY, ""),
    (INFO, OF_INFO, "info."),
)


def read_documents(folder: Path, origins: Collection[int] = ORIGINS) -> Documents:
    """Read what the fields of the run in `folder` are made of, those of some origins or all."""
    found = Documents({}, [])
    for name, origin, _ in _FILES:
        if origin not in origins:
            continue
        if not _read(folder, name, MAX_FILE_BYTES, found) and name == SUMMARY:
            _read(folder, SACRED_METRICS, MAX_METRICS_BYTES, found)
    if OF_RUN in origins and RUN not in found.content and not found.problems:
        found.problems.append(f"{RUN} is missing: the run is just being made, or this is not a run")
    return found


def _read(folder: Path, name: str, bound: int, into: Documents) -> bool:
    """Read one file; return whether it is there."""
    try:
        into.content[name] = read_regular(f"{folder}/{name}", bound)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        into.problems.append(f"{name} cannot be read ({error.strerror})")
    return True


def fields_of(
    documents: Documents, origins: Collection[int] = ORIGINS
) -> tuple[list[dict[str, tuple[int, Any]]], list[str]]:
    """Return the encoded fields of some origins or all, by origin, and all problems.

    Without a readable run.json there are no fields at all, unless those of the run are not among the origins.
    """
    problems = list(documents.problems)
    fields: list[dict[str, tuple[int, Any]]] = [{} for _ in ORIGINS]
    for name, origin, prefix in _FILES:
        document = _parse(documents, name, problems)
        if name == SUMMARY and document is None:
            metrics = _parse(documents, SACRED_METRICS, problems)
            document = summary_of(metrics) if origin in origins else None
        if document is None and name == RUN and origin in origins:
            break
        if document is None or origin not in origins:
            continue
        flat: dict[str, Any] = {}
        of_run = origin == OF_RUN
        if not flatten(document, prefix, flat, LEFT_OUT if of_run else frozenset(), twice=of_run):
            problems.append(f"{name} has more than {MAX_FIELDS:,} entries or longer names; the others are left out")
        if name == RUN:
            flat.pop(DURATION, None)
            flat |= _computed(document)
        fields[origin] |= {key: encode(value) for key, value in flat.items()}
    return fields, problems


def _computed(document: dict[str, Any]) -> dict[str, Any]:
    """Return what is computed from a run's document: the duration, which stands in no file, and times in one form."""
    times = {name: time_text(document[name]) for name in TIMES if name in document}
    seconds = duration_s(document)
    return {name: text for name, text in times.items() if text} | ({} if seconds is None else {DURATION: seconds})


def _parse(documents: Documents, name: str, problems: list[str]) -> dict[str, Any] | None:
    content = documents.content.get(name)
    if content is None:
        return None
    try:
        document = parse_json(content)
    except ValueError as error:
        problems.append(f"{name} is not JSON ({error})")
    else:
        if isinstance(document, dict):
            return document
        problems.append(f"{name}: got {type(document).__name__}, expected an object")
    return None


def flatten(
    document: dict[str, Any],
    prefix: str,
    into: dict[str, Any],
    left_out: frozenset = frozenset(),
    *,
    twice: bool = False,
) -> bool:
    """Put the entries of nested mappings into `into` by their dotted names; return whether all found room.

    A mapping that is empty or `MAX_DEPTH` levels down is a value like a list; one that stands for a tuple or a number
    of NumPy is that (see `runs.query.serialized`, of `twice`, too).
    """
    return _flatten(document, prefix, into, left_out, twice, MAX_DEPTH)


def _flatten(
    document: dict[str, Any], prefix: str, into: dict[str, Any], left_out: frozenset, twice: bool, depth: int
) -> bool:
    whole = True
    for key, value in document.items():
        name = prefix + key
        if name in left_out:
            continue
        if type(value) is dict and ("dtype" in value or "py/tuple" in value):
            value = read_serialized(value, twice=twice)
        if len(name) > MAX_NAME or len(into) >= MAX_FIELDS:
            whole = False
        elif type(value) is dict and value and depth:
            whole &= _flatten(value, name + ".", into, left_out, twice, depth - 1)
        else:
            into[name if name.isascii() else storable_text(name)] = value
    return whole


def encode(value: Any) -> tuple[int, Any]:
    """Return kind and value as SQLite holds them; of a list that is LONG what tells it apart from others."""
    kind = type(value)
    if kind is float:
        return (NUMBER, value) if value == value else (NAN, None)
    if kind is str:
        return TEXT, value if value.isascii() else storable_text(value)
    if kind is int:
        if not is_large(value):
            return NUMBER, value
        return (HUGE if is_text_only(value) else BIG), storable_integer(value)
    if kind is bool:
        return BOOL, int(value)
    if value is None:
        return NULL, None
    for plain in (float, int, str):
        if isinstance(value, plain):
            return encode(plain(value))
    try:
        canonical = _canonical(value)
        text = _dumped(canonical)
        is_canonical = canonical is value or _dumped(value) == text
    except RecursionError:
        return LONG, '"nested too deeply"'
    if len(text) > MAX_LIST:
        return LONG, hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return (JSON if is_canonical else LONG), text


def residual(value: int | str) -> int:
    """Return what an integer, as text too, is above the float next to it: with that float it tells it apart exactly."""
    number = int(value)
    return number - int(float(number))


_dumped = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _canonical(value: Any) -> Any:
    """Return a list in the form that it has in common with all that are equal to it: 1.0 is 1."""
    if isinstance(value, list):
        items = [_canonical(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and is_text_only(value):
        return storable_integer(value)
    return storable_text(value) if isinstance(value, str) else value


def decode(kind: int, value: Any) -> Any:
    """Return the value that `encode` was given; `NOT_HELD` of what is LONG."""
    if kind in (NUMBER, TEXT, NULL):
        return value
    if kind == JSON:
        return parse_json(value)
    if kind == NAN:
        return math.nan
    if kind == BOOL:
        return bool(value)
    return int(value, 0) if kind in (BIG, HUGE) else NOT_HELD


def summary_of(metrics: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the summary of what Sacred's own observer writes; passes over metrics that hold no numbers."""
    if metrics is None:
        return None
    import numpy as np

    from observers.record.points.summaries import summarize

    summary = {}
    for name, series in metrics.items():
        if not isinstance(series, dict) or not all(isinstance(series.get(k), list) for k in ("values", "steps")):
            continue
        points = [
            point
            for point in zip(series["values"], series["steps"], strict=False)
            if all(type(number) is float or (type(number) is int and abs(number) < 2**63) for number in point)
        ]
        if points:
            values, steps = zip(*points, strict=True)
            summary[name] = summarize(np.array(values, np.float64), np.array(steps))
    return summary
