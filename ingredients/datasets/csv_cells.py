"""The cells of a CSV file: the texts that stand in it, and which columns are numbers.

A cell is a number or not whatever stands in other files, and a category is the text of its cell: `01234` is not `1234`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["GAPS_OF_PANDAS", "as_numbers", "read_cells", "refuse_strays", "typed"]

# Texts that pandas takes for a gap, and so did tables that earlier versions were trained on.
GAPS_OF_PANDAS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
# A column with so large a share of numbers, of so many values, is meant to be numbers.
_MOSTLY, _MANY = 0.9, 20
# Values of a column that a message names.
_SHOWN = 5


def read_cells(path: Path, na_values: Collection[str] = ()) -> pandas.DataFrame:
    """Return a CSV file with a header as text, its columns named by text; NaN where a cell is a gap.

    Args:
        path: The file.
        na_values: Texts that stand for a gap, beside an empty cell.

    Raises:
        DataError: If it cannot be read, or has no header.
    """
    import pandas

    how = {"skipinitialspace": True, "dtype": str, "keep_default_na": False, "na_values": ["", *na_values]}
    try:
        _require_header(pandas.read_csv(path, header=None, nrows=1, **how), path)
        frame = pandas.read_csv(path, **how)
        if frame.shape[1] and frame.iloc[:, -1].isna().all():
            # Where each row ends with a comma, pandas takes the first column for names of the rows.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pandas.errors.ParserWarning)
                frame = pandas.read_csv(path, index_col=False, **how)
    except (ValueError, OSError) as error:
        raise DataError(f"data.path: {path} cannot be read as CSV: {error}") from error
    frame.columns = list(map(str, frame.columns))
    return frame


def _require_header(first: pandas.DataFrame, path: Path) -> None:
    """Refuse a file whose first row is one of numbers; 0, 1, 2, ... are names that pandas gives to columns."""
    row = first.iloc[0]
    is_numbered = row.tolist() == [str(number) for number in range(len(row))]
    if row.notna().all() and not is_numbered and as_numbers(row) is not None:
        shown = ", ".join(row[:_SHOWN]) + (", ..." if len(row) > _SHOWN else "")
        raise DataError(
            f"data.path: the first row of {path} holds only numbers ({shown}), expected the names of the columns; "
            "add a header"
        )


def typed(cells: pandas.DataFrame, as_text: Collection[str] = ()) -> pandas.DataFrame:
    """Return cells with columns of numbers, and of True and False, as such; a column `as_text` stays text."""
    columns = {}
    for name in cells.columns:
        numbers = None if name in as_text else as_numbers(cells[name])
        columns[name] = cells[name] if numbers is None else numbers
    return cells.assign(**columns)


def as_numbers(column: pandas.Series) -> pandas.Series | None:
    """Return a column of text as numbers or bools, NaN in its gaps; None if a cell is neither."""
    import pandas

    there = column.dropna()
    if not len(column):
        return None
    if len(there) and there.isin(_TRUTH).all():
        found = column.map(_TRUTH)
        return found.astype(bool if len(there) == len(column) else float)
    try:
        return pandas.to_numeric(column)
    except (ValueError, TypeError):
        return None


def refuse_strays(column: pandas.Series, setting: str, remedy: str) -> None:
    """Refuse a column of text that is nearly all numbers.

    Args:
        column: Of text.
        setting: Where the column comes from, for the message.
        remedy: What else may be done, for the message.

    Raises:
        DataError: If it is.
    """
    import pandas

    there = column.dropna()
    is_number = pandas.to_numeric(there, errors="coerce").notna()
    count = int(is_number.sum())
    if not _MOSTLY * len(there) <= count < len(there) or there[is_number].nunique() <= _MANY:
        return
    strays = there[~is_number].value_counts()
    shown = ", ".join(map(repr, strays.index[:_SHOWN])) + (", ..." if len(strays) > _SHOWN else "")
    raise DataError(
        f"{setting}: the column {column.name} holds numbers in {count:,} rows, and {shown} in {len(there) - count:,}; "
        f"correct those rows, name what stands for a gap (data.na_values='{_listing(strays.index)}'), or {remedy}"
    )


def _listing(values: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values[:_SHOWN]) + "]"
