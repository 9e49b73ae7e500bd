"""Differences between this environment and that of a past run: Python, packages, libraries, machine, determinism flags.

Differences that can change results are loud: Python, the packages that the sources import (with their dependencies),
libraries outside of packages, the processor, the GPUs. Others are counted, and listed on request.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from sacristan.observers.provenance.gathering import machine, packages
from sacristan.observers.provenance.sources import changed_libraries, changed_reads, file_digest, is_loose
from sacristan.observers.record.files import relative_path
from sacristan.observers.record.redaction import redact
from sacristan.runs.errors import StoreError
from sacristan.runs.query import list_of, mapping_of
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun import Record
from sacristan.runs.stores.settings import flat_config

_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
_LAB = "sacristan"
# Programs that install packages compute nothing.
_INSTALLERS = {"pip", "uv"}


@dataclasses.dataclass(frozen=True)
class Differing:
    """One difference."""

    kind: Annotated[str, "python, package, library, machine, flag, file or variable."]
    name: Annotated[str, "Name of the package, flag, file or part of the machine."]
    recorded: Annotated[Any, "The two values; None for a missing one."]
    now: Annotated[Any, "The two values; None for a missing one."]
    is_loud: Annotated[bool, "Whether it can change results."]

    @property
    def text(self) -> str:
        """The difference in a few words."""
        recorded, now = ("not there" if value is None else str(value) for value in (self.recorded, self.now))
        kind = "" if self.kind == self.name else f"{self.kind} "
        return f"{kind}{self.name}: recorded {recorded}, now {now}"


@dataclasses.dataclass(frozen=True)
class Environment:
    """This environment compared with the recorded one: differences, loud ones first, and parts not compared."""

    differences: tuple[Differing, ...]
    notes: tuple[str, ...]

    @property
    def loud(self) -> list[Differing]:
        """The differences that can change results."""
        return [difference for difference in self.differences if difference.is_loud]


def compare_environment(record: Record, search: Sequence[Path] = ()) -> Environment:
    """Compare the environment of this process with that of a past run, and note what the record lacks.

    Nothing is imported. The run's process searches the folders in `search` for modules before all others.
    """
    notes = []
    if not record.has_all_packages:
        notes.append("the record has no list of all packages: only those that its sources import are compared")
    if not record.flags:
        notes.append("the record has no determinism flags; they are left as they are")
    if record.libraries is None:
        notes.append(
            "the record has no digests of libraries on PYTHONPATH or installed in editable form: they are not compared"
        )
    differences = [
        *_library_differences(record, search),
        *_python_differences(record),
        *_package_differences(record, packages()),
        *_machine_differences(record),
        *_flag_differences(record),
        *_variable_differences(record),
    ]
    return Environment(tuple(sorted(differences, key=lambda difference: not difference.is_loud)), tuple(notes))


# ---------------------------------------------------------------------- flags, variables, files


def _flag_differences(record: Record) -> Iterator[Differing]:
    for name in _VARIABLES:
        if name in record.flags and record.flags[name] != os.environ.get(name, ""):
            # The process gets the recorded value, so this changes nothing.
            yield Differing("flag", name, record.flags[name] or None, os.environ.get(name), is_loud=False)


def _variable_differences(record: Record) -> Iterator[Differing]:
    for name, recorded in sorted(record.variables.items()):
        value = os.environ.get(name)
        now = None if value is None else redact(value)
        if recorded != now:
            yield Differing("variable", name, recorded, now, is_loud=True)


def compare_flags(old: Record, new: Record) -> list[Differing]:
    """Return the determinism flags that differ between two runs; none if one of them recorded no flags."""
    before, after = old.part("determinism"), new.part("determinism")
    names = sorted({*before, *after}) if before and after else []
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [Differing("flag", name, was, now, is_loud=True) for name, was, now in pairs if was != now]


def compare_reads(old: Record, new: Record) -> list[Differing]:
    """Return the files and environment variables that both runs read, and that differ."""
    differences = []
    for kind, part in (("file", "files"), ("variable", "variables")):
        before, after = (record.part("reads").get(part) for record in (old, new))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes = changed_reads(before, after)
            differences += [Differing(kind, str(name), was, now, is_loud=True) for name, (was, now) in changes.items()]
    return differences


def compare_settings(old: Record, new: Record) -> list[Differing]:
    """Return the settings that differ between two runs of a script, which has taken them from its own words."""
    if old.script_start is None:
        return []
    before, after = flat_config(old.run), flat_config(new.run)
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return [
        Differing("setting", name, str(was), str(now), is_loud=True) for name, (was, now) in pairs.items() if was != now
    ]


# ---------------------------------------------------------------------- Python and machine


def _python_differences(record: Record) -> Iterator[Differing]:
    now = platform.python_version()
    if record.python not in (None, now):
        yield Differing("python", "python", record.python, now, is_loud=True)


def _machine_differences(record: Record) -> Iterator[Differing]:
    now = machine()
    pairs: list[tuple[str, Any, Any, bool]] = [
        ("processor", record.cpu, now["cpu"], True),
        ("OS", record.operating_system, now["os"], False),
    ]
    pairs = [pair for pair in pairs if pair[1] is not None]
    entry = record.part("machine")
    if entry:  # an entry without GPUs means that there were none
        pairs.append(("GPUs", _gpu_names(entry), _gpu_names(now), True))
        pairs.append(("GPU driver", entry.get("gpu_driver"), now["gpu_driver"], False))
    for name, recorded, value, is_loud in pairs:
        if recorded != value:
            yield Differing("machine", name, recorded, value, is_loud=is_loud)


def _gpu_names(machine: Mapping[str, Any]) -> str | None:
    return ", ".join(str(mapping_of(gpu).get("name")) for gpu in list_of(machine.get("gpus"))) or None


# ---------------------------------------------------------------------- packages


def requirements(record: Record) -> str:
    """Return the recorded packages as a requirements file for pip; those installed here from a folder are comments."""
    if not record.packages:
        raise StoreError(f"the record of run {record.id} names no packages")
    local = _local_distributions() | {_LAB}
    where = record.run.uid or record.run.store.where
    lines = [f"# packages of run {record.id} ({where}), Python {record.python or 'unknown'}"]
    if not record.has_all_packages:
        lines.append("# only those that its sources import directly: its record has no list of all packages")
    tags = {version.partition("+")[2] for name, version in record.packages.items() if _plain_name(name) == "torch"}
    lines += [f"--extra-index-url https://download.pytorch.org/whl/{tag}" for tag in sorted(tags - {""})]
    for name, version in record.packages.items():
        if _plain_name(name) in local:
            lines.append(f"# {name}=={version} is the lab itself, or installed from a folder: its sources are recorded")
        elif _plain_name(name) not in _INSTALLERS:
            lines.append(f"{name}=={version}")
    return "\n".join(lines) + "\n"


def _package_differences(record: Record, packages: Mapping[str, str]) -> list[Differing]:
    if not record.packages:
        return []
    names = {_plain_name(name): name for name in (*packages, *record.packages)}
    before, after = ({_plain_name(name): one[name] for name in one} for one in (record.packages, packages))
    keys = names.keys() if record.has_all_packages else before.keys()
    differences = [
        Differing("package", names[key], before.get(key), after.get(key), is_loud=True)
        for key in sorted(keys - {_LAB})
        if before.get(key) != after.get(key)
    ]
    if not differences or not record.has_all_packages:
        return differences
    relevant = _importable(record)  # reads all sources, so only where a package differs
    return [dataclasses.replace(entry, is_loud=_plain_name(entry.name) in relevant) for entry in differences]


def _plain_name(name: str) -> str:
    """Return the name of a package in the form that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _importable(record: Record) -> set[str]:
    """Return the packages that the recorded sources import, and their dependencies as far as they are installed."""
    homes = importlib.metadata.packages_distributions()
    packages: set[str] = set()
    # A package that is not installed here may be called like the module.
    left = [
        _plain_name(home) for name in _imported_names(record) - _own_names(record) for home in homes.get(name, [name])
    ]
    while left:
        package = left.pop()
        if package not in packages:
            packages.add(package)
            left += _needs(package)
    return packages


