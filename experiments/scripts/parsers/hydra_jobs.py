"""Hydra: the config of a job, composed and resolved; overrides count as typed. Each job of a multirun is a run.

The files that configs are composed of count as sources, so that a run can be reproduced without them.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.observers.provenance.sources import count_as_source

__all__ = ["attach", "attach_files"]

_FILE = "file://"


def attach(module: Any, capture: Capture) -> None:
    """Watch the function that runs a job, which is told its config first."""
    run_job = module.run_job

    @functools.wraps(run_job)
    def run(task_function: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        jobs = capture.jobs if str(config.hydra.mode).endswith("MULTIRUN") else None
        with capture.guarded("hydra", "run_job"):
            if jobs is not None:
                jobs.begin([str(word) for word in config.hydra.overrides.task])
            _tell(capture, config)
        done = run_job(task_function, config, *args, **kwargs)
        if jobs is not None:
            error = done._return_value if done.status.name == "FAILED" else None
            jobs.end(error if isinstance(error, BaseException) else None)
        return done

    module.run_job = run


def attach_files(module: Any, capture: Capture) -> None:
    """Watch how a config that others are composed of is loaded."""

    def note(result: Any, _: Any, config_path: str) -> None:
        if result is not None and capture.run is not None and str(result.path).startswith(_FILE):
            name = config_path if config_path.endswith((".yaml", ".yml")) else f"{config_path}.yaml"
            count_as_source(Path(result.path.removeprefix(_FILE)).absolute() / name)

    module.ConfigRepository.load_config = watched(module.ConfigRepository.load_config, note)


def _tell(capture: Capture, config: Any) -> None:
    from omegaconf import OmegaConf

    overrides = [str(word).lstrip("+~").partition("=")[0] for word in config.hydra.overrides.task]
    settings = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    found = OmegaConf.to_container(settings)
    # If one cannot be resolved yet, all stay as written: the script may register its resolver later.
    with capture.guarded("hydra", "resolving interpolations"):
        found = OmegaConf.to_container(settings, resolve=True)
    capture.config(found, overrides, library="hydra", call="main")
