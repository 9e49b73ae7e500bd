"""Installed packages, read from their folders or imported when first used; how this lab and its extras are installed.

`importlib.metadata` takes 20 ms to import, and parses what it reads as e-mails. It is left to packages in archives, and
to finders of packages beside Python's own.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).parents[1]

# Returns the text of one of the files with a package's metadata, or at least so much of it; None if there is none.
Reader = Callable[..., str | None]
# Most metadata name the package within so much text; a readme may be a hundred times as long.
_HEAD = 256


class Package:
    """An installed package, with its metadata; name and version are empty if it is half removed."""

    def __init__(self, read: Reader) -> None:
        self.read = read
        fields = self._fields(_HEAD)
        fields = fields if len(fields) == 2 else self._fields(-1)
        self.name, self.version = fields.get("Name", ""), fields.get("Version", "")

    def _fields(self, size: int) -> dict[str, str]:
        text = self.read("METADATA", size) or self.read("PKG-INFO", size) or ""
        fields: dict[str, str] = {}
        for line in text.splitlines(keepends=True):
            name, _, value = line.partition(":")
            if name in ("Name", "Version") and (size < 0 or line.endswith("\n")):  # else the rest of it is missing
                fields[name] = value.strip()
            if len(fields) == 2 or not line.strip():  # below the empty line is the readme
                break
        return fields

    @property
    def modules(self) -> list[str]:
        """Names of its modules at the top level: those that it lists, else its own."""
        return (self.read("top_level.txt") or self.name).split()


def packages() -> Iterator[Package]:
    """Yield the packages on the search path; of two of the same name, the first is imported."""
    for folder in sys.path:
        yield from packages_in(folder)


def packages_in(folder: str) -> Iterator[Package]:
    """Yield the packages in a folder or archive on the search path."""
    return (package for _, read in _readers(folder) if (package := Package(read)).name and package.version)


def find_package(name: str) -> Package | None:
    """Return the package of this name that is imported; None if there is none."""
    wanted = _normalized(name)
    candidates = (Package(read) for folder in sys.path for each, read in _readers(folder) if each == wanted)
    return next((package for package in candidates if package.name and package.version), None)


def entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group by name, each a module or `module:name`; of the first package that has it."""
    points: dict[str, str] = {}
    for read in (read for folder in sys.path for _, read in _readers(folder)):
        _, is_there, rest = (read("entry_points.txt") or "").partition(f"[{group}]\n")
        for line in rest.partition("\n[")[0].splitlines() if is_there else ():
            name, _, value = line.partition("=")
            if value and not line.startswith(("#", ";")):
                points.setdefault(name.strip(), value.strip())
    return points


def _readers(folder: str) -> list[tuple[str, Reader]]:
    """Return each package in a folder or archive: its normalized name, and a reader of its metadata."""
    path = Path(folder)
    try:
        path = path.absolute()
        changed = path.stat().st_mtime_ns
    except OSError:
        return []
    return _readers_in(
        path,
        changed,
        any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path),
    )


@functools.lru_cache(64)
def _readers_in(folder: Path, _: int, has_finders: bool) -> list[tuple[str, Reader]]:
    """Do the same; the time of its last change is part of the cache's key."""
    if has_finders or not folder.is_dir():
        from importlib import metadata

        distributions = metadata.distributions(path=[str(folder)])
        return [
            (_normalized(each.metadata["Name"] or ""), functools.partial(_of_distribution, each))
            for each in distributions
        ]
    names = [name for name in os.listdir(folder) if name.lower().endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    return [
        (_normalized(name.rpartition(".")[0].partition("-")[0]), functools.partial(_read, f"{folder}{os.sep}{name}"))
        for name in names
    ]


def _normalized(name: str) -> str:
    """Return the form in which names of packages are compared (PEP 503)."""
    name = name.lower().replace("_", "-").replace(".", "-")
    return re.sub("-+", "-", name) if "--" in name else name


def _of_distribution(distribution: Any, name: str, size: int = -1) -> str | None:
    return distribution.read_text(name)


def _read(folder: str, name: str, size: int = -1) -> str | None:
    try:
        handle = os.open(f"{folder}{os.sep}{name}", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(handle, os.fstat(handle).st_size if size < 0 else size)
    except OSError:  # it is a folder
        return None
    finally:
        os.close(handle)
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def checkout() -> Path | None:
    """Return the folder of the checkout that this lab is; None for an installed copy."""
    return _ROOT if (_ROOT / "setup.cfg").is_file() else None


def version() -> str | None:
    """Return the version of this lab; None if nothing says it."""
    if (folder := checkout()) is not None:
        lines = (folder / "setup.cfg").read_text(encoding="utf-8").splitlines()
        return next((line.partition("=")[2].strip() for line in lines if line.startswith("version =")), None)
    package = find_package("sacristan")
    return None if package is None else package.version


def commit() -> str | None:
    """Return the commit that this lab was installed from by a Git URL; None otherwise."""
    return _direct_url().get("vcs_info", {}).get("commit_id") if checkout() is None else None


def origin() -> str:
    """Return the argument of `pip install` that installs this lab: a path, a URL or a name."""
    if (folder := checkout()) is not None:
        return str(folder)
    direct_url = _direct_url()
    if "vcs_info" in direct_url:
        return f"{direct_url['vcs_info']['vcs']}+{direct_url['url']}@{direct_url['vcs_info']['commit_id']}"
    return direct_url.get("url", f"sacristan=={version()}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from where the lab itself was installed."""
    if (folder := checkout()) is not None:
        return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    url = _direct_url().get("url")
    if url is None:
        return f"pip install 'sacristan[{extra}]'"
    if urlsplit(url).scheme == "file" and not Path(url2pathname(urlsplit(url).path)).exists():
        return f"pip install {shlex.join(_required(extra))}"  # the wheel is gone, as those of temporary folders are
    return f"pip install {shlex.quote(f'sacristan[{extra}] @ {origin()}')}"


def missing_package(needed_by: str, package: str | None, extra: str, note: str = "") -> str:
    """Return the message for an optional package that is not installed: `needed_by` is a subject and its verb."""
    hint = f"{note}install it with: {install_command(extra)}"
    return f"{needed_by} the package {package!r}, which is not installed; {hint}"


@functools.cache
def _direct_url() -> dict[str, Any]:
    """Return pip's note of where the lab was installed from (PEP 610); empty for an index."""
    package = find_package("sacristan")
    try:
        note = json.loads((package and package.read("direct_url.json")) or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _required(extra: str) -> list[str]:
    """Return the requirements of an extra, without their markers."""
    from importlib import metadata

    requirements = (one.partition(";") for one in metadata.requires("sacristan") or [])
    return [one.strip() for one, _, marker in requirements if f'extra == "{extra}"' in marker.replace("'", '"')]


# A process that is forked while another thread imports a module can never import it.
_importing = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


class Later(ModuleType):
    """Stands in for a module, in whatever thread and before a fork; `sys.modules` has the module alone."""

    def __getattr__(self, name: str) -> Any:
        with _importing:
            module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        setattr(self, name, value)  # the next use does not come here
        return value


if TYPE_CHECKING:
    import numpy
else:
    # It takes 60 ms, which is most of the start of a script that does not use it.
    numpy = Later("numpy")
