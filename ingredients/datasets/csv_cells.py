"""The cells of a CSV file as text, and which columns hold numbers.

Whether a cell is a number depends on its own column alone. A category is the text of its cell: `01234` is not `1234`.
"""

from __future__ import annotations

import lzma
import re
import warnings
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs.map import abbreviated
from sacristan.ingredients.datasets.csv_arguments import (
    encoding_advice,
    in_plain_notation,
    notation_advice,
    quoted,
    read_arguments,
    separator_in,
)
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["GAPS_OF_PANDAS", "MANY", "as_numbers", "read_cells", "refuse_notation", "refuse_strays", "typed"]

# Texts that pandas reads as missing; earlier versions of the lab trained on tables read that way.
GAPS_OF_PANDAS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
# A column with this share of numbers, and more distinct ones than this, is meant to hold numbers.
_MOSTLY, MANY = 0.9, 20
# Errors of pandas and of what it decompresses with.
_UNREADABLE = (ValueError, TypeError, OSError, EOFError, NotImplementedError, ImportError, zlib.error, lzma.LZMAError)
# Values of a column that a message shows.
_SHOWN = 5


def read_cells(path: Path, na_values: Collection[str] = (), csv: Mapping[str, Any] = {}) -> pandas.DataFrame:
    """Read a CSV file with a header as text, with NaN for missing values and for `na_values`.

    Column names are str. The error for an unreadable file names the argument that it seems to need.
    """
    options = {"dtype": str, "keep_default_na": False, "na_values": ["", *na_values], **read_arguments(csv, path)}
    try:
        frame = _read(path, options, csv)
    except _UNREADABLE as error:
        problem = str(error).strip()
        if isinstance(error, UnicodeError):
            if isinstance(error, UnicodeDecodeError):
                problem = f"it is not text in {error.encoding}"
            encoding = encoding_advice(path, csv)
            hint = "" if encoding is None else f"; write {encoding}"
        else:
            hint = _advice(path, options, csv, problem) if path.is_file() else ""
        raise DataError(f"data.path: {path} cannot be read as CSV: {problem}{hint}") from error
    frame.columns = list(map(str, frame.columns))
    if any("\0" in name for name in frame.columns):
        zeros = encoding_advice(path, csv, frame.columns)
        raise DataError(f"data.path: {path} holds zero bytes, which text in UTF-8 does not; write {zeros}")
    if frame.shape[1] == 1 and "sep" not in csv and (hint := _advice(path, options, csv)):
        raise DataError(f"data.path: {path} has one column, {frame.columns[0]!r}{hint}")
    if frame.index.nlevels > 1 or not frame.index.is_unique:
        raise DataError(
            f"data.path: the rows of {path} have {frame.index.nlevels} more cells than the header, which names "
            f"{frame.shape[1]} columns"
            + (_advice(path, options, csv) or "; name the others, or put texts that hold a separator between quotes")
        )
    return frame


def _read(path: Path, options: Mapping[str, Any], csv: Mapping[str, Any]) -> pandas.DataFrame:
    import pandas

    if not csv.keys() & {"header", "names"}:
        whole = {name: value for name, value in options.items() if name != "skipfooter"}
        _require_header(pandas.read_csv(path, header=None, nrows=1, **whole), path, csv)
    frame = pandas.read_csv(path, **options)
    if frame.shape[1] and frame.iloc[:, -1].isna().all():
        # Where every row ends with a separator, pandas uses the first column as the index.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, index_col=False, **options)
    return frame


def _advice(path: Path, options: Mapping[str, Any], csv: Mapping[str, Any], problem: str = "") -> str:
    """Return advice about another separator, to append to a message; "" if there is none."""
    import pandas

    longer = re.search(r"Expected 1 fields in line (\d+), saw", problem)
    try:
        header = pandas.read_csv(path, header=None, nrows=1, **{**options, "sep": "\0", "engine": "python"}).iloc[0, 0]
        if "comment" not in csv and str(header).startswith("#"):
            return "; write 'data.csv.comment=#'"
        if "sep" not in csv and (mark := separator_in(str(header))):
            rows = pandas.read_csv(path, nrows=MANY, **{**options, "sep": mark})
            numbers = next(filter(None, (notation_advice(rows[name], csv, 1.0) for name in rows)), None)
            return f"; write {' '.join(filter(None, (quoted('sep', mark), numbers)))}"
    except _UNREADABLE:
        return ""
    return f"; if that is the header, write data.csv.skiprows={int(longer[1]) - 1}" if longer else ""


def _require_header(first: pandas.DataFrame, path: Path, csv: Mapping[str, Any]) -> None:
    """Reject a file whose first row holds numbers; pandas names columns 0, 1, 2, ..."""
    row = first.iloc[0]
    is_numbered = row.tolist() == [str(number) for number in range(len(row))]
    if row.notna().all() and not is_numbered and as_numbers(row, csv) is not None:
        raise DataError(
            f"data.path: the first row of {path} holds only numbers ({abbreviated(row, _SHOWN)}), expected the names "
            "of the columns; add a header, or write data.csv.header=None, which calls the columns 0, 1, 2, ..."
        )


def typed(cells: pandas.DataFrame, as_text: Collection[str] = (), csv: Mapping[str, Any] = {}) -> pandas.DataFrame:
    """Convert columns of a text frame that hold only numbers, or True and False, to these types."""
    numbers = {name: as_numbers(cells[name], csv) for name in cells.columns if name not in as_text}
    return cells.assign(**{name: column for name, column in numbers.items() if column is not None})


def as_numbers(column: pandas.Series, csv: Mapping[str, Any] = {}) -> pandas.Series | None:
    """Return a column of text as numbers or bools, NaN where it is missing; None if a cell is neither."""
    import pandas

    present = column.dropna()
    if not len(column):
        return None
    if len(present) and present.isin(_TRUTH).all():
        return column.map(_TRUTH).astype(bool if len(present) == len(column) else float)
    try:
        return pandas.to_numeric(in_plain_notation(column, csv))
    except (ValueError, TypeError):
        return None


def refuse_notation(column: pandas.Series, setting: str, csv: Mapping[str, Any], remedy: str) -> None:
    """Reject a column of text if 90 % of it are numbers in another notation, such as decimal commas."""
    hint = notation_advice(column, csv, _MOSTLY)
    if hint is not None:
        marked = column[column.str.contains(r"[^\d.eE+-]", na=False)].iloc[0]
        raise DataError(
            f"{setting}: the column {column.name} holds numbers such as {marked!r}; write {hint}, or, if it is "
            f"text, {remedy}"
        )


def refuse_strays(column: pandas.Series, setting: str, remedy: str, csv: Mapping[str, Any] = {}) -> None:
    """Reject a column of text if 90 % of it are numbers, and more than 20 distinct ones."""
    import pandas

    present = column.dropna()
    is_number = pandas.to_numeric(in_plain_notation(present, csv), errors="coerce").notna()
    count = int(is_number.sum())
    if not _MOSTLY * len(present) <= count < len(present) or present[is_number].nunique() <= MANY:
        return
    strays = present[~is_number].value_counts().index
    shown = abbreviated(map(repr, strays), _SHOWN)
    values = ", ".join(f'"{value}"' for value in strays[:_SHOWN])
    raise DataError(
        f"{setting}: the column {column.name} holds numbers in {count:,} rows, and {shown} in "
        f"{len(present) - count:,}; correct those rows, list what means a missing value (data.na_values='[{values}]'), "
        f"or {remedy}"
    )
