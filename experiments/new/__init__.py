"""Experiments (a script with an ingredient, a recipe and a test) and projects to start from, whole or not at all."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.resources import files
from pathlib import Path
from string import Template

from sacristan.configs.packages import origin
from sacristan.ingredients.errors import ConfigError

__all__ = ["write_experiment", "write_project"]

# What pytest would collect for a test or its set-up.
_PYTEST = re.compile(r"conftest|test_.*|.*_test")

# What an experiment imports from the file of its ingredient, unless the ingredient is in its own file.
_IMPORT = "\nfrom $name.noise import add_noise, noise\n"
# Modules and folders of every project, which a package of the same name would hide.
_TAKEN = ("exp", "recipes", "tests", "wheels", "my_runs", "sacristan")
# The files by their templates.
_FILES = {
    "readme": "README.md",
    "script": "exp.py",
    "package": "{name}/__init__.py",
    "ingredient": "{name}/noise.py",
    "recipe": "recipes/{name}.yaml",
    "test": "tests/test_exp.py",
    "pyproject": "pyproject.toml",
    "gitignore": ".gitignore",
    "workflow": ".github/workflows/tests.yml",
}


def _check_name(name: str) -> None:
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
    identifier = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return identifier if identifier.isidentifier() and not keyword.iskeyword(identifier) else "my_study"


def _check_module(name: str, folder: Path, file: str) -> None:
    """Reject a module name that is already installed or in the folder, as `file` would be imported instead."""
    spec = importlib.util.find_spec(name) or PathFinder.find_spec(name, [str(folder)])
    if spec is not None:
        places = [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or ["Python itself"])]
        raise ConfigError(
            f"{name}: there is a module of that name already ({places[0]}), and {file} would be imported in its "
            "place; choose another name"
        )


def _check_distribution(name: str) -> None:
    """Reject a project name that is an installed package, because pip would replace that with the project."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"{name}: an installed package has that name already, which pip would replace; choose another name"
    )


def write_experiment(name: str, folder: Path) -> list[Path]:
    """Write a script, its recipe and its test into `folder`, and return them; if one cannot be written, none stays."""
    _check_name(name)
    texts = {folder / file: text for file, text in _texts(name).items()}
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if there:
        files = ", ".join(path.name for path in there)
        verb, them = ("exists", "it") if len(there) == 1 else ("exist", "them")
        raise ConfigError(f"{name}: {files} {verb} already; choose another name, or remove {them}")
    _check_module(name, folder, f"{name}.py")
    try:
        _write_all(texts)
    except OSError as error:
        raise ConfigError(f"{name}: cannot write to {folder}: {error.strerror}; nothing was written") from error
    return list(texts)


def _texts(name: str) -> dict[str, str]:
    """Return the contents of the files by their names."""
    script, recipe, test = f"{name}.py", f"{name}.yaml", f"test_{name}.py"
    words = {
        "name": name,
        "script": script,
        "module": name,
        "recipe": recipe,
        "recipe_path": f'Path(__file__).with_name("{recipe}")',
        "test": test,
    }
    ingredient = _read_template("ingredient").partition("\n\n")[2].partition("\n\n")[2]
    whole = _read_template("script").replace(_IMPORT, f"\n{ingredient}\n")
    whole = whole.replace("from sacristan.ingredients import ", "from sacristan.ingredients import Ingredient, ")
    return {recipe: _render("recipe", words), test: _render("test", words), script: Template(whole).substitute(words)}


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


def _read_template(name: str) -> str:
    return (files("sacristan.experiments.new") / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def _render(template: str, words: dict[str, str]) -> str:
    """Return the text of a template with each `$name` replaced by its word."""
    return Template(_read_template(template)).substitute(words)


def write_project(name: str, folder: Path) -> list[Path]:
    """Write a project into a new folder below `folder`, and return its files; if anything fails, remove them."""
    _check_name(name)
    project = folder / name
    if os.path.lexists(project):
        raise ConfigError(f"{name}: {project} exists already; choose another name, or remove it")
    if name in _TAKEN:
        raise ConfigError(f"{name}: every project has a file, folder or package called {name}; choose another name")
    _check_module(name, folder, f"the package {name}")
    _check_distribution(name)
    try:
        # Written beside, and moved to its place as a whole.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as beside:
            made = Path(beside) / name
            paths = _write_files(name, made)
            _make_repository(name, made)
            made.rename(project)
    except OSError as error:
        raise ConfigError(f"{name}: cannot write to {folder}: {error.strerror}; nothing was written") from error
    return [project / path for path in paths]


def _write_files(name: str, project: Path) -> list[str]:
    recipe = _FILES["recipe"].format(name=name)
    words = {
        "name": name,
        "script": "exp.py",
        "module": "exp",
        "recipe": recipe,
        "recipe_path": f'Path(__file__).parents[1] / "{recipe}"',
        "test": _FILES["test"],
        "origin": shlex.quote(origin()),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    paths = {template: file.format(name=name) for template, file in _FILES.items()}
    for template, path in paths.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(_render(template, words), encoding="utf-8")
    return list(paths.values())


def _make_repository(name: str, project: Path) -> None:
    command = ["git", "-c", "init.defaultBranch=main", "init", "--quiet", str(project)]
    # Variables such as GIT_DIR, which hooks of git set, would have it make or find another repository.
    environment = {variable: value for variable, value in os.environ.items() if not variable.startswith("GIT_")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{name}: git is not installed, which a project needs; install it; nothing was written"
        ) from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigError(f"{name}: git init failed ({reason}); nothing was written")
