"""Making the numbered folder of a run, without races between processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

__all__ = ["make_numbered_folder"]


def make_numbered_folder(base: Path, wanted: Any = None) -> tuple[Path, Any]:
    """Make a folder below `base`, and return it and its id: the one wanted if it is free, else the next number.

    Raises:
        OSError: If nothing can be made there.
    """
    base.mkdir(parents=True, exist_ok=True)
    if wanted is not None:
        with contextlib.suppress(FileExistsError):
            (base / str(wanted)).mkdir()
            return base / str(wanted), wanted
    number = 1 + max((int(entry.name) for entry in os.scandir(base) if entry.name.isdigit()), default=0)
    while True:
        try:
            (base / str(number)).mkdir()
        except FileExistsError:  # another process was quicker
            number += 1
        else:
            return base / str(number), str(number) if wanted is None else wanted
