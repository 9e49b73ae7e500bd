"""Tables that a run can log; their cells may be images."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
from collections.abc import Sequence
from typing import Any

from sacristan.observers.errors import MediaError
from sacristan.observers.media.arrays import Snapshot, is_missing
from sacristan.observers.media.kinds import Image, Media, are_numbers, snapshot
from sacristan.observers.record.json_text import MAX_DIGITS, is_unwritable, storable_integer
from sacristan.observers.record.media_files import Content

_log = logging.getLogger(__name__)


class Table(Media):
    """A table, such as the good and bad cases of a classifier.

        _run.log_media("cases", Table(["image", "class"], [[Image(x), "cat"]]), step)

        table = Table(columns=["image", "class"])
        table.add_data(Image(x), "cat")

    Args:
        columns: Names of the columns, without duplicates; by default those of the data frame.
        rows: Rows with a cell for each column: a number, a text, None, an `Image`, or a list or dict, which becomes
            text. A masked value is None, as are pandas' NA and NaT.
        data: The same as `rows`, as W&B calls them.
        dataframe: A data frame of pandas, instead of rows.
        **options: W&B's other ones, without a meaning.

    Raises:
        MediaError: If a row has another length, or a cell holds something else.
    """

    kind = "table"

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        rows: Any = None,
        data: Any = None,
        dataframe: Any = None,
        **options: Any,
    ) -> None:
        rows = data if rows is None else rows
        if hasattr(rows, "itertuples"):
            dataframe, rows = rows, None
        if dataframe is not None:
            columns, rows = list(dataframe.columns), list(dataframe.itertuples(index=False, name=None))
        rows = rows.tolist() if getattr(rows, "ndim", None) == 2 else () if rows is None else rows
        names = ["Input", "Output", "Expected"] if columns is None and not len(rows) else columns or ()
        self.columns = [str(column) for column in names]
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise MediaError(f"Table: got columns {self.columns}, expected at least one, and each name once")
        self._rows = [
            [self._cell(cell, number, position) for position, cell in enumerate(row)] for number, row in enumerate(rows)
        ]
        for number, row in enumerate(self._rows):
            if len(row) != len(self.columns):
                raise MediaError(
                    f"Table: row {number} has {len(row)} cells, expected {len(self.columns)}, one for each of "
                    f"{', '.join(self.columns)}"
                )
        self.num_bytes = sum(map(self._bytes_of, itertools.chain.from_iterable(self._rows)))

    def add_data(self, *row: Any) -> None:
        """Add a row; see `Table`."""
        if len(row) != len(self.columns):
            raise MediaError(
                f"Table: got a row of {len(row)} cells, expected {len(self.columns)}, one for each of "
                f"{', '.join(self.columns)}"
            )
        cells = [self._cell(cell, len(self._rows), position) for position, cell in enumerate(row)]
        self._rows.append(cells)
        self.num_bytes += sum(map(self._bytes_of, cells))

    add_row = add_data

    def add_column(self, name: str, data: Sequence[Any]) -> None:
        """Add a column, with a cell for each row."""
        if name in self.columns or len(data) != len(self._rows):
            raise MediaError(
                f"Table: got a column {name!r} of {len(data)} cells, expected another name, and {len(self._rows)} cells"
            )
        self.columns = [*self.columns, str(name)]
        self._rows = [
            [*row, self._cell(cell, number, len(self.columns) - 1)]
            for number, (row, cell) in enumerate(zip(self._rows, data, strict=True))
        ]
        self.num_bytes += sum(self._bytes_of(row[-1]) for row in self._rows)

    def as_logged(self) -> Table:
        logged = copy.copy(self)
        logged._rows = list(self._rows)
        return logged

    def get_column(self, name: str) -> list[Any]:
        """Return the cells of a column, as they were given."""
        column = self.columns.index(name)
        return [row[column] for row in self._rows]

    @property
    def data(self) -> list[list[Any]]:
        """The rows, as they were given."""
        return [list(row) for row in self._rows]

    def _cell(self, cell: Any, number: int, position: int) -> Any:
        if cell is None or isinstance(cell, str | bool | int | float | Image):
            return cell
        if is_missing(cell):
            return None
        if isinstance(cell, list | tuple | dict | set):
            return json.dumps(sorted(cell, key=repr) if isinstance(cell, set) else cell, default=str)
        if getattr(cell, "shape", None) == ():
            cell = snapshot(cell, "Table")
            if are_numbers(cell.dtype):
                return cell
        column = self.columns[position] if position < len(self.columns) else position
        hint = "; write Image(array)" if getattr(cell, "shape", None) else ""
        raise MediaError(
            f"Table: row {number}, column {column!r}: got a {type(cell).__name__}, expected a number, a text, None or "
            f"an Image{hint}"
        )

    @staticmethod
    def _bytes_of(cell: Any) -> int:
        return cell.num_bytes if isinstance(cell, Image | Snapshot) else len(cell) if isinstance(cell, str) else 8

    def encode(self) -> Content:
        # `sacristan.observers.record.media_files.read_table` reads it.
        images: dict[str, Content] = {}
        rows = [[_written(cell, images) for cell in row] for row in self._rows]
        data = json.dumps({"columns": self.columns, "rows": rows}, allow_nan=False).encode()
        meta = {"columns": self.columns, "num_rows": len(rows)}
        return Content(data, ".json", "application/json", meta, tuple(images.values()))


def _written(cell: Any, images: dict[str, Content]) -> Any:
    """Return a cell as JSON holds it; add the file of an image to `images`."""
    if isinstance(cell, Image):
        content = cell.encode()
        images[content.file] = content
        return {"$image": content.file, **content.meta}
    if isinstance(cell, Snapshot):
        cell = cell.array().item()
    if isinstance(cell, int) and is_unwritable(cell):
        _log.warning(
            "Table: an integer of more than %s digits is recorded as text, in hexadecimal digits", f"{MAX_DIGITS:,}"
        )
        return storable_integer(cell)
    if isinstance(cell, float) and not math.isfinite(cell):
        return {"$number": str(cell)}
    return cell
