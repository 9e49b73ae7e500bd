"""Names of fields, the same for every store.

A full name is a path in Sacred's document of a run: `status`, `host.hostname`, `config.optimizer.lr`,
`summary.val/accuracy.max`, `info.test.accuracy`. People type short names:

* `optimizer.lr` is `config.optimizer.lr`;
* `val/accuracy.max`, a metric and one of `STATISTICS`, is `summary.val/accuracy.max`;
* `duration` is the time in seconds from start to end, which is computed (`sacristan.runs.query.times`);
* `name`, `user`, `host`, `start`, `stop` and `id` are `experiment.name`, `host.user`, `host.hostname`, `start_time`,
  `stop_time` and `_id`.

A name with spaces, commas, quotes or operators stands between backticks, and a backtick in it is written twice:
`` `AP@IoU=0.5.max` ``, or `` `AP@IoU=0.5`.max ``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from sacristan.observers.record.folders import as_number

__all__ = [
    "COMMON_FIELDS",
    "KNOWN_FIELDS",
    "LEFT_OUT",
    "QUOTED",
    "REFUSED",
    "RUN_FIELDS",
    "STATISTICS",
    "SWEEP",
    "TIMES",
    "USER",
    "full_name",
    "id_of",
    "is_own",
    "is_searchable",
    "quoted",
    "short_name",
    "similar_names",
    "split_names",
    "unquoted",
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
# A name, or a part of it, between backticks.
QUOTED = r"`(?:[^`]|``)+`"
_WHOLLY_QUOTED = re.compile(rf"(?P<quoted>{QUOTED})(?P<rest>(?:\.[^`]+)?)")
# Names that need no quotes, even behind the `-` of a descending order.
_PLAIN = re.compile(r"(?!-)[^\s=<>!~,`\"']+")


def id_of(text: str) -> int | str:
    """Return a run's id as filters compare it: a number if the text is the decimal form of one, else the text."""
    number = as_number(text)
    return text if number is None or str(number) != text else number


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
    """Return suggestions for a misspelt field.

    They are up to three short names that are spelt like `name`, begin with it and need quotes, or end in the same part.
    """
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
