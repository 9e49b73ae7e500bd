"""Fields of runs, which filters ask for: names, the same for every store; times; nested documents by dotted names.

A full name is a path in Sacred's document of a run: `status`, `host.hostname`, `config.optimizer.lr`,
`summary.val/accuracy.max`, `info.test.accuracy`. People type short names:

* `optimizer.lr` is `config.optimizer.lr`;
* `val/accuracy.max`, a metric and one of `STATISTICS`, is `summary.val/accuracy.max`;
* `duration` is the time in seconds from start to end, which is computed (`duration_s`);
* `name`, `user`, `host`, `start`, `stop` and `id` are `experiment.name`, `host.user`, `host.hostname`, `start_time`,
  `stop_time` and `_id`.

A name with spaces, commas, quotes or operators stands between backticks, and a backtick in it is written twice:
`` `AP@IoU=0.5.max` ``, or `` `AP@IoU=0.5`.max ``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from sacristan.configs.map import flattened

__all__ = [
    "COMMON_FIELDS",
    "DURATION",
    "DURATION_FIELDS",
    "KNOWN_FIELDS",
    "LEFT_OUT",
    "QUOTED",
    "REFUSED",
    "RUN_FIELDS",
    "STATISTICS",
    "SWEEP",
    "TIMES",
    "USER",
    "Changes",
    "changes",
    "dotted",
    "duration_s",
    "entry_at",
    "full_name",
    "id_of",
    "in_utc",
    "is_own",
    "is_same",
    "is_searchable",
    "list_of",
    "mapping_of",
    "mappings_in",
    "quoted",
    "read_serialized",
    "seconds_of",
    "shallowest",
    "short_name",
    "similar_names",
    "split_names",
    "time_of",
    "time_text",
    "to_the_millisecond",
    "unquoted",
    "without_pickles",
    "without_zone",
]

# Keys of a metric's summary; see `sacristan.observers.record.points.summarize`.
STATISTICS = (
    "count", "finite", "first", "last", "last_step", "max", "max_step", "mean", "min", "min_step",
)  # fmt: skip
# First parts of the run's own names; any other name is an entry of the config or a metric's statistic.
RUN_FIELDS = frozenset(
    (
        "_id", "artifacts_aliased", "artifacts_logged", "artifacts_used", "command", "command_line", "config",
        "damaged_points", "display_colour", "display_name", "duration", "experiment", "fail_trace", "format",
        "heartbeat", "host",
        "imported", "info", "lease", "lost_artifacts", "lost_bytes", "lost_media", "lost_parts", "lost_points",
        "lost_resources", "lost_sources", "meta", "note", "parent", "provenance", "queue_time", "result", "start_time",
        "status", "stop_time", "summary", "tags", "uid", "unwritten_points",
    )
)  # fmt: skip
TIMES = frozenset(("start_time", "stop_time", "queue_time", "heartbeat"))
# The user who recorded a run.
USER = "host.user"
# The sweep of a trial.
SWEEP = "meta.sweep.id"
# True for a run rejected for its settings or data before it trained anything.
REFUSED = "meta.refused"
# Fields of every run; a run without one is no spelling mistake.
COMMON_FIELDS = TIMES | {
    "_id", "command", "config", "display_colour", "display_name", "duration", "experiment.name", "fail_trace",
    "host.hostname", "host.user", "info", "note", "parent", "provenance", "result", "status", "summary", "tags", "uid",
    REFUSED, SWEEP,
}  # fmt: skip
# Fields that a store knows although no run may have them.
KNOWN_FIELDS = COMMON_FIELDS | RUN_FIELDS | {"meta.comment", "meta.sweep.trial"}
# Parts of a run's document that are too large to search, or of no use in a filter.
LEFT_OUT = frozenset(
    (
        "artifacts", "captured_out", "changes", "checkpoints", "delivery_turn", "exact", "experiment.dependencies",
        "experiment.repositories", "experiment.sources", "fail_trace", "meta.config_updates", "meta.options",
        "microseconds", "reproductions", "resources", "sessions", "warnings",
    )
)  # fmt: skip
# Parts of a run in files that no filter reads.
_ELSEWHERE = frozenset(("lease", "provenance"))
_FULL = {
    "name": "experiment.name",
    "user": USER,
    "host": "host.hostname",
    "start": "start_time",
    "stop": "stop_time",
    "id": "_id",
}
_SHORT = {full: short for short, full in _FULL.items()}
_DECIMAL = re.compile("0|[1-9][0-9]*")
# A name, or a part of it, between backticks.
QUOTED = r"`(?:[^`]|``)+`"
_WHOLLY_QUOTED = re.compile(rf"(?P<quoted>{QUOTED})(?P<rest>(?:\.[^`]+)?)")
# Names that need no quotes, even after the `-` of a descending order.
_PLAIN = re.compile(r"(?!-)[^\s=<>!~,`\"']+")


def id_of(text: str) -> int | str:
    """Return a run's id as filters compare it: a number if the text is the decimal form of one, else the text."""
    return int(text) if len(text) < 256 and _DECIMAL.fullmatch(text) else text


