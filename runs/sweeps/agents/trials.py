"""`Trials`: the processes of an agent's trials, one at a time: started, watched, ended, and what came of each."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from observers.record.identity import is_alive
from runs.rerun.launching import Launch
from runs.stores.run import Run
from runs.stores.store import Store
from runs.sweeps.agents.printed import killed_text, last_line, path_of, size_of
from runs.sweeps.spec.definition import Definition
from runs.sweeps.spec.spec import Spec
from runs.sweeps.study.home import Claim, Home
from runs.sweeps.study.study import Point, Study
from runs.sweeps.study.trial_runs import base_metric, earlier_run, objective_value, resumed, trial_launch
from runs.work.warm import END_BOUND_S, WarmPython

__all__ = ["Ended", "Means", "Trials"]


@dataclasses.dataclass(frozen=True)
class Means:
    """Resources that an agent works with.

    Attributes:
        base: The folder to record runs below.
        options: Options of the experiment's command line, such as the database.
        environment: Variables to set for the runs: threads, GPUs.
        packages: Modules to import once for all runs; None for those that experiments commonly use.
        retries: How often a point is tried again when what ran it was killed.
        repeat: Whether a point with the parameters of a finished one is run all the same.
        deadline: When to take no more points, as `time.time`; None for never.
        timeout_s: How long a run may take; None for any time.
        output: File descriptor for what the runs print; None is that of the agent.
        lab: The folder of the experiment's sources on this machine; None where they lie as the sweep says.
    """

    base: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    packages: tuple[str, ...] | None = None
    retries: int = 3
    repeat: bool = False
    deadline: float | None = None
    timeout_s: float | None = None
    output: int | None = None
    lab: Path | None = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """Result of a run: a value for each objective, metrics that constraints name; or a state and its reason.

    The state is one of a point's, or KILLED, or LOST where another agent has taken the point over.
    """

    state: str
    values: tuple[float, ...] = ()
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""
    uid: str | None = None


class Trials:
    """Runs the trials of an agent.

    Args:
        agent: The agent's name.
        home: Where the sweep lives.
        definition: The sweep, with its sources where they lie on this machine.
        spec: Its spec.
        study: Where reports are noted.
        store: Where runs are recorded.
        means: What the agent works with.
        warm: Starts processes.
        beat: Notes that the agent lives, if it is time.
    """

    def __init__(
        self,
        agent: str,
        home: Home,
        definition: Definition,
        spec: Spec,
        *,
        study: Study,
        store: Store,
        means: Means,
        warm: WarmPython,
        beat: Callable[[], None],
    ) -> None:
        self._agent, self._home, self._definition, self._spec = agent, home, definition, spec
        self._study, self._store, self._means, self._warm, self._beat = study, store, means, warm, beat

    def run(self, point: Point, attempt: int, seed: int | None) -> Ended:
        """Run a point with one seed, or see what is there of it already, to its end."""
        earlier = None
        if attempt:
            self._outlive(Claim(point.number, attempt, self._agent))
            earlier = earlier_run(self._store, self._home.id, point.number, seed)
        if earlier is not None:
            earlier = self._settled(earlier)
            if earlier.status in ("COMPLETED", "COMPLETED_WITH_LOSS", "PRUNED", "FAILED"):
                return self._judged(earlier)
        settings = point.parameters if seed is None else {**point.parameters, "seed": seed}
        launch = resumed(earlier, self._definition) if earlier is not None else None
        if launch is None:
            launch = trial_launch(
                self._definition, settings, self._means.base, self._means.options, self._means.environment
            )
        else:
            launch = dataclasses.replace(launch, environment={**launch.environment, **self._means.environment})
        output = 1 if self._means.output is None else self._means.output
        before = size_of(output)
        folder, code, is_late = self._watched(launch, point, attempt, settings)
        late = f"took longer than sweep.trial_timeout_s={self._means.timeout_s}, and was ended" if is_late else ""
        if folder is None:
            if self._home.last_claims([point.number])[point.number].agent != self._agent:
                return Ended("LOST")
            said = f"ended with exit code {code} before it recorded a run" if code >= 0 else killed_text(code)
            last = last_line(path_of(output), before)
            reason = f"trial {point.number} {late or said}{f': {last}' if last else ''}; {launch.text}"
            return Ended("KILLED" if code < 0 and not is_late else "FAIL", reason=reason)
        # A process that was killed may take a moment to let go of its record.
        ended = self._judged(self._settled(self._store.get(folder.name)), code)
        if is_late and ended.state == "KILLED":
            return dataclasses.replace(ended, state="FAIL", reason=f"run {folder.name} {late}")
        return ended

    def _outlive(self, claim: Claim) -> None:
        """Wait for the end of what earlier attempts have begun, whose records may be about to appear."""
        while any(is_alive(process) for process in self._home.earlier_processes(claim)):
            time.sleep(0.2)
            self._beat()

    def _settled(self, run: Run) -> Run:
        """Return a run once it has ended: one whose agent died saves its state first, or goes on to its end."""
        while run.is_living:
            time.sleep(0.2)
            self._beat()
            run = self._store.get(run.id)
        return run

    def _watched(
        self, launch: Launch, point: Point, attempt: int, settings: dict[str, Any]
    ) -> tuple[Path | None, int, bool]:
        """Start a run and wait for its end; return its folder, the exit code, and whether it was ended as too slow."""
        trial = {
            "sweep": self._home.id,
            "trial": point.number,
            "attempt": attempt,
            "parameters": settings,
            "metric": base_metric(self._spec.objectives[0].name) if self._spec.objectives else "",
            "goals": {base_metric(one.name): one.goal[:3] for one in self._spec.objectives},
            "prunes": self._study.prunes,
            "asks": True,
        }
        folder: Path | None = None
        until = math.inf if self._means.timeout_s is None else time.monotonic() + self._means.timeout_s
        is_late = False
        with self._warm.start(launch, output=self._means.output, trial=trial) as job:
            while True:
                code = job.poll()
                for event in job.events(0 if code is not None else 1.0):
                    if event.kind == "ready":
                        job.let_begin(self._home.begin(Claim(point.number, attempt, self._agent), event.lease or {}))
                    elif event.kind == "started":
                        folder = None if event.folder is None else Path(event.folder)
                    elif event.kind == "report":
                        is_hopeless = self._study.report(point.number, round(event.step), event.value)
                        if self._study.prunes:
                            job.answer(is_hopeless)
                if code is not None:
                    return folder, code, is_late
                self._beat()
                if time.monotonic() > until:
                    job.interrupt(signal.SIGKILL if is_late else signal.SIGTERM)
                    is_late, until = True, time.monotonic() + END_BOUND_S

    def _judged(self, run: Run, code: int = 0) -> Ended:
        """Return what a run that has ended comes to; `code` is that of its process, if it was ours."""
        status = run.status
        if status == "PRUNED":
            return Ended("PRUNED", uid=run.uid)
        if status in ("DEAD", "INTERRUPTED"):
            how = killed_text(code) if code < 0 else run.get("meta.interrupted_by")
            return Ended("KILLED", reason=f"run {run.id} is {status}{f': {how}' if how else ''}", uid=run.uid)
        if not status.startswith("COMPLETED"):
            trace = run.document.get("fail_trace") or []
            why = str(trace[-1]).strip() if trace else status
            return Ended("FAIL", reason=f"run {run.id} is {status}: {why}", uid=run.uid)
        objectives = [objective.name for objective in self._spec.objectives]
        constrained = [constraint.metric for constraint in self._spec.constraints]
        found = {name: objective_value(run, name) for name in (*objectives, *constrained)}
        reasons = [value for value in found.values() if isinstance(value, str)]
        if reasons:
            return Ended("FAIL", reason=reasons[0], uid=run.uid)
        numbers = {name: float(value) for name, value in found.items()}
        measured = {name: numbers[name] for name in constrained}
        return Ended("COMPLETE", tuple(numbers[name] for name in objectives), measured, uid=run.uid)
