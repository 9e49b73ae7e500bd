"""`Agent`: claims points of a sweep one by one, has a worker run them, and records their outcomes.

Any number of agents work on a sweep, on any machine that sees its home; each of them may be killed at any time. Another
agent claims the point that a dead one left, and resumes its run from the newest state, or starts it from its beginning.

`AgentProcess` starts one as a process, `python -m sacristan.runs.sweeps.agents.agent_process`, which reads its request,
as JSON, from stdin: on the command line everybody could read the password of the database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from sacristan.observers.record.identity import TRIAL_VARIABLE
from sacristan.runs.errors import RunsError
from sacristan.runs.rerun.launching import EndsWithUs
from sacristan.runs.stores.opening import open_store
from sacristan.runs.sweeps.agents import AgentOptions, Outcome, TrialTask, Workplace
from sacristan.runs.sweeps.spec import spec_of
from sacristan.runs.sweeps.study import Point, Study
from sacristan.runs.sweeps.study.home import BEAT_S, Home, Place
from sacristan.runs.work import TaskSource, Worker
from sacristan.runs.work.warm import PACKAGES, WarmPython

_log = logging.getLogger(__name__)

# Seconds between two looks for points that other agents have left undone.
_LOOK_S = 5.0
# With more agents than these each looks less often, because one look in a while is enough for all.
_FEW_AGENTS = 20
# The sweep is given up when so many points have failed and none has ended otherwise.
_FIRST_FAILURES = 3


class Agent(TaskSource):
    """Works on a sweep; with `warm=None` it only takes points. No other agent has its `name`."""

    def __init__(self, home: Home, agent_options: AgentOptions, warm: WarmPython | None) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000 % 10**9}"
        self._home, self._agent_options, self._warm = home, agent_options, warm
        definition = home.definition()
        self._located = definition if agent_options.lab is None else definition.located(agent_options.lab)
        self.study = Study(home, definition, spec_of(definition))
        self._store = open_store(agent_options.base, create=True)
        self._following: TrialTask | None = None
        self._num_done = 0
        self._first_free = 0
        self._look_s = _LOOK_S
        self._last_beat = self._last_look = -math.inf

    def run(self) -> int:
        """Run points until none is left to claim, and return how many this agent has finished."""
        try:
            Worker(self, _log.info, warm=self._warm).work(until_empty=True)
        finally:
            with contextlib.suppress(RunsError):
                self._home.leave(self.name)
            self._store.close()
        return self._num_done

    # ------------------------------------------------------------------ what a worker asks

    def take(self) -> TrialTask | None:
        while True:
            trial, self._following = self._following, None
            if trial is None:
                following = self.next()
                if following is None:
                    return None
                trial = TrialTask(self._workplace(), *following, self._settle)
            with trial.giving_back():
                outcome = trial.prepare()
                if outcome is None:
                    return trial
                self._settle(trial, outcome)

    def beat(self) -> None:
        if time.monotonic() - self._last_beat > BEAT_S:
            self._home.beat(self.name)
            self._last_beat = time.monotonic()

    def hurry(self) -> None:
        self._home.hurry()

    def _workplace(self) -> Workplace:
        """Return the sweep as of now, with its sources where they were when this agent was started."""
        return Workplace(
            self.name,
            self._home,
            self._located,
            self.study.spec,
            self.study,
            self._store,
            self._agent_options,
            self.beat,
        )

    # ------------------------------------------------------------------ which point

    def next(self) -> tuple[Point, int] | None:
        """Claim the next point and return it with the number of the attempt; None if nothing is left to claim."""
        while not self._home.is_stopped and not self._agent_options.is_late:
            self.beat()
            self.study.renew()
            if not self.study.draws_alone:
                self.study.progress()
            if time.monotonic() - self._last_look > self._look_s:
                self._last_look = time.monotonic()
                left = self._abandoned(self._in_progress())
                if left is not None:
                    return left
            number = self._new()
            if number is None:
                limit, left = self._limit, self._left()
                if left is None and self.study.renew() and self._limit > limit:
                    continue
                return left
            point = self.study.take(number)
            same = None if self._agent_options.repeat or self.study.draws_alone else self.study.finished_as(point)
            if same is None:
                return point, 0
            self.study.finish_as(number, same)
        return None

    @property
    def _limit(self) -> float:
        """Most points that the sweep tries."""
        limit = self.study.spec.limit(self.study.definition.count)
        return math.inf if limit is None else limit

    def _new(self) -> int | None:
        """Claim a point that nobody has claimed, and return its number; None if there is none."""
        while (number := self._home.next_number(self._first_unread(), self._limit)) is not None:
            if self._claim(number, 0):
                return number
            self.study.progress()  # points exist beyond the counter, as in a sweep of an earlier version
        if self.study.num_taken() >= self._limit:
            return None
        # An agent may have died between a number and its claim.
        self.study.progress()
        free = self._missing(int(self._limit))
        claimed = self._home.last_claims(free)
        return next((number for number in free if number not in claimed and self._claim(number, 0)), None)

    def _claim(self, number: int, attempt: int) -> bool:
        return self._home.claims(number, self.name).add(attempt)

    def _in_progress(self) -> list[int]:
        """Return the numbers of points that are unfinished or, if all points are read, were claimed and not taken."""
        if self.study.draws_alone:
            return self.study.running()
        return [*self.study.progress().unfinished, *self._missing(self.study.end)]

    def _left(self) -> tuple[Point, int] | None:
        """Claim a point that a dead agent left, taken or claimed alone; return it with the number of the attempt."""
        left = self._abandoned(self._in_progress())
        if left is None and self.study.num_taken() < self._limit:
            left = self._abandoned(self._missing(int(self._limit)))
        return left

    def _first_unread(self) -> int:
        """Return the first number of a point that nobody has taken, as far as was read."""
        while self.study.has(self._first_free):
            self._first_free += 1
        return self._first_free

    def _missing(self, end: int) -> list[int]:
        """Return the numbers below `end` of points that nobody has taken."""
        return [number for number in range(self._first_free, end) if not self.study.has(number)]

    def _abandoned(self, numbers: Sequence[int]) -> tuple[Point, int] | None:
        """Claim a point whose agent is dead, and return it with the number of the attempt."""
        claims = self._home.last_claims(sorted(numbers))
        living = self._home.living_agents() if claims else set()
        self._look_s = _LOOK_S * max(1.0, len(living) / _FEW_AGENTS)
        lost = {number: last.attempt for number, last in claims.items() if last.owner not in living}
        if lost:  # an agent that has left may have seen it through
            self.study.expire()
            self.study.progress()
        for number, last in lost.items():
            taken = self.study.point(number)
            if (taken is not None and taken.is_finished) or not self._claim(number, last + 1):
                continue
            point = self.study.take(number)
            kills = point.num_kills(last + 1)
            if kills <= self._agent_options.retries:
                return point, last + 1
            reason = f"its run was killed {kills} times; sacristan ls --sweep {self._home.id}"
            self.study.finish(number, "FAIL", reason=reason)
        return None

    # ------------------------------------------------------------------ what came of it

    def _settle(self, trial: TrialTask, outcome: Outcome) -> None:
        """Record the outcome of a trial, or start another attempt or the next seed after it."""
        point, attempt = trial.point, trial.attempt
        if outcome.state == "KILLED" and point.num_kills(attempt) < self._agent_options.retries:
            if self._claim(point.number, attempt + 1):
                self._following = trial.following(attempt + 1, trial.outcomes)
            return
        if outcome.state == "LOST":
            return
        outcomes = [*trial.outcomes, outcome]
        if outcome.state == "COMPLETE" and len(outcomes) < self.study.spec.seeds:
            self._following = trial.following(attempt, outcomes)
            return
        self._finish(point, outcomes)
        self._num_done += 1
        ended = self.study.point(point.number)
        if ended is not None and (self._is_hopeless(ended, outcome) or self._is_reached(ended)):
            self._home.stop()

    def _finish(self, point: Point, outcomes: Sequence[Outcome]) -> None:
        """Record the outcome of a point: the mean over its seeds, or the last outcome if that is not complete."""
        last = outcomes[-1]
        uids = [outcome.uid for outcome in outcomes if outcome.uid]
        if last.state == "COMPLETE":
            self.study.finish(point.number, "COMPLETE", *_means(outcomes), runs=uids)
        elif last.state == "PRUNED":
            reports = point.reports or (self.study.point(point.number) or point).reports
            values = [reports[max(reports)]] if reports else []
            self.study.finish(point.number, "PRUNED", values, runs=uids)
        else:
            self.study.finish(point.number, "FAIL", reason=last.reason, runs=uids)
        if self._home.place.copies_runs:
            self._home.place.deliver(filter(None, (self._store.get(uid).folder for uid in uids)))

    def _is_hopeless(self, ended: Point, outcome: Outcome) -> bool:
        """Tell whether a point and all others so far have failed, so that the rest would probably fail as well."""
        if ended.state != "FAIL":
            return False
        counts = self.study.progress().counts
        enough = 1 if outcome.is_refused else _FIRST_FAILURES
        hopeless = counts["FAIL"] >= enough and counts.keys() == {"FAIL"}
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
        return ended.state == "COMPLETE" and self.study.spec.is_reached(ended.values)


def _means(outcomes: Sequence[Outcome]) -> tuple[list[float], dict[str, float]]:
    """Return the means of the objectives, and of the measured metrics by name."""
    values = [statistics.fmean(column) for column in zip(*(each.values for each in outcomes), strict=True)]
    measured = {name: statistics.fmean(each.measured[name] for each in outcomes) for name in outcomes[-1].measured}
    return values, measured


# The folder of the lab's packages.
ROOT = Path(__file__).parents[3]
# Seconds that an interrupted agent has, in which its run saves its state.
END_BOUND_S = 90


class StartedAgent(Protocol):
    """An agent that was started somewhere, for `supervise`."""

    @property
    def is_waiting(self) -> bool:
        """True if it has not begun because no place is free."""

    def poll(self) -> int | None:
        """Return its exit code, negative for the signal that ended it; None while it runs or waits."""

    def interrupt(self, number: int) -> None:
        """Send it a signal, if it runs."""

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end; return whether it has ended."""

    def release(self) -> None:
        """Free what belongs to it, once it has ended."""


