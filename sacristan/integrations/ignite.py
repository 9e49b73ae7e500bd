"""`SacristanLogger` for engines of Ignite, with the handlers that its loggers have.

from sacristan.integrations.ignite import SacristanLogger

logger = SacristanLogger(name="digits", config={"lr": 0.1})
logger.attach_output_handler(
    trainer, event_name=Events.ITERATION_COMPLETED, tag="training", output_transform=lambda loss: {"loss": loss}
)
logger.attach_opt_params_handler(trainer, event_name=Events.ITERATION_STARTED, optimizer=optimizer)
"""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine
from ignite.handlers.base_logger import BaseLogger, BaseOptimizerParamsHandler, BaseOutputHandler

from sacristan.experiments.running import LabRun
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.integrations.runs import LoggedRun

__all__ = ["OptimizerParamsHandler", "OutputHandler", "SacristanLogger"]


class SacristanLogger(BaseLogger):
    """Logs outputs, metrics and settings of optimizers into a run.

    Args:
        run: What `sacristan.init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        **options: Arguments of `sacristan.init` for a new one.
    """

    def __init__(self, run: TrackedRun | LabRun | None = None, **options: Any) -> None:
        self._logged = LoggedRun(run, options)

    @property
    def run(self) -> TrackedRun | LabRun:
        """The run."""
        return self._logged.run

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log values at a step."""
        self._logged.log(values, step)

    def close(self) -> None:
        """End the run."""
        self._logged.finish()

    def _create_output_handler(self, *args: Any, **kwargs: Any) -> OutputHandler:
        return OutputHandler(*args, **kwargs)

    def _create_opt_params_handler(self, *args: Any, **kwargs: Any) -> OptimizerParamsHandler:
        return OptimizerParamsHandler(*args, **kwargs)


class OutputHandler(BaseOutputHandler):
    """Logs outputs and metrics of an engine as `TAG/NAME`; the arguments are those of Ignite's own."""

    def __call__(self, engine: Engine, logger: Any, event_name: Any) -> None:
        step = self.global_step_transform(engine, event_name)
        logger.log(self._setup_output_metrics_state_attrs(engine, log_text=True, key_tuple=False), step)


class OptimizerParamsHandler(BaseOptimizerParamsHandler):
    """Logs a setting of an optimizer, such as `lr/group_0`; the arguments are those of Ignite's own."""

    def __call__(self, engine: Engine, logger: Any, event_name: Any) -> None:
        prefix = f"{self.tag}/" if self.tag else ""
        values = {
            f"{prefix}{self.param_name}/group_{number}": group[self.param_name]
            for number, group in enumerate(self.optimizer.param_groups)
        }
        logger.log(values, engine.state.get_event_attrib_value(event_name))
