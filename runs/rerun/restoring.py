"""Restore the code of a past run into a folder: its commit, its uncommitted changes, and its recorded sources.

Git's part comes from a repository on this machine, which stays as it is: its files, index, branches and work trees. The
recorded sources are written over it, so the folder holds what ran. Without a repository they are all there is. No name
leads out of the folder.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from sacristan.observers.record.files import read_regular, relative_path
from sacristan.runs.errors import DamagedError, LaunchError, StoreError
from sacristan.runs.query.texts import list_text
from sacristan.runs.rerun import GitState, Record
from sacristan.runs.stores import Content, fetch

_SHOWN = 5
# How `git ls-files --stage` marks a submodule.
_SUBMODULE = "160000 "


@dataclasses.dataclass(frozen=True)
class Restored:
    """The code of a run in a folder, which stands for its repository's root; `base` is the folder of its sources."""

    folder: Path
    base: Path
    script: Path
    commit: str | None
    num_sources: int
    notes: tuple[str, ...]


def restore(record: Record, folder: Path) -> Restored:
    """Restore the code of a run into an empty or new folder; LaunchError if recorded sources are missing."""
    mainfile = record.mainfile
    if not record.sources:
        raise LaunchError(f"run {record.id} has no recorded sources to restore; take today's with --in-place")
    notes: list[str] = []
    if record.changed_between_sessions:
        names = list_text(record.changed_between_sessions)
        notes.append(f"its sessions were made of different sources ({names}); those of the last one are used")
    repository = find_repository(record)
    base = folder
    if repository is not None:
        base = folder / _below(record.git.root, record.base)
        notes += _write_commit(record.git, repository, folder / _below(record.base, record.git.root))
    else:
        notes.append(_without_repository(record))
    notes += _write_sources(record, base, in_git=repository is not None)
    if not (base / mainfile).is_file():
        raise LaunchError(
            f"run {record.id}: its main file {mainfile} is not among its recorded sources; see sacristan sources ls"
        )
    commit = record.git.commit if repository is not None else None
    return Restored(folder, base, base / mainfile, commit, len(record.sources), tuple(notes))


def find_repository(record: Record) -> Path | None:
    """Return a git repository that has the recorded commit: where the run was made, or else here; None without one."""
    commit, root = record.git.commit, record.git.root
    if commit is None:
        return None
    for place in (Path(root) if root else None, record.base, Path.cwd()):
        if place is not None and place.is_dir() and _has_commit(place, commit):
            return place
    return None


def _below(upper: str | Path | None, lower: str | Path | None) -> PurePosixPath:
    """Return the path from one folder to another below it; an empty one if it lies elsewhere."""
    if upper is None or lower is None:
        return PurePosixPath()
    for path in (Path(lower), Path(lower).resolve()):
        if path.is_relative_to(upper):
            return relative_path(path.relative_to(upper).as_posix()) or PurePosixPath()
    return PurePosixPath()


def _without_repository(record: Record) -> str:
    commit, root = record.git.commit, record.git.root
    if commit and root and Path(root).is_dir() and _is_refused(Path(root)):
        why = (
            f"git refuses the repository in {root}, which belongs to another user (if you trust it: git config "
            f"--global --add safe.directory {root})"
        )
    elif commit and _git(["--version"]) is None:
        why = "git is not installed"
    elif commit:
        why = f"no repository with its commit {commit[:12]} is at hand"
    elif record.git.problem:
        why = f"it was recorded without a commit, because {record.git.problem}"
    else:
        why = "it was made outside of git" if record.provenance else "its record names no commit"
    return f"{why}: only the recorded sources are restored, no other file of the lab"


# ---------------------------------------------------------------------- recorded sources


def _write_sources(record: Record, base: Path, *, in_git: bool) -> Iterator[str]:
    """Write the recorded sources, and yield how they differ from git."""
    differing, missing, contents = [], [], []
    replaced: list[str] = []
    for name, content in record.sources.items():
        data = _checked(record, content)
        path = relative_path(name)
        if not in_git or path is None:
            contents.append(content)
            continue
        replaced += _without_links_out(base, base / path)
        restored = read_regular(base / path) if (base / path).is_file() else None
        if restored is None:
            missing.append(name)
        elif _lines(restored) != _lines(data):  # line ends are a setting of the repository
            differing.append(name)
        if restored != data or not _leads_into(base, base / path):  # else a link stays one
            contents.append(content)
    refused = fetch(contents, base, overwrite=True).refused
    if refused:
        raise LaunchError(f"run {record.id}: its sources cannot be restored: {'; '.join(refused[:_SHOWN])}")
    if replaced:
        yield f"links out of the lab are restored as folders that hold recorded sources only: {list_text(replaced)}"
    if differing:
        yield f"recorded sources replace those of the commit and its changes: {list_text(differing)}"
    if missing:
        yield f"recorded sources are missing in the commit and its changes: {list_text(missing)}"


