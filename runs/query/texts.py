"""Values as text: rounded numbers, local times, durations, sizes and counts for people, strict JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

from sacristan.configs.map import abbreviated

MISSING = "-"
_LISTED = 5
_MOST_LETTERS = 200
STATUS_STYLES = {
    "COMPLETED": "green",
    "RUNNING": "cyan",
    "QUEUED": "cyan",
    "HELD": "yellow",
    "FAILED": "red",
    "UNREADABLE": "red",
    "DEAD": "yellow",
    "INTERRUPTED": "yellow",
    "TIMEOUT": "yellow",
    "PRUNED": "magenta",
    "COMPLETED_WITH_LOSS": "yellow",
}


def value_text(value: Any, *, exact: bool = False) -> str:
    """Return a value as the text of a table's cell; unless `exact`, floats have five digits and long JSON is cut."""
    if value is None:
        return MISSING
    if isinstance(value, float) and not exact:
        return f"{value:.5g}"
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return repr(value)
    text = json.dumps(strict(value), ensure_ascii=False)
    return text if exact or len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


def is_number(value: Any) -> TypeGuard[int | float]:
    """Tell whether a value is a number, which tables align right; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell_text(text: str) -> str:
    """Return a text as a cell of a CSV file that no spreadsheet executes as a formula.

    One that begins like a formula and is no number gets a leading `'`. Source:
    https://owasp.org/www-community/attacks/CSV_Injection
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def duration_text(seconds: float | None) -> str:
    """Return a duration in its two largest units, such as `59.3s`, `4m07s`, `2h15m` or `3d01h`; None is `MISSING`."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 59.95 else "1m00s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24:02}h"


def time_text(time: Any, *, exact: bool = False, short: bool = False) -> str:
    """Return a time in the local zone, such as `2026-01-31 13:05`.

    A datetime or a text in ISO 8601 is in UTC unless it has a zone; other values get `value_text`. `exact` shows
    seconds; `short` writes a time of this year as `Jan 31 13:05`, and others as `2025-01-31`.
    """
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return time
    if not isinstance(time, datetime):
        return value_text(time)
    local = _in_local_zone(time)
    if short:
        return local.strftime("%b %d %H:%M" if local.year == datetime.now().year else "%Y-%m-%d")
    return local.strftime("%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M")


def _in_local_zone(time: datetime) -> datetime:
    try:
        return time.replace(tzinfo=UTC).astimezone() if time.tzinfo is None else time.astimezone()
    except (OverflowError, ValueError):  # the year 1
        return time


def utc(text: Any) -> Any:
    """Return a recorded time with its zone, `Z`, for JSON; anything but a text in ISO 8601 is returned unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return text + "Z" if datetime.fromisoformat(text).tzinfo is None else text
    except ValueError:
        return text


def size_text(num_bytes: float) -> str:
    """Return a size with three digits and its decimal unit, such as `1.23 MB`; from 1,000 TB on, the unit stays TB."""
    power = 0
    while num_bytes >= 999.5 and power < 4:
        num_bytes /= 1000
        power += 1
    unit = ("bytes", "kB", "MB", "GB", "TB")[power]
    return f"{num_bytes:.3g} {unit}" if power else f"{num_bytes:.0f} {unit}"


def short_text(value: Any, most: int, *, exact: bool = False) -> str:
    """Return a value as text of at most `most` characters; `exact` shows all digits of a float, otherwise five."""
    try:
        text = value_text(value, exact=exact)
    except (RecursionError, ValueError):  # nested too deeply; an integer of more digits than Python writes
        text = f"({type(value).__name__}, too large to show)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 run` or `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_text(names: Iterable[object], most: int = _LISTED) -> str:
    """Return names joined by commas, each once, and how many more there are than `most`."""
    return abbreviated(dict.fromkeys(map(str, names)), most, ", and {} more")


def strict(value: Any) -> Any:
    r"""Return a document as strict JSON can hold it.

    NaN and infinities become the texts that Python's `float` and JavaScript's `Number` parse; keys become texts, tuples
    lists, dataclasses their fields, and other objects their `str`. Lone surrogates, as in names of files that are not
    UTF-8, are escaped (`\udcff`), as strict parsers reject them.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_whole(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if dataclasses.is_dataclass(value):
        return strict(vars(value))
    return _whole(str(value))


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
