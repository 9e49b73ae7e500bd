"""Between Sacred's forms of what a run holds, and those of its record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from sacred.serializer import flatten

from observers.record.json_text import MAX_NOTED_LEVELS
from observers.record.object_names import named
from observers.record.points.intact_points import read_metrics
from observers.record.points.points import TICKS_PER_S
from observers.record.redaction import hide_passwords
from observers.record.storable import MAX_DIGITS, as_text, is_unwritable, storable_integer

__all__ = ["plain", "sacred_metrics", "to_ticks"]

# Characters of a name or a reason that are shown.
_SHOWN = 80
_TOO_LONG = f"an integer of more than {MAX_DIGITS:,} digits"


def plain(value: Any, odd: dict[str, str] | None = None, *, num_levels: int = MAX_NOTED_LEVELS) -> Any:
    """Return `value` as what JSON holds; what is plain stays as it is, so that doing this twice does no harm.

    Numbers are numbers, also scalars of NumPy, and tensors and arrays without dimensions; tuples are lists; classes and
    functions are their dotted names, and paths text. A value within itself is `{"py/id": LEVEL}` there. Anything else
    is what Sacred's serializer makes of it. Passwords in URLs are hidden.

    Nothing makes this fail: entries that cannot be stored become text, and the others stay.

    Args:
        value: Any value.
        odd: Gets the reason for each entry that became text, by its dotted name.
        num_levels: How deep lists and dicts may be within each other.
    """
    return _Form(num_levels, {} if odd is None else odd).of(value)


class _Form:
    """Makes one value plain, by a stack of its own: Python's is too small for what may be nested; see `plain`."""

    def __init__(self, num_levels: int, odd: dict[str, str]) -> None:
        self._num_levels = num_levels
        self._odd = odd
        # The lists and dicts around what is looked at: what each becomes, and what is left of it.
        self._open: list[tuple[Any, Iterator[tuple[Any, Any]]]] = []
        # They themselves, by their ids, and where in each of them.
        self._around: dict[int, Any] = {}
        self._places: list[Any] = []

    def of(self, value: Any) -> Any:
        found = self._made(value)
        while self._open:
            target, entries = self._open[-1]
            num_open = len(self._open)
            for self._places[-1], item in entries:
                self._put(target, self._places[-1], item)
                if len(self._open) > num_open:
                    break
            else:
                self._open.pop()
                self._around.popitem()
                self._places.pop()
        return found

    def _put(self, target: Any, place: Any, item: Any) -> None:
        if isinstance(target, list):
            target.append(self._made(item))
        else:
            key = self._key(place)
            target[key] = self._made(item)

    def _made(self, value: Any) -> Any:
        """Return what is made of a value; of a list or dict that is empty, and opened."""
        if type(value) is float or value is None:
            return value
        try:
            return self._leaf_or_opened(value)
        except Exception as error:  # whatever a value does that is asked for its entries
            return self._text(as_text(value), f"{type(error).__name__}: {as_text(error)}")

    def _leaf_or_opened(self, value: Any) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return hide_passwords(str.__str__(value))
        if isinstance(value, int):
            return self._integer(int.__int__(value))
        if isinstance(value, float):
            return float.__float__(value)
        if not isinstance(value, Mapping | list | tuple):
            found = named(value)
            value = hide_passwords(found) if isinstance(found, str) else _serialized(value)
            if not isinstance(value, dict | list):
                return value
        return self._opened(value)

    def _integer(self, value: int) -> int | str:
        if not is_unwritable(value):
            return value
        return self._text(storable_integer(value), _TOO_LONG)

    def _opened(self, value: Mapping[Any, Any] | list[Any] | tuple[Any, ...]) -> Any:
        if len(self._open) == self._num_levels:
            return self._text(f"<{type(value).__name__}>", f"more than {self._num_levels} levels deep")
        if id(value) in self._around:
            return {"py/id": list(self._around).index(id(value))}
        # All of it now: others may change it meanwhile.
        if isinstance(value, Mapping):
            self._open.append(({}, iter([(key, item) for key, item in list(value.items())])))
        else:
            self._open.append(([], enumerate(list(value))))
        self._around[id(value)] = value
        self._places.append(None)
        return self._open[-1][0]

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return str.__str__(key)
        if isinstance(key, int) and is_unwritable(key):
            return self._text(storable_integer(key), f"as a key, {_TOO_LONG}")
        try:
            return next(iter(flatten({key: None})))
        except Exception as error:
            return self._text(as_text(key), f"as a key, {type(error).__name__}: {as_text(error)}")

    def _text(self, text: str, reason: str) -> str:
        """Return the text that an entry becomes, and note why."""
        name = ".".join(as_text(place)[:_SHOWN] for place in self._places)
        self._odd[name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}..."] = reason[:_SHOWN]
        return hide_passwords(text)


def _serialized(value: Any) -> Any:
    """Return a number of an array, tensor or scalar that is one, else what the serializer makes of it."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            for kinds, number in (("b", bool), ("iu", int), ("f", float)):
                if value.dtype.kind in kinds:
                    return number(value)
        if isinstance(value, np.ndarray):
            value = np.array(value)  # of its own memory: the serializer does not know others
    except Exception:
        return hide_passwords(as_text(value))  # a tensor that NumPy does not know, such as a sparse one
    found = flatten(value)
    return hide_passwords(found) if isinstance(found, str) else found


def to_ticks(timestamps: list[datetime], start: datetime) -> np.ndarray:
    """Return Sacred's times (n,) as ticks (n,) since the `start` of the run."""
    began = start.replace(tzinfo=None)
    seconds = np.array([(at - began).total_seconds() for at in timestamps])
    return np.maximum(seconds * TICKS_PER_S, 0).astype(np.uint32)


def sacred_metrics(folder: Path, start: datetime) -> dict[str, Any]:
    """Return the `metrics.json` that Sacred would write of the run in `folder`, which started at `start`."""
    began = start.replace(tzinfo=None).timestamp()
    document = {}
    for name, series in read_metrics(folder).items():
        stamps = [datetime.fromtimestamp(began + seconds).isoformat() for seconds in series.times.tolist()]
        document[name] = {"steps": series.steps.tolist(), "values": series.values.tolist(), "timestamps": stamps}
    return document