def _leads_into(folder: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _without_links_out(base: Path, target: Path) -> list[str]:
    """Remove a link on the way from `base` to a file that leads out of `base`; return its name."""
    for parent in reversed(target.relative_to(base).parents[:-1]):
        if (base / parent).is_symlink() and not _leads_into(base, base / parent):
            (base / parent).unlink()
            return [parent.as_posix()]
    return []


def _lines(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


def _checked(record: Record, content: Content) -> bytes:
    try:
        return content.read()
    except DamagedError as error:
        raise LaunchError(f"run {record.id}: its source {error}") from error
    except (StoreError, OSError) as error:
        raise LaunchError(f"run {record.id}: its source {content.name!r} is not there ({error})") from error


# ---------------------------------------------------------------------- git


def _write_commit(git: GitState, repository: Path, folder: Path) -> Iterator[str]:
    """Write the files of a commit with the uncommitted changes, and yield what could not be written."""
    folder.mkdir(parents=True, exist_ok=True)
    yield from _check_out(repository, str(git.commit), folder, git.diff or "")
    if git.diff is None and git.is_dirty:
        yield "uncommitted changes are not in its record, except those in recorded sources"
    yield from fetch(_untracked(git), folder, overwrite=True).refused


def _untracked(git: GitState) -> Iterator[Content]:
    for name, text in git.untracked.items():
        data = text.encode(errors="surrogateescape")
        yield Content(name, lambda data=data: io.BytesIO(data))  # type: ignore[misc]


def _check_out(repository: Path, commit: str, folder: Path, diff: str = "") -> Iterator[str]:
    """Write the files of a commit, changed by a diff, and those of its submodules; yield what could not be written.

    The diff is applied in an index, where files are as git stores them, so line ends and filters of the work tree do
    not matter. Index and new objects lie beside the folder.
    """
    git_dir, objects = (_path_of(repository, words) for words in (["--absolute-git-dir"], ["--git-path", "objects"]))
    # An archive might leave files out.
    options = ["-c", "core.sparseCheckout=false", "-c", "core.splitIndex=false"]
    options = [f"--git-dir={git_dir}", f"--work-tree={folder.resolve()}", *options]
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as scratch:
        places = {"GIT_INDEX_FILE": f"{scratch}/index", "GIT_OBJECT_DIRECTORY": scratch}
        places["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = json.dumps(objects, ensure_ascii=False)

        def run(*words: str) -> str:
            done = _git([*options, *words], folder, **places)
            if done is None or done.returncode != 0:
                raise LaunchError(f"git {words[0]} in {repository} failed: {_error_of(done)}")
            return done.stdout.decode(errors="surrogateescape")

        run("read-tree", commit)
        if diff:
            words = [*options, "apply", "--cached", "--binary", "--whitespace=nowarn", "-"]
            done = _git(words, folder, diff, **places)
            if done is None or done.returncode != 0:
                yield f"the uncommitted changes cannot be applied ({_error_of(done)}); recorded sources have them"
        run("checkout-index", "--all", "--force")
        entries = run("ls-files", "--stage", "-z").split("\0")
    for entry in entries:
        head, _, name = entry.partition("\t")
        if head.startswith(_SUBMODULE):
            yield from _check_out_submodule(repository, name, head.split()[1], folder / name)


def _check_out_submodule(repository: Path, name: str, commit: str, folder: Path) -> Iterator[str]:
    """Write the files of a submodule's commit from a repository on this machine; yield what could not be written."""
    top = _path_of(repository, ["--show-toplevel"])
    for place in (Path(top) / name, Path(_path_of(repository, ["--absolute-git-dir"])) / "modules" / name):
        if place.is_dir() and _has_commit(place, commit):
            yield from _check_out(place, commit, folder)
            return
    yield f"the submodule {name} is restored without its commit {commit[:12]}, which is not at hand: only sources"


def _has_commit(place: Path, commit: str) -> bool:
    done = _git(["-C", str(place), "cat-file", "-e", f"{commit}^{{commit}}"])
    return done is not None and done.returncode == 0


def _is_refused(place: Path) -> bool:
    """Tell whether git refuses a repository because it belongs to another user."""
    done = _git(["-C", str(place), "rev-parse", "--git-dir"])
    return done is not None and b"dubious ownership" in done.stderr


def _path_of(repository: Path, words: list[str]) -> str:
    """Return a path that `git rev-parse` prints about a repository, as an absolute one; empty if it prints nothing."""
    done = _git(["-C", str(repository), "rev-parse", *words])
    path = "" if done is None else done.stdout.decode(errors="surrogateescape").removesuffix("\n")
    return str(repository.absolute() / path) if path else ""


def _git(
    words: Iterable[str], folder: Path | None = None, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes] | None:
    """Run git; None if it is not installed."""
    # In a folder that lies in a repository, `git apply` would silently skip all files.
    limits = {} if folder is None else {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **limits, **environment}
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        variables.pop(name, None)
    data = None if text is None else text.encode(errors="surrogateescape")
    try:
        return subprocess.run(["git", *words], cwd=folder, input=data, capture_output=True, env=variables, check=False)
    except OSError:
        return None


def _error_of(done: subprocess.CompletedProcess[bytes] | None) -> str:
    if done is None:
        return "git is not installed"
    return " ".join(done.stderr.decode(errors="replace").split())[:300]
