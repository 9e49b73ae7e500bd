"""The lines of the log on a terminal: `INFO - progress - epoch 3/30`."""

from __future__ import annotations

import copy
import logging
from typing import Any

__all__ = ["Unframed", "log_to_stderr"]

# The lines that Sacred logs around the output of a command.
_FRAME = ("Running command '%s'", "Started", "Completed after %s", "Failed after %s!")


def log_to_stderr() -> None:
    """Log to stderr in Sacred's format, from INFO on, unless the program has set up logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s - %(name)s - %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Names a module of the lab by the last part of its name; the packages before it say nothing to a user."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        package, _, rest = record.name.partition(".")
        if rest and package == "sacristan":
            record = copy.copy(record)
            record.name = rest.rpartition(".")[2]
        return super().formatMessage(record)


class Unframed(logging.LoggerAdapter):
    """Sacred's logger of a command that only prints: its output shows without the lines around it."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        super().log(logging.DEBUG if msg in _FRAME else level, msg, *args, **kwargs)
