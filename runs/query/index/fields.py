"""A run's documents as flat fields: dotted names with encoded values, each a kind and a value that SQLite can compare.

Other programs write to the same disk. Nothing in the documents is executed, and damage (invalid JSON or UTF-8, endless
nesting, gigabytes) becomes a sentence among the problems, never an exception.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import operator
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sacristan.observers.record import schema
from sacristan.observers.record.files import read_regular
from sacristan.observers.record.identity import is_alive, read_lease
from sacristan.observers.record.json_text import is_large, is_text_only, parse_json, storable_integer, storable_text
from sacristan.runs.query import DURATION, LEFT_OUT, TIMES, duration_s, read_serialized, time_text
from sacristan.runs.query.index.scanning import COARSE_NS

# Kinds of values, in the order of a sorted column. SQLite has no NaN, no integers beyond 64 bits (BIG) and no booleans,
# and keeps a list as text (JSON). LONG is a list that is too long for the index, or that equals lists in another
# spelling, as [1.0] equals [1]. HUGE is an integer that filters take for a text.
NUMBER, BIG, BOOL, TEXT, JSON, LONG, NULL, NAN, HUGE = range(9)
# Stands for a LONG value, which only the run's own file has.
NOT_HELD = object()
# Characters of a list that the index keeps.
MAX_LIST = 4096
# Where a field comes from. Between equal names the first wins: `status` is the run's, `config.status` an entry.
OF_RUN, OF_CONFIG, OF_SUMMARY, OF_INFO = ORIGINS = range(4)

# No honest document is larger.
MAX_FILE_BYTES = 16 * 2**20
# Sacred's observer writes no summary, and one is computed only up to this size of metrics (about 25,000 points).
MAX_METRICS_BYTES = 2 * 2**20
MAX_NAME, MAX_FIELDS, MAX_DEPTH = 500, 10_000, 50


def encode(value: Any) -> tuple[int, Any]:
    """Return kind and value as SQLite holds them.

    The value is the same for equal values of that kind; of a LONG list it is a digest.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
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


def _encode_float(value: float) -> tuple[int, Any]:
    return (NUMBER, value) if value == value else (NAN, None)


def _encode_int(value: int) -> tuple[int, Any]:
    if not is_large(value):
        return NUMBER, value
    return (HUGE if is_text_only(value) else BIG), storable_integer(value)


_ENCODERS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    float: _encode_float,
    str: lambda value: (TEXT, value if value.isascii() else storable_text(value)),
    int: _encode_int,
    bool: lambda value: (BOOL, int(value)),
    type(None): lambda _: (NULL, None),
}


