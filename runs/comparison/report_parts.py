"""What the blocks of a report show: runs in a table, single values, curves and charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sacristan.runs.comparison.panels import View, make_panel
from sacristan.runs.comparison.report_blocks import CHARTS, Block
from sacristan.runs.drawing.curve import Curve, Panel
from sacristan.runs.errors import ReportError, StoreError
from sacristan.runs.query.names import full_name, short_name, split_names
from sacristan.runs.query.texts import is_number, list_text
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import telling_settings
from sacristan.runs.stores.store import NEWEST_FIRST, Store

__all__ = ["RunTable", "chart_table", "chosen_runs", "curve_panel", "run_table", "scatter_of", "value_of"]

# Runs of a block without a limit: in a table or as curves; of means and charts.
_FEW, _MANY, _MOST_COLUMNS, _COUNTED = 20, 500, 30, 10_000
_MAX_SETTINGS = 6


@dataclasses.dataclass(frozen=True)
class RunTable:
    """Runs with their fields by column; the first column of a page names the run.

    Attributes:
        note: What the table leaves out; empty if nothing.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Run, list[Any]]]
    note: str = ""

    def is_numeric(self, place: int) -> bool:
        """Tell whether a column has numbers only, and any."""
        values = [value for _, row in self.rows if (value := row[place]) is not None]
        return bool(values) and all(map(is_number, values))


def chosen_runs(store: Store, block: Block, columns: Sequence[str] = ()) -> list[Run]:
    """Return the runs of a block, by its options run, where, sort and limit.

    ReportError means that there are none; FilterError and RunNotFoundError name what may have been meant.
    """
    if "run" in block.options:
        keys = split_names(block.text("run"))
        if not 0 < len(keys) <= _MANY:
            raise ReportError(f"run: got {len(keys)} runs, expected 1 to {_MANY} with commas between")
        return [run.listed() for run in store.get_all(keys)]
    is_many = block.kind in CHARTS or "group" in block.options
    limit = block.number("limit", _MANY if is_many else _FEW, 1, _MANY)
    where, sort = block.text("where") or None, block.text("sort", NEWEST_FIRST)
    found = [run.listed() for run in store.find(where, sort, limit, columns or None)]
    if not found:
        raise ReportError(f"no run matches {where}" if where else "there are no runs in this store yet")
    return found


def run_table(store: Store, block: Block) -> RunTable:
    """Return the table of a block; without `columns`, it has status, result, duration and what differs."""
    names = tuple(dict.fromkeys(short_name(full_name(name)) for name in split_names(block.text("columns"))))
    if len(names) > _MOST_COLUMNS:
        raise ReportError(f"columns: got {len(names)} names, expected {_MOST_COLUMNS} at most")
    runs = chosen_runs(store, block, names)
    if not names:
        has_result = any(_fields(run, ["result"])[0] is not None for run in runs)
        names = ("status", *telling_settings(runs)[:_MAX_SETTINGS], *(["result"] if has_result else []), "duration")
        store.prefetch(runs, list(map(full_name, names)))
    elif "run" in block.options:
        for name in names:
            store.check_field(name)
        store.prefetch(runs, list(map(full_name, names)))
    rows = [(run, _fields(run, names)) for run in runs]
    return RunTable(names, rows, _left_out(store, block, len(rows)))


def _left_out(store: Store, block: Block, num: int) -> str:
    if "run" in block.options or num < block.number("limit", _FEW, 1, _MANY):
        return ""
    total = store.count(block.text("where") or None, _COUNTED)
    if total <= num:
        return ""
    return f"{num} of {'at least ' if total >= _COUNTED else ''}{total:,} runs"


def _fields(run: Run, names: Sequence[str]) -> list[Any]:
    """Return fields of a run; None for what is missing or damaged, a text for its tags."""

    def field(name: str) -> Any:
        try:
            return run.id if name == "id" else " ".join(run.tags) if name == "tags" else run.get(name)
        except StoreError:
            return None

    return [field(name) for name in names]


def value_of(store: Store, block: Block) -> tuple[Run, str, Any]:
    """Return a run, a field of it and its value: of the named run, or of the first that matches.

    ReportError means that the run lacks the field.
    """
    *keys, name = block.words
    if keys and ("where" in block.options or "sort" in block.options):
        raise ReportError("value got a run and conditions; choose the run by one of them")
    store.check_field(name)
    run = store.get(keys[0]).listed() if keys else next(iter(chosen_runs(store, _first(block), [name])))
    short = short_name(full_name(name))
    [value] = _fields(run, [short])
    if value is None:
        raise ReportError(f"run {run.id} has no {short}")
    digits = block.number("digits", 0, 0, 15) if "digits" in block.options else 0
    return run, short, float(f"{value:.{digits}g}") if digits and isinstance(value, float) else value


def _first(block: Block) -> Block:
    return dataclasses.replace(block, options={**block.options, "limit": "1"})


def curve_panel(block: Block, runs: Sequence[Run]) -> Panel:
    """Return the curves of a block; the runs are those of `chosen_runs`."""
    title = block.title
    metrics = [title] if any(title in run.metrics for run in runs) else split_names(title)
    view = View(
        tuple(split_names(block.text("group"))),
        tuple(split_names(block.text("over"))),
        block.text("x", "step"),
        block.share("smoothing"),
        block.text("band", "interval"),
        log_y=block.flag("log_y"),
        log_x=block.flag("log_x"),
        joined=block.flag("joined"),
    )
    return make_panel(title, metrics, runs, view)


def scatter_of(table: RunTable) -> Curve | None:
    """Return points, with gaps between, for a scatter plot of the first two columns; None if they are no numbers."""
    if not (table.is_numeric(0) and table.is_numeric(1)):
        return None
    pairs = sorted(row[:2] for _, row in table.rows if row[0] is not None and row[1] is not None)
    x, y = (np.repeat(np.array([float(pair[place]) for pair in pairs]), 2) for place in (0, 1))
    y[1::2] = np.nan
    return Curve(f"{len(pairs)} runs", x, y)


def chart_table(store: Store, block: Block) -> RunTable:
    """Return the runs of a chart with their fields."""
    names = tuple(short_name(full_name(word)) for word in block.words)
    runs = chosen_runs(store, block, names)
    for name in names:
        store.check_field(name)
    table = RunTable(names, [(run, _fields(run, names)) for run in runs])
    lacking = [name for place, name in enumerate(names) if all(row[place] is None for _, row in table.rows)]
    if lacking:
        raise ReportError(f"none of these runs has {list_text(lacking)}")
    return table
