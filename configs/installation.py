"""Find out how this lab was installed, and which command installs it or one of its extras.

Modules for metadata of packages and for URLs take longer to import than most commands, and are imported when needed.
"""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from typing import Any

from sacristan.configs.installed import find_package

__all__ = ["checkout", "commit", "install_command", "missing_package", "origin", "version"]

_ROOT = Path(__file__).parents[1]


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
