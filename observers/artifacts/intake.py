"""Reading files into the store of artifacts: each content once, as a stream, whole or not at all.

    incoming/<folder>/taken-<token>         a content that is not complete, or not published
    incoming/<folder>/part-<key>.<token>    one of a large file; the next attempt takes it over if the process is dead

The key is made from the length and the beginning of the content, so that files may be renamed or linked in between. A
part is compared with the file (see `sacristan.observers.record.copies`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn

from sacristan.observers.artifacts import ArtifactFile, content_path
from sacristan.observers.errors import ArtifactError
from sacristan.observers.record import copies
from sacristan.observers.record.files import sync_file, sync_folder
from sacristan.observers.record.folders import RecordLock, is_locked
from sacristan.observers.record.schema import LOCK

# A later process removes the incomplete files of a killed one after this long without a change; parts of large files,
# and all files if there are no locks, after a day.
_UNLOCKED_S, ABANDONED_S = 60.0, 24 * 3600.0
_PART = "part-"
_KEY_BYTES = 2**20

_Stamp = tuple[int, int, int, int]


class Incoming:
    """A folder of the store for incomplete files, which readers do not see; a failure leaves parts of large ones."""

    def __init__(self, root: Path) -> None:
        self.contents = root / "contents"
        self._home = root / "incoming"
        self.folder = self._home
        self._lock: RecordLock | None = None
        # New contents by their SHA-256.
        self._taken: dict[str, Path] = {}

    def __enter__(self) -> Incoming:
        copies.make_shared(self._home, self._home.parent.parent)
        sweep_incoming(self._home.parent)
        self.folder = Path(tempfile.mkdtemp(dir=self._home))
        self._lock = RecordLock(self.folder)
        self._lock.acquire()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        parts = list(self.folder.glob(f"{_PART}*"))
        if error is None or isinstance(error, copies.ChangedWhileReadError) or not parts:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            for path in self.folder.iterdir():
                if path not in parts and path.name != LOCK:
                    path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def holds(self, sha256: str, num_bytes: int) -> bool:
        """Tell whether the store has a content, judging by its length; `reclaim` keeps it from now on for a while."""
        path = content_path(self.contents, sha256)
        try:
            with contextlib.suppress(PermissionError):  # another user's
                os.utime(path)
            return path.stat().st_size == num_bytes
        except OSError:
            return False

    def take(
        self, stream: BinaryIO, expected_bytes: int, progress: copies.CopyProgress | None = None
    ) -> tuple[str, int]:
        """Keep the content of a stream if it is new; return SHA-256 and length. It is read up to `expected_bytes`."""
        path = self.folder / f"taken-{os.urandom(8).hex()}"
        if expected_bytes >= copies.RESUMED_BYTES:
            path = self._part(stream, expected_bytes)
        sha256 = hashlib.sha256()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as copy:
            num_bytes = copies.copy_stream(stream, copy, expected_bytes, progress, sha256)
        digest = sha256.hexdigest()
        if digest in self._taken or self.holds(digest, num_bytes):
            path.unlink()
        else:
            self._taken[digest] = path
        return digest, num_bytes

    def _part(self, stream: BinaryIO, num_bytes: int) -> Path:
        """Return the path for a large content, with the part that a dead process has left, if there is one."""
        beginning = hashlib.sha256(copies.read(stream, _KEY_BYTES)).hexdigest()
        stream.seek(0)
        name = f"{_PART}{num_bytes}-{beginning[:32]}"
        path = self.folder / f"{name}.{os.urandom(4).hex()}"
        for left in self._home.glob(f"*/{name}.*"):
            if left.parent != self.folder and is_locked(left.parent) is False:
                with contextlib.suppress(OSError):  # another process was faster, or it is another user's
                    left.rename(path)
                    break
        return path

    def flush(self) -> None:
        for path in self._taken.values():
            with path.open("rb") as stream:
                sync_file(stream.fileno())

    def publish(self) -> None:
        """Move all new contents to where readers find them, read-only."""
        for digest, path in sorted(self._taken.items()):
            target = content_path(self.contents, digest)
            copies.make_shared(target.parent, self._home.parent)
            make_read_only(path)
            path.replace(target)
            copies.share(target)
            sync_folder(target.parent)
        self._taken.clear()


def sweep_incoming(root: Path, parts_s: float = ABANDONED_S) -> list[int]:
    """Remove incomplete files of killed processes, and return their lengths; parts of large files after `parts_s`."""
    gone = []
    with contextlib.suppress(FileNotFoundError):
        for folder in (root / "incoming").iterdir():
            with contextlib.suppress(OSError):
                files = {path: path.stat() for path in folder.iterdir() if path.name != LOCK}
                is_held = is_locked(folder)
                has_parts = any(path.name.startswith(_PART) for path in files)
                patience_s = ABANDONED_S if is_held is None else parts_s if has_parts else _UNLOCKED_S
                last_change = max(status.st_mtime for status in (folder.stat(), *files.values()))
                if not is_held and last_change < time.time() - patience_s:
                    shutil.rmtree(folder, ignore_errors=True)
                    gone += [status.st_size for path, status in files.items() if not path.exists()]
    return gone


def make_read_only(path: Path) -> None:
    """Remove all write permissions, so that no program changes a content; raise OSError for another user's file."""
    path.chmod(path.stat().st_mode & 0o444)


