"""`LoggedRun`: the run that a logger of another library logs into, started when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacristan.experiments.running import LabRun
from sacristan.experiments.scripts import tracking
from sacristan.experiments.scripts.history import LogWriter, flat
from sacristan.experiments.scripts.tracked_run import TrackedRun

__all__ = ["LoggedRun"]


class LoggedRun:
    """The run of a logger: a given one, the one that `sacristan.init` has started, or a new one.

    Args:
        run: What `init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        options: Arguments of `init` for a new one.
    """

    def __init__(self, run: TrackedRun | LabRun | None, options: Mapping[str, Any]) -> None:
        self._given, self._options = run, dict(options)
        self._writer: LogWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": None, "_options": self._options, "_writer": None}  # a copy logs into the current run

    @property
    def run(self) -> TrackedRun | LabRun:
        """The run; it is started here if there is none."""
        if self._given is None:
            self._given = tracking.current_run() or tracking.init(**self._options)
        return self._given

    @property
    def lab_run(self) -> LabRun | None:
        """Its `LabRun`; None if nothing is recorded."""
        run = self.run
        return run if isinstance(run, LabRun) else run.lab_run

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Log values at a step of the library's own; what is no metric and no medium is left out, with a warning."""
        if self.lab_run is None:
            return
        if self._writer is None:
            self._writer = LogWriter(self.lab_run)
        self._writer.write(flat(values), step)

    def update_config(self, values: Mapping[str, Any]) -> None:
        """Add settings to the config; to that of an experiment, which has its own, as `hyperparameters` of its info."""
        run = self.run
        if isinstance(run, TrackedRun):
            run.config.update(values)
        else:
            known = run.info.get("hyperparameters", {})
            run.info["hyperparameters"] = {**known, **values}

    def finish(self) -> None:
        """End the run of `init`; that of an experiment ends with its main function."""
        if isinstance(self._given, TrackedRun):
            self._given.finish()
