"""Converting what a run holds to JSON for its record, and the record's metrics to Sacred's form."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt
from sacred.serializer import flatten

from sacristan.configs.map import abbreviated
from sacristan.configs.packages import numpy as np
from sacristan.observers.media.arrays import is_masked_array, is_missing, of_known_type, to_numpy
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import MAX_DIGITS, MAX_NOTED_LEVELS, as_text, is_unwritable, storable_integer
from sacristan.observers.record.object_names import named
from sacristan.observers.record.points import TICKS_PER_S, few_points
from sacristan.observers.record.points.intact_points import read_few_points, read_metrics
from sacristan.observers.record.redaction import hide_passwords
from sacristan.observers.record.schema import read_names

_log = logging.getLogger(__name__)

# Characters of a name or a reason that are shown.
_SHOWN = 80
# Entries that are named in one message, and in all.
_SHOWN_ENTRIES, _MOST_ENTRIES = 10, 1000
_TOO_LONG = f"an integer of more than {MAX_DIGITS:,} digits"


def plain(value: Any, odd: dict[str, str] | None = None, *, num_levels: int = MAX_NOTED_LEVELS) -> Any:
    """Return a value as JSON holds it; a plain value stays the same, so converting it twice does no harm.

    Scalars of NumPy, and tensors and arrays without dimensions, become numbers; tuples become lists; classes, functions
    and paths become text. Masked values, and pandas' NA and NaT, become null; of a sparse tensor, indices and values
    are kept. A value that contains itself becomes `{"py/id": LEVEL}` there. Sacred's serializer converts everything
    else. Passwords in URLs are hidden. This never raises: an entry that cannot be stored becomes text, and `odd`
    receives the reason by its dotted name.
    """
    return _Form(num_levels, {} if odd is None else odd).of(value)


class _Form:
    """Converts one value; see `plain`. It has its own stack, because Python's is too small for deep nesting."""

    def __init__(self, num_levels: int, odd: dict[str, str]) -> None:
        self._num_levels = num_levels
        self._odd = odd
        # The lists and dicts around the current value: the result of each, and its remaining entries.
        self._open: list[tuple[Any, Iterator[tuple[Any, Any]]]] = []
        # The same lists and dicts by id, and the current place in each.
        self._around: dict[int, Any] = {}
        self._places: list[Any] = []

    def of(self, value: Any) -> Any:
        result = self._made(value)
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
        return result

    def _put(self, target: Any, place: Any, item: Any) -> None:
        if isinstance(target, list):
            target.append(self._made(item))
        else:
            key = self._key(place)
            target[key] = self._made(item)

    def _made(self, value: Any) -> Any:
        """Convert a value; a list or dict becomes an empty one, and is opened."""
        if type(value) is float or value is None:
            return value
        try:
            return self._leaf_or_opened(value)
        except Exception as error:  # an object may raise anything when it is inspected
            return self._text(as_text(value), f"{type(error).__name__}: {as_text(error)}")

    def _leaf_or_opened(self, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, str):
            return hide_passwords(str.__str__(value))
        if isinstance(value, int):
            return self._integer(int.__int__(value))
        if isinstance(value, float):
            return float.__float__(value)
        if not isinstance(value, Mapping | list | tuple):
            simple = _simplified(value)
            if simple is not value:
                return self._leaf_or_opened(simple)
            name = named(value)
            value = hide_passwords(name) if isinstance(name, str) else _serialized(value)
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
        # Copied, because another thread may change it in the meantime.
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
        """Return an entry's text, and note why it is text."""
        name = ".".join(as_text(key)[:_SHOWN] for key in self._places)
        self._odd[name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}..."] = reason[:_SHOWN]
        return hide_passwords(text)


def _serialized(value: Any) -> Any:
    """Convert a scalar of NumPy to a number, and anything else with Sacred's serializer."""
    has_numpy = "numpy" in sys.modules
    if has_numpy and isinstance(value, np.generic):
        for kinds, number in (("b", bool), ("iu", int), ("f", float)):
            if value.dtype.kind in kinds:
                return number(value)
    if isinstance(value, re.Pattern):
        # The serializer drops the flags, and takes a pattern of bytes for nothing.
        return {"py/object": "re.Pattern", "pattern": flatten(value.pattern), "flags": value.flags}
    if isinstance(value, bytearray):
        return {"py/reduce": [{"py/type": "builtins.bytearray"}, {"py/tuple": [flatten(bytes(value))]}]}
    # A copy of an array, because the serializer does not know subclasses and views.
    serialized = flatten(np.array(value) if has_numpy and isinstance(value, np.ndarray) else value)
    return hide_passwords(serialized) if isinstance(serialized, str) else in_fixed_order(serialized)


def in_fixed_order(form: Any) -> Any:
    """Return what the serializer made with the items of sets in an order that does not depend on hashes."""
    if not isinstance(form, dict | list) or '"py/id"' in json.dumps(form):  # which counts the objects before it
        return form
    return _ordered(form)


def _ordered(form: Any) -> Any:
    if isinstance(form, list):
        return list(map(_ordered, form))
    if not isinstance(form, dict):
        return form
    form = {key: _ordered(item) for key, item in form.items()}
    match form:
        case {"py/set": list(items)}:
            items.sort(key=json.dumps)
        case {"py/reduce": [{"py/type": "builtins.frozenset"}, {"py/tuple": [list(items)]} | [list(items)]]}:
            items.sort(key=json.dumps)
    return form


# ---------------------------------------------------------------------- arrays, tensors and tables


