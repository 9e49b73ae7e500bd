"""The files beside this module, found from any folder: recipes, specs of sweeps, and the tables that they train on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["find_file", "names_beside", "typed_name"]

_FOLDER = Path(__file__).parent
_PATTERNS = ("*.yaml", "*.csv")


def find_file(path: str | Path) -> Path:
    """Return the path of a file, or of the lab's own one if the working folder has none of that name.

    Only a path below `configs/`, such as `configs/digits_mlp.yaml`, can be the lab's; any other is returned unchanged.
    """
    path = Path(path)
    own = _own_folder(path.parent)
    is_own = own is not None and path.name in _own_names(own) and not os.path.lexists(path)
    return own / path.name if own is not None and is_own else path


def typed_name(path: str | Path) -> str:
    """Return the name that `find_file` finds a file of the lab by, or any other path unchanged."""
    is_own = Path(path).is_absolute() and Path(path).is_relative_to(_FOLDER)
    return str(Path(_FOLDER.name, Path(path).relative_to(_FOLDER))) if is_own else str(path)


def names_beside(path: str | Path) -> list[str]:
    """Return the names of the files, the lab's among them, that could be meant by the name of a path."""
    folder = Path(path).parent
    own = _own_folder(folder)
    return sorted({found.name for found in folder.glob("*.*")}.union(_own_names(own) if own else ()))


def _own_folder(folder: Path) -> Path | None:
    """Return the lab's folder that a path as typed stands for, if it does for one."""
    is_own = folder.parts[:1] == (_FOLDER.name,) and ".." not in folder.parts
    return _FOLDER.joinpath(*folder.parts[1:]) if is_own else None


def _own_names(folder: Path) -> list[str]:
    return [path.name for pattern in _PATTERNS for path in folder.glob(pattern)]
