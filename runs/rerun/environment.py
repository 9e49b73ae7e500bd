"""Differences of the environment from that of a past run: Python, packages, machine, determinism flags.

Differences that can change what a run computes are loud: Python, the packages that its sources import (with what those
need), the processor, the GPUs. Others are counted, and listed when asked for.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from observers.provenance import sources_and_git as provenance
from observers.provenance.gpus import load_nvml
from observers.provenance.reads import changed_reads
from observers.record.redaction import redact
from runs.errors import StoreError
from runs.rerun.record import Record, mapping
from runs.stores.run import Run

__all__ = [
    "Differing",
    "Environment",
    "compare_environment",
    "compare_flags",
    "compare_reads",
    "imported_names",
    "plain_name",
    "python_of",
    "recorded_packages",
    "requirements",
]

_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
_LAB = "sacristan"
# Of the programs that install packages, none computes anything.
_INSTALLERS = {"pip", "uv"}


@dataclasses.dataclass(frozen=True)
class Differing:
    """One thing that differs.

    Attributes:
        kind: python, package, library, machine, flag, file or variable.
        name: Of the package, flag or part of the machine.
        recorded, now: The two values; None where there is none.
        is_loud: Whether it can change what the run computes.
    """

    kind: str
    name: str
    recorded: Any
    now: Any
    is_loud: bool

    @property
    def text(self) -> str:
        """What differs, in a few words."""
        words = ["not there" if value is None else str(value) for value in (self.recorded, self.now)]
        return f"{self.kind} {self.name}: recorded {words[0]}, now {words[1]}".replace(
            f"{self.kind} {self.kind}", self.kind
        )


@dataclasses.dataclass(frozen=True)
class Environment:
    """How the environment compares with the recorded one.

    Attributes:
        differences: The loud ones first.
        notes: What could not be compared, a sentence each.
    """

    differences: tuple[Differing, ...]
    notes: tuple[str, ...]

    @property
    def loud(self) -> list[Differing]:
        """The differences that can change what the run computes."""
        return [one for one in self.differences if one.is_loud]


def compare_environment(record: Record) -> Environment:
    """Return what of this process's environment differs from the one that a run was recorded in."""
    run, notes = record.run, []
    found = _python(run)
    recorded = _packages(run)
    now = provenance.packages()
    if not _has_all_packages(run):
        notes.append("the record has no list of all packages: only those that its sources import are compared")
    if recorded:
        found += _of_packages(run, recorded, now)
    found += _of_machine(run)
    if not record.flags:
        notes.append("the record has no determinism flags; they are left as they are")
    for name in _VARIABLES:
        if name in record.flags and record.flags[name] != os.environ.get(name, ""):
            # It is set for the process, so it changes nothing.
            found.append(Differing("flag", name, record.flags[name] or None, os.environ.get(name), is_loud=False))
    found += _variables(run)
    return Environment(tuple(sorted(found, key=lambda one: not one.is_loud)), tuple(notes))


def recorded_packages(run: Run) -> dict[str, str]:
    """Return the versions of the recorded packages by `plain_name`."""
    return {plain_name(name): version for name, version in _packages(run).items()}


def _variables(run: Run) -> list[Differing]:
    """Return the environment variables that were recorded by `-E`, as far as they differ."""
    recorded = mapping(run["meta.environment"])
    now = {name: None if (value := os.environ.get(name)) is None else redact(value) for name in recorded}
    names = sorted(name for name in recorded if recorded[name] != now[name])
    return [Differing("variable", name, recorded[name], now[name], is_loud=True) for name in names]


def compare_flags(old: Run, new: Run) -> list[Differing]:
    """Return the determinism flags that were not the same in two runs."""
    ours, theirs = (mapping(run.provenance.get("determinism")) for run in (old, new))
    if not ours or not theirs:
        return []
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return [Differing("flag", name, ours.get(name), theirs.get(name), is_loud=True) for name in names]


def compare_reads(old: Run, new: Run) -> list[Differing]:
    """Return the files and environment variables that both runs read, and that were not the same."""
    ours, theirs = (mapping(run.provenance.get("reads")) for run in (old, new))
    found = []
    for kind, part in (("file", "files"), ("variable", "variables")):
        changes = changed_reads(mapping(ours.get(part)), mapping(theirs.get(part)))
        found += [Differing(kind, str(name), was, now, is_loud=True) for name, (was, now) in changes.items()]
    return found


def requirements(run: Run) -> str:
    """Return the recorded packages as a requirements file for pip.

    Raises:
        StoreError: If the record names none.
    """
    recorded = _packages(run)
    if not recorded:
        raise StoreError(f"the record of run {run.id} names no packages")
    local = _local_distributions() | {_LAB}
    lines = [f"# packages of run {run.id} ({run.uid or run.store.where}), Python {python_of(run) or 'unknown'}"]
    if not _has_all_packages(run):
        lines.append("# only those that its sources import directly: its record has no list of all packages")
    tags = {version.partition("+")[2] for name, version in recorded.items() if plain_name(name) == "torch"}
    lines += [f"--extra-index-url https://download.pytorch.org/whl/{tag}" for tag in sorted(tags - {""})]
    for name, version in recorded.items():
        if plain_name(name) in local:
            lines.append(f"# {name}=={version} is the lab itself, or installed from a folder: its sources are recorded")
        elif plain_name(name) not in _INSTALLERS:
            lines.append(f"{name}=={version}")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------- Python and machine


