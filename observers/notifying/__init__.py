"""Messages, sent by a process beside the run, so that no receiver can delay the run, and never sent twice.

`notified/EVENT` beside the run's notes is the claim on a message, made before the message is sent: of a run and any
number of watchers, one makes it. It holds `sent` once a receiver took the message. If none takes it, the claim is
renamed `EVENT.unsent`. A claim whose process was killed before it sent the message is abandoned after ten minutes, and
free again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sacristan.configs.packages import missing_package
from sacristan.configs.shielding import STOP, shielded
from sacristan.observers.errors import MissingExtraError, NotifyError
from sacristan.observers.notifying import sender
from sacristan.observers.record.files import open_regular, write_once
from sacristan.observers.record.folders import claimed
from sacristan.observers.record.redaction import hide_passwords, redact
from sacristan.observers.record.schema import NOTIFIED_FOLDER

__all__ = [
    "ABANDONED_S",
    "ADDRESSES_VARIABLE",
    "LEVELS",
    "SENT",
    "Message",
    "Sending",
    "SentMessages",
    "alert_event",
    "event_of_session",
    "finished_after_s",
    "message_text",
    "read_addresses",
]

# Levels of alerts, the lowest first.
LEVELS = ("info", "warning", "error")

# Seconds that all receivers together have to take a message.
LIMIT_S = 20.0
_MAX_TITLE, _MAX_BODY = 200, 4000
# Types of Apprise by level.
_KINDS = {"info": "info", "success": "success", "warning": "warning", "error": "failure"}


class Message(NamedTuple):
    """A message with a title of one line and a level from `info` to `error`; passwords are removed on sending."""

    title: str
    body: str
    level: str = "info"


class Sending:
    """A message that a process is sending: it confirms the claim, or gives it back; OSError if it cannot start."""

    def __init__(self, message: Message, addresses: Sequence[str], claim: Path | None = None) -> None:
        self._addresses = list(addresses)
        request = {
            "addresses": self._addresses,
            "title": message_text(message.title.replace("\n", " "), _MAX_TITLE),
            "body": message_text(message.body, _MAX_BODY) or ".",
            "kind": _KINDS[message.level],
            "limit_s": LIMIT_S,
            "claim": None if claim is None else str(claim.absolute()),
            "sent": SENT,
        }
        with shielded(STOP):
            self._process = subprocess.Popen(
                [sys.executable, "-P", sender.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=Path(sys.executable).anchor,
                env={name: value for name, value in os.environ.items() if name != ADDRESSES_VARIABLE},
                start_new_session=True,  # Ctrl-C is for the run
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(json.dumps(request).encode())

    def problems(self) -> list[str]:
        """Wait for the process, and return what went wrong, by address."""
        # `communicate` must not flush the closed stdin.
        self._process.stdin = None
        try:
            output, _ = self._process.communicate(timeout=LIMIT_S + 10)
            outcomes = json.loads(output)
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
            outcomes = ["the process that sends it was killed"] * len(self._addresses)
        count = len(self._addresses)
        return [
            f"address {number} of {count} ({shown(address)}): {problem}"
            for number, (address, problem) in enumerate(zip(self._addresses, outcomes, strict=True), 1)
            if problem
        ]


def message_text(text: str, most: int) -> str:
    """Return a text for a message: printable characters and line ends, shortened, passwords of URLs hidden."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in hide_passwords(redact(text[: 4 * most])))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


# ---------------------------------------------------------------------- messages that were sent

# Seconds after which a claim without an outcome is abandoned: far longer than sending takes, as clocks differ.
ABANDONED_S = 600.0
# Content of the claim on a message that a receiver took.
SENT = "sent"


def event_of_session(event: str, num_sessions: int) -> str:
    """Return the name of an event of a session, because a resumed run can fail again; 0 and 1 mean the first."""
    return event if num_sessions < 2 else f"{event}-{num_sessions}"


