"""Copies of this lab, for tests that change it or work in it as in their own."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["copy_lab"]

_LAB = Path(__file__).resolve().parents[1]


def copy_lab(folder: Path) -> None:
    """Copy the packages, `exp.py` and `hubconf.py` into a folder, with their bytecode."""
    for name in ("configs", "experiments", "ingredients", "observers", "runs"):
        # What has more behind its suffix is being written by another process.
        shutil.copytree(_LAB / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copytree(_LAB / "sacristan", folder / "sacristan", symlinks=True)
    for name in ("exp.py", "hubconf.py"):
        shutil.copy2(_LAB / name, folder)
