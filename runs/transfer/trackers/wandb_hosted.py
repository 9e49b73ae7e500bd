"""Runs at W&B, by `wandb`'s own client: `--from wandb-hosted ENTITY/PROJECT`.

The key comes from `WANDB_API_KEY` or `~/.netrc`, as everywhere in W&B; it is sent to W&B alone, and never recorded. The
whole history is scanned, not sampled.
"""

from __future__ import annotations

import inspect
import netrc
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sacristan.runs.errors import ForeignError, needing_extra
from sacristan.runs.transfer.trackers.foreign_run import UNKNOWN, ForeignRun, Found, Points, flat

KIND = "wandb-hosted"
_STATUSES = {
    "finished": "COMPLETED",
    "failed": "FAILED",
    "crashed": "DEAD",
    "killed": "INTERRUPTED",
    "preempted": "INTERRUPTED",
}
# Numbers that JSON has no form for, as W&B writes them.
_NUMBERS = {"NaN", "Infinity", "-Infinity"}
_LEFT_OUT = "files and system metrics, which stay at W&B"


def recognizes(path: Path) -> bool:
    """Return False: projects at W&B are read only on request, and no file is one."""
    return False


def find(path: Path) -> Iterator[Found]:
    """Yield each run of the project `ENTITY/PROJECT`, oldest first."""
    if len(path.parts) != 2 or path.is_absolute():
        raise ForeignError(f"got {str(path)!r}, expected ENTITY/PROJECT, as in the address of the project's page")
    with needing_extra("wandb", "importing runs from W&B"):
        import wandb
    address = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").rstrip("/")
    if not _has_key(address):
        raise ForeignError(
            f"there is no key for {address}; set WANDB_API_KEY, or run `wandb login`, which writes it to ~/.netrc"
        )
    project = f"{address}/{path}"
    failed: list[str] = []
    # Its client would ask again for many minutes.
    options: dict[str, Any] = {"retry_max": 4, "retry_wait_min_seconds": 1, "retry_wait_max_seconds": 20}
    wandb.setup(wandb.Settings(silent=True, **{f"x_graphql_{name}": value for name, value in options.items()}))
    try:
        for run in wandb.Api().runs(str(path)):
            yield Found(f"{project}/{run.id}", f"{project}/{run.id}", partial(_read, run, failed))
            if failed:
                wandb.Api()  # asks who the user is, and so whether the others can be read
                failed.clear()
    except Exception as error:  # the client raises almost anything
        raise ForeignError(f"{project} did not answer ({_reason(error)}); import again to continue") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _has_key(address: str) -> bool:
    """Tell whether there is a key for a server, so that the client does not ask for one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(file).authenticators(urlsplit(address).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _read(source: Any, failed: list[str]) -> ForeignRun:
    try:
        return _RunReader(source).read()
    except Exception as error:  # the client raises almost anything
        failed.append(source.id)
        raise ForeignError(f"W&B did not send it ({_reason(error)})") from error


class _RunReader:
    """Reads one `Run` of W&B's client."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._run = ForeignRun(experiment=source.project, title=source.name or source.id)
        self._points = Points()
        self._num_others: Counter[str] = Counter()

    def read(self) -> ForeignRun:
        source, run = self._source, self._run
        run.status = _STATUSES.get(source.state, UNKNOWN)
        run.config, run.tags, run.note = dict(source.config), [*source.tags], source.notes or ""
        run.started = _seconds(source.created_at)
        # A cached history would hide what was logged since.
        options = {"use_cache": False} if "use_cache" in inspect.signature(source.scan_history).parameters else {}
        for row in source.scan_history(**options):
            self._take_row(row)
        run.curves = sorted(self._points.curves(), key=lambda curve: curve.name)  # W&B sends them in any order
        names = {curve.name for curve in run.curves}
        summary = dict(flat(dict(source.summary._json_dict), separator="."))
        parts = {
            "wandb": _filled(
                id=source.id, entity=source.entity, group=source.group, job_type=source.job_type, url=source.url,
                sweep=source.sweep_name, state=source.state,
            ),
            "summary": {name: each for name, each in summary.items() if name not in names and not name.startswith("_")},
        }  # fmt: skip
        run.info = _filled(**parts)
        run.host = _filled(user=source.user.username if source.user else None)
        run.left_out += [f"{count} {what}" for what, count in sorted(self._num_others.items())]
        run.left_out.append(_LEFT_OUT)
        return run

    def _take_row(self, row: dict[str, Any]) -> None:
        step, at = row.pop("_step"), float(row.pop("_timestamp", np.nan))
        row.pop("_runtime", None)
        if at == at:
            self._run.stopped = max(at, self._run.stopped or at)
        for name, value in flat(row, separator="."):
            if isinstance(value, int | float) or (isinstance(value, str) and value in _NUMBERS):
                self._points.add(name, step, float(value), at)
            elif value is not None:
                kind = value["_type"] if isinstance(value, dict) else "are no numbers"
                self._num_others[f"values of {name!r} ({kind})"] += 1


def _filled(**entries: Any) -> dict[str, Any]:
    return {name: entry for name, entry in entries.items() if entry}


def _seconds(text: str | None) -> float | None:
    """Return a time in ISO 8601, in UTC, as seconds since 1970."""
    return datetime.fromisoformat(text.rstrip("Z") + "+00:00").timestamp() if text else None