def quoted(name: str) -> str:
    """Return a name as people type it, between backticks if it needs them."""
    return name if _PLAIN.fullmatch(name) or not name else "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """Return a typed name without the backticks around it or its beginning."""
    match = _WHOLLY_QUOTED.fullmatch(name) if name.startswith("`") else None
    return name if match is None else match["quoted"][1:-1].replace("``", "`") + match["rest"]


def split_names(text: str) -> list[str]:
    """Split names or expressions of metrics at the commas outside of parentheses and backticks."""
    parts, depth, is_quoted = [""], 0, False
    for character in text:
        is_quoted ^= character == "`"
        depth += 0 if is_quoted else (character == "(") - (character == ")")
        if character == "," and depth <= 0 and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def full_name(name: str) -> str:
    """Return the full name of a field, such as `config.lr`, without quotes."""
    name = unquoted(name)
    if name in _FULL:
        return _FULL[name]
    if name.partition(".")[0] in RUN_FIELDS:
        return name
    metric, _, statistic = name.rpartition(".")
    if metric and statistic in STATISTICS:
        return f"summary.{name}"
    return f"config.{name}"


def is_own(name: str) -> bool:
    """Tell whether experiments choose the name of a field: an entry of the config or a metric's statistic."""
    return full_name(name).startswith(("config.", "summary."))


def is_searchable(name: str) -> bool:
    """Tell whether runs can be filtered and sorted by a field: not by `LEFT_OUT`, nor by parts no filter reads."""
    parts = name.split(".")
    return parts[0] not in _ELSEWHERE and not any(".".join(parts[:count]) in LEFT_OUT for count in (1, 2))


def short_name(full: str) -> str:
    """Return the shortest name that people can type for a field, and that `full_name` inverts, quoted if need be."""
    for prefix in ("config.", "summary."):
        short = quoted(full.removeprefix(prefix))
        if full.startswith(prefix) and full_name(short) == full:
            return short
    return _SHORT.get(full) or quoted(full)


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three short names that are spelt like a misspelt one, begin with it, or end in the same part."""
    import difflib

    names = {short_name(full): full for full in sorted(known)}
    typed = short_name(full_name(name))
    # Without quotes, a name ends at its first operator or comma.
    cut = [other for other in names if re.match(rf"`{re.escape(typed)}[\s=<>!~,]", other)]
    if cut:
        return cut[:3]
    near = difflib.get_close_matches(typed, names, n=3, cutoff=0.6)
    # Next to a name that differs in one letter, one that shares only its first part is no guess.
    scores = [difflib.SequenceMatcher(None, typed, other).ratio() for other in near]
    near = [other for other, score in zip(near, scores, strict=True) if score > scores[0] - 0.15]
    # People often remember only the last part.
    last = name.rpartition(".")[2]
    return near + [other for other in names if other.rpartition(".")[2] == last and other not in near][: 3 - len(near)]


DURATION = "duration"
# The fields that `duration_s` reads.
DURATION_FIELDS = ("start_time", "queue_time", "stop_time", "heartbeat")

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as people write it, such as `90m`, `2h15m` or `1d 12h`; None if it is none."""
    compact = text.replace(" ", "")
    if not compact or _PART.sub("", compact):
        return None
    return sum(float(count) * _UNITS_S[unit] for count, unit in _PART.findall(compact))


def time_of(value: Any) -> datetime | None:
    """Return a recorded time as a naive datetime in UTC; None for anything but a text in ISO 8601."""
    try:
        time = datetime.fromisoformat(value)
        return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
    except (TypeError, ValueError, OverflowError):
        return None


def in_utc(value: Any) -> datetime | None:
    """Return a recorded time as an aware datetime in UTC; None if it is no time."""
    time = time_of(value)
    return None if time is None else time.replace(tzinfo=UTC)


def without_zone(time: datetime | None) -> datetime | None:
    """Return an aware time in UTC as the naive one that records hold; None stays None."""
    return None if time is None else time.replace(tzinfo=None)


def time_text(value: Any) -> str | None:
    """Return a time as every store compares it: ISO 8601 in UTC to the millisecond; None if it is no time."""
    time = to_the_millisecond(time_of(value))
    return None if time is None else time.isoformat()


