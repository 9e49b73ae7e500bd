"""Provenance of a run: sources, packages, GPUs, flags; here, git repositories and the version of the lab."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sacristan.configs import packages
from sacristan.configs.shielding import STOP, shielded
from sacristan.observers.record.redaction import hide_passwords

__all__ = ["commit_of", "lab_git_state", "lab_version", "repository_of"]

_log = logging.getLogger(__name__)

_MAX_UNTRACKED_BYTES = 256 * 1024
# A diff that can be applied, whatever the user's settings are.
_DIFF = (
    *("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "HEAD"),
)
# The last summary of git, and the lab that it is about.
_last: tuple[tuple[str, ...], tuple[dict[str, Any], list[str]] | None] = (), None
_REFUSED = "git refuses the repository, which belongs to another user"
# Repositories that git does not read, with the reasons that were logged.
_reported: set[tuple[Path | None, str]] = set()
_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".sh", ".txt", ".md")


def lab_git_state(base_dir: str | Path, mainfile: str | Path | None, *, content: bool = True) -> dict[str, Any] | None:
    """Return the state of the lab's repository, or of the one below it with the main file; None outside a repository.

    With `content`, it has the diff and small untracked sources; asked later, the rest is not asked for again. `commit`
    is None before the first; if git cannot compare, `dirty` is True without `diff`; else `problem` says why git fails.
    """
    global _last
    lab = str(base_dir), str(mainfile)
    (asked, summary), _last = _last, ((), None)
    if asked != lab or not content:
        summary = _git_summary(base_dir)
        if summary is None and mainfile is not None:
            summary = _git_summary(Path(mainfile).parent)
    if content:
        return _with_content(summary)
    _last = lab, summary
    return None if summary is None else summary[0]


def uncommitted_files(path: Path, sources: Iterable[Path]) -> list[str] | None:
    """Return the files that differ from the commit, of new ones only those in `sources`; None if git cannot tell."""
    head = _head(path if path.is_dir() else path.parent)
    if head is None or head[1] is None:
        return None
    root = Path(head[0])
    status = _git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    if status is None:
        return None
    new = {os.path.realpath(source) for source in sources}
    entries = [(entry[:2], entry[3:]) for entry in status.split("\0") if entry]
    return [name for kind, name in entries if kind != "??" or os.path.realpath(root / name) in new]


def _git_summary(folder: str | Path) -> tuple[dict[str, Any], list[str]] | None:
    """Return the state of a repository without content, and the names of its untracked files."""
    head = _head(folder)
    if head is None:
        return _unreadable(folder)
    root, commit, branch = head
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=all")
    state = {
        "root": root,
        "url": hide_passwords((_git(root, "config", "--get", "remote.origin.url") or f"git:{root}").strip()),
        "commit": commit,
        "branch": branch,
        "dirty": status is None or bool(status),  # as it may be, if git cannot say
    }
    return state, [entry[3:] for entry in (status or "").split("\0") if entry.startswith("?? ")]


def _unreadable(folder: str | Path) -> tuple[dict[str, Any], list[str]] | None:
    """Return the state of a repository that git does not read, with a warning; None outside a repository."""
    root = repository_of(folder)
    problem = None if root is None else _problem(root)
    if problem is None:
        return None
    if (root, problem) not in _reported:
        _reported.add((root, problem))
        hint = f"; if you trust it: git config --global --add safe.directory {shlex.quote(str(root))}"
        shown = f"{problem}{hint}" if problem == _REFUSED else problem
        _log.warning("%s: the run is recorded without commit and uncommitted changes, because %s", root, shown)
    state = {"root": str(root), "url": f"git:{root}", "commit": None, "branch": None, "dirty": True}
    return {**state, "problem": problem}, []


def _problem(root: Path) -> str | None:
    """Return why git does not read a repository."""
    done = _run_git(root, "rev-parse", "--show-toplevel")
    if isinstance(done, FileNotFoundError):
        return "git is not installed"
    if isinstance(done, Exception):
        return f"git cannot be run ({' '.join(str(done).split())[:200]})"
    text = done.stderr.decode(errors="replace")
    if "dubious ownership" in text:
        return _REFUSED
    return f"git cannot read the repository ({' '.join(text.split())[:200]})" if done.returncode else None


def _with_content(summary: tuple[dict[str, Any], list[str]] | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    state, untracked = summary
    diff: str | None = None if "problem" in state else ""
    if state["commit"] and state["dirty"]:
        diff = _git(state["root"], *_DIFF)
    return {**state, "diff": diff, "untracked": _small_sources(Path(state["root"]), untracked)}


def repository_of(folder: str | Path) -> Path | None:
    """Return the root of a folder's repository without running git; None outside a repository."""
    if "GIT_DIR" in os.environ:  # git uses it for any folder
        return Path(folder)
    path = Path(os.path.realpath(folder))
    return next((parent for parent in (path, *path.parents) if os.path.lexists(parent / ".git")), None)


def commit_of(folder: str | Path) -> str | None:
    """Return the commit of a folder's repository; None outside a repository, or without a commit."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    return commit.strip() if commit else None


def lab_version() -> dict[str, Any]:
    """Return the `version` and `commit` of the lab that records, its `folder`, and whether it is a `checkout`."""
    folder = packages.checkout()
    commit = packages.commit() if folder is None else commit_of(folder)
    root = str(Path(packages.__file__).parents[1] if folder is None else folder)
    return {"version": packages.version(), "commit": commit, "checkout": folder is not None, "folder": root}


def _head(folder: str | Path) -> tuple[str, str | None, str | None] | None:
    """Return root, commit and branch in one process, because the main function waits for it."""
    answer = _git(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
    if answer is not None:
        root, commit, branch = answer.rstrip("\n").rsplit("\n", 2)
        return root, commit, None if branch == "HEAD" else branch
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = top.rstrip("\n")
    return root, None, (_git(root, "symbolic-ref", "--short", "--quiet", "HEAD") or "").strip() or None


def _git(folder: str | Path, *arguments: str) -> str | None:
    if repository_of(folder) is None:
        return None
    done = _run_git(folder, *arguments)
    if isinstance(done, Exception) or done.returncode:
        return None
    return done.stdout.decode(errors="surrogateescape")


def _run_git(folder: str | Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | Exception:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-C", str(folder), *arguments]
    try:
        with shielded(STOP):
            return subprocess.run(command, capture_output=True, timeout=20, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return error


def _small_sources(root: Path, names: list[str]) -> dict[str, str]:
    sources, left = {}, _MAX_UNTRACKED_BYTES
    for name in sorted(names):
        path = root / name
        if path.suffix not in _SOURCE_SUFFIXES:
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size <= left:
                sources[name] = path.read_bytes().decode()  # reading as text would change line ends
                left -= len(sources[name].encode())
    return sources
