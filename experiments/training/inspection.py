"""Callbacks that look inside a training, as the ingredient `probe` says: probes of modules, a profile of steps."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.training.callbacks import Callback
from ingredients.inspection.probes import Probe, matching
from ingredients.inspection.profiling import StepProfile
from observers.media.kinds import Histogram, Image

if TYPE_CHECKING:
    from experiments.running.lab_run import LabRun
    from experiments.training.trainer import Trainer

__all__ = ["Probing", "Profiling", "make_callbacks"]

_log = logging.getLogger(__name__)

# From here on the loader is called the bottleneck.
_MUCH = 0.2


def make_callbacks(run: LabRun, config: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks that the settings `probe` ask for; none by default, or without that ingredient.

    Args:
        run: The run, which gets media and artifacts.
        config: Its whole config.

    Example:
        opt, callbacks = optimizer.make_optimizer(network, criterion), inspection.make_callbacks(_run, _config)
        loop.fit(network, batches, criterion, opt, log=_run.log_scalar, callbacks=callbacks, **training)
    """
    asked = config.get("probe")
    found: list[Callback] = []
    if asked and asked["modules"]:
        globs = asked["modules"]
        found.append(Probing(run, [globs] if isinstance(globs, str) else globs, asked["every"], asked["what"]))
    if asked and asked["profile"]:
        found.append(Profiling(run, *asked["profile"]))
    return found


class Probing(Callback):
    """Logs what goes through chosen modules, every so many steps, as `probe/MODULE/WHAT`.

    Hooks are there for the steps that are looked at alone. Nothing of the training depends on it, bit for bit.

    Args:
        run: Gets histograms and images.
        modules: Globs on the names of modules.
        every: Steps between two looks.
        what: Of inputs, activations, gradients, weights, histograms, images.
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
        """Find the modules.

        Raises:
            ConfigError: If a glob matches none.
        """
        self._probe = Probe(trainer.model, matching(trainer.model, self._globs), self._what)
        self._look_at_next(trainer)

    def before_step(self, trainer: Trainer, optimizer: str) -> None:
        """Keep weights and norms of gradients, which are gone after the step."""
        if self._probe is not None and self._probe.is_attached:
            groups = trainer.optimizers[optimizer].param_groups
            self._probe.before_step({id(parameter) for group in groups for parameter in group["params"]})
            self._scale = trainer.amp.scale()

    def after_step(self, trainer: Trainer) -> None:
        """Log what was seen of the step, or get ready for the next one."""
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
        """Remove the hooks."""
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
        """Begin, if the first step is the one to begin with."""
        self._begin(trainer)

    def after_step(self, trainer: Trainer) -> None:
        """Begin before the first step, and end after the last one."""
        if self._profile is None:
            self._begin(trainer)
            return
        self._profile.next_step()
        if trainer.place.step >= self._last:
            self._end(trainer.place.step)

    def after_epoch(self, trainer: Trainer) -> None:
        """Count validations and what else is done between epochs as the rest."""
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
        found = profile.end()
        _log.info("profile of %d steps, up to step %d:\n%s", found.steps, step, found)
        self._run.info["profile"] = {**found.as_dict(), "last_step": step}
        share = found.as_dict()["share"]["data"]
        if share >= _MUCH:
            _log.warning("%.0f%% of the time of these steps went into batches; raise data.num_workers", 100 * share)
        with tempfile.TemporaryDirectory(prefix="sacristan-") as folder:
            path = Path(folder) / f"profile-{step}.json.gz"
            profile.write_trace(path)
            self._run.add_artifact(path)

    def end(self, trainer: Trainer) -> None:
        """Report what was profiled, if the training has ended before the last step."""
        self._end(trainer.place.step)

    def close(self) -> None:
        """Stop profiling."""
        if self._profile is not None:
            self._profile.close()
