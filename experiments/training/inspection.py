"""Callbacks of the ingredient `probe`: probes of modules, a profile of steps."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.experiments.training.callbacks import Callback
from sacristan.ingredients.inspection.probes import Probe, matching
from sacristan.ingredients.inspection.profiling import StepProfile
from sacristan.observers.media.kinds import Histogram, Image

if TYPE_CHECKING:
    from sacristan.experiments.running import LabRun
    from sacristan.experiments.training import Trainer

__all__ = ["Probing", "Profiling", "make_callbacks"]

_log = logging.getLogger(__name__)

# Share of the time from which on a warning calls the loader the bottleneck.
_WARNING_SHARE = 0.2


def make_callbacks(run: LabRun, config: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks for the settings of `probe`; none by default, or without that ingredient.

    Args:
        run: The run, which gets media and artifacts.
        config: Its whole config.

    Example:
        opt, callbacks = optimizer.make_optimizer(network, criterion), inspection.make_callbacks(_run, _config)
        loop.fit(network, batches, criterion, opt, log=_run.log_scalar, callbacks=callbacks, **training)
    """
    settings = config.get("probe")
    callbacks: list[Callback] = []
    if settings and settings["modules"]:
        globs = settings["modules"]
        globs = [globs] if isinstance(globs, str) else globs
        callbacks.append(Probing(run, globs, settings["every"], settings["what"]))
    if settings and settings["profile"]:
        callbacks.append(Profiling(run, *settings["profile"]))
    return callbacks


class Probing(Callback):
    """Logs statistics of chosen modules every few steps as `probe/MODULE/WHAT`.

    Only the observed steps have hooks. The training computes the same bits with and without it.

    Args:
        run: Gets histograms and images.
        modules: Globs on the names of modules.
        every: Steps between two observed ones.
        what: Any of inputs, activations, gradients, weights, histograms, images.
    """

    observes = True

    def __init__(self, run: LabRun, modules: Sequence[str], every: int, what: Sequence[str]) -> None:
        self._run = run
        self._globs = modules
        self._every = every
        self._what = what
        self._probe: Probe | None = None
        self._scale = 1.0

    def start(self, trainer: Trainer) -> None:
        self._probe = Probe(trainer.model, matching(trainer.model, self._globs), self._what)
        self._look_at_next(trainer)

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        if self._probe is not None and self._probe.is_attached:
            groups = trainer.optimizers[optimizer].param_groups
            self._probe.before_step({id(parameter) for group in groups for parameter in group["params"]})
            self._scale = trainer.amp.scale()

    def after_step(self, trainer: Trainer) -> None:
        if self._probe is not None and self._probe.is_attached:
            self._probe.detach()
            self._log(trainer, self._probe)
        self._look_at_next(trainer)

    def _look_at_next(self, trainer: Trainer) -> None:
        if self._probe is not None and (trainer.place.step + 1) % self._every == 0:
            self._probe.attach()

    def _log(self, trainer: Trainer, probe: Probe) -> None:
        step = trainer.place.step
        for name, value in probe.figures(self._scale).items():
            trainer.log(f"probe/{name}", value, step)
        for name, values in probe.histograms(self._scale).items():
            self._run.log_media(f"probe/{name}", Histogram(values), step)
        for name, image in probe.images().items():
            self._run.log_media(f"probe/{name}", Image(image), step)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.detach()


class Profiling(Callback):
    """Profiles some steps: a table in the output, `info.profile`, and the artifact `profile-STEP.json.gz`, a trace.

    Args:
        run: The run.
        first: The first step.
        last: The last one.
    """

    observes = True

    def __init__(self, run: LabRun, first: int, last: int) -> None:
        self._run = run
        self._first = first
        self._last = last
        self._profile: StepProfile | None = None

    def start(self, trainer: Trainer) -> None:
        self._begin(trainer)

    def after_step(self, trainer: Trainer) -> None:
        if self._profile is None:
            self._begin(trainer)
            return
        self._profile.next_step()
        if trainer.place.step >= self._last:
            self._end(trainer.place.step)

    def after_epoch(self, trainer: Trainer) -> None:
        if self._profile is not None:
            self._profile.leave_epoch()

    def _begin(self, trainer: Trainer) -> None:
        if trainer.place.step + 1 == self._first:
            self._profile = StepProfile(trainer.task, trainer.amp, trainer.amp.device)
            self._profile.begin()

    def _end(self, step: int) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profiled = profile.end()
        _log.info("profile of %d steps, up to step %d:\n%s", profiled.steps, step, profiled)
        self._run.info["profile"] = {**profiled.as_dict(), "last_step": step}
        share = profiled.as_dict()["share"]["data"]
        if share >= _WARNING_SHARE:
            _log.warning("%.0f%% of the time of these steps went into batches; raise data.num_workers", 100 * share)
        with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
            path = Path(folder) / f"profile-{step}.json.gz"
            profile.write_trace(path)
            self._run.add_artifact(path)

    def end(self, trainer: Trainer) -> None:
        self._end(trainer.place.step)  # if the training ends before the last step

    def close(self) -> None:
        if self._profile is not None:
            self._profile.close()
