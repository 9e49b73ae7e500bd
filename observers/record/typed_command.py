"""Commands in messages, ready to paste."""

from __future__ import annotations

import os
import shlex

from sacristan.observers.record.redaction import redact

__all__ = ["typed_command"]


def typed_command(where: str, *words: str) -> str:
    """Return a command for a store; `--store` names it, unless the command uses it anyway or `where` is empty.

    >>> typed_command("other_runs", "card", "1")
    'sacristan --store other_runs card 1'
    """
    usual = os.environ.get("SACRISTAN_STORE") or "my_runs"
    store = [] if where in ("", usual, usual.rstrip("/"), redact(usual)) else ["--store", redact(where)]
    return shlex.join(["sacristan", *store, *words])
