"""Names that an experiment or a project may have."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from sacristan.ingredients.errors import ConfigError

__all__ = ["check_distribution", "check_module", "check_name"]

# What pytest would collect for a test or its set-up.
_PYTEST = re.compile(r"conftest|test_.*|.*_test")


def check_name(name: str) -> None:
    """Reject the name of an experiment or project that cannot be imported, or that pytest would collect."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"{name}: got {name!r}, expected a name that Python can import: letters, digits and underscores, "
            f"beginning with a letter, and no keyword; write for example {_importable(name)}"
        )
    if _PYTEST.fullmatch(name):
        raise ConfigError(f"{name}: pytest would collect {name}.py as a test; choose another name")


def _importable(name: str) -> str:
    """Return an importable name like the given one, or an example."""
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return found if found.isidentifier() and not keyword.iskeyword(found) else "my_study"


def check_module(name: str, folder: Path, file: str) -> None:
    """Reject a module name that is already installed or in the folder, as `file` would be imported instead."""
    found = importlib.util.find_spec(name) or PathFinder.find_spec(name, [str(folder)])
    if found is not None:
        places = [found.origin] if found.has_location else [*(found.submodule_search_locations or ["Python itself"])]
        raise ConfigError(
            f"{name}: there is a module of that name already ({places[0]}), and {file} would be imported in its "
            "place; choose another name"
        )


def check_distribution(name: str) -> None:
    """Reject a project name that is an installed package, because pip would replace that with the project."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"{name}: an installed package has that name already, which pip would replace; choose another name"
    )