def python_of(run: Run) -> str | None:
    """Return the version of Python that a run was recorded with, if its record says so."""
    version = mapping(run.provenance.get("machine")).get("python") or run["host.python_version"]
    return version if isinstance(version, str) and version else None


def _python(run: Run) -> list[Differing]:
    recorded, now = python_of(run), platform.python_version()
    return [Differing("python", "python", recorded, now, is_loud=True)] if recorded not in (None, now) else []


def _of_machine(run: Run) -> list[Differing]:
    machine = mapping(run.provenance.get("machine"))
    now = provenance.machine(load_nvml())
    pairs: list[tuple[str, Any, Any, bool]] = [("processor", machine.get("cpu") or run["host.cpu"], now["cpu"], True)]
    if machine:
        gpus = [", ".join(_names(entry.get("gpus"))) or None for entry in (machine, now)]
        pairs.append(("GPUs", gpus[0], gpus[1], True))
        pairs.append(("GPU driver", machine.get("gpu_driver"), now["gpu_driver"], False))
    recorded_os = machine.get("os") or next(iter(reversed(run["host.os"] or [])), None)
    pairs.append(("OS", recorded_os, now["os"], False))
    is_known = {"GPUs", "GPU driver"} if machine else set()
    return [
        Differing("machine", name, recorded, value, is_loud=is_loud)
        for name, recorded, value, is_loud in pairs
        if recorded != value and (recorded is not None or name in is_known)
    ]


def _names(gpus: Any) -> list[str]:
    return [str(mapping(gpu).get("name")) for gpu in (gpus if isinstance(gpus, list) else ())]


# ---------------------------------------------------------------------- packages


def _has_all_packages(run: Run) -> bool:
    return bool(mapping(run.provenance.get("packages")))


def _packages(run: Run) -> dict[str, str]:
    """Return the recorded packages; of a run of stock Sacred those that its sources import."""
    packages = mapping(run.provenance.get("packages"))
    if packages:
        return {str(name): str(version) for name, version in packages.items()}
    dependencies = run["experiment.dependencies"]
    pairs = [str(one).partition("==") for one in (dependencies if isinstance(dependencies, list) else ())]
    return {name: version for name, sign, version in pairs if sign and version and not version.startswith("<")}


def _of_packages(run: Run, recorded: Mapping[str, str], now: Mapping[str, str]) -> list[Differing]:
    ours = {plain_name(name): (name, version) for name, version in recorded.items()}
    theirs = {plain_name(name): (name, version) for name, version in now.items()}
    found = []
    for key in sorted({*ours, *theirs} if _has_all_packages(run) else ours):
        before, after = (of[key][1] if key in of else None for of in (ours, theirs))
        if before != after and key != _LAB:
            found.append(Differing("package", (ours.get(key) or theirs[key])[0], before, after, is_loud=True))
    if not found or not _has_all_packages(run):
        return found
    relevant = _importable(run)  # which reads all sources: only where that is asked
    return [dataclasses.replace(one, is_loud=plain_name(one.name) in relevant) for one in found]


def plain_name(name: str) -> str:
    """Return the name of a package as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _importable(run: Run) -> set[str]:
    """Return the packages that the recorded sources import, and what those need, as far as it is installed here."""
    names = imported_names(run)
    own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in run.sources}
    homes = importlib.metadata.packages_distributions()
    found: set[str] = set()
    # What is not installed here may be called like what is imported.
    left = [plain_name(home) for name in names - own for home in homes.get(name, [name])]
    while left:
        package = left.pop()
        if package not in found:
            found.add(package)
            left += _needs(package)
    return found


def imported_names(run: Run) -> set[str]:
    """Return the top-level modules that the recorded sources import."""
    found: set[str] = set()
    for name, content in run.sources.items():
        if name.endswith(".py"):
            try:
                tree = ast.parse(content.read())
            except (StoreError, SyntaxError, ValueError, RecursionError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return found


def _needs(package: str) -> Iterable[str]:
    try:
        lines = importlib.metadata.requires(package) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    matches = [re.match(r"[\w.-]+", line) for line in lines if "extra" not in line.partition(";")[2]]
    return [plain_name(match[0]) for match in matches if match]


def _local_distributions() -> set[str]:
    """Return the packages that are installed here from a folder, such as with `pip install -e`."""
    found = set()
    for distribution in importlib.metadata.distributions():
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        except (OSError, ValueError):
            continue
        if "dir_info" in origin:
            found.add(plain_name(distribution.metadata["Name"]))
    return found
