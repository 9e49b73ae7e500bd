"""The code of a past run, restored into a folder: its commit, what was not committed, and its recorded sources.

What git has comes from a repository at hand, of which nothing is changed: not its files, index, branches or work trees.
The recorded sources are written over it, so that what is restored is what ran. Without a repository they are all there
is. No name leads out of the folder.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from observers.record.regular_file import read_regular
from observers.record.safe_paths import relative_path
from runs.errors import DamagedError, LaunchError, StoreError
from runs.rerun.checkout import check_out, has_commit, is_refused
from runs.rerun.record import Record, mapping
from runs.rerun.wording import some
from runs.stores.content import Content
from runs.stores.run import Run
from runs.transfer.fetching import fetch

__all__ = ["GitState", "Restored", "find_repository", "git_state_of", "restore"]

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Restored:
    """The code of a run in a folder.

    Attributes:
        folder: Where all of it is; of a run in a repository, what stands for its root.
        base: What stands for the folder that the sources are below.
        script: The experiment's main file.
        commit: The commit that it was taken from; None without a repository.
        num_sources: How many recorded sources there are.
        notes: What is missing or differs, a sentence each.
    """

    folder: Path
    base: Path
    script: Path
    commit: str | None
    num_sources: int
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GitState:
    """The recorded state of git. What stock Sacred recorded of it has no diff and no root.

    Attributes:
        commit: The commit; None without one.
        root: The root of the repository.
        diff: The changes that were not committed, as a patch; None if the record does not have them.
        is_dirty: Whether there were any.
        untracked: Files that were not under version control, by their paths.
    """

    commit: str | None
    root: str | None
    diff: str | None
    is_dirty: bool
    untracked: Mapping[str, str]


def git_state_of(run: Run) -> GitState:
    """Return the recorded state of git.

    Raises:
        StoreError: If the record cannot be read.
    """
    found = run.provenance.get("git")
    if not isinstance(found, Mapping):
        repositories = run["experiment.repositories"]
        found = mapping(repositories[0]) if isinstance(repositories, list) and repositories else {}
    commit, root, diff = (found.get(name) for name in ("commit", "root", "diff"))
    is_hash = isinstance(commit, str) and len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef")
    return GitState(
        commit if is_hash else None,
        root if isinstance(root, str) else None,
        diff if isinstance(diff, str) else None,
        bool(found.get("dirty")),
        {str(name): str(text) for name, text in mapping(found.get("untracked")).items()},
    )


def restore(record: Record, folder: Path) -> Restored:
    """Restore the code of a run into an empty folder.

    Raises:
        LaunchError: If a recorded source is not there with its recorded content, or there are none.
    """
    run, mainfile = record.run, record.mainfile
    sources = run.sources
    if not sources:
        raise LaunchError(
            f"run {run.id} has no recorded sources, so its code cannot be restored; --in-place takes today's"
        )
    notes: list[str] = list(_of_sessions(run))
    git = git_state_of(run)
    repository = find_repository(record, git)
    base = folder
    if repository is not None:
        base = folder / _below(git.root, record.base)
        notes += _take_commit(git, repository, folder / _below(record.base, git.root))
    else:
        notes.append(_without_repository(run, git))
    notes += _write_sources(run, sources, base, in_git=repository is not None)
    if not (base / mainfile).is_file():
        raise LaunchError(
            f"run {run.id}: its main file {mainfile} is not among its recorded sources; see runs sources ls"
        )
    commit = git.commit if repository is not None else None
    return Restored(folder, base, base / mainfile, commit, len(sources), tuple(notes))


def find_repository(record: Record, git: GitState) -> Path | None:
    """Return a folder of a git repository that has the recorded commit: where the run was made, else here."""
    if git.commit is None:
        return None
    for place in (Path(git.root) if git.root else None, record.base, Path.cwd()):
        if place is not None and place.is_dir() and has_commit(place, git.commit):
            return place
    return None


def _below(upper: str | Path | None, lower: str | Path | None) -> PurePosixPath:
    """Return where below one folder another one is; nothing if it is not."""
    if upper is None or lower is None:
        return PurePosixPath()
    for path in (Path(lower), Path(lower).resolve()):
        if path.is_relative_to(upper):
            return relative_path(path.relative_to(upper).as_posix()) or PurePosixPath()
    return PurePosixPath()


def _of_sessions(run: Run) -> Iterator[str]:
    sessions = run.document.get("sessions")
    changed = [
        name
        for session in (sessions if isinstance(sessions, list) else ())
        if isinstance(session, Mapping)
        for name in session.get("changed_sources") or ()
    ]
    if changed:
        yield f"its sessions were made of different sources ({some(changed)}); those of the last one are taken"


def _without_repository(run: Run, git: GitState) -> str:
    why = f"no repository with its commit {git.commit[:12]} is at hand" if git.commit else "it was made outside of git"
    if git.commit is None and not run.provenance:
        why = "its record names no commit"
    elif git.commit and git.root and Path(git.root).is_dir() and is_refused(Path(git.root)):
        why = (
            f"git refuses the repository in {git.root}, which belongs to another user (if you trust it: git config "
            f"--global --add safe.directory {git.root})"
        )
    return f"{why}: only the recorded sources are restored, no other file of the lab"


# ---------------------------------------------------------------------- from git


def _take_commit(git: GitState, repository: Path, folder: Path) -> Iterator[str]:
    """Write the files of a commit with what was not committed, and yield what could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    yield from check_out(repository, str(git.commit), folder, git.diff or "")
    if git.diff is None and git.is_dirty:
        yield "changes that were not committed are not in its record, except those in recorded sources"
    contents = [_content(name, text) for name, text in git.untracked.items()]
    yield from fetch(contents, folder, overwrite=True).refused


def _content(name: str, text: str) -> Content:
    return Content(name, lambda: io.BytesIO(text.encode(errors="surrogateescape")))


# ---------------------------------------------------------------------- recorded sources


def _write_sources(run: Run, sources: Mapping[str, Content], base: Path, *, in_git: bool) -> Iterator[str]:
    """Write the recorded sources, and yield what of them was not so in git.

    Raises:
        LaunchError: If one has not its recorded content.
    """
    differing, missing, contents = [], [], []
    replaced: list[str] = []
    for name, content in sources.items():
        data = _checked(run, content)
        path = relative_path(name)
        target = base / path if path is not None else None
        if in_git and target is not None:
            replaced += _without_links_out(base, target)
            if target.is_file() and _leads_into(base, target) and read_regular(target) == data:
                continue  # and a link stays one
            if not target.is_file():
                missing.append(name)
            elif _lines(read_regular(target)) != _lines(data):  # line ends are a setting of the repository
                differing.append(name)
        contents.append(Content(name, content.open))
    refused = fetch(contents, base, overwrite=True).refused
    if refused:
        raise LaunchError(f"run {run.id}: its sources cannot be restored: {'; '.join(refused[:_SHOWN])}")
    if replaced:
        yield f"links out of the lab are restored as folders of the recorded sources alone: {some(replaced)}"
    if differing:
        yield f"recorded sources differ from the commit with its changes, and are taken: {some(differing)}"
    if missing:
        yield f"recorded sources are not in the commit with its changes: {some(missing)}"


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


def _checked(run: Run, content: Content) -> bytes:
    try:
        return content.read()
    except DamagedError as error:
        raise LaunchError(f"run {run.id}: its source {error}") from error
    except (StoreError, OSError) as error:
        raise LaunchError(f"run {run.id}: its source {content.name!r} is not there ({error})") from error