def alert_event(at: str) -> str:
    """Return the name of an alert as an event."""
    return f"alert-{hashlib.sha256(at.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class SentMessages:
    """The messages of one run that were sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / NOTIFIED_FOLDER

    def path(self, event: str) -> Path:
        return self._folder / event

    def claim(self, event: str) -> bool:
        """Claim a message; return False if it was sent, or is being sent."""
        path = self.path(event)
        if path.exists():
            if not self._is_abandoned(event):
                return False
            with claimed(self._folder):  # so that nobody removes the new claim of another
                if self._is_abandoned(event):
                    path.unlink()
        self._folder.mkdir(exist_ok=True)
        return write_once(path, datetime.now(UTC).isoformat().encode(), durable=False)

    def confirm(self, event: str) -> None:
        """Note that a receiver took a message that the caller claimed."""
        self.path(event).write_text(SENT)

    def release(self, event: str) -> None:
        """Note that no receiver took a message that the caller claimed."""
        self.path(event).replace(self.path(f"{event}.unsent"))

    def is_unsent(self, event: str) -> bool:
        """Tell whether a message was tried, and no receiver took it."""
        if self.path(event).exists():
            return self._is_abandoned(event)
        return self.path(f"{event}.unsent").exists()

    def _is_abandoned(self, event: str) -> bool:
        try:
            is_old = time.time() - self.path(event).stat().st_mtime > ABANDONED_S
            return is_old and self.path(event).read_text() != SENT
        except OSError:  # given back or removed meanwhile
            return False


# ---------------------------------------------------------------------- addresses

# They hold secrets: no message, record or process list shows them.

# Addresses as Apprise writes them, separated by spaces or line ends; empty for none.
ADDRESSES_VARIABLE = "SACRISTAN_NOTIFY"
# The shortest run, in seconds, whose end is worth a message.
AFTER_VARIABLE = "SACRISTAN_NOTIFY_AFTER_S"

_AFTER_S = 600.0
# All addresses fit into the pipe to the process that sends a message, so that writing them never waits.
_MAX_BYTES = 16 * 1024
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S")


def read_addresses() -> list[str]:
    """Return the addresses in `SACRISTAN_NOTIFY`, otherwise in `~/.config/sacristan/notify`, one a line.

    Raises NotifyError if one is no URL, there are too many, or others may read the file; MissingExtraError.
    """
    where, text = ADDRESSES_VARIABLE, os.environ.get(ADDRESSES_VARIABLE)
    if text is None:
        path = _config_home() / "sacristan" / "notify"
        # A folder that this user cannot enter, such as another user's home in a container, counts as none.
        where, text = str(path), _private_text(path) if os.access(path, os.F_OK) else ""
    if len(text.encode()) > _MAX_BYTES:
        raise NotifyError(f"{where}: got more than {_MAX_BYTES} bytes; keep fewer addresses")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    addresses = " ".join(lines).split()
    for number, address in enumerate(addresses, 1):
        if not _SCHEME.match(address):
            raise NotifyError(
                f"{where}: address {number} of {len(addresses)} is not a URL such as mailto://USER:PASSWORD@HOST; "
                "https://appriseit.com lists the services"
            )
    if addresses and find_spec("apprise") is None:
        raise MissingExtraError(missing_package(f"{where}: notifications need", "apprise", "notify"))
    return addresses


def shown(address: str) -> str:
    """Return what messages may show of an address: its scheme."""
    match = _SCHEME.match(address)
    return f"{match[1]}://..." if match else "..."


def finished_after_s() -> float:
    """Return the shortest duration, in seconds, of a completed run that is worth a message."""
    text = os.environ.get(AFTER_VARIABLE)
    if not text:
        return _AFTER_S
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if seconds >= 0 and not math.isnan(seconds):
            return seconds
    raise NotifyError(f"{AFTER_VARIABLE}: got {text!r}, expected a number of seconds of at least 0")


def _config_home() -> Path:
    """Return the folder of the user's settings; one that is not there for users without a home."""
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return Path(os.devnull)


def _private_text(path: Path) -> str:
    """Return the content of a file that only its owner may read."""
    try:
        with open_regular(path) as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077 and os.name == "posix":
                raise NotifyError(
                    f"{path}: got mode {mode:04o}, expected 0600, because addresses hold secrets; run: chmod 600 {path}"
                )
            return stream.read(_MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise NotifyError(f"{path} cannot be read ({error.strerror or error})") from error