_dumped = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _canonical(value: Any) -> Any:
    """Return a list in the one form that all equal lists share: 1.0 is 1."""
    if isinstance(value, list):
        items = [_canonical(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, str):
        return storable_text(value)
    return _canonical_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _canonical_number(value: float) -> Any:
    if isinstance(value, float):
        if not value.is_integer():
            return value
        value = int(value)
    return storable_integer(value) if is_text_only(value) else value


def decode(kind: int, value: Any) -> Any:
    """Return the value that `encode` received; `NOT_HELD` for a LONG one."""
    if kind in (NUMBER, TEXT, NULL):
        return value
    if kind == JSON:
        return parse_json(value)
    if kind == NAN:
        return math.nan
    if kind == BOOL:
        return bool(value)
    return int(value, 0) if kind in (BIG, HUGE) else NOT_HELD


def residual(value: int | str) -> int:
    """Return the part of an integer, or its decimal text, that the nearest float lacks: both together identify it."""
    number = int(value)
    return number - int(float(number))


@dataclasses.dataclass
class Documents:
    """The files of a run as they lie on the disk."""

    content: dict[str, bytes]  # contents by file name, without missing files
    problems: list[str]  # one sentence for each file that cannot be read

    @property
    def digest(self) -> bytes:
        """A hash of everything, which changes when a document does."""
        state = hashlib.blake2b(digest_size=16)
        for name, content in self.content.items():
            state.update(b"%s %d " % (name.encode(), len(content)))
            state.update(content)
        state.update("\n".join(self.problems).encode("utf-8", "replace"))
        return state.digest()


# The sources of fields: the file, the origin of its fields, and the prefix of their names.
_FILES = (
    (schema.RUN, OF_RUN, ""),
    (schema.NOTES, OF_RUN, ""),
    (schema.CONFIG, OF_CONFIG, ""),
    (schema.SUMMARY, OF_SUMMARY, ""),
    (schema.INFO, OF_INFO, "info."),
)


def read_documents(folder: Path, origins: Collection[int] = ORIGINS) -> Documents:
    """Read the files that the fields of a run come from."""
    documents = Documents({}, [])
    for name, origin, _ in _FILES:
        if origin in origins and not _read(folder, name, MAX_FILE_BYTES, documents) and name == schema.SUMMARY:
            _read(folder, schema.SACRED_METRICS, MAX_METRICS_BYTES, documents)
        if origin in origins and name == schema.SUMMARY:
            latest = summary_of_killed(folder, _parse(documents, schema.SUMMARY, []))
            documents.content |= {} if latest is None else {schema.SUMMARY: json.dumps(latest).encode()}
    if OF_RUN in origins and schema.RUN not in documents.content and not documents.problems:
        documents.problems.append(f"{schema.RUN} is missing: the run is just being made, or this is not a run")
    elif b'"format": ' in documents.content.get(schema.RUN, b"") and not os.path.lexists(f"{folder}/{schema.CONFIG}"):
        documents.problems.append(f"{schema.CONFIG} is missing")  # which stock Sacred may lack
    if OF_SUMMARY in origins and not os.path.lexists(f"{folder}/{schema.NAMES}") and _has_points(folder):
        documents.problems.append(f"{schema.NAMES} is missing: the metrics have no names")
    return documents


def summary_of_killed(folder: Path, written: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the summary of a run that was killed after its latest `summary.json`, whose content is `written`.

    None if the file has all of its points, or the run lives: then its next heartbeat writes it.
    """
    if not os.path.lexists(f"{folder}/{schema.LIVE}") or _lives(folder):
        return None
    from sacristan.observers.record.points.intact_points import latest_summary  # lists of other runs need no numpy

    with contextlib.suppress(OSError, ValueError):
        return latest_summary(folder, written or {})
    return None


def _lives(folder: Path) -> bool:
    """Return whether a run may have a heartbeat soon.

    One that has had none for a while is taken for killed, although its lease may be valid longer: this is asked again
    only when its files change.
    """
    lease = read_lease(folder)
    if lease is None or not is_alive(lease):
        return False
    with contextlib.suppress(OSError):
        return os.stat(f"{folder}/{schema.LEASE}").st_mtime_ns > time.time_ns() - COARSE_NS  # noqa: PTH116
    return False


def _has_points(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(f"{folder}/{schema.POINTS}").st_size > 0  # noqa: PTH116 - pathlib would double the time of a scan
    return False


def _read(folder: Path, name: str, bound: int, into: Documents) -> bool:
    """Read one file; return whether it exists."""
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
    """Return for each of `ORIGINS` a run's encoded values by name, and all problems.

    Without a readable run.json there are no fields, unless `OF_RUN` is not asked for.
    """
    problems = list(documents.problems)
    fields: list[dict[str, tuple[int, Any]]] = [{} for _ in ORIGINS]
    for name, origin, prefix in _FILES:
        document = _parse(documents, name, problems)
        if name == schema.SUMMARY and document is None:
            metrics = _parse(documents, schema.SACRED_METRICS, problems)
            document = summary_of(metrics) if origin in origins else None
        if origin not in origins:
            continue
        if document is not None:
            flat = _flat_fields(name, document, prefix, problems)
            fields[origin] |= {key: encode(value) for key, value in flat.items()}
        elif name == schema.RUN:
            break
    return fields, problems


def _flat_fields(name: str, document: dict[str, Any], prefix: str, problems: list[str]) -> dict[str, Any]:
    """Return the entries of one file by their dotted names."""
    flat: dict[str, Any] = {}
    is_run = name in (schema.RUN, schema.NOTES)
    if not flatten(document, prefix, flat, LEFT_OUT if is_run else frozenset(), twice=is_run):
        problems.append(f"{name} has more than {MAX_FIELDS:,} entries or longer names; the others are left out")
    if name == schema.RUN:
        flat.pop(DURATION, None)
        times = {time: time_text(document[time]) for time in TIMES if time in document}
        flat |= {time: text for time, text in times.items() if text}
        seconds = duration_s(document)
        flat |= {} if seconds is None else {DURATION: seconds}
    return flat


def _parse(documents: Documents, name: str, problems: list[str]) -> dict[str, Any] | None:
    content = documents.content.get(name)
    if content is None:
        return None
    try:
        document = parse_json(content)
    except ValueError as error:
        problems.append(f"{name} is not JSON ({error})")
    else:
        newer = schema.newer_format(document) if name == schema.RUN else ""
        if isinstance(document, dict) and not newer:
            return document
        problems.append(newer or f"{name}: got {type(document).__name__}, expected an object")
    return None


def flatten(
    document: dict[str, Any],
    prefix: str,
    into: dict[str, Any],
    left_out: frozenset = frozenset(),
    *,
    twice: bool = False,
    depth: int = MAX_DEPTH,
) -> bool:
    """Flatten nested mappings, with bounds on depth and size.

    An empty mapping, or one `depth` levels down, is a value like a list. A mapping that stands for a tuple or a NumPy
    scalar is that value (see `sacristan.runs.query`). Values are added to `into`; names in `left_out` are
    skipped with everything below them. Returns whether every entry found room. For `twice`, see `without_pickles`.
    """
    is_whole = True
    for key, value in document.items():
        name = prefix + key
        if name in left_out:
            continue
        if type(value) is dict:
            value = read_serialized(value, twice=twice)
        if len(name) > MAX_NAME or len(into) >= MAX_FIELDS:
            is_whole = False
        elif type(value) is dict and value and depth:
            is_whole &= flatten(value, name + ".", into, left_out, twice=twice, depth=depth - 1)
        else:
            into[name if name.isascii() else storable_text(name)] = value
    return is_whole


def summary_of(metrics: dict[str, Any] | None) -> dict[str, Any] | None:
    """Compute the summary that stock Sacred does not write, of metrics that hold numbers; None without metrics."""
    if metrics is None:
        return None
    import numpy as np

    from sacristan.observers.record.points import summarize

    summary = {}
    for name, series in metrics.items():
        points = _numeric_points(series)
        if points:
            values, steps = zip(*points, strict=True)
            summary[name] = summarize(np.array(values, np.float64), np.array(steps))
    return summary


def _numeric_points(series: Any) -> list[tuple[float, float]]:
    """Return pairs of value and step; pairs with anything else than numbers are skipped."""
    if not isinstance(series, dict) or not all(isinstance(series.get(key), list) for key in ("values", "steps")):
        return []
    pairs = zip(series["values"], series["steps"], strict=False)
    return [pair for pair in pairs if all(map(_is_number, pair))]


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)
