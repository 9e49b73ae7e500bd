"""The addresses that notifications go to, which hold secrets: no message, record or process list shows them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from importlib.util import find_spec
from pathlib import Path

from sacristan.configs.installation import missing_package
from sacristan.observers.errors import MissingExtraError, NotifyError
from sacristan.observers.record.files import open_regular

__all__ = ["ADDRESSES_VARIABLE", "AFTER_VARIABLE", "finished_after_s", "read_addresses", "shown"]

# Addresses as Apprise writes them, separated by spaces or line ends; empty for none.
ADDRESSES_VARIABLE = "SACRISTAN_NOTIFY"
# The shortest run, in seconds, whose end is worth a message.
AFTER_VARIABLE = "SACRISTAN_NOTIFY_AFTER_S"

_AFTER_S = 600.0
# All addresses fit into the pipe to the process that sends a message, so that writing them never waits.
_MAX_BYTES = 16 * 1024
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S")


def read_addresses() -> list[str]:
    """Return the addresses of the environment variable `SACRISTAN_NOTIFY`, otherwise of the user's file.

    The file is `~/.config/sacristan/notify` (`$XDG_CONFIG_HOME` is honoured), with an address a line.

    Raises NotifyError if an address is not a URL, there are too many, or others may read the file, and
    MissingExtraError if Apprise is not installed.
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
