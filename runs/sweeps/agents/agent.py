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
import socket
import statistics
import time
from collections.abc import Sequence

from runs.errors import RunsError
from runs.stores.opening import open_store
from runs.stores.store import Store
from runs.sweeps.agents.trials import Ended, Means, Trials
from runs.sweeps.spec.spec import Spec, read_spec
from runs.sweeps.study.home import BEAT_S, Claim, Home
from runs.sweeps.study.study import Point, Study
from runs.work.warm import WarmPython

__all__ = ["Agent"]

_log = logging.getLogger(__name__)

# How often what other agents have left undone is looked for, in seconds.
_LOOK_S = 5.0
# Each of more agents than these looks less often, as one look in a while is enough for all.
_FEW_AGENTS = 20
# Points that may fail, before any has come to its end, until the sweep is given up.
_FIRST_FAILURES = 3


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
        self._home, self._means = home, means
        self._definition = home.definition()
        if means.lab is not None:
            self._definition = self._definition.located(means.lab)
        self._spec: Spec = read_spec(self._definition.spec)
        self.study = Study(home, self._definition, self._spec)
        self._store: Store = open_store(means.base, create=True)
        self._trials = Trials(
            self.name,
            home,
            self._definition,
            self._spec,
            study=self.study,
            store=self._store,
            means=means,
            warm=warm,
            beat=self._beat,
        )
        self._first_free = 0
        self._look_s = _LOOK_S
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
        """Maximum number of points."""
        given = [self._spec.size, self._spec.run_cap, self._definition.count]
        return min((number for number in given if number is not None), default=float("inf"))

    def next(self) -> tuple[Point, int] | None:
        """Return the next point and which attempt at it this is; None if there is nothing left to take."""
        while not self._home.is_stopped and not self._is_late:
            self._beat()
            if not self.study.draws_alone:
                self.study.progress()
            if time.monotonic() - self._last_look > self._look_s:
                self._last_look = time.monotonic()
                left = self._abandoned(self._in_progress())
                if left is not None:
                    return left
            new = self._new()
            if new is None:
                left = self._abandoned(self._in_progress())
                if left is None and self.study.num_taken() < self._limit:
                    # An agent may have died before it took what it claimed.
                    left = self._abandoned(self._missing(int(self._limit)))
                if left is None and self._has_grown():
                    continue
                return left
            point = self.study.take(new.trial)
            same = None if self._means.repeat or self.study.draws_alone else self.study.finished_as(point)
            if same is None:
                return point, new.attempt
            self.study.finish_as(new.trial, same)
        return None

    def _in_progress(self) -> list[int]:
        """Return the numbers of points that are unfinished or, where all are read, were claimed and not taken."""
        if self.study.draws_alone:
            return self.study.running()
        return [*self.study.progress().unfinished, *self._missing(self.study.end)]

    def _has_grown(self) -> bool:
        """Tell whether the sweep may try more points by now than when this agent looked last."""
        before = self._limit
        self._definition = dataclasses.replace(self._definition, count=self._home.definition().count)
        return self._limit > before

    @property
    def _is_late(self) -> bool:
        return self._means.deadline is not None and time.time() >= self._means.deadline

    def _new(self) -> Claim | None:
        """Claim a point that nobody has claimed; return None if there is none."""
        while (number := self._home.next_number(self._first_unread(), self._limit)) is not None:
            claim = Claim(number, 0, self.name)
            if self._home.claim(claim):
                return claim
            self.study.progress()  # others have come farther than the counter, as in a sweep of an earlier version
        if self.study.num_taken() >= self._limit:
            return None
        # An agent may have died between a number and its claim.
        self.study.progress()
        free = self._missing(int(self._limit))
        claimed = self._home.last_claims(free)
        claims = (Claim(number, 0, self.name) for number in free if number not in claimed)
        return next(filter(self._home.claim, claims), None)

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
                reason = f"its run was killed {kills} times; python -m runs ls --sweep {self._home.id}"
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
        ended: list[Ended] = []
        for seed in self._seeds(point):
            one = self._trials.run(point, attempt, seed)
            while one.state == "KILLED" and attempt - point.times_given_back < self._means.retries:
                attempt += 1
                if not self._home.claim(Claim(point.number, attempt, self.name)):
                    return  # another agent took this one for dead
                one = self._trials.run(point, attempt, seed)
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

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat > BEAT_S:
            self._home.beat(self.name)
            self._last_beat = time.monotonic()