def to_the_millisecond(time: datetime | None) -> datetime | None:
    """Return a time with MongoDB's precision, which every store compares by."""
    return None if time is None else time.replace(microsecond=time.microsecond // 1000 * 1000)


def duration_s(run: Mapping[str, Any], last: datetime | None = None) -> float | None:
    """Return how long a run took, in seconds.

    It lasted from the start, or else the queue time, to the end, or else `last` or the heartbeat. None if one is
    missing or they are out of order.
    """
    start = to_the_millisecond(time_of(run.get("start_time") or run.get("queue_time")))
    stop = to_the_millisecond(time_of(run.get("stop_time")) or last or time_of(run.get("heartbeat")))
    return (stop - start).total_seconds() if start is not None and stop is not None and stop >= start else None


_NESTED = frozenset((dict, list))
_NUMBERS = re.compile(r"bool|(u?int|float|longdouble)\d*")


def dotted(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to values by their dotted names, in order; an empty mapping is a value."""
    return dict(flattened(document, prefix))


def shallowest(document: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Flatten the entries nearest to the root, fewest dots first, without walking the others."""
    flat: dict[str, Any] = {}
    level: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    while level and len(flat) < most:
        below: list[tuple[str, Mapping[str, Any]]] = []
        for prefix, part in level:
            for key, value in part.items():
                if isinstance(value, Mapping) and value:
                    below.append((f"{prefix}{key}.", value))
                else:
                    flat[f"{prefix}{key}"] = value
                    if len(flat) == most:
                        return flat
        level = below
    return flat


def entry_at(document: Any, path: str) -> Any:
    """Return the entry at a dotted path, whose keys may contain dots themselves; None if there is none.

    The empty path is the document.
    """
    if not path:
        return document
    if not isinstance(document, Mapping):
        return None
    if path in document:
        return document[path]
    parts = path.split(".")
    for count in range(1, len(parts)):
        head = ".".join(parts[:count])
        if head in document:
            return entry_at(document[head], ".".join(parts[count:]))
    return None


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return an entry that should be a mapping; an empty one for anything else, which a foreign record may hold."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """Return an entry that should be a list; an empty one for anything else, which a foreign record may hold."""
    return value if isinstance(value, list) else []


def mappings_in(value: Any) -> list[dict[str, Any]]:
    """Return copies of the mappings in a list; anything else, which a foreign record may hold, is skipped."""
    return [dict(item) for item in list_of(value) if isinstance(item, Mapping)]


@dataclasses.dataclass(frozen=True)
class Changes:
    """The differences between two documents."""

    changed: Annotated[dict[str, tuple[Any, Any]], "Old and new value by name."]
    added: Annotated[dict[str, Any], "Values that only the second document has."]
    removed: Annotated[dict[str, Any], "Values that only the first document has."]

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """Return the differences between two flat documents."""
    return Changes(
        {name: (old[name], new[name]) for name in old if name in new and not is_same(old[name], new[name])},
        {name: new[name] for name in new if name not in old},
        {name: old[name] for name in old if name not in new},
    )


def is_same(first: Any, second: Any) -> bool:
    """Tell whether two values are the same: True is not 1, 1 is 1.0, NaN is NaN, a tuple is its list."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, bool) != isinstance(second, bool):
        return False
    return bool(first == second) or (first != first and second != second)


def without_pickles(value: Any, *, twice: bool = False) -> Any:
    """Replace serialized tuples by lists and serialized NumPy scalars by numbers, at any depth; keys become texts.

    `twice` also reads values that were serialized twice, which drops the names of NumPy's types; earlier versions did
    so with results.
    """
    if isinstance(value, dict):
        plain = read_serialized(value, twice=twice)
        if plain is not value:
            return without_pickles(plain, twice=twice)
        return {
            str(key): without_pickles(item, twice=twice) if type(item) in _NESTED else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_pickles(item, twice=twice) if type(item) in _NESTED else item for item in value]
    return value


def read_serialized(value: dict[str, Any], *, twice: bool = False) -> Any:
    """Return the list or number that a mapping stands for; the mapping itself if it stands for neither."""
    if "py/tuple" in value and len(value) == 1:
        return value["py/tuple"]
    if "dtype" not in value:
        return value
    # A scalar has `value`; an array without dimensions has a number as `values`.
    number = value.get("value", value.get("values"))
    names_numpy = str(value.get("py/object", "")).startswith("numpy.") and len(value) == 3
    is_number = isinstance(number, int | float) and _NUMBERS.fullmatch(str(value["dtype"])) is not None
    return number if is_number and (names_numpy or (twice and len(value) == 2)) else value
