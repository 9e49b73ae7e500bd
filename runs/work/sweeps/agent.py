"""`Agent`: takes points of a sweep, one after the other, runs them, and notes what came of them.

Any number of agents work on a sweep, on any machine that sees its home; each of them may be killed at any time. What an
agent was at when it died is claimed by another one, which resumes the run from its newest state, or starts it anew. A
run begins only once its agent, alive, has seen that the point is still its own; so a point completes once, whenever
agents are killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from observers.record.identity import is_alive
from runs.errors import RunsError
from runs.rerun.launching import Launch
from runs.stores.opening import open_store
from runs.stores.run import Run
from runs.stores.store import Store
from runs.work.sweeps.home import BEAT_S, Claim, Home
from runs.work.sweeps.printed import killed_text, last_line, path_of, size_of
from runs.work.sweeps.spec import Spec, read_spec
from runs.work.sweeps.study import Point, Study
from runs.work.sweeps.trial_runs import base_metric, earlier_run, objective_value, resumed, trial_launch
from runs.work.warm import END_BOUND_S, WarmPython

__all__ = ["Agent", "Means"]

_log = logging.getLogger(__name__)

# How often what other agents have left undone is looked for, in seconds.
_LOOK_S = 5.0
# Attempts to claim a point somewhere ahead, until all are tried in their order, and how far ahead it may be.
_TRIES, _MOST_SPREAD = 20, 1024
# Points that may fail, before any has come to its end, until the sweep is given up.
_FIRST_FAILURES = 3


@dataclasses.dataclass(frozen=True)
class Means:
    """What an agent works with.

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
class _Ended:
    """What became of a run: a value for each objective, metrics that constraints name; or a state and its reason.

    The state is one of a point's, or KILLED, or LOST where another agent has taken the point over.
    """

    state: str
    values: tuple[float, ...] = ()
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""
    uid: str | None = None


