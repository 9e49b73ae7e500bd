"""Sources of the lab, git, packages and machine of a run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from observers.provenance.gpus import describe_gpus
from observers.provenance.imported_modules import is_loose, module_files
from observers.record.redaction import hide_passwords

__all__ = [
    "commit_of",
    "git_state",
    "imported_files",
    "imported_sources",
    "is_installed",
    "lab_git_state",
    "machine",
    "md5_of",
    "packages",
    "repository_of",
    "source_name",
]

_MAX_UNTRACKED_BYTES = 256 * 1024
# A diff that can be applied, whatever the user's settings make of his own.
_DIFF = (
    *("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "HEAD"),
)
_HEADER = re.compile("^(Name|Version): *(.*)$", re.MULTILINE)
# The last answer of git: about which lab, and the summary.
_told: tuple[tuple[str, ...], tuple[dict[str, Any], list[str]] | None] = (), None
_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".sh", ".txt", ".md")


def imported_sources(base_dir: str | Path, mainfile: str | Path | None = None) -> list[tuple[str, str]]:
    """Return (path under `base_dir`, MD5) of every imported module's file there, and of the main file.

    MD5 is what Sacred's records hold; it tells contents apart, and protects against nothing.
    """
    return [(name, md5_of(Path(base_dir, name))) for name in imported_files(base_dir, mainfile)]


def imported_files(base_dir: str | Path, mainfile: str | Path | None = None) -> list[str]:
    """Return the path under `base_dir` of every imported module's file there, and of the main file.

    A file has the path that it was imported by, also where that is a link, whose target may lie anywhere.
    """
    base, main = str(base_dir), str(mainfile) if mainfile else None
    files = {main.rpartition(os.sep)[0]: {"": main}} if main else {}
    found = set()
    for folder, of_modules in itertools.chain(files.items(), module_files().items()):
        # Most modules are none of the lab's, and their folders tell so at less cost than their files.
        if folder and is_loose(base) and not is_loose(folder):
            continue
        below = _folder_below(folder, base)
        if below is not None and not is_installed(below):
            names = (_join(below, path.rpartition(os.sep)[2]) for path in of_modules.values() if path.endswith(".py"))
            found |= {name for name in names if os.path.isfile(os.path.join(base, name))}  # noqa: PTH113, PTH118
    return sorted(found)


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, in hexadecimal digits."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@functools.cache
def is_installed(folder: str) -> bool:
    """Return whether a folder in the lab belongs to a virtual environment, which is no source of it."""
    return any(part in ("site-packages", "dist-packages") or part.startswith(".") for part in Path(folder).parts)


def source_name(file: str | Path, base_dir: str | Path) -> str | None:
    """Return the path of a file below `base_dir`, as it is named or as links lead to it; None if it is elsewhere."""
    name = _name_below(str(file), str(base_dir))
    if name is None and Path(file).is_symlink():
        return _name_below(str(Path(file).resolve()), str(base_dir))
    return name


def _name_below(file: str, base: str) -> str | None:
    folder, _, name = file.rpartition(os.sep)
    below = _folder_below(folder, base)
    return None if below is None else _join(below, name)


def _join(folder: str, name: str) -> str:
    return name if folder == os.curdir else f"{folder}{os.sep}{name}"


@functools.cache
def _folder_below(folder: str, base: str) -> str | None:
    if not (folder.startswith(os.sep) and base.startswith(os.sep)):  # such as of a script in the current folder
        try:
            return _folder_below(str(Path(folder).absolute()), str(Path(base).absolute()))
        except FileNotFoundError:  # the working folder was deleted, and all that is in it
            return None
    folder, base = os.path.normpath(folder), os.path.normpath(base)
    for path, start in ((folder, base), (_real_folder(folder), _real_folder(base))):
        if path == start:
            return os.curdir
        if path.startswith(start := os.path.join(start, "")):  # noqa: PTH118
            return path[len(start) :]
    return None


@functools.cache
def _real_folder(folder: str) -> str:
    """Return what `realpath` does, by looking once at each folder that the paths of thousands of modules share."""
    parent, name = os.path.split(folder)
    if name in ("", "..") or os.path.islink(folder):  # noqa: PTH114 - of text, a tenth of the time
        return os.path.realpath(folder)
    return os.path.join(_real_folder(parent), name)  # noqa: PTH118


def packages() -> dict[str, str]:
    """Return name and version of every installed package."""
    found: dict[str, str] = {}
    for entry in sys.path:
        found = {**_packages(*_folder_state(entry)), **found}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _folder_state(entry: str) -> tuple[str, int]:
    """Return a place that packages are found in, and when one came or went last."""
    path = Path(entry)
    try:
        path = path.absolute()
        return str(path), path.stat().st_mtime_ns
    except OSError:
        return str(path), 0


@functools.lru_cache(64)
def _packages(place: str, _: int) -> dict[str, str]:
    """Return the packages in a folder; its time of change is part of the cache's key."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=[place]):
        with contextlib.suppress(Exception):  # an installation half removed has no name
            # setuptools puts what it brings for itself on the path, behind what is installed.
            if "_vendor" in Path(str(distribution.locate_file(""))).parts:
                continue
            # `distribution.metadata` parses the whole of a readme, which would hold up the threads beside this one.
            text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
            headers = dict(_HEADER.findall(text.partition("\n\n")[0]))
            found.setdefault(headers["Name"], headers["Version"])
    return found


