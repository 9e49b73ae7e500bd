"""`trackio`, whose names are those of W&B, for scripts that import it under `sacristan run`; see `wandb_stand_in`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sacristan.configs.map import flattened
from sacristan.experiments.scripts import tracking
from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.history import LogWriter
from sacristan.experiments.scripts.loggers.mirroring import mirror
from sacristan.experiments.scripts.loggers.wandb_stand_in import AlertLevel, StandIn
from sacristan.observers.media.kinds import Text

LACKS = ("Object3D", "Trace", "Api", "sync", "show", "log_gpu", "log_cpu")


class _Trackio(StandIn):
    """The module that scripts import as `trackio`."""

    def __init__(self, capture: Capture) -> None:
        super().__init__("trackio", capture)
        self.Error = RuntimeError
        self.Markdown = Text
        self._writer = LogWriter(self._sink)
        self.log = self._safe(self._log, "log")
        self.log_system = self._safe(self._log_system, "log_system")

    def init(self, project: str, name: str | None = None, group: str | None = None, **options: Any) -> Any:
        """Return the run of the script, or its next one; see `sacristan.init`."""
        before = tracking.current_run()
        if before is not None:
            before.finish()
        return self._begun({"project": project, "name": name, "group": group, "config": options.get("config")})

    def _log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        # Names as those of imported runs; a call is a step of its own, unlike W&B's.
        if self.run is None:
            raise RuntimeError("Call trackio.init() before trackio.log().")
        values = flattened(metrics, "", "/", lambda value: isinstance(value, Mapping))
        self._writer.write(dict(values), self._next_step(step))

    def _next_step(self, step: int | None) -> int:
        history = tracking.current_run()._history  # type: ignore[union-attr]  # there is a run
        at = history.step if step is None else int(step)
        history.step = max(history.step, at + 1)
        return at

    def _log_system(self, metrics: Mapping[str, Any]) -> None:
        values = flattened(metrics, "system/", "/", lambda value: isinstance(value, Mapping))
        self._sink.log(dict(values), None)

    def alert(self, title: str, text: str | None = None, level: Any = AlertLevel.WARN, **options: Any) -> None:
        """Record a text that deserves attention."""
        self._safe(functools.partial(self._call, "alert"), "alert")(title, text or "", level)


def stand_in(capture: Capture) -> ModuleType:
    """Return the module to import as `trackio`."""
    return _Trackio(capture)


def attach(module: Any, capture: Capture) -> None:
    """Watch the library, which does its own work."""
    calls = {name: name for name in ("log", "log_system", "finish", "alert")}
    mirror(module, sys.modules["trackio.run"].Run, _Trackio(capture), calls)
    module.log_artifact = watched(module.log_artifact, lambda *_, **__: capture.unknown("trackio", "log_artifact"))
