"""`History`: what scripts log, under the step it belongs to; and `LogWriter`: the numbers and media that it becomes.

The rules are those of W&B, which scripts were written for:

- a call without `step` and `commit` is a row of its own: the next one has the next step;
- `commit=False`, or a `step`, leaves the row open: the next call without a step adds to it, and closes it;
- a `step` below the current one is dropped, with one warning;
- `define_metric("val/*", step_metric="epoch")` gives these metrics the value of `epoch` as their step.

Source: https://docs.wandb.ai/ref/python/log, https://docs.wandb.ai/ref/python/run#define_metric, and `wandb` 0.31.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sacred.utils import SacredInterrupt

from sacristan.configs.map import flattened
from sacristan.experiments.running.logged_values import as_numbers
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.errors import MediaError, MetricError
from sacristan.observers.media.kinds import Figure, Histogram, Html, Image, Media, Text

_log = logging.getLogger(__name__)

Values = Mapping[str, Any]
_SUMMARIES = ("min", "max", "mean", "first", "last", "best", "copy", "none")


class MetricRule(NamedTuple):
    """The rule that `define_metric` sets for a metric, or for all that match a name ending with `*`.

    `step_metric` is the metric whose value is the step; with `step_sync`, its last value where a row has none.
    `summary` says which values it keeps, empty for the last one; `goal` is `minimize`, `maximize` or None.
    """

    name: str
    step_metric: str | None = None
    step_sync: bool | None = None
    summary: tuple[str, ...] = ()
    goal: str | None = None

    def fits(self, name: str) -> bool:
        """Tell whether it is about a metric; a metric is never the step of itself."""
        if name == self.step_metric:
            return False
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    @property
    def better(self) -> str | None:
        """`min` or `max` if the rule says which values are better."""
        by_goal = {"minimize": "min", "maximize": "max"}.get(self.goal or "")
        kept = [each for each in self.summary if each in ("min", "max")]
        return by_goal or (kept[0] if len(kept) == 1 else None)


class History:
    """Gives the values of each call of `log` their step, and passes them on at once: a killed script loses none.

    Any thread may log. `write` takes values and their step, `step` is that of the open or next row, `last` the values.
    """

    def __init__(self, write: Callable[[Values, Any], None]) -> None:
        self.write = write
        self.step = 0
        self.last: dict[str, Any] = {}
        self.rules: dict[str, MetricRule] = {}
        self._rule_of: dict[str, MetricRule | None] = {}
        self._extremes: dict[str, dict[str, Any]] = {}
        # Values whose step metric the open row may still get.
        self._waiting: dict[str, Any] = {}
        self._has_warned = False
        self._lock = threading.RLock()

    def after_fork_in_child(self) -> None:
        """Release the lock, which a thread of the parent may hold."""
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ logging

    def log(self, values: Values, step: Any = None, commit: bool | None = None) -> None:
        """Log unnested values at `step`, or the current one; a `commit` of None closes the row without a `step`."""
        with self._lock:
            if step is not None and not self._open(step if type(step) is int else _whole(step)):
                return
            closes = step is None if commit is None else commit
            if self.rules:
                self._log_by_rules(values, closes=closes)
            else:
                self.write(values, self.step)
            self.last.update(values)
            if closes:
                self.step += 1

    def _open(self, step: int) -> bool:
        """Open the row of a step; tell whether it can be: none is opened again."""
        if step > self.step:
            self._write_waiting()
            self.step = step
        elif step < self.step:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "log: got step %d, which is below the current step %d: its values are dropped, as are those of "
                    "further ones; steps may only grow. Give metrics with steps of their own a metric to count them: "
                    'define_metric("val/*", step_metric="epoch")',
                    step,
                    self.step,
                )
            return False
        return True

    def flush(self) -> None:
        """Write what still waits for the end of the open row."""
        with self._lock:
            self._write_waiting()

    # ------------------------------------------------------------------ metrics with rules

    def define(
        self,
        name: str,
        step_metric: str | None = None,
        step_sync: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        *,
        overwrite: bool = False,
    ) -> MetricRule:
        """Set the rule of a metric, or of all that match `val/*`; None keeps the earlier value, unless `overwrite`."""
        if not isinstance(name, str) or not name or "*" in name[:-1]:
            raise ConfigError(f"define_metric: got the name {name!r}, expected a name, perhaps with a * at its end")
        kept = tuple(each.strip().lower() for each in (summary or "").split(",") if each.strip())
        for each in kept:
            if each not in _SUMMARIES:
                raise ConfigError(f"define_metric: got summary={each!r}, expected some of {', '.join(_SUMMARIES)}")
        if goal not in (None, "minimize", "maximize"):
            raise ConfigError(f"define_metric: got goal={goal!r}, expected minimize or maximize")
        new = MetricRule(name, step_metric, step_sync, kept, goal)
        before = self.rules.get(name)
        if before is not None and not overwrite:
            earlier = {field: value for field, value in before._asdict().items() if not getattr(new, field)}
            new = new._replace(**earlier)
        with self._lock:
            self.rules[name] = new
            self._rule_of.clear()
        return new

    def rule_of(self, name: str) -> MetricRule | None:
        """Return the rule of a metric, an exact name before a beginning of one; None if there is none."""
        if name not in self._rule_of:
            exact = self.rules.get(name)
            fitting = (rule for rule in self.rules.values() if rule.fits(name))
            self._rule_of[name] = exact if exact is not None else next(fitting, None)
        return self._rule_of[name]

    def _log_by_rules(self, values: Values, *, closes: bool) -> None:
        plain: dict[str, Any] = {}
        drawn: dict[str, Any] = {}
        for name, value in values.items():
            rule = self.rule_of(name)
            if rule is not None and rule.summary:
                self._summarize(name, value)
            (plain if rule is None or rule.step_metric is None else drawn)[name] = value
        self.write(plain, self.step)
        # The row has the values of earlier calls as well, as long as it is open.
        self._waiting.update(drawn)
        self.last.update(plain)
        if closes:
            self._write_waiting(plain)
        else:
            self._write_waiting(plain, only_known=True)

    def _write_waiting(self, row: Values | None = None, *, only_known: bool = False) -> None:
        """Write the values that have a step metric; `only_known` leaves those whose step this row may still get."""
        if not self._waiting:
            return
        by_step: dict[Any, dict[str, Any]] = {}
        inserted: dict[str, Any] = {}
        for name, value in list(self._waiting.items()):
            rule = self.rule_of(name)
            metric = None if rule is None else rule.step_metric
            is_here = metric is not None and row is not None and metric in row
            if only_known and not is_here:
                continue
            del self._waiting[name]
            at = self.step
            if metric is not None and (is_here or (rule is not None and rule.step_sync is not False)):
                at = self.last.get(metric, self.step)
                if not is_here and metric in self.last and row is not None:
                    inserted[metric] = at
            by_step.setdefault(_as_step(at, self.step), {})[name] = value
        if inserted:
            self.write(inserted, self.step)
        for at, values in by_step.items():
            self.write(values, at)

    # ------------------------------------------------------------------ the summary

    def _summarize(self, name: str, value: Any) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return
        if math.isnan(number):
            return
        so_far = self._extremes.setdefault(name, {"first": value, "min": value, "max": value, "sum": 0.0, "num": 0})
        so_far["min"] = value if number < float(so_far["min"]) else so_far["min"]
        so_far["max"] = value if number > float(so_far["max"]) else so_far["max"]
        so_far["sum"] += number
        so_far["num"] += 1

    def summary_of(self, name: str) -> Any:
        """Return what the summary has of a metric: its last value, or a dict of what its rule asks for."""
        rule = self.rule_of(name)
        if rule is None or not rule.summary:
            return self.last[name]
        so_far = self._extremes.get(name, {})
        if not so_far:
            return self.last[name]
        found = {"last": self.last[name], "mean": so_far["sum"] / so_far["num"], **so_far}
        found["best"] = so_far["max" if rule.goal == "maximize" else "min"]
        return {each: found[each] for each in rule.summary if each in found}

    def summarized(self) -> Iterator[str]:
        """Yield the names of the metrics that are in the summary."""
        for name in list(self.last):
            rule = self.rule_of(name)
            if rule is None or "none" not in rule.summary:
                yield name


def _whole(step: Any) -> int:
    if isinstance(step, float) and step.is_integer():
        return int(step)
    try:
        return operator.index(step.item() if hasattr(step, "item") else step)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"log: got step={step!r}, expected a whole number") from None


def _as_step(value: Any, default: int) -> int | float:
    """Return the value of a step metric as a step; the row's own where it is no finite number."""
    try:
        number = value.item() if hasattr(value, "item") else value
        return number if isinstance(number, int) or math.isfinite(number) else default
    except (TypeError, ValueError, RuntimeError):
        return default


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
    """Writes what a script logs into a run; values that it cannot take are left out, with a warning for each."""

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