def git_state(folder: str | Path) -> dict[str, Any] | None:
    """Return commit, branch, remote, uncommitted diff and small untracked sources; None outside a repository.

    A repository without a commit has a commit of None.
    """
    return _with_content(_git_summary(folder))


def lab_git_state(base_dir: str | Path, mainfile: str | Path | None, *, content: bool = True) -> dict[str, Any] | None:
    """Return the state of the repository that the lab is in, or else of the one below it that its main file is in.

    Without `content`, diff and untracked sources are left out. What git has told then is not asked for again when the
    same lab's content is wanted next: a run asks for the one when it is made, and for the other when it is recorded.
    """
    global _told
    lab = str(base_dir), str(mainfile)
    (known, summary), _told = _told, ((), None)
    if known != lab or not content:
        summary = _git_summary(base_dir)
        if summary is None and mainfile is not None:
            summary = _git_summary(Path(mainfile).parent)
    if content:
        return _with_content(summary)
    _told = lab, summary
    return None if summary is None else summary[0]


def _git_summary(folder: str | Path) -> tuple[dict[str, Any], list[str]] | None:
    """Return the state of a repository without its content, and the names of its untracked files."""
    head = _head(folder)
    if head is None:
        return None
    root, commit, branch = head
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=all") or ""
    state = {
        "root": root,
        "url": hide_passwords((_git(root, "config", "--get", "remote.origin.url") or f"git:{root}").strip()),
        "commit": commit,
        "branch": branch,
        "dirty": bool(status),
    }
    return state, [entry[3:] for entry in status.split("\0") if entry.startswith("?? ")]


def _with_content(summary: tuple[dict[str, Any], list[str]] | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    state, untracked = summary
    diff = (_git(state["root"], *_DIFF) or "") if state["commit"] and state["dirty"] else ""
    return {**state, "diff": diff, "untracked": _small_sources(Path(state["root"]), untracked)}


def repository_of(folder: str | Path) -> Path | None:
    """Return the root of the repository that a folder seems to be in, without asking git; None outside of one."""
    if "GIT_DIR" in os.environ:  # which git takes for any folder
        return Path(folder)
    path = Path(os.path.realpath(folder))
    return next((parent for parent in (path, *path.parents) if os.path.lexists(parent / ".git")), None)


def commit_of(folder: str | Path) -> str | None:
    """Return the commit of the repository that a folder is in; None outside of one, or without a commit."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    return commit.strip() if commit else None


def _head(folder: str | Path) -> tuple[str, str | None, str | None] | None:
    """Return the repository's root, its commit and its branch, None for what there is not.

    Where there is a commit, one process tells them all: on the way to the main function they are waited for.
    """
    known = _git(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
    if known is not None:
        root, commit, branch = known.rstrip("\n").rsplit("\n", 2)
        return root, commit, None if branch == "HEAD" else branch
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = top.rstrip("\n")
    return root, None, (_git(root, "symbolic-ref", "--short", "--quiet", "HEAD") or "").strip() or None


def _git(folder: str | Path, *arguments: str) -> str | None:
    if repository_of(folder) is None:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=20, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _small_sources(root: Path, names: list[str]) -> dict[str, str]:
    found, left = {}, _MAX_UNTRACKED_BYTES
    for name in sorted(names):
        path = root / name
        if path.suffix not in _SOURCE_SUFFIXES:
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size <= left:
                found[name] = path.read_bytes().decode()  # read as text, line ends would change
                left -= len(found[name].encode())
    return found


def machine(nvml: Any) -> dict[str, Any]:
    """Return what the machine is: OS, CPU, memory, and its GPUs by NVML.

    Args:
        nvml: The module `pynvml`, or what stands in for it.
    """
    return {
        "os": platform.platform(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        **describe_gpus(nvml),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
