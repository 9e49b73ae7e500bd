"""Files that a run read or made: contents of sources and resources, kept once for all runs of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from pathlib import Path

from sacristan.observers.record.copies import chunks, copy_open_file, open_file, stamp
from sacristan.observers.record.files import make_folder, open_regular, sync_folder

__all__ = ["is_as_named", "keep", "make_shared", "md5_in", "path_below", "share"]

_log = logging.getLogger(__name__)


def keep(path: Path, store: Path, base: str | Path) -> str:
    """Keep the content of a file in a store, once; return its path there, relative to `base`.

    Raises ArtifactError if `path` cannot be read, and OSError if the store cannot be written or read.
    """
    digest = _md5()
    with open_file(path) as stream:
        before = stamp(stream)
        for chunk in chunks(stream):
            digest.update(chunk)
        target = store / f"{path.stem}_{digest.hexdigest()}{path.suffix}"
        if is_as_named(target):
            try:
                # `sacristan gc` keeps what was touched lately, whether or not a run names it yet.
                os.utime(target)
            except OSError:
                _log.debug("%s: its time cannot be set; it belongs to another user", target)
        else:
            make_shared(store, store.parent)
            copy_open_file(stream, before, path, target)
            share(target)
    below = os.path.join(base, "")  # noqa: PTH118
    name = str(target)
    return name[len(below) :] if name.startswith(below) else os.path.relpath(target, base)


def md5_in(name: str) -> str | None:
    """Return the MD5 in the name of a kept source or resource, from this program or Sacred."""
    match = re.search(r"_([0-9a-f]{32})(\.[^./]*)?$", name)
    return match[1] if match else None


def is_as_named(path: Path) -> bool:
    """Tell whether a kept content exists, and has the MD5 in its name."""
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, _md5).hexdigest() == md5_in(path.name)
    except OSError:
        return False


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def share(path: Path) -> None:
    """Give all users of the folder around a path the same rights on the path, whatever the umask.

    Otherwise the first user of a shared folder would lock the others out of the contents they share.
    """
    around = path.parent.stat().st_mode
    if path.is_dir():
        mode = stat.S_IMODE(around) if around & 0o022 else 0
    else:
        mode = around & 0o044
    with contextlib.suppress(OSError):  # there are file systems without
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)


def make_shared(path: Path, within: Path) -> None:
    """Create a folder that all users of the folder around it share; see `share`.

    `within` is the folder of runs, or another one around it that decides who may write; it is created if necessary.
    """
    if path == within:
        make_folder(path)
    elif not path.is_dir():
        if not path.parent.exists():
            make_shared(path.parent, within)
        path.mkdir(exist_ok=True)
        share(path)
        sync_folder(path.parent)


def path_below(base: Path, path: Path) -> str | None:
    """Return the path of a file relative to a folder; None if it is not below the folder."""
    open_file(path).close()
    path, base = path.resolve(), base.resolve()
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else None
