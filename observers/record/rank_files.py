"""The output of each rank of a run, in its folder: `ranks/1.txt`, ...; that of rank 0 is the run's own output."""

from __future__ import annotations

from pathlib import Path

from observers.record.schema import RANKS_FOLDER

__all__ = ["rank_files"]


def rank_files(folder: Path) -> dict[int, Path]:
    """Return the files by rank, in its order."""
    found = {int(path.stem): path for path in (folder / RANKS_FOLDER).glob("*.txt") if path.stem.isdecimal()}
    return dict(sorted(found.items()))
