"""Messages, and their delivery by a process beside the run, so that no receiver can delay the run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sacristan.observers.notifying import sender
from sacristan.observers.notifying.addresses import ADDRESSES_VARIABLE, shown
from sacristan.observers.notifying.sent import SENT
from sacristan.observers.record.redaction import hide_passwords, redact

__all__ = ["LEVELS", "Message", "Sending", "message_text"]

# Levels of alerts, the lowest first.
LEVELS = ("info", "warning", "error")

# Seconds that all receivers together have to take a message.
LIMIT_S = 20.0
_MAX_TITLE, _MAX_BODY = 200, 4000
# Types of Apprise by level.
_KINDS = {"info": "info", "success": "success", "warning": "warning", "error": "failure"}


@dataclasses.dataclass(frozen=True)
class Message:
    """A message. Runs may write anything into its texts: control characters and passwords are removed on sending.

    Attributes:
        title: One line.
        body: Lines of plain text.
        level: `info`, `success`, `warning` or `error`.
    """

    title: str
    body: str
    level: str = "info"


class Sending:
    """A message that a process is sending; making one starts the process and waits for nothing.

    The process reads the addresses from a pipe. It confirms the claim, or gives it back if no address takes the
    message. Raises OSError if it cannot be started.
    """

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
