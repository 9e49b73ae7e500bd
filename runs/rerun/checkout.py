"""Files of a commit written into a folder, with what was not committed, from a repository that stays as it is."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from runs.errors import LaunchError

__all__ = ["check_out", "has_commit", "is_refused"]

# How `git ls-files --stage` marks a submodule.
_SUBMODULE = "160000 "


def has_commit(place: Path, commit: str) -> bool:
    """Return whether a folder is in a repository that has a commit."""
    done = _git(["-C", str(place), "cat-file", "-e", f"{commit}^{{commit}}"])
    return done is not None and done.returncode == 0


def is_refused(place: Path) -> bool:
    """Return whether git does not look into a repository because it belongs to another user."""
    done = _git(["-C", str(place), "rev-parse", "--git-dir"])
    return done is not None and b"dubious ownership" in done.stderr


def check_out(repository: Path, commit: str, folder: Path, diff: str = "") -> Iterator[str]:
    """Write the files of a commit, changed by a diff, and those of its submodules; yield what could not be.

    The diff is applied in an index, where files are as git keeps them, so that line ends and filters that the
    repository sets for its work tree do not stand in the way. Index and new objects lie beside the folder.

    Raises:
        LaunchError: If git fails.
    """
    git_dir, objects = (_path_of(repository, words) for words in (["--absolute-git-dir"], ["--git-path", "objects"]))
    where = [f"--git-dir={git_dir}", f"--work-tree={folder.resolve()}"]
    # An archive might leave files out.
    options = ["-c", "core.sparseCheckout=false", "-c", "core.splitIndex=false"]
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as own:
        places = {"GIT_INDEX_FILE": f"{own}/index", "GIT_OBJECT_DIRECTORY": own}
        places["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = json.dumps(objects, ensure_ascii=False)

        def run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[bytes] | None:
            return _git([*where, *options, *words], folder, text, **places)

        _demand(run("read-tree", commit), "read-tree", repository)
        if diff:
            done = run("apply", "--cached", "--binary", "--whitespace=nowarn", "-", text=diff)
            if done is None or done.returncode != 0:
                said = _said(done)
                yield f"the changes that were not committed cannot be applied ({said}); recorded sources have them"
        _demand(run("checkout-index", "--all", "--force"), "checkout-index", repository)
        listed = _demand(run("ls-files", "--stage", "-z"), "ls-files", repository)
    for entry in listed.split("\0"):
        head, _, name = entry.partition("\t")
        if head.startswith(_SUBMODULE):
            yield from _check_out_submodule(repository, name, head.split()[1], folder / name)


def _check_out_submodule(repository: Path, name: str, commit: str, folder: Path) -> Iterator[str]:
    """Write the files of a submodule's commit, if a repository with it is at hand; yield what could not be."""
    top = _path_of(repository, ["--show-toplevel"])
    for place in (Path(top) / name, Path(_path_of(repository, ["--absolute-git-dir"])) / "modules" / name):
        if place.is_dir() and has_commit(place, commit):
            yield from check_out(place, commit, folder)
            return
    yield f"the submodule {name} is restored without its commit {commit[:12]}, which is not at hand: only sources"


def _path_of(repository: Path, words: list[str]) -> str:
    """Return what `git rev-parse` says of a repository, as an absolute path; empty if it says nothing."""
    done = _git(["-C", str(repository), "rev-parse", *words])
    said = "" if done is None else done.stdout.decode(errors="surrogateescape").removesuffix("\n")
    return str(repository.absolute() / said) if said else ""


def _demand(done: subprocess.CompletedProcess[bytes] | None, deed: str, repository: Path) -> str:
    """Return what git printed.

    Raises:
        LaunchError: If it failed.
    """
    if done is None or done.returncode != 0:
        raise LaunchError(f"git {deed} in {repository} failed: {_said(done)}")
    return done.stdout.decode(errors="surrogateescape")


def _git(
    words: Iterable[str], folder: Path | None = None, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes] | None:
    # In a folder that lies in a repository, `git apply` would pass over all files without a word.
    limits = {} if folder is None else {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    everything = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **limits, **environment}
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        everything.pop(name, None)
    data = None if text is None else text.encode(errors="surrogateescape")
    try:
        return subprocess.run(["git", *words], cwd=folder, input=data, capture_output=True, env=everything, check=False)
    except OSError:
        return None


def _said(done: subprocess.CompletedProcess[bytes] | None) -> str:
    if done is None:
        return "git is not installed"
    return " ".join(done.stderr.decode(errors="replace").split())[:300]
