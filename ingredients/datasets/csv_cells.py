"""The cells of a CSV file as text, and which columns hold numbers.

Whether a cell is a number depends on its own column alone. A category is the text of its cell: `01234` is not `1234`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ingredients.config.construct import listed
from ingredients.datasets.source_checks import reading
from ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["GAPS_OF_PANDAS", "as_numbers", "read_cells", "refuse_strays", "typed"]

# Texts that pandas reads as missing; earlier versions of the lab trained on tables read that way.
GAPS_OF_PANDAS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
# A column with this share of numbers, and more distinct ones than this, is meant to hold numbers.
_MOSTLY, _MANY = 0.9, 20
# Values of a column that a message shows.
_SHOWN = 5


def read_cells(path: Path, na_values: Collection[str] = ()) -> pandas.DataFrame:
    """Read a CSV file with a header as text.

    Args:
        path: The file.
        na_values: Texts that mean a missing value, besides an empty cell.

    Returns:
        A frame of str with NaN for missing values; the names of its columns are str.

    Raises:
        DataError: If the file cannot be read or has no header.
    """
    import pandas

    options = {"skipinitialspace": True, "dtype": str, "keep_default_na": False, "na_values": ["", *na_values]}
    with reading(path, "CSV", ValueError, OSError):
        _require_header(pandas.read_csv(path, header=None, nrows=1, **options), path)
        frame = pandas.read_csv(path, **options)
        if frame.shape[1] and frame.iloc[:, -1].isna().all():
            # Where every row ends with a comma, pandas uses the first column as the index.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pandas.errors.ParserWarning)
                frame = pandas.read_csv(path, index_col=False, **options)
    frame.columns = list(map(str, frame.columns))
    return frame


def _require_header(first: pandas.DataFrame, path: Path) -> None:
    """Reject a file whose first row holds numbers; 0, 1, 2, ... are names that pandas gives to columns."""
    row = first.iloc[0]
    is_numbered = row.tolist() == [str(number) for number in range(len(row))]
    if row.notna().all() and not is_numbered and as_numbers(row) is not None:
        raise DataError(
            f"data.path: the first row of {path} holds only numbers ({listed(row, _SHOWN)}), expected the names of the "
            "columns; add a header"
        )


def typed(cells: pandas.DataFrame, as_text: Collection[str] = ()) -> pandas.DataFrame:
    """Convert columns of numbers, and of True and False, to these types.

    Args:
        cells: A frame of text, see `read_cells`.
        as_text: Columns to leave as text.

    Returns:
        The frame with numeric columns converted; a column with any other text stays text.
    """
    numbers = {name: as_numbers(cells[name]) for name in cells.columns if name not in as_text}
    return cells.assign(**{name: column for name, column in numbers.items() if column is not None})


def as_numbers(column: pandas.Series) -> pandas.Series | None:
    """Return a column of text as numbers or bools, NaN where it is missing; None if a cell is neither."""
    import pandas

    present = column.dropna()
    if not len(column):
        return None
    if len(present) and present.isin(_TRUTH).all():
        return column.map(_TRUTH).astype(bool if len(present) == len(column) else float)
    try:
        return pandas.to_numeric(column)
    except (ValueError, TypeError):
        return None


def refuse_strays(column: pandas.Series, setting: str, remedy: str) -> None:
    """Reject a column of text that holds almost only numbers.

    Args:
        column: The column, as text.
        setting: The setting that reads the column, for the message.
        remedy: Another way to mend it, for the message.

    Raises:
        DataError: If at least 90 % of the column are numbers, and more than 20 distinct ones.
    """
    import pandas

    present = column.dropna()
    is_number = pandas.to_numeric(present, errors="coerce").notna()
    count = int(is_number.sum())
    if not _MOSTLY * len(present) <= count < len(present) or present[is_number].nunique() <= _MANY:
        return
    strays = present[~is_number].value_counts().index
    shown = listed(map(repr, strays), _SHOWN)
    values = ", ".join(f'"{value}"' for value in strays[:_SHOWN])
    raise DataError(
        f"{setting}: the column {column.name} holds numbers in {count:,} rows, and {shown} in "
        f"{len(present) - count:,}; correct those rows, list what means a missing value (data.na_values='[{values}]'), "
        f"or {remedy}"
    )
