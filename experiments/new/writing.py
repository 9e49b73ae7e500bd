"""Writing a new experiment into a folder: all of its files, or none."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path

from ingredients.errors import ConfigError

__all__ = ["write_experiment"]

# Files that are written, by the template that each is made of. NAME in either is the experiment's name.
_TEMPLATES = {"NAME.yaml": "recipe.txt", "test_NAME.py": "test.txt", "NAME.py": "script.txt"}
# What pytest would collect for a test or its set-up.
_PYTEST = re.compile(r"conftest|test_.*|.*_test")


def write_experiment(name: str, folder: Path) -> list[Path]:
    """Write a script, its recipe and its test into `folder`; if one cannot be written, none stays.

    Args:
        name: The experiment's name: an identifier of ASCII letters that no module has.
        folder: Where to; an existing folder.

    Returns:
        The files.

    Raises:
        ConfigError: If there cannot be an experiment of that name there, or the folder cannot be written to.
    """
    _check_name(name)
    texts = {folder / file.replace("NAME", name): _render(template, name) for file, template in _TEMPLATES.items()}
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if there:
        raise ConfigError(
            f"{name}: {', '.join(path.name for path in there)} exists already; choose another name, or remove it"
        )
    _check_module(name, folder)
    try:
        _write_all(texts)
    except OSError as error:
        raise ConfigError(f"{name}: cannot write to {folder}: {error.strerror}; nothing was written") from error
    return list(texts)


def _write_all(texts: dict[Path, str]) -> None:
    """Write files that do not exist; if one cannot be written, remove the others."""
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as stream:
                written.append(path)
                stream.write(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _check_name(name: str) -> None:
    """Reject a name that cannot be imported, or that pytest would collect."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"{name}: got {name!r}, expected a name that Python can import: letters, digits and underscores, "
            "beginning with a letter, and no keyword; write for example my_study"
        )
    if _PYTEST.fullmatch(name):
        raise ConfigError(f"{name}: pytest would collect {name}.py as a test; choose another name")


def _check_module(name: str, folder: Path) -> None:
    """Reject the name of a module, because the script would be imported instead of it."""
    found = importlib.util.find_spec(name) or PathFinder.find_spec(name, [str(folder)])
    if found is not None:
        places = [found.origin] if found.has_location else [*(found.submodule_search_locations or ["Python itself"])]
        raise ConfigError(
            f"{name}: there is a module of that name already ({places[0]}), and {name}.py would be imported in its "
            "place; choose another name"
        )


def _render(template: str, name: str) -> str:
    return (files("experiments.new") / "templates" / template).read_text(encoding="utf-8").replace("NAME", name)
