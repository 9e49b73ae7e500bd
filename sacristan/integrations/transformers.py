"""`SacristanCallback` for a `Trainer` of Transformers.

from sacristan.integrations.transformers import SacristanCallback

trainer = Trainer(model, TrainingArguments("out", report_to="none"), callbacks=[SacristanCallback(name="digits")])
trainer.train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.integrations import rewrite_logs

from sacristan.experiments.running import LabRun
from sacristan.experiments.scripts.tracked_run import TrackedRun
from sacristan.integrations.runs import LoggedRun
from sacristan.observers.file.sacred_form import plain

__all__ = ["SacristanCallback"]


class SacristanCallback(TrainerCallback):
    """Logs what a `Trainer` logs, as `train/loss` and `eval/loss`; its arguments become settings of the run.

    The settings of the model are beside them as `model`. The run goes on after the training.

    Args:
        run: What `sacristan.init` has returned, or `_run` of an experiment; None for the current run, or a new one.
        **options: Arguments of `sacristan.init` for a new one.
    """

    def __init__(self, run: TrackedRun | LabRun | None = None, **options: Any) -> None:
        self._logged = LoggedRun(run, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Add the settings."""
        if not state.is_world_process_zero:
            return
        settings = args.to_dict()
        if hasattr(getattr(model, "config", None), "to_dict"):
            settings["model"] = model.config.to_dict()
        self._logged.update_config({name: plain(value) for name, value in settings.items()})

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Log values at the global step."""
        if state.is_world_process_zero and logs:
            self._logged.log(rewrite_logs(logs), state.global_step)