def parsed_sources(record: Record) -> Iterator[tuple[str, ast.AST]]:
    """Yield names and syntax trees of the recorded Python sources; those that cannot be read or parsed are left out."""
    for name, content in sorted(record.sources.items()):
        if name.endswith(".py"):
            try:
                tree = ast.parse(content.read())
            except (StoreError, SyntaxError, ValueError, RecursionError):
                continue
            yield name, tree


def _imported_names(record: Record) -> set[str]:
    """Return the top-level modules that the recorded sources import."""
    names: set[str] = set()
    for _, tree in parsed_sources(record):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def _own_names(record: Record) -> set[str]:
    """Return the top-level modules that are recorded sources themselves."""
    return {PurePosixPath(name).parts[0].removesuffix(".py") for name in record.sources}


def _needs(package: str) -> Iterable[str]:
    try:
        lines = importlib.metadata.requires(package) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    matches = [re.match(r"[\w.-]+", line) for line in lines if "extra" not in line.partition(";")[2]]
    return [_plain_name(match[0]) for match in matches if match]


def _local_distributions() -> set[str]:
    """Return the packages that are installed here from a folder, such as with `pip install -e`."""
    names = set()
    for distribution in importlib.metadata.distributions():
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        except (OSError, ValueError):
            continue
        if "dir_info" in origin:
            names.add(_plain_name(distribution.metadata["Name"]))
    return names


