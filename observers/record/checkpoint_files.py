"""The checkpoints that a run has kept in its folder: `checkpoints/last.pt`, `checkpoints-2/best.pt`, ..."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["checkpoint_files"]


def checkpoint_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name, below the run's folder, and path of each checkpoint, of what a run started from, too."""
    for path in sorted(folder.glob("checkpoints*/**/*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not any(part.endswith(".tmp") for part in name.parts):
            yield name.as_posix(), path
