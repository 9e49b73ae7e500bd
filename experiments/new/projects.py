"""Writing a new project, all of it or nothing: a git repository with a package, an experiment, a recipe and a test."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from sacristan.configs.installation import origin
from sacristan.experiments.new.names import check_distribution, check_module, check_name
from sacristan.experiments.new.writing import render
from sacristan.ingredients.errors import ConfigError

__all__ = ["write_project"]

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


def write_project(name: str, folder: Path) -> list[Path]:
    """Write a project into a new folder below `folder`, and return its files; if anything fails, remove them."""
    check_name(name)
    project = folder / name
    if os.path.lexists(project):
        raise ConfigError(f"{name}: {project} exists already; choose another name, or remove it")
    if name in _TAKEN:
        raise ConfigError(f"{name}: every project has a file, folder or package called {name}; choose another name")
    check_module(name, folder, f"the package {name}")
    check_distribution(name)
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
        (project / path).write_text(render(template, words), encoding="utf-8")
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
