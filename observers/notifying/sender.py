"""The process that sends one message: it reads the message and the addresses from stdin, and ends within its time.

Runs start this file as a script. It imports nothing of the lab, and tells its caller by address what went wrong. It
confirms the claim on the message, or gives it back if no address took it, because the caller may be gone by then.
Apprise would log addresses, so its log and its output go nowhere.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Send the message that stdin has, and end this process."""
    request = json.load(sys.stdin.buffer)
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    logging.disable()
    if hasattr(os, "nice"):
        os.nice(10)
    problems = ["no answer in time"] * len(request["addresses"])
    threads = [
        threading.Thread(target=_send, args=(request, number, problems), daemon=True) for number in range(len(problems))
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + request["limit_s"]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    problems = list(problems)
    if request["claim"] and Path(request["claim"]).is_file():
        with contextlib.suppress(OSError):  # the record is gone
            if all(problems):
                Path(request["claim"]).replace(f"{request['claim']}.unsent")
            else:
                Path(request["claim"]).write_text(request["sent"])
    with contextlib.suppress(OSError):  # the caller is gone
        os.write(out, json.dumps(problems).encode())
    os._exit(0)  # a receiver that never answers must not keep this process


def _send(request: dict[str, Any], number: int, problems: list[str]) -> None:
    """Send the message to one address, and note the outcome: empty, or a problem."""
    try:
        problems[number] = _outcome(request, request["addresses"][number])
    except BaseException as error:
        problems[number] = f"apprise failed with {type(error).__name__}"


def _outcome(request: dict[str, Any], address: str) -> str:
    import apprise

    service = apprise.Apprise()
    if not service.add(address):
        return "not an address that apprise knows"
    is_sent = service.notify(
        request["body"], title=request["title"], notify_type=request["kind"], body_format=apprise.NotifyFormat.TEXT
    )
    return "" if is_sent else "not delivered: unreachable, refused, or a wrong address"


if __name__ == "__main__":
    main()
