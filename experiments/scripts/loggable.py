"""What scripts log, as a run takes it: numbers and media. Nothing that a script logs ends it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from sacred.utils import SacredInterrupt

from sacristan.configs.map import flattened
from sacristan.experiments.running.logged_values import as_numbers
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.media.kinds import Figure, Histogram, Html, Image, Media, Text

__all__ = ["LogWriter", "flat"]

_log = logging.getLogger(__name__)

# Arrays with more entries become histograms, as in W&B.
_MOST_ENTRIES, _NUM_BINS = 32, 32


def flat(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values by name, those of nested mappings by names joined with dots; `Numbers` if all are plain."""
    numbers = as_numbers(values)
    if numbers is not None:
        return numbers
    if any(isinstance(value, Mapping) for value in values.values()):
        return dict(flattened(values, "", ".", lambda value: isinstance(value, Mapping)))
    return values


class LogWriter:
    """Writes what a script logs into a run; each value that it cannot take is named in one warning, and left out.

    Args:
        run: The run, a `LabRun`, or another object with its `log`, `log_quickly` and `info`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._warned: set[str] = set()

    def write(self, values: Mapping[str, Any], step: Any) -> None:
        """Log values by name at one step; all of them, before what ends a trial of a sweep is raised."""
        pruned = None
        for name, value in self._run.log_quickly(values, step).items():
            for each in _loggable(value, self._warned):
                try:
                    self._run.log({name: each}, step)
                    if isinstance(each, Text) and each is not value:
                        self._run.info.setdefault("summary", {})[name] = value if isinstance(value, str) else str(value)
                except (MetricError, MediaError) as error:
                    self._warn(name, error)
                except SacredInterrupt as end:
                    pruned = end
        if pruned is not None:
            raise pruned

    def _warn(self, name: str, error: Exception) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("%s: %s; this value is left out, and so are further ones like it", name, error)


def _loggable(value: Any, warned: set[str]) -> Iterator[Any]:
    """Yield the numbers and media that a value is recorded as; none for None."""
    if value is None:
        return
    if isinstance(value, (float, int, Media)):
        yield value
    elif isinstance(value, str):
        yield Text(value)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Media) for item in value):
        yield from value
    else:
        yield from _of_object(value, warned)


def _of_object(value: Any, warned: set[str]) -> Iterator[Any]:
    kind = type(value).__name__
    try:
        size = _num_entries(value)
        if size == 1:
            yield value
        elif size is not None and size > _MOST_ENTRIES:
            yield Histogram(value, bins=_NUM_BINS)
        elif size is not None:
            yield Text(json.dumps(value.tolist()))
        elif hasattr(value, "savefig"):
            yield Figure(value)
        elif hasattr(getattr(value, "figure", None), "savefig"):  # axes
            yield Figure(value.figure)
        elif getattr(value, "__name__", "") == "matplotlib.pyplot":
            yield Figure(value.gcf())
        elif hasattr(value, "to_html"):  # figures of Plotly, tables of pandas
            yield Html(value.to_html())
        elif hasattr(value, "convert"):  # an image of Pillow
            yield Image(value)
        elif isinstance(value, list | tuple | set | frozenset):
            yield Text(json.dumps(list(value), default=str))
        else:
            yield value if hasattr(value, "__float__") else Text(str(value))
    except Exception as error:  # of an object, which may raise anything
        if kind not in warned:
            warned.add(kind)
            _log.warning("a %s cannot be logged (%s: %s), and is left out", kind, type(error).__name__, error)


def _num_entries(value: Any) -> int | None:
    """Return the number of entries of an array or a tensor; None for anything else."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "tolist"):
        number = value.numel() if hasattr(value, "numel") else value.size
        return int(number)
    return None
