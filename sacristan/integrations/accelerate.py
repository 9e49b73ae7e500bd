"""`SacristanTracker` for an `Accelerator`.

from sacristan.integrations.accelerate import SacristanTracker

accelerator = Accelerator(log_with=SacristanTracker("digits"))
accelerator.init_trackers("digits", config={"lr": 0.1})
accelerator.log({"train/loss": loss}, step)
accelerator.end_training()
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from sacristan.experiments.running import LabRun
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.integrations.runs import LoggedRun
from sacristan.observers.errors import MediaError

__all__ = ["SacristanTracker"]

_log = logging.getLogger(__name__)


class SacristanTracker(GeneralTracker):
    """Logs what an `Accelerator` logs into a run; its settings become those of the run.

    Args:
        run_name: The name of the run.
        run: What `sacristan.init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        **options: Arguments of `sacristan.init` for a new one.
    """

    name = "sacristan"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run_name: str | None = None, *, run: TrackedRun | LabRun | None = None, **options: Any) -> None:
        super().__init__()
        self._logged = LoggedRun(run, {"name": run_name, **options})

    @property
    def tracker(self) -> TrackedRun | LabRun:
        """The run."""
        return self._logged.run

    @on_main_process
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Add settings to the config of the run."""
        self._logged.update_config(values)

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log values at a step; without one, each metric counts its own."""
        self._logged.log(values, step)

    @on_main_process
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log images: arrays (N, H, W, C), or lists of images, by name."""
        from sacristan.observers.media.kinds import Image, Media

        for name, many in values.items():
            try:
                images = [each if isinstance(each, Media) else Image(each) for each in many]
            except (MediaError, TypeError) as error:
                _log.warning("%s: %s; it is left out", name, error)
            else:
                self._logged.log({name: images}, step)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        self._logged.finish()
