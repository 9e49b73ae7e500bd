"""The cells of a CSV file as text, the arguments of `pandas.read_csv` that it needs, and which columns hold numbers.

Whether a cell is a number depends on its own column alone. A category is the text of its cell: `01234` is not `1234`.
"""

from __future__ import annotations

import codecs
import lzma
import re
import warnings
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs import to_plain
from sacristan.configs.map import abbreviated
from sacristan.configs.nearest import nearest
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

_CHARACTER, _TEXT, _NUMBER, _BOOL = "a single character", "text", "a whole number", "True or False"
# The arguments and what they expect; `_CHOICES` lists the values of others.
_EXPECTED = {
    "sep": _TEXT,
    "decimal": _CHARACTER,
    "thousands": _CHARACTER,
    "encoding": _TEXT,
    "encoding_errors": _TEXT,
    "compression": _TEXT,
    "header": "None or a whole number",
    "names": "a list of names",
    "skiprows": "a whole number or a list of them",
    "skipfooter": _NUMBER,
    "comment": _CHARACTER,
    "quotechar": _CHARACTER,
    "quoting": _NUMBER,
    "doublequote": _BOOL,
    "escapechar": _CHARACTER,
    "lineterminator": _CHARACTER,
    "skipinitialspace": _BOOL,
    "skip_blank_lines": _BOOL,
    "on_bad_lines": _TEXT,
}
_CHOICES = {
    "compression": ("infer", "gzip", "bz2", "zip", "xz", "zstd", "tar"),
    "on_bad_lines": ("error", "warn", "skip"),
}
_FITS = {
    _CHARACTER: lambda value: isinstance(value, str) and len(value) == 1,
    _TEXT: lambda value: isinstance(value, str) and value != "",
    _NUMBER: lambda value: type(value) is int and value >= 0,
    _BOOL: lambda value: isinstance(value, bool),
    "None or a whole number": lambda value: value is None or (type(value) is int and value >= 0),
    "a list of names": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "a whole number or a list of them": lambda value: (
        all(type(row) is int for row in value) if isinstance(value, list) else type(value) is int and value >= 0
    ),
}
# What to write instead of arguments that the lab sets itself, or that are called otherwise.
_INSTEAD = {
    "delimiter": "data.csv.sep",
    "separator": "data.csv.sep",
    "na_values": "data.na_values",
    "keep_default_na": "data.na_values",
    "usecols": "data.columns",
    "index_col": "data.columns",
    "nrows": "data.limit",
    "dtype": "data.categorical",
    "parse_dates": "data.split=time:COLUMN:FORMAT",
    "date_format": "data.split=time:COLUMN:FORMAT",
}
# Endings of compressed files, by which pandas decompresses them.
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_TABS = (".tsv", ".tab")
# The first bytes of compressed files.
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
# Marks of thousands and decimals, as written in different countries.
_NOTATIONS = ((None, ","), (".", ","), (" ", ","), ("\u00a0", ","), ("'", "."), (",", "."), (" ", "."), ("\u00a0", "."))

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


def check_csv(csv: Mapping[str, Any]) -> None:
    """Reject invalid values, and arguments that `read_csv` lacks or that other settings replace."""
    for name, value in to_plain(csv).items():
        if name not in _EXPECTED:
            _refuse_name(name)
        if not _FITS[_EXPECTED[name]](value):
            raise DataError(f"data.csv.{name}: got {value!r}, expected {_EXPECTED[name]}, as pandas.read_csv does")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise DataError(f"data.csv.{name}: got {value!r}, expected one of: {', '.join(_CHOICES[name])}")
    for name, look_up in (("encoding", codecs.lookup), ("encoding_errors", codecs.lookup_error)):
        try:
            look_up(csv.get(name, "strict" if name == "encoding_errors" else "utf-8"))
        except LookupError as error:
            raise DataError(
                f"data.csv.{name}: {error}; expected a name that Python knows, such as "
                + ("latin-1, cp1252, utf-16" if name == "encoding" else "strict, replace, ignore")
            ) from error
    if csv.get("thousands") == csv.get("decimal", "."):
        raise DataError(
            f"data.csv.thousands: got {csv['thousands']!r}, which is the decimal mark; set data.csv.decimal"
        )


def _refuse_name(name: str) -> None:
    near = nearest(name, [*_EXPECTED, *_INSTEAD])
    instead = _INSTEAD.get(near or "", None if near is None else f"data.csv.{near}")
    hint = f"did you mean {instead}?" if instead else f"there are: {', '.join(_EXPECTED)}"
    if name in _INSTEAD:
        hint = f"use {instead}"
    raise DataError(f"data.csv.{name}: is no argument for reading a csv; {hint}")


