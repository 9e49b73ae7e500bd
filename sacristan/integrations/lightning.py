"""`SacristanLogger` for a `Trainer` of Lightning in a script of your own.

    from sacristan.integrations.lightning import SacristanLogger

    trainer = Trainer(logger=SacristanLogger(name="digits"))

Metrics keep their names and steps; hyperparameters become settings of the run. In an experiment of the lab, give it
`_run`: see `sacristan.experiments.lightning`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from sacristan.experiments.running import LabRun
from sacristan.experiments.running.lightning_logger import SacristanLogger as LoggerOfRun
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.integrations.runs import LoggedRun
from sacristan.observers.file.sacred_form import plain

__all__ = ["SacristanLogger"]


class SacristanLogger(LoggerOfRun):
    """Writes what Lightning logs into a run; see `sacristan.experiments.lightning.SacristanLogger`.

    Args:
        run: What `sacristan.init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        **options: Arguments of `sacristan.init` for a new one.

    Example:
        trainer = Trainer(max_epochs=3, logger=SacristanLogger(project="digits"))
        trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(self, run: TrackedRun | LabRun | None = None, **options: Any) -> None:
        self._logged = LoggedRun(run, options)
        super().__init__(None)  # type: ignore[arg-type]  # the property below is the run

    @property
    def run(self) -> Any:
        """The `LabRun`; None in a run that is not recorded."""
        return self._logged.lab_run

    @run.setter
    def run(self, run: Any) -> None:
        """Leave the run to this class, whose base class sets it."""

    @property
    def experiment(self) -> Any:
        """What `sacristan.init` has returned, or `_run`; a module logs media by it."""
        return self._logged.run

    @property
    def save_dir(self) -> str | None:
        return None if self.run is None else super().save_dir

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._logged.log(self._without_repeated_epoch(metrics, step), step)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        given = vars(params) if isinstance(params, Namespace) else params or {}
        self._logged.update_config({str(name): plain(value) for name, value in given.items()})

    @rank_zero_only
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        if self.run is not None:
            super().log_graph(model, input_array)

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        if self.run is not None:
            super().after_save_checkpoint(checkpoint_callback)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.run is not None:
            super().finalize(status)
