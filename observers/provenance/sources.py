"""The code of a run: sources of the lab, libraries that are not installed packages, and what the code reads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sacristan.observers.provenance import commit_of, repository_of
from sacristan.observers.record.redaction import is_secret_name, redact

_log = logging.getLogger(__name__)

# The modules of the last call, each with its file; those in loose folders; and the files by folder and module.
_known: dict[str, tuple[ModuleType | None, str]] = {}
_loose: dict[str, ModuleType | None] = {}
_files: dict[str, dict[str, str]] = {}
# Files that are no modules, in the order in which they were counted.
_counted: dict[str, None] = {}
_looking = threading.Lock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)


def module_files() -> Mapping[str, Mapping[str, str]]:
    """Return the files of imported modules by folder and name; see `is_loose` on replaced modules."""
    global _files
    with _looking:
        gone, new = _changes()
        if gone or new:
            files, own = dict(_files), set()

            def of_folder(file: str) -> dict[str, str]:
                folder = _folder(file)
                if folder not in own:  # other threads may be reading the old result
                    own.add(folder)
                    files[folder] = dict(files.get(folder, {}))
                return files[folder]

            for name in gone:
                _, file = _known.pop(name)
                _loose.pop(name, None)
                if file:
                    del of_folder(file)[name]
            for name, module in new.items():
                named = getattr(module, "__file__", None)
                file = named if isinstance(named, str) else ""
                _known[name] = module, file
                if file:
                    of_folder(file)[name] = file
                if is_loose(_folder(file)):
                    _loose[name] = module
            _files = files
        return _files


def _changes() -> tuple[set[str], dict[str, ModuleType | None]]:
    """Return the names of known modules that are gone or were replaced, and the modules that are new."""
    # New modules come last: unless one has gone, only these and the loose ones have to be checked.
    new: dict[str, ModuleType | None] = {}
    with contextlib.suppress(RuntimeError):  # another thread is importing one
        for name, module in reversed(sys.modules.items()):
            if name in _known:
                break
            new[name] = module
        if len(_known) + len(new) == len(sys.modules):
            pairs = ((name, module, sys.modules.get(name)) for name, module in _loose.items())
            others = {name: current for name, module, current in pairs if current is not module}
            return set(others), {**others, **dict(reversed(new.items()))}
    modules = dict(sys.modules)
    gone = {name for name, (module, _) in _known.items() if modules.get(name) is not module}
    return gone, {name: module for name, module in modules.items() if name not in _known or name in gone}


def _folder(file: str) -> str:
    return file.rpartition(os.sep)[0]


@functools.cache
def is_loose(folder: str) -> bool:
    """Tell whether a folder contains neither installed packages nor Python's own modules."""
    if not folder or not {"site-packages", "dist-packages"}.isdisjoint(folder.split(os.sep)):  # noqa: PTH206
        return False
    return not os.path.join(_real_folder(folder), "").startswith(_own_folders())  # noqa: PTH118


@functools.cache
def _own_folders() -> tuple[str, ...]:
    """Return where Python keeps its own modules."""
    # The folders of pure and of compiled modules; `sysconfig` knows them, too, but takes milliseconds to ask.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = os.path.dirname(os.__file__), os.path.join(sys.base_exec_prefix, sys.platlibdir, version)  # noqa: PTH118, PTH120
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)  # noqa: PTH118


# ---------------------------------------------------------------------- sources of the lab


def imported_sources(base_dir: str | Path, mainfile: str | Path | None = None) -> list[tuple[str, str]]:
    """Return path below `base_dir` and MD5 (as in Sacred's records) of the main file and all imported modules in it."""
    return [(name, md5_of(Path(base_dir, name))) for name in imported_files(base_dir, mainfile)]


