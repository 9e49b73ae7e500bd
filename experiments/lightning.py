"""Run your LightningModule and LightningDataModule, unchanged, as recorded runs with our command line and config.

sacristan lightning with module.name=my_code:Net datamodule.name=my_code:Digits trainer.max_epochs=3
sacristan lightning with lit.yaml module.options.lr=1e-3 trainer.accumulate_grad_batches=2
sacristan lightning print_config with lit.yaml

`module`, `datamodule` and `callbacks` have `name` and `options`, as everywhere in the lab; `trainer` has the arguments
of `lightning.Trainer`. A `SacristanLogger` records the module's metrics and hyperparameters; `self.logger.experiment`
is the run. Checkpoints are in `checkpoints/` of the run's folder. `sacristan resume ID`, and
`checkpoint.resume=auto`, resume from `last.ckpt`.

In your own script: `Trainer(logger=SacristanLogger(_run))`, and the fit inside `ending_as_the_run(_run)`; import both
from here. Needs the extra `lightning`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map, to_plain
from sacristan.experiments.experiment import Experiment
from sacristan.experiments.running import LabRun
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path, require
from sacristan.ingredients.errors import ConfigError
from sacristan.observers import run_folder

if TYPE_CHECKING:
    from sacristan.experiments.running.lightning_logger import SacristanLogger, ending_as_the_run

__all__ = ["SacristanLogger", "ending_as_the_run", "ex"]

# Set for the processes that Lightning, or a scheduler, starts beside the first one; that one alone records.
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
_IS_FIRST = next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"

# Not `lightning`, which is the name of the logger that Lightning configures.
ex = Experiment("lightning_module", record_to="my_runs" if _IS_FIRST else None)
ex.alias(resume="checkpoint.resume")


@ex.config
def config() -> None:
    # the LightningModule
    module = {
        # its class: package.module:Class
        "name": None,
        # its arguments
        "options": {},
    }
    # the LightningDataModule; none where the module has its own loaders
    datamodule = {
        # its class: package.module:Class
        "name": None,
        # its arguments
        "options": {},
    }
    # arguments of lightning.Trainer, such as trainer.max_epochs=3
    trainer: dict = {}
    # callbacks of the trainer, each {name: package.module:Class, options: {...}}
    callbacks: list = []
    # checkpoints to keep, and the one to resume from
    checkpoint = {
        # arguments of lightning's ModelCheckpoint, such as monitor, mode, save_top_k
        "options": {},
        # what to resume: auto (the unfinished run with the same config, if there is one), or another run's checkpoint
        "resume": None,
    }
    # the same setting as checkpoint.resume
    resume = checkpoint["resume"]
    # passed to lightning's seed_everything; loader workers derive theirs from it
    seed = 0


@ex.check
def _check_config(config: Map) -> None:
    """Reject classes that are not Lightning's, and arguments that they or the trainer do not take."""
    lightning = _lightning()
    if config.module.name is None:
        raise ConfigError("module.name: got None; write module.name=package.module:Class with a LightningModule")
    check_options(
        _subclass(config.module.name, lightning.LightningModule, "module"), config.module.options, "module.options"
    )
    if config.datamodule.name is not None:
        target = _subclass(config.datamodule.name, lightning.LightningDataModule, "datamodule")
        check_options(target, config.datamodule.options, "datamodule.options")
    for index, callback in enumerate(config.callbacks):
        entry = f"callbacks[{index}]"
        if not isinstance(callback, Mapping) or not {"name"} <= {*callback} <= {"name", "options"}:
            raise ConfigError(
                f"{entry}: got {to_plain(callback)!r}, expected {{name: package.module:Class, options: {{...}}}}"
            )
        target = _subclass(callback["name"], lightning.Callback, entry)
        check_options(target, callback.get("options", {}), f"{entry}.options")
    check_options(lightning.Trainer, config.trainer, "trainer", {"logger": None, "callbacks": None})
    saver = lightning.pytorch.callbacks.ModelCheckpoint
    check_options(saver, config.checkpoint.options, "checkpoint.options", {"dirpath": None})


