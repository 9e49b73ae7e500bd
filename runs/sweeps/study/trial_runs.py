"""The runs of a point: how they are started, what became of them, and what they say of the objectives."""

from __future__ import annotations

import ast
import dataclasses
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.record.identity import RECORD_TO_VARIABLE
from sacristan.runs.errors import LaunchError, StoreError
from sacristan.runs.query.texts import is_number
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.resuming import resume_launch
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.store import Store
from sacristan.runs.sweeps.spec.definition import Definition

__all__ = ["base_metric", "earlier_run", "objective_value", "resumed", "setting_text", "trial_launch"]

_log = logging.getLogger(__name__)

_STATISTICS = ("last", "min", "max", "mean")


def trial_launch(
    definition: Definition, settings: Mapping[str, Any], base: Path, options: Sequence[str], environment: dict[str, str]
) -> Launch:
    """Return how a run of a sweep starts with a point's settings, given by dotted key."""
    how = ["-P", "-m", definition.module] if definition.module else [str(definition.path)]
    fixed = [word for word in definition.settings if word.partition("=")[0] not in settings]
    words = [*fixed, *(f"{key}={setting_text(value)}" for key, value in settings.items())]
    command = [sys.executable, *how, *(["with", *words] if words else []), *definition.options, *options]
    variables = {RECORD_TO_VARIABLE: str(base.absolute()), **environment}
    if definition.module:
        variables["PYTHONPATH"] = definition.base
    return Launch(tuple(command), Path(definition.cwd), variables, ())


def setting_text(value: Any) -> str:
    """Return a value as the command line needs it, so that Sacred reads the same value back."""
    if not isinstance(value, str):
        return _literal(value)
    if value != value.strip():
        return repr(value)  # Sacred strips what is bare
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    except (TypeError, MemoryError, RecursionError):
        pass  # which Sacred would not survive either
    return repr(value)  # a text that would be read as something else


def _literal(value: Any) -> str:
    """Return a value as a Python literal, which has no word for infinity."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


def earlier_run(store: Store, sweep: str, point: int, seed: int | None) -> Run | None:
    """Return the newest run of a point, None if there is none; the seed counts only if the point has several seeds."""
    wanted: list[tuple[str, str, Any]] = [("meta.sweep.id", "=", sweep), ("meta.sweep.trial", "=", point)]
    found: list[Run] = store.find(wanted)
    if seed is not None:
        found = [run for run in found if run["meta.sweep.parameters"].get("seed") == seed]
    return found[0] if found else None


def resumed(run: Run, definition: Definition) -> Launch | None:
    """Return how the script of a sweep resumes an ended run from its newest state.

    None if the run has no state on this machine, or cannot be resumed; a warning gives the reason for the latter.
    """
    try:
        if not list(run.checkpoints):
            return None
        return dataclasses.replace(resume_launch(run, script=definition.path), cwd=Path(definition.cwd))
    except (LaunchError, StoreError) as error:
        _log.warning("run %s of the sweep is not resumed; its trial starts over: %s", run.id, error)
        return None


def objective_value(run: Run, name: str) -> float | str:
    """Return the value of an ended run in an objective; a text explains a missing one.

    The objective is `result`, `result.NAME`, a metric (its last value), or a metric and a statistic: `val/loss.min`.
    """
    if name == "result" or name.startswith("result."):
        value = run.get(name)
        if not is_number(value):
            return f"run {run.id} returned {value!r}, expected a number for the objective {name}"
    else:
        metric = base_metric(name)
        statistic = name[len(metric) + 1 :] or "last"
        if metric not in run.summary:
            logged = ", ".join(sorted(run.summary)) or "nothing"
            return f"run {run.id} logged no {metric}, which the sweep optimizes; it logged: {logged}"
        value = run.summary[metric].get(statistic)
    if value is None or not math.isfinite(value):
        return f"{name} of run {run.id} is {value}"
    return float(value)


def base_metric(name: str) -> str:
    """Return the metric that an objective is about: `val/loss` of `val/loss.min`."""
    metric, dot, statistic = name.rpartition(".")
    return metric if dot and statistic in _STATISTICS else name