def imported_files(base_dir: str | Path, mainfile: str | Path | None = None) -> list[str]:
    """Return the paths, as imported, of the main file, modules, and files counted as sources below `base_dir`."""
    base, main = str(base_dir), str(mainfile) if mainfile else None
    files = {main.rpartition(os.sep)[0]: {"": main}} if main else {}
    sources = set()
    for folder, of_modules in itertools.chain(files.items(), module_files().items()):
        # Most modules do not belong to the lab, which their folders show at less cost than their files.
        if folder and is_loose(base) and not is_loose(folder):
            continue
        below = _folder_below(folder, base)
        if below is not None and not is_installed(below):
            names = (_join(below, path.rpartition(os.sep)[2]) for path in of_modules.values() if path.endswith(".py"))
            sources |= {name for name in names if os.path.isfile(os.path.join(base, name))}  # noqa: PTH113, PTH118
    counted = (source_name(file, base) for file in [*_counted])
    return sorted({*sources, *filter(None, counted)})


def count_as_source(file: Path) -> None:
    """Have a file that is code in all but name, such as a config that is composed, among the sources from now on."""
    if file.is_file():
        _counted[str(file)] = None


def num_found() -> int:
    """Return a number that grows when there may be more sources."""
    return len(sys.modules) + len(_counted)


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, in hexadecimal digits, as Sacred's records have it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@functools.cache
def is_installed(folder: str) -> bool:
    """Tell whether a folder in the lab belongs to a virtual environment, and so is not a source."""
    return any(part in ("site-packages", "dist-packages") or part.startswith(".") for part in Path(folder).parts)


def source_name(file: str | Path, base_dir: str | Path) -> str | None:
    """Return the path of a file below a folder, by its own name or after following links; None if it is elsewhere."""
    name = _name_below(str(file), str(base_dir))
    if name is None and os.path.islink(file):  # noqa: PTH114
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
    if not (folder.startswith(os.sep) and base.startswith(os.sep)):  # such as a script in the working folder
        try:
            return _folder_below(str(Path(folder).absolute()), str(Path(base).absolute()))
        except FileNotFoundError:  # the working folder was deleted
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
    """Return `realpath` of a folder; each parent folder, which thousands of modules share, is looked up once."""
    parent, name = os.path.split(folder)
    if name in ("", "..") or os.path.islink(folder):  # noqa: PTH114 - with text, a tenth of the time
        return os.path.realpath(folder)
    return os.path.join(_real_folder(parent), name)  # noqa: PTH118


# ---------------------------------------------------------------------- libraries


class Libraries:
    """Finds the imported libraries: `folder`, `commit`, SHA-256 of imported `files`, and a `digest` of these."""

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
            parts = file.split(os.sep)  # noqa: PTH206
            depth = name.count(".") + parts[-1].startswith("__init__.")
            if name in ("__main__", "__mp_main__") or depth >= len(parts) - 1:
                continue
            top = name.partition(".")[0]
            # That of its top package, whose modules may lie beside it, as the lab's do in a checkout.
            folder = _folder(_folder(getattr(sys.modules.get(top), "__file__", None) or ""))
            if depth == 0 or not (folder and file.startswith(f"{folder}{os.sep}")):
                folder = os.sep.join(parts[: -1 - depth])  # noqa: PTH118
            digest = file_digest(file)
            if digest is not None:
                folders.setdefault(top, os.path.normpath(folder or os.sep))
                files.setdefault(top, {})[file[len(folder) + 1 :].replace(os.sep, "/")] = digest
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


def file_digest(path: str | Path) -> str | None:
    """Return the SHA-256 of a file, which is read again only if it has changed; None if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116
        return _file_digest(path, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        return None


@functools.lru_cache(4096)
def _file_digest(path: str | Path, size: int, *_: int) -> str:
    with open(path, "rb") as stream:  # noqa: PTH123
        if size < 2**20:  # for most modules, the buffer of `file_digest` takes longer than the file
            return hashlib.sha256(stream.read()).hexdigest()
        return hashlib.file_digest(stream, "sha256").hexdigest()


def changed_libraries(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return by library the files that both runs have with different contents; more files are no change."""
    changes: dict[str, list[str]] = {}
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name].get("files") or {}, now[name].get("files") or {}
        files = sorted(file for file in old.keys() & new.keys() if old[file] != new[file])
        changes |= {name: files} if files else {}
    return changes


# ---------------------------------------------------------------------- files and variables that the code reads

