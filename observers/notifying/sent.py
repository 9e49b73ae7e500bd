"""The messages of a run that were sent, beside its notes, so that nobody sends one twice.

`notified/EVENT` is the claim on a message, made before the message is sent: of a run, resumed or not, and of any
number of watchers, one makes it. If no receiver takes the message, the claim is renamed `EVENT.unsent`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from observers.record.atomic_file import write_once
from observers.record.schema import NOTIFIED_FOLDER

__all__ = ["SentMessages"]


class SentMessages:
    """The messages of one run that were sent.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / NOTIFIED_FOLDER

    def path(self, event: str) -> Path:
        """Return the file of the claim on a message.

        Args:
            event: Name of the event, usable as a file name.
        """
        return self._folder / event

    def claim(self, event: str) -> bool:
        """Claim a message.

        Args:
            event: Name of the event.

        Returns:
            Whether the caller must send it; False if it was sent, or is being sent.

        Raises:
            OSError: If the claim cannot be written.
        """
        if self.path(event).exists():
            return False
        self._folder.mkdir(exist_ok=True)
        return write_once(self.path(event), datetime.now(UTC).isoformat().encode(), durable=False)

    def release(self, event: str) -> None:
        """Note that no receiver took a message that the caller claimed.

        Args:
            event: Name of the event.

        Raises:
            OSError: If that cannot be noted.
        """
        self.path(event).replace(self.path(f"{event}.unsent"))

    def is_unsent(self, event: str) -> bool:
        """Tell whether a message was tried, and no receiver took it.

        Args:
            event: Name of the event.
        """
        return self.path(f"{event}.unsent").exists() and not self.path(event).exists()
