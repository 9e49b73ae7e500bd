"""Recent events of the runs of a store, and messages about them, each sent once by any number of watchers.

Runs that have addresses send their own messages. A watcher sends those of the others, and those about killed runs and
the queue.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from typing import Any

from sacristan.observers.notifying import LEVELS, Message, Sending, alert_event, event_of_session
from sacristan.runs.errors import StoreAwayError, StoreError
from sacristan.runs.query import REFUSED, SWEEP, list_of
from sacristan.runs.query.filters import Question
from sacristan.runs.query.texts import count_text, duration_text
from sacristan.runs.stores import NEWEST_FIRST, Run, Store, runs_by

_ALERT_LEVEL = "info.alert_level"
_COLUMNS = (
    "name", "status", "start_time", "stop_time", "queue_time", "heartbeat", "uid", "host", REFUSED, SWEEP,
    "info.notifies", _ALERT_LEVEL,
)  # fmt: skip
_WAITING = ("RUNNING", "QUEUED")
# Lines of one message.
_MAX_LINES = 20


@dataclasses.dataclass(frozen=True)
class Notice:
    """Something that happened to a run, or to a queue or sweep, whose last run keeps the claim on the message.

    `event` is `failed`, `dead`, `finished` or `queue_empty`, after a resume with the number of the session;
    `sweep_done`; or an alert.
    """

    run: Run
    event: str
    text: str
    level: str

    @property
    def key(self) -> tuple[str, str]:
        """Its identity in this process."""
        return _key(self.run, self.event)


class RecentRuns:
    """The runs of a store that were active lately or have not ended, however many there are."""

    def __init__(self, store: Store, back: timedelta) -> None:
        self._store, self._back = store, back
        self._since = datetime.now(UTC) - back
        self.runs: list[Run] = []
        # Ids of the runs that had not ended at the last look, and of those whose end came later than `back`.
        self._open: set[str] = set()
        self._late: set[str] = set()
        self._arrivals = _Arrivals(store)
        # By id: the state of a run, and what was read of it then.
        self._read: dict[tuple[str, str], tuple[Any, Any]] = {}

    def look(self) -> RecentRuns:
        """Look at the store, and return this object.

        It sees runs that ended before `back` as well, if their end arrived in the store later, such as after an outage
        of the database: those that an earlier look saw before their end, and those that were delivered as a whole.
        """
        self._since = datetime.now(UTC) - self._back
        times = [{name: {"$gte": self._since.isoformat()}} for name in ("start_time", "stop_time", "heartbeat")]
        document = {"$or": [*times, {"status": {"$in": list(_WAITING)}}]}
        question = Question.of(document, NEWEST_FIRST, None, _COLUMNS)
        runs_by_id = {run.id: run.listed() for run in self._store.answer(question)}
        self._late = (self._late | self._open) - runs_by_id.keys()
        unseen = self._late | (self._arrivals.look(runs_by_id.values(), self._since) - runs_by_id.keys())
        late = {id: run.listed() for id, run in runs_by(self._store, sorted(unseen)).items()}
        runs_by_id, self._late = runs_by_id | late, self._late & late.keys()
        self.runs = list(runs_by_id.values())
        self._open = {run.id for run in self.runs if run.status in _WAITING}
        self._read = {key: seen for key, seen in self._read.items() if key[0] in runs_by_id}
        return self

    def ended(self, run: Run) -> bool:
        """Tell whether a run ended lately."""
        stop = run.stop_time
        if stop is None and run.start_time is not None and run.duration_s is not None:
            stop = run.start_time + timedelta(seconds=run.duration_s)  # its last heartbeat
        is_late = run.id in self._late | self._arrivals.ids
        return run.status not in _WAITING and stop is not None and (stop >= self._since or is_late)

    def notices(
        self, after_s: float, known: Iterable[tuple[str, str]] = (), *, is_sending: bool = True
    ) -> list[Notice]:
        """Return what there is to say about single runs and the queue, without the notices whose keys are `known`.

        Completed runs shorter than `after_s` seconds are not worth a message. If `is_sending`, what runs send
        themselves is left out, unless no receiver took it.
        """
        known = set(known)
        found = [notice for run in self.runs for notice in (*self._of_alerts(run), *self._of_end(run, after_s, known))]
        news = [notice for notice in found if notice.key not in known]
        queue = self._of_queue()
        return [
            *(notice for notice in news if not (is_sending and self._is_told_by_run(notice))),
            *([queue] if queue is not None and queue.key not in known else []),
        ]

    def _of_end(self, run: Run, after_s: float, known: Set[tuple[str, str]]) -> Iterator[Notice]:
        """Yield the end of a run, unless it is known: its text takes a look at the record. Sweeps have a digest."""
        event = self._event_of(run, after_s) if run.get(SWEEP) is None and self.ended(run) else None
        if event is not None and _key(run, named := self._of_session(run, event)) not in known:
            yield Notice(run, named, _text_of(run, event), "success" if event == "finished" else "error")

    def _of_alerts(self, run: Run) -> Iterator[Notice]:
        if run.get(_ALERT_LEVEL) is None:
            return
        for alert in self._once(run, "alerts"):
            if alert["time"] >= self._since.isoformat() or run.id in self._arrivals.ids:
                level = alert["level"] if alert["level"] in LEVELS else "info"
                text = f"run {run.id} {run.name}: alert: {alert['text']}"
                yield Notice(run, alert_event(alert["time"]), text, level)

    def _event_of(self, run: Run, after_s: float) -> str | None:
        if run.status == "FAILED" and run.get(REFUSED) is not True:
            return "failed"
        if run.status.startswith("COMPLETED") and (run.duration_s or 0.0) >= after_s:
            return "finished"
        return "dead" if run.status == "DEAD" else None

    def _of_queue(self) -> Notice | None:
        """Return that the queue is empty, once for each last run."""
        queued = [run for run in self.runs if run.get("queue_time") is not None and run.get(SWEEP) is None]
        done = [run for run in queued if self.ended(run)]
        if not done or any(run.status in _WAITING for run in queued):
            return None
        last = max(done, key=lambda run: (run.stop_time or self._since, run.uid or ""))
        event = self._of_session(last, "queue_empty")
        return Notice(last, event, f"the queue is empty; run {last.id} {last.name} was the last one", "info")

    def _of_session(self, run: Run, event: str) -> str:
        return event_of_session(event, len(self._once(run, "sessions")))

    def _once(self, run: Run, name: str) -> list[dict[str, Any]]:
        """Return the sessions or the alerts of a run, which are read again only if the run has changed."""
        state = (run.status, run.get("heartbeat"), run.get("stop_time"))
        if self._read.get((run.id, name), (None,))[0] != state:
            self._read[run.id, name] = state, getattr(run, name)
        return self._read[run.id, name][1]

    def _is_told_by_run(self, notice: Notice) -> bool:
        speaks = notice.run.status != "DEAD" or notice.event.startswith("alert-")
        is_theirs = speaks and notice.run.get("info.notifies") is True
        return is_theirs and not self._store.messages.is_unsent(notice.run, notice.event)


class _Arrivals:
    """The runs that arrived in a store lately, whatever their times: a store numbers its runs as they arrive."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Times of looks, each with the highest number that it saw first.
        self._highest: list[tuple[datetime, int]] = []
        self.ids: set[str] = set()

    def look(self, recent: Iterable[Run], since: datetime) -> set[str]:
        """Return the ids of the runs that arrived since a time: after one of `recent` that started since then."""
        now = datetime.now(UTC)
        highest = max((int(run.id) for run in self._find({"id": {"$gt": 0}}, "-id", 1)), default=0)
        if not self._highest or self._highest[-1][1] != highest:
            self._highest.append((now, highest))
        while len(self._highest) > 1 and self._highest[1][0] < since:
            del self._highest[0]
        # A queued run may have waited for long, and a clock may be wrong.
        started = [run for run in recent if run.id.isdecimal() and run.get("queue_time") is None and run.start_time]
        numbers = [int(run.id) for run in started if run.start_time and since <= run.start_time <= now]
        last_before = min([self._highest[0][1], *numbers])
        if last_before < highest:
            self.ids = {run.id for run in self._find({"id": {"$gt": last_before}})}
        else:
            self.ids = set()
        return self.ids

    def _find(self, document: Mapping[str, Any], sort: str | None = None, limit: int | None = None) -> list[Run]:
        return list(self._store.answer(Question.of(document, sort, limit, ("uid",))))


