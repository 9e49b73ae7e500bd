"""`Notifier`: the alerts of a run, and the messages that it sends about itself."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sacristan.configs.packages import numpy as np
from sacristan.observers.errors import ObserversError
from sacristan.observers.notifying import (
    LEVELS,
    Message,
    Sending,
    SentMessages,
    alert_event,
    event_of_session,
    finished_after_s,
    message_text,
    read_addresses,
)
from sacristan.observers.record import run_clock
from sacristan.observers.record.identity import is_anonymous
from sacristan.observers.record.points import POINT, Names
from sacristan.observers.record.schema import INFO, RUN, read_json_if_whole

_log = logging.getLogger(__name__)

# Alerts that a run may record, those within a minute, and the characters of one.
_MAX_ALERTS, _PER_MINUTE, _MAX_TEXT = 100, 5, 1000
# Metrics whose first NaN is worth a message.
_MAX_NAN_METRICS = 10
# The end of a run waits so many seconds for the start of the processes that send its last messages.
_START_BOUND_S = 5.0


class Notified(Protocol):
    """The run that the messages are about; see `LabRun`."""

    _id: Any
    experiment_info: dict[str, Any]
    meta_info: dict[str, Any]
    info: dict[str, Any]
    result: Any
    fail_trace: Sequence[str] | None

    @property
    def folder(self) -> Path | None:
        """The folder of its record."""


class Notifier:
    """Records alerts, and sends messages about a run, each in a process of its own; a failure is a line in the log."""

    def __init__(self, run: Notified) -> None:
        self._run = run
        self._addresses: list[str] = []
        self._num_sessions = 1
        self._after_s = 0.0
        self._lock = threading.Lock()
        self._alerts: list[dict[str, str]] = []
        self._recent: deque[float] = deque(maxlen=_PER_MINUTE)
        self._has_dropped = False
        self._nan_metrics: set[str] = set()
        self._starts: list[threading.Event] = []
        self._problems: set[str] = set()

    def begin(self) -> None:
        """Read the addresses once the run is being recorded."""
        with self._reporting():
            self._after_s, self._addresses = finished_after_s(), read_addresses()
        if self._addresses:
            self._run.info["notifies"] = True
        if self._addresses and self._run.folder is not None:
            document = read_json_if_whole(self._run.folder / RUN)
            self._num_sessions = len((document or {}).get("sessions") or ())

    def after_fork_in_child(self) -> None:
        """Send nothing: messages belong to the parent."""
        self._addresses, self._starts, self._lock = [], [], threading.Lock()

    def resume(self, folder: Path) -> None:
        """Load the alerts of earlier sessions from the folder of the record."""
        info = read_json_if_whole(folder / INFO)
        alerts = info.get("alerts") if isinstance(info, dict) else None
        if isinstance(alerts, list) and alerts:
            self._alerts = [alert for alert in alerts if isinstance(alert, dict)][:_MAX_ALERTS]
            self._run.info |= {"alerts": self._alerts, "alert_level": info.get("alert_level")}

    def alert(self, text: str, level: str) -> None:
        """Record an alert of level `info`, `warning` or `error`, its first 1000 characters, and send it."""
        if level not in LEVELS:
            raise ValueError(f"level: got {level!r}, expected one of {', '.join(LEVELS)}")
        entry = {"time": datetime.now(UTC).isoformat(), "level": level, "text": message_text(str(text), _MAX_TEXT)}
        with self._lock:
            now = time.monotonic()
            is_often = len(self._recent) == _PER_MINUTE and now - self._recent[0] < 60
            if is_often or len(self._alerts) >= _MAX_ALERTS:
                if not self._has_dropped:
                    self._has_dropped = True
                    _log.warning(
                        "an alert was dropped: a run keeps %d alerts, %d a minute; more are dropped silently",
                        _MAX_ALERTS,
                        _PER_MINUTE,
                    )
                return
            self._recent.append(now)
            self._alerts.append(entry)
            highest = max((str(each.get("level")) for each in self._alerts), key=_rank)
            self._run.info |= {"alerts": self._alerts, "alert_level": highest}
        self._send(alert_event(entry["time"]), f"alert: {entry['text']}", [entry["text"]], level)

    # ------------------------------------------------------------------ events

    def look(self, packed: bytes, names: Names) -> None:
        """Send a message about metrics that are NaN for the first time in new points, packed."""
        if not self._addresses or self._is_trial:
            return
        points = np.frombuffer(packed, POINT)
        if not (is_nan := np.isnan(points["value"])).any():
            return
        new = []
        for number in dict.fromkeys(points["metric"][is_nan].tolist()):
            name = names.get(number, ("", False))[0]
            if name in self._nan_metrics or name.startswith("system/") or len(self._nan_metrics) >= _MAX_NAN_METRICS:
                continue
            self._nan_metrics.add(name)
            is_first, _ = self._claim(self._event(f"nan-{hashlib.sha256(name.encode()).hexdigest()[:16]}"))
            if is_first:
                new.append(name)
        if new:
            self._send(None, f"NaN in {', '.join(new)}", [f"first NaN of {name}" for name in new], "warning")

    def completed(self) -> None:
        """Send a message if the run took long enough."""
        if run_clock.elapsed_s() >= self._after_s and not self._is_trial:
            result = [] if self._run.result is None else [f"result: {self._run.result}"]
            self._send(self._event("finished"), "finished", result, "success")

    def failed(self) -> None:
        """Send a message about the error that ended the run, unless the run was rejected before it began."""
        if not self._run.meta_info.get("refused") and not self._is_trial:
            self._send(self._event("failed"), "failed", ["".join((self._run.fail_trace or ())[-3:])[-2000:]], "error")

    def _event(self, name: str) -> str:
        """Return the name of an event in this session, so that a resumed run sends its messages again."""
        return event_of_session(name, self._num_sessions)

    @property
    def _is_trial(self) -> bool:
        """True if the run belongs to a sweep, which sends one digest."""
        return "sweep" in self._run.meta_info

    # ------------------------------------------------------------------ sending

    def wait_for_processes(self) -> None:
        """Wait until the process of each message has started; it outlives this one."""
        until = time.monotonic() + _START_BOUND_S
        for started in self._starts:
            started.wait(max(0.0, until - time.monotonic()))

    def _send(self, event: str | None, what: str, lines: Sequence[str], level: str) -> None:
        """Send a message unless it was sent before; an event of None need not be claimed."""
        if not self._addresses:
            return
        with self._reporting():
            run = self._run
            facts = [f"command: {run.meta_info.get('command')}"]
            facts += [] if is_anonymous(run.meta_info) else [f"host: {platform.node()}"]
            facts += [f"after: {run_clock.elapsed_s():.0f} s"]
            facts += [] if run.folder is None else [f"record: {run.folder.absolute()}"]
            message = Message(
                f"{run.experiment_info.get('name')} {run._id}: {what}", "\n".join([*lines, *facts]), level
            )
            started = threading.Event()
            self._starts = [*(each for each in self._starts if not each.is_set()), started]
            arguments = (event, message, self._addresses, started)
            try:
                threading.Thread(target=self._see_through, args=arguments, name="notification", daemon=True).start()
            except RuntimeError:  # Python is exiting and starts no thread
                self._see_through(*arguments, to_its_end=False)

    def _see_through(
        self,
        event: str | None,
        message: Message,
        addresses: list[str],
        started: threading.Event,
        *,
        to_its_end: bool = True,
    ) -> None:
        """Send a message, in its own thread, and log each problem once."""
        with self._reporting():
            try:
                is_first, claim = (True, None) if event is None else self._claim(event)
                if not is_first:
                    return
                try:
                    sending = Sending(message, addresses, claim)
                except BaseException:
                    if claim is not None and event is not None:
                        with contextlib.suppress(OSError):
                            SentMessages(claim.parents[1]).release(event)
                    raise
            finally:
                started.set()
            for problem in sending.problems() if to_its_end else ():
                with self._lock:
                    is_new = problem not in self._problems
                    self._problems.add(problem)
                if is_new:
                    _log.warning("a notification was not sent: %s", problem)

    def _claim(self, event: str) -> tuple[bool, Path | None]:
        """Claim a message; return whether nobody has sent it, and the file of the claim, if the record has one."""
        folder = self._run.folder
        if folder is None:
            return True, None
        with contextlib.suppress(OSError):  # such as a full disk, of which the message may tell
            sent = SentMessages(folder)
            return sent.claim(event), sent.path(event)
        return True, None

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log an error in the block in one line."""
        try:
            yield
        except ObserversError as error:
            _log.warning("no notifications: %s", error)
        except Exception as error:
            # Name the type alone: the error's text may contain addresses.
            _log.warning("a notification was not sent: %s", type(error).__name__)


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else -1
