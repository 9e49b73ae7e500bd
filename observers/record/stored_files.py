"""Contents of sources and resources, each kept once for all runs of a folder."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

from observers.record.atomic_file import replacing

__all__ = ["copy_file", "keep"]

_log = logging.getLogger(__name__)


def keep(path: Path, store: Path, base: str | Path) -> str:
    """Keep the content of `path` in `store` once, and return where, from the folder `base`."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    target = store / f"{path.stem}_{digest.hexdigest()}{path.suffix}"
    try:
        # `runs gc` keeps what was touched lately, whether or not a run names it yet.
        os.utime(target)
    except FileNotFoundError:
        store.mkdir(parents=True, exist_ok=True)
        copy_file(path, target)
    except OSError:
        _log.debug("%s: its time cannot be set; it belongs to another user", target)
    return os.path.relpath(target, base)


def copy_file(path: Path, target: Path) -> None:
    """Copy a file so that `target` is whole or not there."""
    with path.open("rb") as source, replacing(target, durable=False) as stream:
        shutil.copyfileobj(source, stream)
