"""A check that Python finds the lab's packages, and no folder or module of the same name in their place.

The first package that is imported runs this file, by its path: something may hide `configs`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["check_packages", "other_lab"]

_ROOT = Path(__file__).parents[1]
_NAMES = ("configs", "experiments", "ingredients", "observers", "runs")


def check_packages() -> None:
    """Reject a module search path on which something hides a package of this lab.

    Raises:
        ImportError: If something does; the message names it.
    """
    for name in _NAMES:
        own, found = _ROOT / name / "__init__.py", _place_of(name)
        # Code that was restored from a record is part of a lab, and may lack packages.
        if own.is_file() and found is not None and found.exists() and not found.samefile(own):
            other = found.parent if found.name == "__init__.py" else found
            raise ImportError(
                f"{other} hides the package {name} of Sacristan, which is in {_ROOT}: rename it, or move it out of "
                f"{other.parent}; beside it, only commands such as `sacristan runs ls` work"
            )


def _place_of(name: str) -> Path | None:
    """Return the file that a module is or would be imported from; for a folder without `__init__.py`, the folder."""
    if name in sys.modules and getattr(sys.modules[name], "__spec__", None) is None:
        return None
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return Path(next(iter(spec.submodule_search_locations or ())) if spec.origin is None else spec.origin)


def other_lab() -> str | None:
    """Return a sentence that names this lab, if the working folder is a checkout of another one; else None."""
    is_lab = all(Path(file).is_file() for file in ("configs/map.py", "experiments/experiment.py", "runs/__main__.py"))
    if not is_lab or Path().samefile(_ROOT):
        return None
    return f"note: this is the lab in {_ROOT}; for the one in this folder, write python -m runs"


if __name__ != "configs.packages":
    check_packages()