def _lightning() -> Any:
    """Import lightning, and send its log to the run's handlers alone."""
    lightning = require("lightning", "lightning", "sacristan.experiments.lightning")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    return lightning


def _subclass(name: Any, parent: type, entry: str) -> type:
    """Return the class of a dotted name; reject it if it is not a subclass of `parent`."""
    if not isinstance(name, str) or not is_dotted_path(name):
        raise ConfigError(f"{entry}.name: got {name!r}, expected package.module:Class")
    cls = import_object(name, f"{entry}.name")
    if not (isinstance(cls, type) and issubclass(cls, parent)):
        raise ConfigError(f"{entry}.name: got {name!r}, which is no {parent.__name__}; name a class that is one")
    return cls


def _built(part: Mapping[str, Any], entry: str) -> Any:
    return build(import_object(part["name"], f"{entry}.name"), part.get("options", {}), f"{entry}.options")


def _make_trainer(config: Map, folder: Path, callbacks: list, logger: SacristanLogger) -> Any:
    """Return the trainer; it writes its checkpoints and other files into the run's folder."""
    lightning = _lightning()
    options = {"default_root_dir": str(folder), **to_plain(config.trainer)}
    if options.get("enable_checkpointing") is not False:
        kept = {"save_last": True, **to_plain(config.checkpoint.options)}
        saver = lightning.pytorch.callbacks.ModelCheckpoint
        callbacks = [*callbacks, build(saver, kept, "checkpoint.options", dirpath=folder / "checkpoints")]
    try:
        return build(lightning.Trainer, options, "trainer", logger=logger, callbacks=callbacks)
    except lightning.pytorch.utilities.exceptions.MisconfigurationException as error:
        raise ConfigError(f"trainer: {error}") from error


@contextlib.contextmanager
def _monitored() -> Iterator[None]:
    """Turn Lightning's error about a metric that is not logged into a ConfigError."""
    try:
        yield
    except _lightning().pytorch.utilities.exceptions.MisconfigurationException as error:
        match = re.search(r"monitor='(.*)'\)` could not find the monitored key .*: \[(.*)\]", str(error))
        if match is None:
            raise
        raise ConfigError(
            f"checkpoint.options.monitor: got {match[1]!r}, which the module does not log; there are: {match[2]}"
        ) from error


def _has_test(module: Any, data: Any) -> bool:
    from lightning.pytorch.utilities.model_helpers import is_overridden

    loads = any(part is not None and is_overridden("test_dataloader", part) for part in (module, data))
    return loads and is_overridden("test_step", module)


def __getattr__(name: str) -> object:
    if name in ("SacristanLogger", "ending_as_the_run"):
        _lightning()
        from sacristan.experiments.running import lightning_logger

        return getattr(lightning_logger, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@ex.automain
def main(_config: Map, _run: LabRun, seed: int) -> dict[str, float]:
    """Fit, then test the best checkpoint if there is a test part; return the metrics of the test, or of the fit."""
    lightning = _lightning()
    from sacristan.experiments.running.lightning_logger import RunKeeper, SacristanLogger, ending_as_the_run

    lightning.seed_everything(seed, workers=True, verbose=False)
    with run_folder(_run) as folder, ending_as_the_run(_run):
        module = _built(_config.module, "module")
        data = _built(_config.datamodule, "datamodule") if _config.datamodule.name else None
        keeper = RunKeeper(_run, folder / "checkpoints")
        callbacks = [keeper, *(_built(one, f"callbacks[{index}]") for index, one in enumerate(_config.callbacks))]
        trainer = _make_trainer(_config, folder, callbacks, SacristanLogger(_run))
        with _run.signals_deferred(), _monitored():
            trainer.fit(module, datamodule=data, ckpt_path=keeper.start(_config.checkpoint.resume))
        keeper.stop_if_asked(trainer)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if _has_test(module, data):
            best = getattr(trainer.checkpoint_callback, "best_model_path", None) or None
            parts = trainer.test(module, datamodule=data, ckpt_path=best)
            metrics = {name: float(value) for part in parts for name, value in part.items()}
            _run.info["test"] = metrics
    return metrics
