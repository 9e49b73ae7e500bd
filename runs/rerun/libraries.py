"""Libraries that a run imported and that are no installed packages: whether they still are what they were."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import Any

from observers.provenance.imported_modules import is_loose
from observers.provenance.libraries import file_digest
from observers.record.resuming import changed_libraries
from observers.record.safe_paths import relative_path
from runs.rerun.environment import Differing, Environment, imported_names, plain_name, recorded_packages
from runs.rerun.record import Record, mapping
from runs.rerun.wording import some
from runs.stores.run import Run

__all__ = ["compare_libraries", "has_libraries", "with_libraries"]

_NOT_RECORDED = (
    "the record has no digests of libraries on PYTHONPATH or installed in editable form: they are not compared"
)


def has_libraries(run: Run) -> bool:
    """Return whether the record of a run tells of its libraries; older ones do not."""
    return isinstance(run.provenance.get("libraries"), Mapping)


def with_libraries(environment: Environment, record: Record, search: Sequence[Path]) -> Environment:
    """Return how the environment compares with the recorded one, with the libraries that the run imported.

    Args:
        environment: Python, packages, machine.
        record: How the run was started.
        search: Folders that its process looks for modules in, ahead of all others.
    """
    run = record.run
    if not has_libraries(run):
        return dataclasses.replace(environment, notes=(*environment.notes, _NOT_RECORDED))
    recorded = _libraries(run)
    found = list(_differences(recorded, {name: _as_found(name, entry, search) for name, entry in recorded.items()}))
    given = [*map(str, search), *_python_path()]
    folders = {name: _loose_folder(name, given) for name in imported_names(run) - recorded.keys()}
    found += _shadowing(run, {name: folder for name, folder in folders.items() if folder is not None})
    return dataclasses.replace(environment, differences=(*found, *environment.differences))


def compare_libraries(old: Run, new: Run) -> list[Differing]:
    """Return the libraries that were not the same in two runs, as far as both imported them, installed or not."""
    before, now = _libraries(old), _libraries(new)
    new_ones = {name: str(now[name].get("folder")) for name in now.keys() - before.keys()}
    return [*_differences(before, now), *(_shadowing(old, new_ones) if has_libraries(old) else ())]


def _shadowing(run: Run, folders: Mapping[str, str]) -> Iterator[Differing]:
    """Yield what is imported from a folder now, and was of an installed package in a run.

    Args:
        run: The recorded run.
        folders: Where modules that were no libraries of it are found now, by name.
    """
    own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in run.sources}
    installed = recorded_packages(run)
    homes = importlib.metadata.packages_distributions() if folders else {}
    for name in sorted(folders.keys() - own):
        for home in dict.fromkeys([*homes.get(name, ()), name]):
            version = installed.get(plain_name(home))
            if version is not None:
                before = f"of the installed package {home} {version}"
                yield Differing("library", name, before, f"in {folders[name]}", is_loud=True)
                break


def _loose_folder(name: str, search: Sequence[str]) -> str | None:
    """Return the folder of `search` in which a module of that name is found, unless packages are installed there."""
    try:
        spec = PathFinder.find_spec(name, list(search))
    except (ImportError, ValueError):
        return None
    folder = None if spec is None else _above(spec)
    return str(folder) if folder is not None and is_loose(str(folder)) else None


def _python_path() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def _libraries(run: Run) -> dict[str, Mapping[str, Any]]:
    return {str(name): mapping(entry) for name, entry in mapping(run.provenance.get("libraries")).items()}


def _differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Differing]:
    for name, files in changed_libraries(recorded, now).items():
        commit = recorded[name].get("commit")
        before = f"in {recorded[name].get('folder')}{f' at commit {commit[:12]}' if isinstance(commit, str) else ''}"
        yield Differing("library", name, before, f"{some(files)} changed in {now[name].get('folder')}", is_loud=True)


def _as_found(name: str, entry: Mapping[str, Any], search: Sequence[Path]) -> dict[str, Any]:
    """Return the entry of a library as it is found now; a file that is not there has None for its digest."""
    folder = _folder_of(name, search)
    files: dict[str, str | None] = {}
    for file in mapping(entry.get("files")):
        path = relative_path(str(file))
        files[file] = None if folder is None or path is None else file_digest(folder / path)
    return {"folder": str(folder) if folder else "no folder that is searched", "files": files}


def _folder_of(name: str, search: Sequence[Path]) -> Path | None:
    """Return the folder in which a module of that name is found; nothing is imported."""
    importlib.invalidate_caches()
    try:
        spec = PathFinder.find_spec(name, [*map(str, search), *_python_path()]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else _above(spec)


def _above(spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin and spec.has_location else None