class Agent:
    """Works on a sweep.

    Args:
        home: Where the sweep lives.
        means: What it works with.
        warm: Starts processes.

    Attributes:
        name: Unlike that of any other agent.
        study: The sweep's.
    """

    def __init__(self, home: Home, means: Means, warm: WarmPython) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000 % 10**9}"
        self._home, self._means, self._warm = home, means, warm
        self._definition = home.definition()
        if means.lab is not None:
            self._definition = self._definition.located(means.lab)
        self._spec: Spec = read_spec(self._definition.spec)
        self.study = Study(home, self._definition, self._spec)
        self._store: Store = open_store(means.base, create=True)
        self._first_free = 0
        # Among so many points the next one is chosen: more where others were quicker, so that a crowd spreads out.
        self._spread = 1
        self._last_beat = self._last_look = -math.inf

    def run(self) -> int:
        """Take points until none is left, and return how many it has seen through."""
        done = 0
        self._beat()
        try:
            while (taken := self.next()) is not None:
                try:
                    self._see_through(*taken)
                except (KeyboardInterrupt, SystemExit):
                    self._home.hurry()
                    with contextlib.suppress(RunsError, OSError):
                        self.study.give_back(taken[0].number)
                    raise
                done += 1
                ended = self.study.point(taken[0].number)
                if ended is not None and (self._is_hopeless(ended) or self._is_reached(ended)):
                    self._home.stop()
        except (KeyboardInterrupt, SystemExit):
            self._home.hurry()
            raise
        finally:
            with contextlib.suppress(RunsError):
                self._home.leave(self.name)
            self._store.close()
        return done

    # ------------------------------------------------------------------ which point

    @property
    def _limit(self) -> float:
        """How many points there are at most."""
        given = [self._spec.size, self._spec.run_cap, self._definition.count]
        return min((number for number in given if number is not None), default=float("inf"))

    def next(self) -> tuple[Point, int] | None:
        """Return the next point and which attempt at it this is; None if there is nothing left to take."""
        while not self._home.is_stopped and not self._is_late:
            self._beat()
            progress = self.study.progress()
            if time.monotonic() - self._last_look > _LOOK_S or progress.num_taken >= self._limit:
                self._last_look = time.monotonic()
                left = self._abandoned([*progress.unfinished, *self._missing(self.study.end)])
                if left is not None:
                    return left
            new = self._new()
            if new is None:
                # An agent may have died before it took what it claimed.
                left = self._abandoned(self._missing(int(self._limit)))
                if left is None and self._has_grown():
                    continue
                return left
            point = self.study.take(new.trial)
            same = None if self._means.repeat else self.study.finished_as(point)
            if same is None:
                return point, new.attempt
            self.study.finish_as(new.trial, same)
        return None

    def _has_grown(self) -> bool:
        """Tell whether the sweep may try more points by now than when this agent looked last."""
        before = self._limit
        self._definition = dataclasses.replace(self._definition, count=self._home.definition().count)
        return self._limit > before

    @property
    def _is_late(self) -> bool:
        return self._means.deadline is not None and time.time() >= self._means.deadline

    def _new(self) -> Claim | None:
        """Claim a point that nobody has claimed: the first one, or, where many agents are at it, one soon behind it."""
        while self.study.has(self._first_free):
            self._first_free += 1
        for _ in range(_TRIES):
            number = self._first_free + random.randrange(self._spread)
            if number >= self._limit:
                break
            if self.study.has(number):
                continue
            claim = Claim(number, 0, self.name)
            if self._home.claim(claim):
                self._spread = max(1, self._spread * 3 // 4)
                return claim
            self._spread = min(2 * self._spread, _MOST_SPREAD)
        start = self._first_free
        while start < self._limit:
            end = int(min(start + _MOST_SPREAD, self._limit))
            free = [number for number in range(start, end) if not self.study.has(number)]
            claimed = self._home.last_claims(free)
            for number in free:
                claim = Claim(number, 0, self.name)
                if number not in claimed and self._home.claim(claim):
                    return claim
            start = end
        return None

    def _missing(self, end: int) -> list[int]:
        """Return the numbers below `end` of points that nobody has taken."""
        return [number for number in range(self._first_free, end) if not self.study.has(number)]

    def _abandoned(self, numbers: Sequence[int]) -> tuple[Point, int] | None:
        """Claim a point whose agent is dead, and return it with the number of the attempt."""
        claims = self._home.last_claims(sorted(numbers))
        living = self._home.living_agents() if claims else set()
        lost = {number: last for number, last in claims.items() if last.agent not in living}
        if lost:  # an agent that has left may have seen it through
            self.study.expire()
            self.study.progress()
        for number, last in lost.items():
            known = self.study.point(number)
            following = Claim(number, last.attempt + 1, self.name)
            if (known is not None and known.is_finished) or not self._home.claim(following):
                continue
            point = self.study.take(number)
            kills = following.attempt - point.times_given_back
            if kills > self._means.retries:
                reason = f"what ran it was killed {kills} times; python -m runs ls --sweep {self._home.id}"
                self.study.finish(number, "FAIL", reason=reason)
                continue
            return point, following.attempt
        return None

    def _is_hopeless(self, ended: Point) -> bool:
        """Tell whether a point and all others so far have failed, so that the rest would fail, too."""
        if ended.state != "FAIL":
            return False
        counts = self.study.progress().counts
        hopeless = counts["FAIL"] >= _FIRST_FAILURES and counts.keys() == {"FAIL"}
        if hopeless:
            reasons = [point.notes.get("reason", "") for point in self.study.points().values()]
            _log.error(
                "the first %d trials have failed, so the sweep stops: %s",
                counts["FAIL"],
                next(filter(None, reasons), ""),
            )
        return hopeless

    def _is_reached(self, ended: Point) -> bool:
        """Tell whether a point is as good as the spec asks for."""
        return ended.state == "COMPLETE" and self._spec.is_reached(ended.values)

    # ------------------------------------------------------------------ its runs

    def _see_through(self, point: Point, attempt: int) -> None:
        """Run a point, with each of its seeds, and note what came of it."""
        ended: list[_Ended] = []
        for seed in self._seeds(point):
            one = self._run(point, attempt, seed)
            while one.state == "KILLED" and attempt - point.times_given_back < self._means.retries:
                attempt += 1
                if not self._home.claim(Claim(point.number, attempt, self.name)):
                    return  # another agent took this one for dead
                one = self._run(point, attempt, seed)
            ended.append(one)
            if one.state != "COMPLETE":
                break
        last = ended[-1]
        if last.state == "LOST":
            return
        uids = [one.uid for one in ended if one.uid]
        if last.state == "COMPLETE":
            values = [statistics.fmean(column) for column in zip(*(one.values for one in ended), strict=True)]
            names = ended[0].measured
            measured = {name: statistics.fmean(one.measured[name] for one in ended) for name in names}
            self.study.finish(point.number, "COMPLETE", values, measured, runs=uids)
        elif last.state == "PRUNED":
            reports = point.reports or (self.study.point(point.number) or point).reports
            values = [reports[max(reports)]] if reports else []
            self.study.finish(point.number, "PRUNED", values, runs=uids)
        else:
            self.study.finish(point.number, "FAIL", reason=last.reason, runs=uids)

    def _seeds(self, point: Point) -> Sequence[int | None]:
        if self._spec.seeds == 1:
            return [None]
        return [self._definition.seed + index for index in range(self._spec.seeds)]

    def _run(self, point: Point, attempt: int, seed: int | None) -> _Ended:
        """Run a point with one seed, or see what is there of it already, to its end."""
        earlier = None
        if attempt:
            self._outlive(Claim(point.number, attempt, self.name))
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
            if self._home.last_claims([point.number])[point.number].agent != self.name:
                return _Ended("LOST")
            said = f"ended with exit code {code} before it recorded a run" if code >= 0 else killed_text(code)
            last = last_line(path_of(output), before)
            reason = f"trial {point.number} {late or said}{f': {last}' if last else ''}; {launch.text}"
            return _Ended("KILLED" if code < 0 and not is_late else "FAIL", reason=reason)
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
            "prunes": self.study.prunes,
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
                        job.let_begin(self._home.begin(Claim(point.number, attempt, self.name), event.lease or {}))
                    elif event.kind == "started":
                        folder = None if event.folder is None else Path(event.folder)
                    elif event.kind == "report":
                        is_hopeless = self.study.report(point.number, round(event.step), event.value)
                        if self.study.prunes:
                            job.answer(is_hopeless)
                if code is not None:
                    return folder, code, is_late
                self._beat()
                if time.monotonic() > until:
                    job.interrupt(signal.SIGKILL if is_late else signal.SIGTERM)
                    is_late, until = True, time.monotonic() + END_BOUND_S

    def _judged(self, run: Run, code: int = 0) -> _Ended:
        """Return what a run that has ended comes to; `code` is that of its process, if it was ours."""
        status = run.status
        if status == "PRUNED":
            return _Ended("PRUNED", uid=run.uid)
        if status in ("DEAD", "INTERRUPTED"):
            how = killed_text(code) if code < 0 else run.get("meta.interrupted_by")
            return _Ended("KILLED", reason=f"run {run.id} is {status}{f': {how}' if how else ''}", uid=run.uid)
        if not status.startswith("COMPLETED"):
            trace = run.document.get("fail_trace") or []
            why = str(trace[-1]).strip() if trace else status
            return _Ended("FAIL", reason=f"run {run.id} is {status}: {why}", uid=run.uid)
        objectives = [objective.name for objective in self._spec.objectives]
        constrained = [constraint.metric for constraint in self._spec.constraints]
        found = {name: objective_value(run, name) for name in (*objectives, *constrained)}
        reasons = [value for value in found.values() if isinstance(value, str)]
        if reasons:
            return _Ended("FAIL", reason=reasons[0], uid=run.uid)
        numbers = {name: float(value) for name, value in found.items()}
        measured = {name: numbers[name] for name in constrained}
        return _Ended("COMPLETE", tuple(numbers[name] for name in objectives), measured, uid=run.uid)

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat > BEAT_S:
            self._home.beat(self.name)
            self._last_beat = time.monotonic()