def _simplified(value: Any) -> Any:
    """Return an array, tensor or table as one that the serializer keeps whole: with masks, structures, time zones."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value.detach().cpu())
    if "numpy" not in sys.modules:  # tensors and tables need it, too
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(value)
    pandas = sys.modules.get("pandas")
    return value if pandas is None else _of_table(pandas, value)


def _of_tensor(torch: Any, tensor: Any) -> Any:
    if hasattr(tensor, "get_mask"):  # of torch.masked
        return np.ma.array(tensor.get_data().numpy(), mask=~tensor.get_mask().numpy())
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout != torch.strided:
        entries = tensor.to_sparse_coo().coalesce()
        return {"shape": list(tensor.shape), "indices": entries.indices(), "values": entries.values()}
    return to_numpy(tensor)


def _of_array(array: Any) -> Any:
    if array.dtype.names is not None and array.ndim == 0:
        return dict(zip(array.dtype.names, array.tolist(), strict=True))
    if is_masked_array(array):
        return _unmasked(array)
    if isinstance(array, np.ndarray) and array.ndim == 0:
        return array[()]
    if isinstance(array, np.ndarray) and array.dtype.type is np.longdouble:
        return array.astype(np.float64)
    if array.dtype.kind == "T":  # texts of any length
        return array.astype(object)
    return of_known_type(array)


def _unmasked(array: np.ma.MaskedArray) -> np.ndarray:
    """Return a masked array as one with None, or NaT, in place of the masked values."""
    if array.dtype.names is None and not np.ma.getmaskarray(array).any():
        return np.array(array.data)
    if array.dtype.kind in "mM":
        return array.filled(array.dtype.type("NaT"))
    filled = np.empty(array.shape, object)
    for number, item in enumerate(array.reshape(-1).tolist()):
        filled.reshape(-1)[number] = item  # one by one: a structure is a tuple
    return filled


def _of_table(pandas: Any, value: Any) -> Any:
    if isinstance(value, pandas.api.extensions.ExtensionArray):
        value = pandas.Series(value)
        return _with_null(value).to_numpy() if _is_odd(value.dtype) else value.to_numpy()
    if isinstance(value, pandas.Series) and _is_odd(value.dtype):
        return _with_null(value)
    if isinstance(value, pandas.DataFrame) and any(map(_is_odd, value.dtypes)):
        return _with_null(value)
    return value


def _is_odd(dtype: Any) -> bool:
    """Tell whether values of a type of pandas may be lost; numbers without NA, and objects without null, are kept."""
    return not isinstance(dtype, np.dtype) or dtype.kind not in "biufcO"


def _with_null(table: Any) -> Any:
    return table.astype(object).where(table.notna(), None)


def _keep_masks(masked: ModuleType) -> None:
    """Have masked arrays inside other objects serialized, once jsonpickle is imported."""

    def register(_: ModuleType) -> None:
        from jsonpickle import handlers

        class MaskedHandler(handlers.BaseHandler):
            def flatten(self, obj: np.ma.MaskedArray, data: dict[str, Any]) -> Any:
                return None if is_missing(obj) else self.context.flatten(_unmasked(obj), reset=False)

        for kind in (masked.MaskedArray, type(masked.masked)):
            handlers.register(kind, MaskedHandler)

    wrapt.register_post_import_hook(register, "jsonpickle")


wrapt.register_post_import_hook(_keep_masks, "numpy.ma")


class OddEntries:
    """Converts the entries of one run to JSON, and warns once of each one that becomes text."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reported: set[str] = set()

    def plain(self, part: str, value: Any, *, num_levels: int = MAX_NOTED_LEVELS) -> Any:
        """Convert a part of the record, which warnings name; empty for all of `run.json`."""
        odd: dict[str, str] = {}
        converted = plain(value, odd, num_levels=num_levels)
        named = {f"{part}.{name}" if name and part else part or name: reason for name, reason in odd.items()}
        is_full = len(self._reported) >= _MOST_ENTRIES
        new = [] if is_full else [name for name in named if name not in self._reported]
        if new:
            self._reported.update(new)
            texts = abbreviated((f"{name} ({named[name]})" for name in new), _SHOWN_ENTRIES, ", and {} more")
            _log.warning("%s: noted as text, because JSON cannot hold it: %s", self._journal.folder, texts)
        return converted


def to_ticks(timestamps: list[datetime], start: datetime) -> np.ndarray:
    """Convert Sacred's times (UTC without a time zone) to ticks since the start; 0 for times before it."""
    began = start.replace(tzinfo=None)
    seconds = np.array([(at - began).total_seconds() for at in timestamps])
    return np.maximum(seconds * TICKS_PER_S, 0).astype(np.uint32)


def sacred_metrics(folder: Path, start: datetime) -> dict[str, Any]:
    """Return the `metrics.json` that Sacred would write for a run."""
    began = start.replace(tzinfo=None).timestamp()

    def entry(times: Iterable[float], steps: list, values: list) -> dict[str, list]:
        stamps = [datetime.fromtimestamp(began + seconds).isoformat() for seconds in times]
        return {"steps": steps, "values": values, "timestamps": stamps}

    names = read_names(folder)
    # A metric with steps of both kinds has two ids, and floats alone.
    points = read_few_points(folder) if len({name for name, _ in names.values()}) == len(names) else None
    if points is None:
        columns = read_metrics(folder).items()
        return {name: entry(each.times.tolist(), each.steps.tolist(), each.values.tolist()) for name, each in columns}
    rows, document = few_points(points, names), {}
    for name, _ in names.values():
        times, steps, values = map(list, zip(*rows[name], strict=True)) if name in rows else ([], [], [])
        document[name] = entry((time / TICKS_PER_S for time in times), steps, values)
    return document
