"""The main file of an experiment: how it was started, and the folder that its modules are imported from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["base_dir_of", "module_of"]


def module_of(caller: Mapping[str, Any]) -> str | None:
    """Return the name of the main module that was started as `python -m package.module`; None if it was not."""
    name = getattr(caller.get("__spec__"), "name", None) if caller.get("__name__") == "__main__" else None
    path = Path(str(caller.get("__file__"))).with_suffix("")
    return name if name and path.parts[-len(name.split(".")) :] == tuple(name.split(".")) else None


def base_dir_of(mainfile: str | None, module: str | None) -> Path:
    """Return the folder that the lab's modules are imported from, as Python finds them: links to a script resolved."""
    if mainfile is None:
        return Path.cwd()
    if module is not None:
        return (Path.cwd() / mainfile).parents[module.count(".")]
    return Path(mainfile).resolve().parent
