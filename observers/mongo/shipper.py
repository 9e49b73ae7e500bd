"""`Shipper`: the thread that delivers one run; outages only delay it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pymongo.errors import PyMongoError

from sacristan.observers.mongo import explain, is_logged_out, is_refusal
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.series import len_media, len_points
from sacristan.observers.record.files import shown_path
from sacristan.observers.record.schema import RUN

_log = logging.getLogger(__name__)

# Between deliveries, and at most after failed ones.
_INTERVAL_S, _LONGEST_WAIT_S = 1.0, 10.0
# How long an attempt in progress may outlast the bound of the end: as long as the time-out of a confirmation.
LAST_ATTEMPT_S = 3.0


class Shipper(threading.Thread):
    """Delivers one run's folder again and again, until it is stopped and everything is delivered, or time is up.

    `connect` creates the delivery, again after it failed and when the server has logged the user out. `attempted` is
    set after the first attempt, and `has_delivered` once the server has accepted a delivery.
    """

    def __init__(self, connect: Callable[[], Delivery], folder: Callable[[], Path], label: str) -> None:
        super().__init__(name="sacristan-shipper", daemon=True)
        self.delivery: Delivery | None = None
        self._connect = connect
        self._folder = folder
        self.label = label
        self.attempted = threading.Event()
        self.has_delivered = False
        self._stopping = threading.Event()
        self._refused = self._is_logged_out = False
        self._deadline = 0.0
        self._troubles: set[str] = set()

    def run(self) -> None:
        wait_s = _INTERVAL_S
        while True:
            stopping = self._stopping.is_set()
            delivered = self._try(last=stopping)
            self.attempted.set()
            wait_s = _INTERVAL_S if delivered else min(2 * wait_s, _LONGEST_WAIT_S)
            if not stopping:
                self._stopping.wait(wait_s)
                continue
            left_s = self._deadline - time.monotonic()
            if (delivered and (self.is_complete or self.was_removed)) or self._refused or left_s <= 0:
                return
            time.sleep(min(0.2, left_s))

    def _try(self, *, last: bool) -> bool:
        try:
            try:
                self._deliver(last=last)
            except PyMongoError as error:
                if self._is_logged_out or not is_logged_out(error):
                    raise
                self._is_logged_out = True
                self._deliver(last=last)
        except FileNotFoundError:
            # The folder was moved or deleted during the delivery; the next heartbeat of its recording notices.
            return False
        except Exception as error:
            self._refused = is_refusal(error)
            self._warn(explain(error))
            return False
        self._refused, self.has_delivered = False, True
        if self._troubles:
            _log.warning("MongoDB at %s: back, and all up to now is sent", self.label)
            self._troubles.clear()
        return True

    def _deliver(self, *, last: bool) -> None:
        if self.delivery is None:
            self.delivery = self._connect()
        # The old delivery says how much is delivered until the user can log in again.
        delivery = self._connect() if self._is_logged_out else self.delivery
        if delivery.folder != self._folder():
            delivery.follow(self._folder())
        delivery.advance(last=last)
        self.delivery, self._is_logged_out = delivery, False

    def _warn(self, reason: str) -> None:
        if reason not in self._troubles:
            self._troubles.add(reason)
            _log.warning(
                "MongoDB at %s: %s; the run continues, its record is kept and delivered later", self.label, reason
            )

    @property
    def was_removed(self) -> bool:
        """True if the run was removed from the database, and is therefore not delivered."""
        return self.delivery is not None and self.delivery.was_removed

    @property
    def is_complete(self) -> bool:
        """True if everything in the run's folder is in the database, according to the database."""
        return self.delivery is not None and self.delivery.is_complete

    def stop(self, bound_s: float) -> bool:
        """Deliver the rest within `bound_s`, and `LAST_ATTEMPT_S` for an attempt in progress; return whether all is."""
        self._deadline = time.monotonic() + bound_s
        self._stopping.set()
        self.join(bound_s + LAST_ATTEMPT_S)
        return not self.is_alive() and self.is_complete

    def report_rest(self, folder: Path, sync_folder: Path) -> None:
        """Log in one line what is not delivered, after `stop`."""
        shown = shown_path(folder)
        if self.was_removed:
            _log.warning(
                "MongoDB at %s: this run was removed there, and is not sent again; its record is kept in %s",
                self.label,
                shown,
            )
        elif not (folder / RUN).exists():
            _log.error(
                "MongoDB at %s: the end of this run is not delivered, and cannot be: %s was deleted", self.label, shown
            )
        elif self.delivery is not None and self.delivery.is_sent:
            _log.error(
                "MongoDB at %s: this run is sent, but not confirmed, so it can still be lost there; it is kept in %s; "
                "deliver it with: sacristan sync %s",
                *(self.label, shown, shown_path(sync_folder)),
            )
        else:
            _log.error(
                "MongoDB at %s: %d points, %d media and the end of this run are not delivered; they are kept in %s; "
                "deliver them with: sacristan sync %s",
                self.label,
                len_points(folder) if self.delivery is None else self.delivery.num_missing(),
                len_media(folder) if self.delivery is None else self.delivery.num_missing_media(),
                shown,
                shown_path(sync_folder),
            )
