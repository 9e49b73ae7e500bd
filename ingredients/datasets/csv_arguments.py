"""Arguments of `pandas.read_csv` for files in another form: which there are, and which one a file seems to need."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs import to_plain
from sacristan.configs.nearest import nearest
from sacristan.ingredients.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = [
    "PACKED",
    "check_csv",
    "encoding_advice",
    "in_plain_notation",
    "notation_advice",
    "quoted",
    "read_arguments",
    "separator_in",
]

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


def read_arguments(csv: Mapping[str, Any], path: Path) -> dict[str, Any]:
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
    """Return the arguments that make a column of text numeric, such as `data.csv.decimal=,`.

    At least `share` of its cells must then be numbers. Arguments that `csv` sets already are not suggested.
    """
    present = column.dropna()
    if not len(present) or "thousands" in csv:
        return None
    found = []
    for thousands, decimal in _NOTATIONS:
        if "decimal" in csv and (thousands is None or decimal != csv["decimal"]):
            continue
        grouped = rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|" if thousands else ""
        number = rf"[+-]?(?:{grouped}\d+)?(?:{re.escape(decimal)}\d*)?(?:[eE][+-]?\d+)?"
        marks = [mark for mark in (thousands, None if decimal == "." else decimal) if mark]
        fits = present[present.str.fullmatch(number)]
        if len(fits) >= share * len(present) and all(fits.str.contains(mark, regex=False).any() for mark in marks):
            given = {"thousands": thousands, "decimal": None if decimal in (".", csv.get("decimal")) else decimal}
            found.append(" ".join(quoted(name, mark) for name, mark in given.items() if mark))
    return " or ".join(found[:2]) or None


def separator_in(header: str) -> str | None:
    """Return the separator that a header seems to have instead of a comma."""
    counts = {mark: header.count(mark) for mark in ("\t", ";", "|")}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] else None


def quoted(name: str, mark: str) -> str:
    """Return an argument as it is typed in a shell."""
    quote = '"' if mark == "'" else "'"
    return f"{quote}data.csv.{name}={mark}{quote}".replace("\t", r"\t")


def encoding_advice(path: Path, csv: Mapping[str, Any], columns: Collection[str] = ()) -> str | None:
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
