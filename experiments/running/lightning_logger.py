"""Lightning's trainings in runs of the lab: a Logger that writes into a run; ending and resuming a training.

Imports lightning at its top; `sacristan.experiments.lightning` imports this module when it is needed.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

from sacristan.configs.nearest import misspelt
from sacristan.experiments.running import LabRun
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.file.sacred_form import plain

__all__ = ["RunKeeper", "SacristanLogger", "ending_as_the_run"]

# Key of the lab's entries in a checkpoint of Lightning's.
_KEY = "sacristan"


class SacristanLogger(Logger):
    """Writes what Lightning logs into a run: metrics, hyperparameters, the model's graph, where its checkpoints are.

    Metrics keep their names and steps. Hyperparameters are in the run's info under `hyperparameters`, and under
    `checkpoints` the best and the last one with the score. Those that lie outside of the run's folder are copied into
    it as artifacts when Lightning has completed. By default Lightning saves them to `checkpoints/` of the run's folder:
    therefore name and version are empty.

    Args:
        run: The run, `_run` of a captured function.

    Attributes:
        run: The run; also as `experiment`, by which a module logs media:
            `self.logger.experiment.log_media("samples", Image(pixels), self.global_step)`.

    Example:
        @ex.automain
        def main(_run):
            trainer = Trainer(max_epochs=3, logger=SacristanLogger(_run))
            with ending_as_the_run(_run):
                trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(self, run: LabRun) -> None:
        super().__init__()
        self.run = run
        self._epoch_at: int | None = None
        self._outside: set[Path] = set()

    @property
    def experiment(self) -> LabRun:
        """The run."""
        return self.run

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str | None:
        return None if self.run.folder is None else str(self.run.folder)

    @property
    def root_dir(self) -> str | None:
        return self.save_dir

    @property
    def log_dir(self) -> str | None:
        return self.save_dir

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in self._without_repeated_epoch(metrics, step).items():
            self.run.log_scalar(name, value, step)

    def _without_repeated_epoch(self, metrics: Mapping[str, Any], step: int | None) -> Mapping[str, Any]:
        """Return metrics without the epoch, which Lightning adds to every group, if the step has it."""
        if "epoch" not in metrics:
            return metrics
        is_repeated, self._epoch_at = step is not None and step == self._epoch_at, step
        return {name: value for name, value in metrics.items() if name != "epoch" or not is_repeated}

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        hyperparameters = vars(params) if isinstance(params, Namespace) else params
        recorded = self.run.info.get("hyperparameters", {})
        self.run.info["hyperparameters"] = recorded | {
            str(name): plain(value) for name, value in hyperparameters.items()
        }

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        if input_array is not None:
            self.run.log_graph(model, input_array)

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        best, last = checkpoint_callback.best_model_path, checkpoint_callback.last_model_path
        checkpoints = {"best": best, "last": last}
        self._outside = {Path(path) for path in checkpoints.values() if path and self._below_the_run(path) is None}
        noted = {name: self._below_the_run(path) or path for name, path in checkpoints.items() if path}
        if checkpoint_callback.monitor is not None:
            self.run.note_better({checkpoint_callback.monitor: checkpoint_callback.mode})
            noted |= {"monitor": checkpoint_callback.monitor, "score": plain(checkpoint_callback.best_model_score)}
        self.run.info["checkpoints"] = noted

    def _below_the_run(self, path: str) -> str | None:
        """Return a path below the run's folder; None for one outside of it."""
        folder = self.run.folder
        if folder is None or not Path(path).resolve().is_relative_to(folder.resolve()):
            return None
        return Path(path).resolve().relative_to(folder.resolve()).as_posix()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success" and self.run.folder is not None:
            for path in sorted(self._outside):
                self.run.add_artifact(path)
            self._outside = set()


class RunKeeper(Callback):
    """Keeps a run's record in step with Lightning's checkpoints, and ends a training at a signal, once it is saved."""

    def __init__(self, run: LabRun, folder: Path) -> None:
        self.run = run
        self.last = folder / "last.ckpt"

    def start(self, resume: str | None) -> str | None:
        """Return the checkpoint that `checkpoint.resume` starts from; rewind a resumed run that has none."""
        if self.run.is_resumed and self.last.is_file():
            return str(self.last)
        if self.run.is_resumed:
            self.run.rewind()
        return None if resume in (None, "auto") else resume

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reject a monitor that is a misspelt validation metric, before the first step."""
        measured = [name for name in trainer.callback_metrics if name not in ("epoch", "step")]
        for callback in trainer.callbacks:
            monitor = getattr(callback, "monitor", None)
            if isinstance(monitor, str) and (near := misspelt(monitor, measured)):
                raise ConfigError(
                    f"{type(callback).__name__}: got monitor={monitor!r}, which the module does not log; did you mean "
                    f"{near}?"
                )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.run.flush()
        checkpoint[_KEY] = {"position": self.run.position(), "step": trainer.global_step}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # A test loads one as well.
        if trainer.state.fn == "fit" and self.run.is_resumed and _KEY in checkpoint:
            self.run.rewind(checkpoint[_KEY]["position"], checkpoint[_KEY]["step"])

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.stop_if_asked(trainer)

    def stop_if_asked(self, trainer: Trainer) -> None:
        """Save the state to the last checkpoint and raise `Terminated`, if a signal was held back."""
        if self.run.stopping is not None:
            trainer.save_checkpoint(self.last)
            self.run.stop(trainer.global_step)


@contextlib.contextmanager
def ending_as_the_run(run: LabRun) -> Iterator[None]:
    """Let a signal end a run as INTERRUPTED, although Lightning ends the process by `sys.exit`.

    Raises `KeyboardInterrupt`, or `Terminated` after a signal other than Ctrl-C, instead of Lightning's SystemExit.
    """
    try:
        yield
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise end.__context__ from None
        if run.stopping is not None:
            run.stop()
        raise
