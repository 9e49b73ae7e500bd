"""The trial's side of a sweep: the reports of a process to the agent that started it, which may end its run early.

`SACRISTAN_TRIAL` names a socket to the agent, and the trial. It is taken out of the environment, and the socket is not
handed on, so that processes which the run starts are no trials. The agent's side is `sacristan.runs.work.warm`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sacred.utils import SacredInterrupt

from sacristan.experiments.running.buffers import MetricsBuffer
from sacristan.ingredients.errors import ConcurrentRunError, ConfigError
from sacristan.observers.record.identity import TRIAL_VARIABLE, lease

if TYPE_CHECKING:
    import socket

# A signal that comes right before a wait is handled after it, so that no wait is long.
_STEP_S = 0.5


class Pruned(SacredInterrupt):
    """The sweep has ended this run at a report: its status is PRUNED, and its record is whole."""

    STATUS = "PRUNED"


class Trial:
    """The agent's trial that this process runs, or a run of a queue.

    `line` is the socket to the agent; `trial` has `sweep`, `trial`, `attempt`, `parameters`, `metric`, `goals`,
    `prunes`, `asks`, and the `version` of an extended sweep, and is empty for a queue. `note` is an entry about the
    sweep for the record, and `goals` `max` or `min` by metric.
    """

    def __init__(self, line: socket.socket, trial: Mapping[str, Any]) -> None:
        self.metric: str | None = trial.get("metric")
        self.note: dict[str, Any] | None = None
        self.goals: dict[str, str] = trial.get("goals") or {}
        if trial.get("sweep") is not None:
            self.note = {"id": trial["sweep"], **{name: trial.get(name) for name in ("trial", "attempt", "parameters")}}
            if "version" in trial:
                self.note["version"] = trial["version"]
        self._prunes, self._asks = bool(trial.get("prunes")), bool(trial.get("asks"))
        self._line: socket.socket | None = line
        self._lock = threading.Lock()
        self._pruned: str | None = None

    def wait_for_begin(self) -> None:
        """Ask the worker whether the run may begin; raise ConcurrentRunError if another one may have it."""
        if not self._asks:
            return
        with self._lock:
            self._tell({"kind": "ready", "lease": lease(1.0, is_anonymous=True)})
            answer = self._answer()
        if answer.get("begin"):
            return
        name, worker, task = "queued run", "worker", "run"
        if self.note is not None:
            name, worker, task = f"trial {self.note['trial']}, attempt {self.note['attempt']}", "agent", "trial"
        gone = f"its {worker} is gone, so another one may have this {task}"
        why = f"another {worker} has this {task} by now" if answer else gone
        raise ConcurrentRunError(f"{name}: {why}; nothing was recorded")

    def begin(self, uid: str | None, folder: str | None) -> None:
        """Report that the run has started."""
        with self._lock:
            self._tell({"kind": "started", "uid": uid, "folder": folder})

    def report(self, name: str, value: float, step: float) -> None:
        """Report a value; if the sweep prunes, wait for the verdict. Raise Pruned if a report ends the run."""
        with self._lock:
            if self._pruned is None:
                self._tell({"kind": "report", "name": name, "value": value, "step": step})
                if self._prunes and self._answer().get("prune", False):
                    self._pruned = f"pruned by its sweep at step {step:g}, where {name} was {value:g}"
        if self._pruned is not None:
            raise Pruned(self._pruned)

    def _tell(self, event: dict[str, Any]) -> None:
        if self._line is not None:
            try:
                self._line.sendall(json.dumps(event).encode() + b"\n")
            except OSError:
                self.leave()  # the agent is gone; whoever ends this process then, it is by a signal

    def _answer(self) -> dict[str, Any]:
        """Wait for the answer of the agent; empty if the agent is gone."""
        answer = b""
        while self._line is not None and not answer.endswith(b"\n"):
            if not select.select([self._line], [], [], _STEP_S)[0]:
                continue
            try:
                read = self._line.recv(4096)
            except OSError:
                read = b""
            answer += read
            if not read:
                self.leave()
                return {}
        return json.loads(answer) if answer else {}

    def leave(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError):
                line.close()


class ReportingBuffer(MetricsBuffer):
    """Takes logged values, and reports those of the trial's metric, once they are logged."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial: Trial | None = trial

    def log_scalar_metric(self, name: str, value: Any, step: Any = None) -> None:
        """Log one value, see `MetricsBuffer`; `Pruned` if the run ends here."""
        super().log_scalar_metric(name, value, step)
        if self._trial is not None and name == self._trial.metric:
            at = self._logs[0].metrics[name].last if step is None else step
            self._trial.report(name, float(value), float(at))

    def log_quickly(self, values: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
        """Leave all values to `log_scalar_metric`, which reports them."""
        return values

    def after_fork_in_child(self) -> None:
        """Leave reports to the parent."""
        super().after_fork_in_child()
        if self._trial is not None:
            self._trial.leave()
            self._trial = None


def take_trial() -> Trial | None:
    """Remove the trial that this process was started for from the environment, and return it; None if there is none."""
    text = os.environ.pop(TRIAL_VARIABLE, None)
    if not text:
        return None
    import socket  # takes milliseconds, and few runs are trials

    try:
        answer = json.loads(text)
        line = socket.socket(fileno=int(answer["fd"]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"{TRIAL_VARIABLE}: got {text!r}, expected what an agent of a sweep sets for the processes that it starts; "
            "unset it"
        ) from error
    line.set_inheritable(False)
    return Trial(line, answer)