# More files than this are a data set, which has its own fingerprint.
_MAX_FILES = 1000
# Only the length of larger files is recorded, because reading them would delay the end of the run.
_MAX_BYTES = 64 * 2**20
_MAX_BYTES_IN_ALL = 256 * 2**20
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".pth")
_VARIABLE = re.compile(rb"""(?:\benviron\s*(?:\[|\.\s*(?:get|pop|setdefault)\s*\()|\bgetenv\s*\()\s*["'](\w+)["']""")

# The active watchers. Python cannot remove an audit hook, so one hook stays, and does nothing without a watcher.
_watching: list[OpenedFiles] = []
_is_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching:
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int):
            for each in _watching:
                each.note(path, flags)
    elif event == "os.chdir":
        for each in _watching:
            each.forget_relative()


class OpenedFiles:
    """Notes the files in some folders that this process opens for reading, relative to the first folder with the file.

    Files that it also writes, code, installed packages, hidden folders and files below `without` do not count.
    """

    def __init__(self, folders: Iterable[Path], without: Path) -> None:
        self._folders = list(dict.fromkeys(os.path.join(folder.absolute(), "") for folder in folders))  # noqa: PTH118
        self._without = os.path.join(without.absolute(), "")  # noqa: PTH118
        self._read: dict[str, None] = {}
        self._written: set[str] = set()
        # Paths and flags that were noted: a writer of event files opens the same one for each point.
        self._noted: set[tuple[str | bytes, int]] = set()

    def begin(self) -> None:
        global _is_hooked
        if not _is_hooked:
            sys.addaudithook(_hook)
            _is_hooked = True
        _watching.append(self)

    def end(self) -> None:
        if self in _watching:
            _watching.remove(self)

    def note(self, path: str | bytes, flags: int) -> None:
        """Note an opened file; never raise, because the caller that opens the file would get the error."""
        if (path, flags) in self._noted:
            return
        if len(self._noted) >= _MAX_FILES:
            self._noted.clear()
        self._noted.add((path, flags))
        try:
            name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        except (OSError, ValueError):  # the working folder is gone, or the name is invalid
            return
        if not name.startswith(tuple(self._folders)) or name.startswith(self._without) or name.endswith(_CODE):
            return
        if flags & (os.O_WRONLY | os.O_RDWR):
            if len(self._written) < _MAX_FILES:
                self._written.add(name)
        elif len(self._read) <= _MAX_FILES and name not in self._written:
            self._read[name] = None

    def forget_relative(self) -> None:
        """Note each path again: after a change of the working folder, a relative one is another file."""
        self._noted.clear()

    def contents(self) -> dict[str, str]:
        """Return the MD5 of each file read, by name, or the length of a large one; empty for too many files."""
        contents: dict[str, str] = {}
        left = _MAX_BYTES_IN_ALL
        for name in self._read if len(self._read) <= _MAX_FILES else ():
            path, short = Path(name), self._short(name)
            if name in self._written or is_installed(str(Path(short).parent)) or not path.is_file():
                continue
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size > min(_MAX_BYTES, left):
                    contents[short] = f"{size} bytes"
                else:
                    left -= size
                    contents[short] = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        return dict(sorted(contents.items()))

    def _short(self, name: str) -> str:
        """Return a file's path relative to the first of the folders that contains it."""
        return next(name.removeprefix(folder) for folder in self._folders if name.startswith(folder))


def variables_in(files: Iterable[str | Path]) -> dict[str, str | None]:
    """Return the environment variables that sources read by name, except the lab's and secrets; None if not set."""
    names: set[str] = set()
    for file in files:
        try:
            names.update(name.decode() for name in _VARIABLE.findall(Path(file).read_bytes()))
        except OSError:
            continue
    return {
        name: None if (value := os.environ.get(name)) is None else redact(value)
        for name in sorted(names)
        if not (name.startswith("SACRISTAN_") or is_secret_name(name))
    }


def changed_reads(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the files or variables that two runs both read, but with different contents, as `{name: [was, is]}`."""
    return {name: [before[name], now[name]] for name in sorted(before.keys() & now.keys()) if before[name] != now[name]}
