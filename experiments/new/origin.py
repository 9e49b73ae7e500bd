"""The origin of the installed lab."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

__all__ = ["lab_origin"]

_ROOT = Path(__file__).parents[2]


def lab_origin() -> str:
    """Return the argument of `pip install` that installs this lab: a path, a URL or a name."""
    if (_ROOT / "setup.cfg").is_file():
        return str(_ROOT)
    installed = metadata.distribution("sacristan")
    # See PEP 610; a package of an index has none.
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
    return origin.get("url", f"sacristan=={installed.version}")
