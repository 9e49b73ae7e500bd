"""Agents of a sweep: they work on a `TrialTask`, an attempt at a point: how its run starts, and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacristan.observers.record.identity import RECORD_TO_VARIABLE, RESUME_VARIABLE, is_alive
from sacristan.runs.errors import LaunchError, RunsError, StoreError
from sacristan.runs.query.texts import is_number, list_text
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.rerun.resuming import resume_launch, with_folder
from sacristan.runs.stores import Run, Store
from sacristan.runs.stores.settings import flat_config
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import Spec
from sacristan.runs.sweeps.study import Point, Study
from sacristan.runs.sweeps.study.home import Home
from sacristan.runs.work import End, Output, WorkerTask
from sacristan.runs.work.warm import Event

__all__ = ["AgentOptions", "Outcome", "TrialTask", "Workplace", "resumed"]

_log = logging.getLogger(__name__)

_STATISTICS = ("last", "min", "max", "mean")
# Seconds between two looks at a process of an earlier attempt that is about to end.
_WAIT_S = 0.2
_ENDED = ("COMPLETED", "COMPLETED_WITH_LOSS", "PRUNED", "FAILED")


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """Options of an agent."""

    base: Path  # folder to record runs below
    options: tuple[str, ...] = ()  # options for the experiment's command line, such as the database
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    # Modules to import once for all runs; None for those that experiments commonly use.
    packages: tuple[str, ...] | None = None
    retries: int = 3  # how often a point is tried again after its run or its agent was killed
    repeat: bool = False  # whether to run points whose parameters equal those of a finished one
    deadline: float | None = None  # when to take no more points, in seconds since 1970; None for never
    timeout_s: float | None = None
    output: int | None = None  # file descriptor for what the runs print; None for the agent's stdout
    lab: Path | None = None  # folder of the experiment's sources on this machine; None if they lie where the sweep says

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.time() >= self.deadline


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    `state` is COMPLETE, with values of the objectives and of constrained metrics; PRUNED or FAIL; KILLED; or LOST, if
    another agent has taken the point over. `uid` is None if nothing was recorded. `is_refused` means that a script
    failed before it took its settings, as all others would.
    """

    state: str
    values: tuple[float, ...] = ()
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""
    uid: str | None = None
    is_refused: bool = False


@dataclasses.dataclass(frozen=True)
class Workplace:
    """A sweep as an agent works on it."""

    agent: str
    home: Home
    definition: Definition
    spec: Spec
    study: Study
    store: Store
    agent_options: AgentOptions
    beat: Callable[[], None]


