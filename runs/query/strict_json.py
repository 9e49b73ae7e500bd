"""Documents as strict JSON, which has no NaN and no infinities."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["strict"]


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