def agent_request(place: Place, id: str, agent_options: AgentOptions) -> dict[str, Any]:
    """Return the JSON that an agent's process reads, with the database's password; its runs print to its own stdout."""
    lab = None if agent_options.lab is None else str(agent_options.lab)
    settings = {
        **dataclasses.asdict(agent_options),
        "base": str(agent_options.base.absolute()),
        "lab": lab,
        "output": None,
    }
    return {"place": place.document(), "id": id, "means": settings}


class AgentProcess:
    """An agent's process on this machine, whose runs print to `log`. It ends when the process that started it does."""

    is_waiting = False

    def __init__(self, request: dict[str, Any], log: IO[bytes]) -> None:
        search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sacristan.runs.sweeps.agents.agent_process"],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,  # a Ctrl-C reaches it once, from here
        )
        self._bond = EndsWithUs(self._process.pid, END_BOUND_S)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        self._bond.release()


# ---------------------------------------------------------------------- within the process


def work(place: Place, id: str, agent_options: AgentOptions) -> int:
    """Work on a sweep as one agent until no point is left, and return how many points it has finished."""
    packages = PACKAGES if agent_options.packages is None else agent_options.packages
    with contextlib.closing(place.home(id)) as home, WarmPython(packages, agent_options.environment) as warm:
        return Agent(home, agent_options, warm).run()


def main() -> int:
    """Read a request from stdin, work on its sweep, and return the exit code."""
    request = _request()
    if request is None:
        print(
            "error: this process is started by sweep.run, which tells it by stdin what to work on; "
            "to start an agent by hand: python exp.py sweep.agent with sweep.id=...",
            file=sys.stderr,
        )
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM}
        )  # Ray and a task of Slurm block them
    os.environ.pop(TRIAL_VARIABLE, None)
    agent_options = request["means"]
    paths = {name: Path(agent_options[name]) for name in ("base", "lab") if agent_options[name] is not None}
    try:
        work(Place.of(request["place"]), request["id"], AgentOptions(**{**agent_options, **paths}))
    except KeyboardInterrupt:
        return 130
    except (RunsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _request() -> dict[str, Any] | None:
    """Return the request of `agent_request`, read from stdin; None if that holds anything else."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    try:
        request = json.loads(sys.stdin.readline())
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) and {"place", "id", "means"} <= request.keys() else None


def _leave(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # Slurm may send it to all processes of a job, and the task passes it on
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