class TrialTask(WorkerTask):
    """An attempt (from 0) at a point that the agent has claimed, with the next one of its seeds."""

    def __init__(
        self,
        workplace: Workplace,
        point: Point,
        attempt: int,
        done: Callable[[TrialTask, Outcome], None],
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        spec, agent_options = workplace.spec, workplace.agent_options
        self.point, self.attempt, self.outcomes = point, attempt, tuple(outcomes)
        self.name = f"trial {point.number}"
        self.claims = workplace.home.claims(point.number, workplace.agent)
        self.timeout_s = math.inf if agent_options.timeout_s is None else agent_options.timeout_s
        self._workplace, self._done = workplace, done
        self._seed = None if spec.seeds == 1 else workplace.definition.seed + len(self.outcomes)
        self._settings = point.parameters if self._seed is None else {**point.parameters, "seed": self._seed}
        self.trial = {
            "sweep": workplace.home.id,
            "trial": point.number,
            "attempt": attempt,
            "parameters": self._settings,
            "metric": base_metric(spec.objectives[0].name) if spec.objectives else "",
            "goals": {base_metric(objective.name): objective.goal[:3] for objective in spec.objectives},
            "prunes": workplace.study.prunes,
        }
        if point.version > 1:
            self.trial["version"] = point.version

    def following(self, attempt: int, outcomes: Sequence[Outcome]) -> TrialTask:
        """Return the trial of the next seed of this point, or of the next attempt after a kill."""
        return TrialTask(self._workplace, self.point, attempt, self._done, outcomes)

    # ------------------------------------------------------------------ how it starts

    def prepare(self) -> Outcome | None:
        """Choose how the run starts: from its newest state if an earlier attempt left one, else from its beginning.

        This waits for processes of earlier attempts. Returns the outcome if one of these finished the run; else None.
        """
        work = self._workplace
        earlier = None
        if self.attempt:
            while any(is_alive(process) for process in self.claims.earlier_processes(self.attempt)):
                self._wait()
            earlier = _earlier_run(work.store, work.home.id, self.point.number, self._seed)
        if earlier is not None:
            earlier = self._settled(earlier)
            if earlier.status in _ENDED:
                outcome = self._judged(earlier)
                if outcome.state != "FAIL" or (earlier.get("meta.sweep.attempt") or 0) >= self.point.first_attempt:
                    return outcome
                earlier = None  # it failed before its point was given to agents again
        self.launch = self._launch(earlier)
        return None

    def _launch(self, earlier: Run | None) -> Launch:
        work = self._workplace
        first = _trial_launch(work, self._settings)
        if earlier is None or (launch := resumed(earlier, work.definition, first)) is None:
            return first
        return dataclasses.replace(launch, environment={**launch.environment, **work.agent_options.environment})

    def _settled(self, run: Run) -> Run:
        """Return a run once it has ended: one whose agent died saves its state first, or runs to its end."""
        while run.is_living:
            self._wait()
            run = self._workplace.store.get(run.id)
        return run

    def _wait(self) -> None:
        time.sleep(_WAIT_S)
        self._workplace.beat()

    # ------------------------------------------------------------------ what a worker asks

    def open_output(self) -> Output:
        output = self._workplace.agent_options.output
        return Output(1 if output is None else output)

    def report(self, event: Event) -> bool | None:
        study = self._workplace.study
        is_hopeless = study.report(self.point.number, round(event.step), event.value)
        return is_hopeless if study.prunes else None

    def ended(self, end: End) -> bool:
        with self.giving_back():
            outcome = self._outcome(end)
            self._done(self, outcome)
        return outcome.state in ("COMPLETE", "PRUNED")

    def interrupted(self, end: End) -> None:
        if end.by_signal:  # an error counts as a kill, so that `sweep.retries` bounds a point whose error recurs
            self._workplace.study.give_back(self.point.number)

    @contextlib.contextmanager
    def giving_back(self) -> Iterator[None]:
        """Note an interruption of the agent within the block, so that this attempt does not count as a kill."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self._workplace.home.hurry()
            with contextlib.suppress(RunsError, OSError):
                self._workplace.study.give_back(self.point.number)
            raise

    # ------------------------------------------------------------------ what came of it

    def _outcome(self, end: End) -> Outcome:
        late = f"took longer than sweep.trial_timeout_s={self.timeout_s}, and was ended"
        if end.folder is None:
            if not self.claims.is_last(self.attempt):
                return Outcome("LOST")
            is_killed = end.code < 0 and not end.is_late
            how = (
                f"ended with exit code {end.code} before it recorded a run" if end.code >= 0 else _killed_text(end.code)
            )
            last = f": {end.lines[-1].strip()}" if end.lines else ""
            reason = f"{self.name} {late if end.is_late else how}{last}; {self.launch.text}"
            is_refused = self._workplace.definition.is_script and end.code > 0
            return Outcome("KILLED" if is_killed else "FAIL", reason=reason, is_refused=is_refused)
        # A process that was killed may take a moment to let go of its record.
        outcome = self._judged(self._settled(self._workplace.store.get(end.folder.name)), end.code)
        if end.is_late and outcome.state == "KILLED":
            return dataclasses.replace(outcome, state="FAIL", reason=f"run {end.folder.name} {late}")
        return outcome

    def _judged(self, run: Run, code: int = 0) -> Outcome:
        """Return the outcome of a run that has ended; `code` is that of its process, if this agent started it."""
        status = run.status
        if status == "PRUNED":
            return Outcome("PRUNED", uid=run.uid)
        if status in ("DEAD", "INTERRUPTED"):
            how = _killed_text(code) if code < 0 else run.get("meta.interrupted_by")
            return Outcome("KILLED", reason=f"run {run.id} is {status}{f': {how}' if how else ''}", uid=run.uid)
        if not status.startswith("COMPLETED"):
            if self._workplace.definition.is_script:
                return _script_failure(run, Path(self._workplace.definition.script).name, self._settings)
            return Outcome("FAIL", reason=f"run {run.id} is {status}: {_last_of_trace(run)}", uid=run.uid)
        return self._measured(run)

    def _measured(self, run: Run) -> Outcome:
        """Return the outcome of a complete run: its values, or what is missing among them."""
        spec = self._workplace.spec
        if self._workplace.definition.is_script and (wrong := _wrong_flag(run, self._settings)):
            return Outcome("FAIL", reason=wrong, uid=run.uid)
        constrained = [constraint.metric for constraint in spec.constraints]
        numbers: dict[str, float] = {}
        for name in (*spec.objective_names, *constrained):
            value = objective_value(run, name)
            if isinstance(value, str):
                return Outcome("FAIL", reason=value, uid=run.uid)
            numbers[name] = float(value)
        measured = {name: numbers[name] for name in constrained}
        return Outcome("COMPLETE", tuple(numbers[name] for name in spec.objective_names), measured, uid=run.uid)


# ---------------------------------------------------------------------- runs of a point


def _trial_launch(workplace: Workplace, settings: Mapping[str, Any]) -> Launch:
    """Return the command of a trial with a point's settings, given by dotted key."""
    definition, agent_options = workplace.definition, workplace.agent_options
    words = definition.words_of(settings)
    variables = {RECORD_TO_VARIABLE: str(agent_options.base.absolute()), **agent_options.environment}
    if definition.is_script:
        # Not -P, with which a script would not find the modules beside it.
        command = [sys.executable, "-m", "sacristan", "run", *definition.script_program, *words]
        return Launch(tuple(command), Path(definition.cwd), variables, ())
    program = ["-P", "-m", definition.module] if definition.module else [str(definition.path)]
    options = [*definition.options, *agent_options.options]
    command = [sys.executable, *program, *words, *options]
    if definition.module:
        variables["PYTHONPATH"] = definition.base
    return Launch(tuple(command), Path(definition.cwd), variables, ())


def _earlier_run(store: Store, sweep: str, point: int, seed: int | None) -> Run | None:
    """Return the newest run of a point, None if there is none; the seed counts only if the point has several seeds."""
    wanted: list[tuple[str, str, Any]] = [("meta.sweep.id", "=", sweep), ("meta.sweep.trial", "=", point)]
    runs: list[Run] = store.find(wanted)
    if seed is not None:
        runs = [run for run in runs if run["meta.sweep.parameters"].get("seed") == seed]
    return runs[0] if runs else None


def resumed(run: Run, definition: Definition, first: Launch) -> Launch | None:
    """Return how an ended run of a sweep is resumed from its newest state; None if it has none or cannot be.

    A script is started as at `first`, and continues its record.
    """
    try:
        if not list(run.checkpoints):
            return None
        if definition.is_script:
            _, folder = with_folder(run)
            variables = {**first.environment, RESUME_VARIABLE: str(folder.absolute())}
            return dataclasses.replace(first, environment=variables)
        return dataclasses.replace(resume_launch(run, script=definition.path), cwd=Path(definition.cwd))
    except (LaunchError, StoreError) as error:
        _log.warning("run %s of the sweep is not resumed; its trial starts over: %s", run.id, error)
        return None


def _script_failure(run: Run, script: str, settings: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a script's run that has failed, with what the script said about it."""
    why = _last_of_trace(run)
    if why.startswith("SystemExit"):
        said = [line.strip() for line in run.output.splitlines() if not line.startswith("sacristan: ")]
        why = next((line for line in reversed(said) if line), why)
    reason = f"run {run.id} is {run.status}: {why}"
    taken = {name.replace("-", "_") for name in flat_config(run)}
    missing = [name for name in settings if name.replace("-", "_") not in taken]
    if not missing or any(not name.startswith("system/") for name in run.summary):
        return Outcome("FAIL", reason=reason, uid=run.uid)
    reason += f"; {script} has not taken {list_text(missing)}, so no other trial is started"
    return Outcome("FAIL", reason=reason, uid=run.uid, is_refused=True)


def _wrong_flag(run: Run, settings: Mapping[str, Any]) -> str:
    """Return what is wrong if a flag that was left out, or given, has not made a setting so; empty if nothing is."""
    config = {name.replace("-", "_"): value for name, value in flat_config(run).items()}
    for name, value in settings.items():
        if isinstance(value, bool) and isinstance(got := config.get(name.replace("-", "_")), bool) and got != value:
            return (
                f"{name} is {got} in run {run.id}, expected {value}; a flag that is False is left out: if the script "
                "takes a value, write '${args}' after --"
            )
    return ""


def _last_of_trace(run: Run) -> str:
    trace = run.document.get("fail_trace") or []
    return str(trace[-1]).strip() if trace else run.status


def objective_value(run: Run, name: str) -> float | str:
    """Return an ended run's value in an objective, such as `val/loss.min` or `result`, or why it has none."""
    if name == "result" or name.startswith("result."):
        value = run.get(name)
        if not is_number(value):
            return f"run {run.id} returned {value!r}, expected a number for the objective {name}"
    else:
        metric = base_metric(name)
        statistic = name[len(metric) + 1 :] or "last"
        if metric not in run.summary:
            logged = ", ".join(sorted(run.summary)) or "nothing"
            return f"run {run.id} logged no {metric}, which the sweep optimizes; it logged: {logged}"
        value = run.summary[metric].get(statistic)
    if value is None or not math.isfinite(value):
        return f"{name} of run {run.id} is {value}"
    return float(value)


def base_metric(name: str) -> str:
    """Return the metric that an objective is about: `val/loss` of `val/loss.min`."""
    metric, dot, statistic = name.rpartition(".")
    return metric if dot and statistic in _STATISTICS else name


def _killed_text(code: int) -> str:
    """Say which signal killed a process, from its negative exit code."""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}{', as by the kernel when memory runs out' if -code == signal.SIGKILL else ''}"
