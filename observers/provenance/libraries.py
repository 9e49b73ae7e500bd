"""`Libraries`: modules that a run imports from neither its lab nor an installed package, with the digest of each file.

They are on `PYTHONPATH`, or belong to a package in editable form, so their content may change without a new version.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.provenance.imported_modules import is_loose, module_files
from sacristan.observers.provenance.sources_and_git import commit_of, repository_of, source_name

__all__ = ["Libraries", "file_digest"]


class Libraries:
    """Finds the imported libraries whenever `look` is called; one thread at a time.

    Attributes:
        found: By import name: the `folder` on the search path, the `commit` of its repository, the SHA-256 of each
            imported file in `files`, and a `digest` of all of them.
    """

    def __init__(self, base_dir: str | Path) -> None:
        self._lab = str(base_dir)
        self._num_modules = 0
        self._commits: dict[Path, str | None] = {}
        self.found: dict[str, dict[str, Any]] = {}

    @property
    def is_stale(self) -> bool:
        """True if modules were imported since the last `look`."""
        return len(sys.modules) != self._num_modules

    def look(self) -> bool:
        """Find the libraries imported by now, and return whether something has changed."""
        self._num_modules, before = len(sys.modules), self.found
        files: dict[str, dict[str, str]] = {}
        folders: dict[str, str] = {}
        loose = [of_modules.items() for folder, of_modules in module_files().items() if is_loose(folder)]
        for name, file in itertools.chain.from_iterable(loose):
            if source_name(file, self._lab) is not None:
                continue
            depth = name.count(".") + os.path.basename(file).startswith("__init__.")  # noqa: PTH119
            if name in ("__main__", "__mp_main__") or depth >= len(Path(file).parts) - 1:
                continue
            top = name.partition(".")[0]
            # That of its top package, whose modules may lie beside it, as the lab's do in a checkout.
            folder = Path(getattr(sys.modules.get(top), "__file__", None) or "").parent.parent
            if depth == 0 or not Path(file).is_relative_to(folder):
                folder = Path(file).parents[depth]
            digest = file_digest(Path(file))
            if digest is not None:
                folders.setdefault(top, str(folder))
                files.setdefault(top, {})[Path(file).relative_to(folder).as_posix()] = digest
        self.found = {name: self._entry(folders[name], files[name]) for name in sorted(files)}
        return self.found != before

    def _entry(self, folder: str, files: dict[str, str]) -> dict[str, Any]:
        root = repository_of(Path(folder, next(iter(files))).parent)
        if root is not None and root not in self._commits:
            self._commits[root] = commit_of(root)
        return {
            "folder": folder,
            "commit": None if root is None else self._commits[root],
            "digest": _digest_of(files),
            "files": dict(sorted(files.items())),
        }


def _digest_of(files: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, which is read again only if it has changed; None if it cannot be read."""
    try:
        status = path.stat()
        return _file_digest(path, status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError:
        return None


@functools.lru_cache(4096)
def _file_digest(path: Path, *status: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