class Outbox:
    """Sends notices, all of one look in one message, unless somebody has; without addresses passes them on."""

    def __init__(self, store: Store, addresses: Sequence[str], tell: Callable[[str], None]) -> None:
        self._store, self._addresses, self._tell = store, list(addresses), tell
        self._last_problem = ""
        self.has_untaken = False
        self.done: set[tuple[str, str]] = set()

    def send(self, notices: Sequence[Notice]) -> list[Notice]:
        """Send notices, wait for receivers until time is up, and return those that this process claimed and sent."""
        notices = [notice for notice in notices if notice.key not in self.done]
        if not self._addresses:
            self.done |= {notice.key for notice in notices}
            return notices
        claimed: list[Notice] = []
        away: StoreAwayError | None = None
        for notice in notices:
            self.done.add(notice.key)
            try:
                if self._store.messages.claim(notice.run, notice.event):
                    claimed.append(notice)
            except StoreAwayError as error:
                self.done.discard(notice.key)
                away = error
                break
            except StoreError as error:
                self._tell(f"not sent: {error}")
        if claimed:
            is_sent = self._deliver(_message(self._store, claimed))
            self._note(claimed, is_sent=is_sent)
            claimed = claimed if is_sent else []
        if away is not None:
            raise away
        return claimed

    def _note(self, notices: Sequence[Notice], *, is_sent: bool) -> None:
        """Confirm the claims on messages, or give them back if nobody took the messages."""
        self.has_untaken |= not is_sent
        for notice in notices:
            if not is_sent:
                self.done.discard(notice.key)
            try:
                self._store.messages.note(notice.run, notice.event, is_sent=is_sent)
            except StoreError as error:  # such as a run that was removed meanwhile
                self._tell(f"not noted that a message was {'sent' if is_sent else 'not sent'}: {error}")

    def _deliver(self, message: Message) -> bool:
        """Send a message; return whether a receiver took it. The same problem is logged once."""
        problems = ["the process that sends it cannot be started"] * len(self._addresses)
        with contextlib.suppress(OSError):
            problems = Sending(message, self._addresses).problems()
        problem = "; ".join(problems)
        if problem and problem != self._last_problem:
            self._tell(f"not sent: {problem}")
        self._last_problem = problem
        return len(problems) < len(self._addresses)


def _key(run: Run, event: str) -> tuple[str, str]:
    return run.uid or run.id, event


def _text_of(run: Run, event: str) -> str:
    after = f"after {duration_text(run.duration_s)} on {run.host or 'an unknown host'}"
    what = f"run {run.id} {run.name}"
    if event == "dead":
        return f"{what} is dead: its process is gone, {after}"
    trace = "".join(map(str, list_of(run["fail_trace"]))).strip() if event == "failed" else ""
    return f"{what} {event} {after}{f': {trace.splitlines()[-1][:300]}' if trace else ''}"


def _message(store: Store, notices: Sequence[Notice]) -> Message:
    texts = [notice.text for notice in notices]
    title = texts[0].partition("\n")[0] if len(texts) == 1 else f"{count_text(len(texts), 'event')} in {store.where}"
    more = [f"and {len(texts) - _MAX_LINES} more"] if len(texts) > _MAX_LINES else []
    levels = [notice.level for notice in notices]
    level = next(each for each in ("error", "warning", "info", "success") if each in levels)
    return Message(title, "\n".join([*texts[:_MAX_LINES], *more, f"store: {store.where}"]), level)
