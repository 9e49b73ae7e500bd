"""Static files: the board's own, and plotly.js from the installed package, with headers for the cache of browsers."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import importlib.util
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

__all__ = ["STATIC", "asset", "plotly_url", "script_urls", "static_url"]

STATIC = Path(__file__).parent / "static"
_PLOTLY = "plotly.min.js"
_FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in (".css", ".js", ".svg")}
_IMPORT = re.compile(r'^(?:import|export)\b[^;]*?"\./([\w.]+)";', re.MULTILINE)
# The address of a file has the version of all files, and that of plotly.js its own, so that browsers keep them; they
# check whether a file at another address has changed.
_ASKED_FOR = {"cache-control": "no-cache"}
_KEPT = {"cache-control": "public, max-age=31536000, immutable"}


def plotly_url() -> str:
    """Return the address of plotly.js, which changes with the installed version."""
    status = _plotly_script().stat()
    return f"/static/{_PLOTLY}?v={status.st_size:x}-{status.st_mtime_ns:x}"


def static_url(name: str) -> str:
    """Return the address of a static file, which changes when a file of the board does.

    Args:
        name: Its name.
    """
    return f"/static/{_version()}/{name}"


def _version() -> str:
    status = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in _FILES.values()]
    return hashlib.blake2b(repr(status).encode(), digest_size=8).hexdigest()


def script_urls(name: str) -> list[str]:
    """Return the addresses of a script and of all that it imports, which a browser would find one after the other.

    Args:
        name: Name of the script.
    """
    version = _version()
    return [f"/static/{version}/{one}" for one in _scripts(name, version)]


@functools.lru_cache
def _scripts(name: str, version: str) -> list[str]:
    found: dict[str, None] = {name: None}
    todo = [name]
    while todo:
        imported = dict.fromkeys(_IMPORT.findall(_FILES[todo.pop()].read_text(encoding="utf-8")))
        todo += [one for one in imported if one not in found]
        found |= imported
    return list(found)


async def asset(request: Request) -> Response | None:
    """Return a static file, compressed if the browser accepts that; None if there is none of that name.

    Args:
        request: The request, with the `name` of the file in its path.
    """
    name = request.path_params["name"]
    if name == _PLOTLY:
        kept = _KEPT if str(request.url).endswith(plotly_url()) else _ASKED_FOR
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return FileResponse(_plotly_script(), media_type="text/javascript", headers=kept)
        data = await asyncio.to_thread(_compressed_plotly)
        headers = {**kept, "content-encoding": "gzip", "vary": "accept-encoding"}
        return Response(data, media_type="text/javascript", headers=headers)
    if name not in _FILES:
        return None
    headers = _KEPT if request.path_params.get("version") == _version() else _ASKED_FOR
    found = FileResponse(_FILES[name], headers=headers, stat_result=_FILES[name].stat())
    if request.headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers={"etag": found.headers["etag"], **headers})
    return found


@functools.cache
def _compressed_plotly() -> bytes:
    return gzip.compress(_plotly_script().read_bytes(), 4)


@functools.cache
def _plotly_script() -> Path:
    """Return the path of plotly.js; importing its package would take seconds."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "package_data" / _PLOTLY
