"""Static files: the board's own, and plotly.js from the installed package, with headers for the cache of browsers."""

from __future__ import annotations

import asyncio
import functools
import gzip
import importlib.util
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

__all__ = ["STATIC", "asset", "plotly_url"]

STATIC = Path(__file__).parent / "static"
_PLOTLY = "plotly.min.js"
_FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in (".css", ".js", ".svg")}
# Browsers check whether a file of the board has changed; the address of plotly.js has its version.
_ASKED_FOR = {"cache-control": "no-cache"}
_KEPT = {"cache-control": "public, max-age=31536000, immutable"}


def plotly_url() -> str:
    """Return the address of plotly.js, which changes with the installed version."""
    status = _plotly_script().stat()
    return f"/static/{_PLOTLY}?v={status.st_size:x}-{status.st_mtime_ns:x}"


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
    found = FileResponse(_FILES[name], headers=_ASKED_FOR, stat_result=_FILES[name].stat())
    if request.headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers={"etag": found.headers["etag"], **_ASKED_FOR})
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
