"""Between Sacred's forms of what a run holds, and those of its record."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from sacred.serializer import flatten

from observers.record.object_names import named
from observers.record.point_files import as_text
from observers.record.points import TICKS_PER_S, read_metrics
from observers.record.redaction import hide_passwords

__all__ = ["plain", "sacred_metrics", "to_ticks"]


def plain(value: Any) -> Any:
    """Return `value` as what JSON holds; what is plain stays as it is, so that doing this twice does no harm.

    Numbers are numbers, also scalars of NumPy, and tensors and arrays without dimensions; tuples are lists; classes and
    functions are their dotted names, and paths text. Anything else is what Sacred's serializer makes of it, or text
    where that fails. Passwords in URLs are hidden.
    """
    try:
        return _plain(value)
    except RecursionError:  # nested too deeply, or within itself
        return _serialized(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            found = value if type(value) is kind else getattr(kind, f"__{kind.__name__}__")(value)
            return hide_passwords(found) if kind is str else found
    if isinstance(value, Mapping):
        # Others may change it meanwhile.
        return {_key(key): _plain(item) for key, item in list(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    found = named(value)
    return hide_passwords(found) if isinstance(found, str) else _plain_array(value)


def _plain_array(value: Any) -> Any:
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
    return _serialized(value)


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else next(iter(_serialized({key: None})))


def _serialized(value: Any) -> Any:
    try:
        found = flatten(value)
    except Exception:
        found = json.loads(json.dumps(value, default=as_text))
    return hide_passwords(found)


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
