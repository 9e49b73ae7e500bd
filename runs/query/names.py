"""Names of what can be asked of a run, the same over every store.

In full they are the paths of Sacred's document of a run: `status`, `host.hostname`, `config.optimizer.lr`,
`summary.val/accuracy.max`, `info.test.accuracy`. In short, as people type them:

* `optimizer.lr` is `config.optimizer.lr`;
* `val/accuracy.max`, a metric and one of `STATISTICS`, is `summary.val/accuracy.max`;
* `duration` is the time in seconds from start to end, which is computed and not kept;
* `name`, `host`, `start`, `stop` and `id` are `experiment.name`, `host.hostname`, `start_time`, `stop_time` and `_id`.
"""

from __future__ import annotations

__all__ = ["RUN_FIELDS", "STATISTICS", "TIMES", "full_name"]

# What `observers.record.schema.summarize` keeps of a metric.
STATISTICS = (
    "count", "finite", "first", "last", "last_step", "max", "max_step", "mean", "min", "min_step",
)  # fmt: skip
# First parts of names that are the run's own; every other name is an entry of the config, or a metric's statistic.
RUN_FIELDS = frozenset(
    (
        "_id", "artifacts_logged", "artifacts_used", "command", "command_line", "config", "duration", "experiment",
        "fail_trace",
        "format", "heartbeat", "host", "info", "lease", "lost_bytes", "lost_media", "lost_points", "meta", "note",
        "parent", "provenance", "queue_time", "result", "start_time", "status", "stop_time", "summary", "tags", "uid",
    )
)  # fmt: skip
TIMES = frozenset(("start_time", "stop_time", "queue_time", "heartbeat"))
_SHORT = {
    "name": "experiment.name",
    "host": "host.hostname",
    "start": "start_time",
    "stop": "stop_time",
    "id": "_id",
}


def full_name(name: str) -> str:
    """Return the full name of a field, of a short one too."""
    if name in _SHORT:
        return _SHORT[name]
    if name.partition(".")[0] in RUN_FIELDS:
        return name
    metric, _, statistic = name.rpartition(".")
    if metric and statistic in STATISTICS:
        return f"summary.{name}"
    return f"config.{name}"