def take_tree(path: Path, incoming: Incoming, likely: Collection[tuple[str, int]] = ()) -> list[ArtifactFile]:
    """Read a file, or all files of a folder, and return them sorted by name; links within the folder count as files.

    Files with name and length in `likely` are hashed before they are copied: the store probably has them. Raises
    ArtifactError for a file that is rejected, cannot be read or changes, OSError if the store cannot be written.
    """
    before = _listing(path)
    home = path if path.is_dir() else path.parent
    if incoming.contents.resolve().is_relative_to(path.resolve()):
        raise ArtifactError(f"{path}: it holds the store of artifacts itself; log a folder that does not")
    files = []
    with copies.CopyProgress(path.name, sum(size for _, _, size, _ in before.values())) as progress:
        for name in sorted(before):
            try:
                stream = (home / name).open("rb")
            except OSError as error:
                _refuse(home / name, error)
            with stream:
                if _stamp(os.fstat(stream.fileno())) != before[name]:
                    _refuse_change(home / name)
                files.append(_take(name, stream, incoming, before[name][2], likely, progress))
    after = _listing(path)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            _refuse_change(home / name)
    return files


def _take(
    name: str,
    stream: BinaryIO,
    incoming: Incoming,
    num_bytes: int,
    likely: Collection[tuple[str, int]],
    progress: copies.CopyProgress,
) -> ArtifactFile:
    if (name, num_bytes) in likely:
        sha256, num_read = hashlib.sha256(), 0
        while num_read <= num_bytes and (chunk := copies.read(stream)):
            sha256.update(chunk)
            num_read += len(chunk)
            progress.advance(len(chunk))
        if incoming.holds(sha256.hexdigest(), num_bytes):
            return ArtifactFile(name, sha256.hexdigest(), num_bytes)
        progress.advance(-num_read)
        stream.seek(0)
    digest, num_read = incoming.take(stream, num_bytes, progress)
    if num_read != num_bytes:
        _refuse_change(Path(stream.name))
    return ArtifactFile(name, digest, num_bytes)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _listing(path: Path) -> dict[str, _Stamp]:
    """Return every file by its name in the folder, with a stamp that changes with the file."""
    try:
        top = path.stat()
    except (OSError, ValueError) as error:
        _refuse(path, error)
    if stat.S_ISREG(top.st_mode):
        files = {path.name: _stamp(top)}
    elif stat.S_ISDIR(top.st_mode):
        files = _files_below(path)
    else:
        raise ArtifactError(f"{path}: it is neither a file nor a folder; log one of these")
    if not files:
        raise ArtifactError(f"{path}: got a folder without files, expected at least one; an artifact is its files")
    for name in files:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ArtifactError(f"{path}: the file name {name!r} is no UTF-8; rename it") from error
    return files


def _files_below(folder: Path) -> dict[str, _Stamp]:
    files = {}
    home = folder.resolve()

    def refuse(error: OSError) -> NoReturn:
        _refuse(Path(error.filename), error)

    for where, folders, names in os.walk(folder, onerror=refuse):
        for name in folders:
            if Path(where, name).is_symlink():
                raise ArtifactError(
                    f"{Path(where, name)}: it is a link to a folder; copy the folder with all links resolved (cp -rL)"
                )
        for name in names:
            path = Path(where, name)
            files[path.relative_to(folder).as_posix()] = _stamp(_file_stat(path, home))
    return files


def _file_stat(path: Path, home: Path) -> os.stat_result:
    try:
        if path.is_symlink() and not path.resolve(strict=True).is_relative_to(home):
            raise ArtifactError(
                f"{path}: it is a link that leaves the folder; copy the folder with all links resolved (cp -rL)"
            )
        status = path.stat()
    except (OSError, RuntimeError) as error:
        _refuse(path, error)
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactError(f"{path}: it is neither a file nor a folder; take it away, or log another folder")
    return status


def _refuse(path: Path, error: Exception) -> NoReturn:
    raise ArtifactError(
        f"{path}: it cannot be read ({getattr(error, 'strerror', None) or error}); nothing is logged"
    ) from error


def _refuse_change(path: Path) -> NoReturn:
    raise copies.ChangedWhileReadError(
        f"{path}: it changed while it was read; log it when nobody writes to it any more"
    )
