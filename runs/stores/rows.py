"""Runs as flat rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runs.errors import StoreAwayError, StoreError
from runs.query.flattening import dotted
from runs.query.names import is_own
from runs.stores.run import Run

__all__ = ["DEFAULT_COLUMNS", "WHOLE_COLUMNS", "read_rows"]

# What a list of runs needs of each.
DEFAULT_COLUMNS = ("name", "command", "status", "start_time", "stop_time", "heartbeat", "result", "uid")
# What `read_rows` needs where columns are not named.
WHOLE_COLUMNS = (*DEFAULT_COLUMNS, "config", "summary", "host")


def read_rows(
    runs: Iterable[Run], columns: Sequence[str] | None = None
) -> tuple[list[tuple[Run, dict[str, Any]]], dict[str, str]]:
    """Return runs with their rows, and by its id why a run is not there as a whole: no run hides another.

    What cannot be read of a run is missing in its row. A run that was removed meanwhile has none.

    Args:
        runs: The runs.
        columns: Fields, in short or in full; by default `DEFAULT_COLUMNS`, the host, every entry of the config
            (`config.lr`) and every statistic of the summary (`summary.val/loss.min`).

    Raises:
        FilterError: If no run has a column.
        StoreAwayError: If the store is away.
    """
    rows, problems = [], {}
    for run in runs:
        run = run if run.is_listed else run.listed()
        try:
            rows.append((run, _row_of(run, columns)))
        except StoreAwayError:
            raise
        except StoreError as error:
            problems[run.id] = str(error)
        else:
            if run.problem:
                problems[run.id] = run.problem
    for name in columns or ():
        # What one of them has is a field.
        if rows and is_own(name) and all(row[name] is None for _, row in rows):
            rows[0][0].store.check_field(name)
    return rows, problems


def _row_of(run: Run, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of a run by the names of its columns; tags as a sorted list."""
    if columns is not None:
        return {name: run.tags if name == "tags" else run.get(name) for name in columns}
    row = {name: run[name] for name in (*DEFAULT_COLUMNS, "host")}
    # A foreign record may hold anything in their place.
    row |= dotted(_mapping(run["config"]), "config.")
    for metric, statistics in _mapping(run["summary"]).items():
        row |= {f"summary.{metric}.{name}": value for name, value in _mapping(statistics).items()}
    return row


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
