"""Runs as flat rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.query.flattening import dotted, mapping_of
from sacristan.runs.query.names import is_own
from sacristan.runs.stores.run import Run

__all__ = ["DEFAULT_COLUMNS", "WHOLE_COLUMNS", "read_rows"]

# Fields for a list of runs.
DEFAULT_COLUMNS = ("name", "command", "status", "start_time", "stop_time", "heartbeat", "result", "uid")
# Fields for `read_rows` without columns.
WHOLE_COLUMNS = (*DEFAULT_COLUMNS, "config", "summary", "host")


def read_rows(
    runs: Iterable[Run], columns: Sequence[str] | None = None
) -> tuple[list[tuple[Run, dict[str, Any]]], dict[str, str]]:
    """Return runs as rows, so that no damaged run hides another, and by id why a run cannot be read completely.

    By default, the columns are `DEFAULT_COLUMNS`, the host, every entry of the config (`config.lr`) and every statistic
    of the summary (`summary.val/loss.min`). Rows lack the unreadable parts; a run that was removed meanwhile has no
    row.
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
            problems |= {run.id: run.problem} if run.problem else {}
    if rows:
        _check_columns(rows, columns or ())
    return rows, problems


def _check_columns(rows: Sequence[tuple[Run, Mapping[str, Any]]], columns: Sequence[str]) -> None:
    """Reject columns that no run has; one with a value is a field."""
    for name in columns:
        if is_own(name) and all(row[name] is None for _, row in rows):
            rows[0][0].store.check_field(name)


def _row_of(run: Run, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of a run by column; tags are a sorted list."""
    if columns is not None:
        return {name: run.tags if name == "tags" else run.get(name) for name in columns}
    row = {name: run[name] for name in (*DEFAULT_COLUMNS, "host")}
    # A foreign record may hold other types.
    row |= dotted(mapping_of(run["config"]), "config.")
    for metric, statistics in mapping_of(run["summary"]).items():
        row |= {f"summary.{metric}.{name}": value for name, value in mapping_of(statistics).items()}
    return row
