"""Tables that a run can log; their cells may be images."""

from __future__ import annotations

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

__all__ = ["Table"]

_log = logging.getLogger(__name__)


class Table(Media):
    """A table, such as the good and bad cases of a classifier.

        _run.log_media("cases", Table(["image", "class"], [[Image(x), "cat"]]), step)

    Args:
        columns: Names of the columns, without duplicates.
        rows: Rows with a cell for each column: a number, a text, None, or an `Image`. A masked value is None, as
            are pandas' NA and NaT.

    Raises:
        MediaError: If a row has another length, or a cell holds something else.
    """

    kind = "table"

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = [str(column) for column in columns]
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise MediaError(f"Table: got columns {self.columns}, expected at least one, and each name once")
        self._rows = [
            [self._cell(cell, number, place) for place, cell in enumerate(row)] for number, row in enumerate(rows)
        ]
        for number, row in enumerate(self._rows):
            if len(row) != len(self.columns):
                raise MediaError(
                    f"Table: row {number} has {len(row)} cells, expected {len(self.columns)}, one for each of "
                    f"{', '.join(self.columns)}"
                )
        self.num_bytes = sum(map(self._bytes_of, itertools.chain.from_iterable(self._rows)))

    def _cell(self, cell: Any, number: int, place: int) -> Any:
        if cell is None or isinstance(cell, str | bool | int | float | Image):
            return cell
        if is_missing(cell):
            return None
        if getattr(cell, "shape", None) == ():
            cell = snapshot(cell, "Table")
            if are_numbers(cell.dtype):
                return cell
        column = self.columns[place] if place < len(self.columns) else place
        hint = "; write Image(array)" if getattr(cell, "shape", None) else ""
        raise MediaError(
            f"Table: row {number}, column {column!r}: got a {type(cell).__name__}, expected a number, a text, None or "
            f"an Image{hint}"
        )

    @staticmethod
    def _bytes_of(cell: Any) -> int:
        return cell.num_bytes if isinstance(cell, Image | Snapshot) else len(cell) if isinstance(cell, str) else 8

    def encode(self) -> Content:
        # `sacristan.observers.record.media_record.read_table` reads it.
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
