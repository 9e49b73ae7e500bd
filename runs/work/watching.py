"""What happened to the runs of a store lately, and messages about it, each sent once by any number of watchers.

Runs that have addresses tell of their own end. A watcher tells of the others, of killed runs, and of the queue.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from observers.notifying.sending import Message, Sending
from runs.errors import StoreAwayError, StoreError
from runs.query.flattening import list_of
from runs.query.names import REFUSED, SWEEP
from runs.query.texts import count_text, duration_text
from runs.stores.run import Run
from runs.stores.store import Store

__all__ = ["Notice", "Outbox", "RecentRuns"]

_COLUMNS = ("name", "status", "start_time", "stop_time", "queue_time", "heartbeat", "uid", "host", REFUSED, SWEEP)
_WAITING = ("RUNNING", "QUEUED")
_MAX_RUNS = 2000
# Lines of one message.
_MAX_LINES = 20


@dataclasses.dataclass(frozen=True)
class Notice:
    """Something that happened.

    Attributes:
        run: The run that it is about, or the last one of the queue or the sweep, which keeps the claim on the message.
        event: `failed`, `dead`, `finished`, `queue_empty` or `sweep_done`.
        text: What happened, in a line or more.
        level: As in `observers.notifying.sending.Message`.
    """

    run: Run
    event: str
    text: str
    level: str

    @property
    def key(self) -> tuple[str, str]:
        """What it is, for this process."""
        return _key(self.run, self.event)


class RecentRuns:
    """The runs of a store that ended lately or have not ended.

    Args:
        store: The store.
        back: How far to look back.
    """

    def __init__(self, store: Store, back: timedelta) -> None:
        self._since = datetime.now(UTC) - back
        since = {"stop_time": {"$gte": self._since.isoformat()}}
        document = {"$or": [since, {"status": {"$in": ["DEAD", *_WAITING]}}]}
        self.runs = [run.listed() for run in store.find(document, limit=_MAX_RUNS, columns=_COLUMNS)]
        self._store = store

    def ended(self, run: Run) -> bool:
        """Tell whether a run ended lately."""
        stop = run.stop_time
        if stop is None and run.start_time is not None and run.duration_s is not None:
            stop = run.start_time + timedelta(seconds=run.duration_s)  # its last heartbeat
        return run.status not in _WAITING and stop is not None and stop >= self._since

    def notices(
        self, after_s: float, known: Iterable[tuple[str, str]] = (), *, is_sending: bool = True
    ) -> list[Notice]:
        """Return what is to be told of single runs and of the queue.

        Args:
            after_s: The shortest duration, in seconds, of a completed run that is worth a message.
            known: Keys of notices to leave out.
            is_sending: Whether to leave out what runs send themselves, unless no receiver took it.
        """
        known = set(known)
        found = []
        for run in self.runs:
            event = self._event_of(run, after_s) if run.get(SWEEP) is None and self.ended(run) else None
            if event is None or _key(run, event) in known:
                continue
            if not (is_sending and self._is_told_by_run(run, event)):
                found.append(Notice(run, event, _text_of(run, event), "success" if event == "finished" else "error"))
        queue = self._of_queue()
        return [*found, *([queue] if queue is not None and queue.key not in known else [])]

    def _event_of(self, run: Run, after_s: float) -> str | None:
        if run.status == "FAILED" and run.get(REFUSED) is not True:
            return "failed"
        if run.status.startswith("COMPLETED") and (run.duration_s or 0.0) >= after_s:
            return "finished"
        return "dead" if run.status == "DEAD" else None

    def _of_queue(self) -> Notice | None:
        """Return that the queue is empty, told once for each last run."""
        queued = [run for run in self.runs if run.get("queue_time") is not None and run.get(SWEEP) is None]
        done = [run for run in queued if self.ended(run)]
        if not done or any(run.status in _WAITING for run in queued):
            return None
        last = max(done, key=lambda run: (run.stop_time or self._since, run.uid or ""))
        return Notice(last, "queue_empty", f"the queue is empty; run {last.id} {last.name} was the last one", "info")

    def _is_told_by_run(self, run: Run, event: str) -> bool:
        speaks = event != "dead" and run.get("info.notifies") is True
        return speaks and not self._store.backend.is_unsent(run, event)


class Outbox:
    """Sends notices, all of one look in one message, unless somebody has sent them.

    Args:
        store: The store, which keeps the claims.
        addresses: Where to send them; without any, notices are only passed on.
        tell: Takes a line about a message that cannot be sent.

    Attributes:
        has_untaken: Whether there was a message that no receiver took.
    """

    def __init__(self, store: Store, addresses: Sequence[str], tell: Callable[[str], None]) -> None:
        self._store, self._addresses, self._tell = store, list(addresses), tell
        self._last_problem = ""
        self.has_untaken = False
        self.done: set[tuple[str, str]] = set()

    def send(self, notices: Sequence[Notice]) -> list[Notice]:
        """Send notices, and wait until receivers have them or the time is over.

        Args:
            notices: The notices.

        Returns:
            Those that this process was the first to claim, and that a receiver took.

        Raises:
            StoreAwayError: If the store is away.
        """
        notices = [notice for notice in notices if notice.key not in self.done]
        if not self._addresses:
            self.done |= {notice.key for notice in notices}
            return notices
        claimed: list[Notice] = []
        away: StoreAwayError | None = None
        for notice in notices:
            self.done.add(notice.key)
            try:
                if self._store.backend.claim_message(notice.run, notice.event):
                    claimed.append(notice)
            except StoreAwayError as error:
                self.done.discard(notice.key)
                away = error
                break
            except StoreError as error:
                self._tell(f"not sent: {error}")
        if claimed and not self._deliver(_message(self._store, claimed)):
            self._release(claimed)
            claimed = []
        if away is not None:
            raise away
        return claimed

    def _release(self, notices: Sequence[Notice]) -> None:
        """Give back the claims on messages that nobody took."""
        self.has_untaken = True
        for notice in notices:
            self.done.discard(notice.key)
            try:
                self._store.backend.release_message(notice.run, notice.event)
            except StoreError as error:  # such as a run that was removed meanwhile
                self._tell(f"not sent: {error}")

    def _deliver(self, message: Message) -> bool:
        """Send a message; return whether a receiver took it. The same problem is told once."""
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
