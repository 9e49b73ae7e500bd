"""Names of what can be asked of a run, the same over every store.

In full they are the paths of Sacred's document of a run: `status`, `host.hostname`, `config.optimizer.lr`,
`summary.val/accuracy.max`, `info.test.accuracy`. In short, as people type them:

* `optimizer.lr` is `config.optimizer.lr`;
* `val/accuracy.max`, a metric and one of `STATISTICS`, is `summary.val/accuracy.max`;
* `duration` is the time in seconds from start to end, which is computed and not kept (`runs.query.times`);
* `name`, `host`, `start`, `stop` and `id` are `experiment.name`, `host.hostname`, `start_time`, `stop_time` and `_id`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from observers.record.numbered_folder import as_number

__all__ = [
    "COMMON_FIELDS",
    "REFUSED",
    "RUN_FIELDS",
    "STATISTICS",
    "SWEEP",
    "TIMES",
    "full_name",
    "id_of",
    "is_own",
    "short_name",
    "similar_names",
]

# What `observers.record.points.summaries.summarize` keeps of a metric.
STATISTICS = (
    "count", "finite", "first", "last", "last_step", "max", "max_step", "mean", "min", "min_step",
)  # fmt: skip
# First parts of names that are the run's own; every other name is an entry of the config, or a metric's statistic.
RUN_FIELDS = frozenset(
    (
        "_id", "artifacts_logged", "artifacts_used", "command", "command_line", "config", "duration", "experiment",
        "damaged_points", "fail_trace", "format", "heartbeat", "host", "info", "lease", "lost_artifacts", "lost_bytes",
        "lost_media", "lost_parts", "lost_points", "lost_resources", "lost_sources", "meta", "note", "parent",
        "provenance", "queue_time", "result", "start_time", "status", "stop_time", "summary", "tags", "uid",
        "unwritten_points",
    )
)  # fmt: skip
TIMES = frozenset(("start_time", "stop_time", "queue_time", "heartbeat"))
# The sweep that a run is a trial of.
SWEEP = "meta.sweep.id"
# True of a run that was refused, for its settings or its data, before it came to anything.
REFUSED = "meta.refused"
# Fields that any run may have; whether one does is no question of spelling.
COMMON_FIELDS = TIMES | {
    "_id", "command", "config", "duration", "experiment.name", "fail_trace", "host.hostname", "info", "note", "parent",
    "provenance", "result", "status", "summary", "tags", "uid", REFUSED, SWEEP,
}  # fmt: skip
_FULL = {
    "name": "experiment.name",
    "host": "host.hostname",
    "start": "start_time",
    "stop": "stop_time",
    "id": "_id",
}
_SHORT = {full: short for short, full in _FULL.items()}


def id_of(text: str) -> int | str:
    """Return an id as it is compared: a number, if the text is one in the digits 0 to 9 as `str` writes it."""
    number = as_number(text)
    return text if number is None or str(number) != text else number


def full_name(name: str) -> str:
    """Return the full name of a field, of a short one too."""
    if name in _FULL:
        return _FULL[name]
    if name.partition(".")[0] in RUN_FIELDS:
        return name
    metric, _, statistic = name.rpartition(".")
    if metric and statistic in STATISTICS:
        return f"summary.{name}"
    return f"config.{name}"


def is_own(name: str) -> bool:
    """Tell whether a field, short or full, is one that experiments name: an entry of the config, or a metric's."""
    return full_name(name).startswith(("config.", "summary."))


def short_name(full: str) -> str:
    """Return a field's name as people type it: the shortest whose full name is `full`."""
    for prefix in ("config.", "summary."):
        short = full.removeprefix(prefix)
        if short != full and full_name(short) == full:
            return short
    return _SHORT.get(full, full)


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the full names `known`, in short, that are spelt much like `name`, or end as it does."""
    names = {short_name(full): full for full in sorted(known)}
    near = difflib.get_close_matches(short_name(full_name(name)), names, n=3, cutoff=0.6)
    # What shares hardly more than the first part of the name is no guess beside one that is right but for a letter.
    scores = [difflib.SequenceMatcher(None, short_name(full_name(name)), other).ratio() for other in near]
    near = [other for other, score in zip(near, scores, strict=True) if score > scores[0] - 0.15]
    # A part of the name alone is what people remember.
    last = name.rpartition(".")[2]
    return near + [other for other in names if other.rpartition(".")[2] == last and other not in near][: 3 - len(near)]