def _read_arguments(csv: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the arguments for `read_csv`, which reads all cells as text; `.tsv` and `.tab` files use tabs."""
    is_tabbed = any(suffix.lower() in _TABS for suffix in path.suffixes[-2:])
    arguments = {"skipinitialspace": True, **({"sep": "\t"} if is_tabbed else {}), **to_plain(csv)}
    for name in ("decimal", "thousands"):
        arguments.pop(name, None)
    if arguments.get("sep") == r"\t":  # as typed in a shell
        arguments["sep"] = "\t"
    is_pattern = len(arguments.get("sep", ",")) > 1
    return arguments | ({"engine": "python"} if is_pattern or arguments.get("skipfooter") else {})


def in_plain_notation(column: pandas.Series, csv: Mapping[str, Any]) -> pandas.Series:
    """Return a column with numbers in Python's notation; those in the wrong notation are then not numbers."""
    thousands, decimal = csv.get("thousands"), csv.get("decimal", ".")
    if thousands is None and decimal == ".":
        return column
    marks = {".": decimal, decimal: "."} | ({} if thousands is None else {thousands: ""})
    return column.str.translate(str.maketrans(marks))


def notation_advice(column: pandas.Series, csv: Mapping[str, Any], share: float) -> str | None:
    """Return the arguments of `read_csv` that make at least `share` of a text column numbers, such as `decimal`."""
    present = column.dropna()
    if not len(present) or "thousands" in csv:
        return None
    advice = []
    for thousands, decimal in _NOTATIONS:
        if "decimal" in csv and (thousands is None or decimal != csv["decimal"]):
            continue
        grouped = rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|" if thousands else ""
        number = rf"[+-]?(?:{grouped}\d+)?(?:{re.escape(decimal)}\d*)?(?:[eE][+-]?\d+)?"
        marks = [mark for mark in (thousands, None if decimal == "." else decimal) if mark]
        fits = present[present.str.fullmatch(number)]
        if len(fits) >= share * len(present) and all(fits.str.contains(mark, regex=False).any() for mark in marks):
            marks_set = {"thousands": thousands, "decimal": None if decimal in (".", csv.get("decimal")) else decimal}
            advice.append(" ".join(quoted(name, mark) for name, mark in marks_set.items() if mark))
    return " or ".join(advice[:2]) or None


def _separator_in(header: str) -> str | None:
    """Return the separator that a header seems to have instead of a comma."""
    counts = {mark: header.count(mark) for mark in ("\t", ";", "|")}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] else None


def quoted(name: str, mark: str) -> str:
    """Return an argument as it is typed in a shell."""
    quote = '"' if mark == "'" else "'"
    return f"{quote}data.csv.{name}={mark}{quote}".replace("\t", r"\t")


def _encoding_advice(path: Path, csv: Mapping[str, Any], columns: Collection[str] = ()) -> str | None:
    """Return the argument for a file that is compressed or not in UTF-8, by its first bytes."""
    with path.open("rb") as stream:
        start = stream.read(8)
    packed = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if packed is not None and "compression" not in csv and path.suffix.lower() not in PACKED:
        return f"data.csv.compression={packed}"
    if "encoding" in csv:
        return None
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "data.csv.encoding=utf-16"
    if any("\0" in name for name in columns) or b"\0" in start:
        return f"data.csv.encoding=utf-16-{'be' if start.startswith(bytes(1)) else 'le'}"
    return "data.csv.encoding=latin-1 (Western Europe), cp1252 (Windows), or the one that the file was written in"


def read_cells(path: Path, na_values: Collection[str] = (), csv: Mapping[str, Any] = {}) -> pandas.DataFrame:
    """Read a CSV file as text, NaN where missing; an error names the argument that an unreadable file needs."""
    options = {"dtype": str, "keep_default_na": False, "na_values": ["", *na_values], **_read_arguments(csv, path)}
    try:
        frame = _read(path, options, csv)
    except _UNREADABLE as error:
        problem = str(error).strip()
        if isinstance(error, UnicodeError):
            if isinstance(error, UnicodeDecodeError):
                problem = f"it is not text in {error.encoding}"
            encoding = _encoding_advice(path, csv)
            hint = "" if encoding is None else f"; write {encoding}"
        else:
            hint = _advice(path, options, csv, problem) if path.is_file() else ""
        raise DataError(f"data.path: {path} cannot be read as CSV: {problem}{hint}") from error
    frame.columns = list(map(str, frame.columns))
    if any("\0" in name for name in frame.columns):
        zeros = _encoding_advice(path, csv, frame.columns)
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
        if "sep" not in csv and (mark := _separator_in(str(header))):
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
