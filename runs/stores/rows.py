"""Runs as flat rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runs.query.flattening import dotted
from runs.stores.run import Run

__all__ = ["DEFAULT_COLUMNS", "WHOLE_COLUMNS", "row_of"]

# What a list of runs needs of each.
DEFAULT_COLUMNS = ("name", "command", "status", "start_time", "stop_time", "heartbeat", "result", "uid")
# What `row_of` needs of a run whose columns are not named.
WHOLE_COLUMNS = (*DEFAULT_COLUMNS, "config", "summary", "host")


def row_of(run: Run, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of a run by the names of its columns; tags as a sorted list.

    Args:
        run: The run.
        columns: Fields, in short or in full; by default `DEFAULT_COLUMNS`, the host, every entry of the config
            (`config.lr`) and every statistic of the summary (`summary.val/loss.min`).
    """
    if columns is not None:
        return {name: run.tags if name == "tags" else run[name] for name in columns}
    row = {name: run[name] for name in (*DEFAULT_COLUMNS, "host")}
    # A foreign record may hold anything in their place.
    row |= dotted(_mapping(run["config"]), "config.")
    for metric, statistics in _mapping(run["summary"]).items():
        row |= {f"summary.{metric}.{name}": value for name, value in _mapping(statistics).items()}
    return row


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
