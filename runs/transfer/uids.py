"""Globally unique ids, also for runs of stock Sacred, which have none."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timedelta

from runs.query.flattening import mapping_of
from runs.query.times import without_zone
from runs.stores.run import Run

__all__ = ["uid_of"]

_EPOCH = datetime(1970, 1, 1)


def uid_of(run: Run) -> str:
    """Return a run's uid, or one that is computed from its record and always the same.

    Args:
        run: A run of any store.

    Returns:
        32 hexadecimal digits, as of `observers.record.identity.new_uid`: 12 of the start in milliseconds, 20 of a hash.
    """
    if run.uid and re.fullmatch("[0-9a-f]{32}", run.uid):
        return run.uid
    base = mapping_of(run["experiment"]).get("base_dir")
    start = without_zone(run.start_time)
    milliseconds = 0 if start is None else max(0, (start - _EPOCH) // timedelta(milliseconds=1))
    known = [run.id, run.uid, run.name, base, run.command, str(start), run["host"], run["config"]]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    return f"{milliseconds % 16**12:012x}{digest.hexdigest()[:20]}"