# ---------------------------------------------------------------------- libraries: modules outside of packages


def _library_differences(record: Record, search: Sequence[Path]) -> Iterator[Differing]:
    """Yield the libraries that have changed, and those that now shadow an installed package."""
    if record.libraries is None:
        return
    importlib.invalidate_caches()
    path = [*map(str, search), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    now = {name: _library_now(name, entry, path) for name, entry in record.libraries.items()}
    yield from _changed(record.libraries, now)
    folders = {name: str(_folder_of(name, path) or "") for name in _imported_names(record) - record.libraries.keys()}
    yield from _shadowing(record, {name: folder for name, folder in folders.items() if is_loose(folder)})


def compare_libraries(old: Record, new: Record) -> list[Differing]:
    """Return the libraries that differ between two runs, as far as both imported them, installed or not."""
    if old.libraries is None:
        return []
    libraries = new.libraries or {}
    folders = {name: str(libraries[name].get("folder")) for name in libraries.keys() - old.libraries.keys()}
    return [*_changed(old.libraries, libraries), *_shadowing(old, folders)]


def _changed(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Differing]:
    for name, files in changed_libraries(recorded, now).items():
        commit = recorded[name].get("commit")
        before = f"in {recorded[name].get('folder')}{f' at commit {commit[:12]}' if isinstance(commit, str) else ''}"
        after = f"{list_text(files)} changed in {now[name].get('folder')}"
        yield Differing("library", name, before, after, is_loud=True)


def _shadowing(record: Record, folders: Mapping[str, str]) -> Iterator[Differing]:
    """Yield modules that are in one of `folders` now, and that the recorded run imported from a package."""
    versions = {_plain_name(name): version for name, version in record.packages.items()}
    homes = importlib.metadata.packages_distributions() if folders else {}
    own = _own_names(record)
    # A package of which the run recorded other modules as its own sources, such as an editable lab, is restored whole.
    restored = {home for name in own for home in homes.get(name, ())}
    for name in sorted(folders.keys() - own):
        for home in dict.fromkeys([*homes.get(name, ()), name]):
            if home in restored:
                break
            version = versions.get(_plain_name(home))
            if version is not None:
                before = f"of the installed package {home} {version}"
                yield Differing("library", name, before, f"in {folders[name]}", is_loud=True)
                break


def _library_now(name: str, entry: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a library as it is now; a missing file has None for its digest."""
    folder = _folder_of(name, path) or _folder_of(name)
    files: dict[str, str | None] = {}
    for file in mapping_of(entry.get("files")):
        below = relative_path(str(file))
        files[file] = None if folder is None or below is None else file_digest(folder / below)
    return {"folder": str(folder) if folder else "no folder that is searched", "files": files}


def _folder_of(name: str, path: Sequence[str] | None = None) -> Path | None:
    """Return the folder that holds a module, looked up in `path` or, without one, as this process would."""
    try:
        spec = importlib.util.find_spec(name) if path is None else PathFinder.find_spec(name, path)
    except (ImportError, ValueError):
        return None
    return None if spec is None else _above(spec)


def _above(spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin and spec.has_location else None
