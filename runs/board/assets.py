"""Static files: the board's own, and plotly.js from the installed package, with cache headers for browsers."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

__all__ = ["SCRIPTS", "STATIC", "asset", "joined_scripts", "plotly_url", "static_url"]

STATIC = Path(__file__).parent / "static"
# All scripts in one file: a browser that has nothing of the page asks once, not once for each.
SCRIPTS = "scripts.js"
_PLOTLY = "plotly.min.js"
_FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in (".css", ".js", ".svg")}
_IMPORT = re.compile(r'^import (?:(\{[^}]*\}) from )?"\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
# A page names its scripts in `<meta name="script">`.
_LOADER = """const modules = {
%s};
const made = new Map();
function need(name) {
  if (!made.has(name)) made.set(name, modules[name]());
  return made.get(name);
}
for (const { content } of document.querySelectorAll("meta[name=script]")) need(content);
"""
# The address of a file has the version of all files, and that of plotly.js its own, so that browsers keep them; they
# check whether a file at another address has changed.
_ASKED_FOR = {"cache-control": "no-cache"}
_KEPT = {"cache-control": "public, max-age=31536000, immutable"}


def plotly_url() -> str:
    """Return the URL of plotly.js, which changes with the installed version."""
    status = _plotly_script().stat()
    return f"/static/{_PLOTLY}?v={status.st_size:x}-{status.st_mtime_ns:x}"


def static_url(name: str) -> str:
    """Return the URL of a static file, which changes whenever a file of the board does."""
    return f"/static/{_version()}/{name}"


def _version() -> str:
    status = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in _FILES.values()]
    return hashlib.blake2b(repr(status).encode(), digest_size=8).hexdigest()


async def asset(request: Request) -> Response | None:
    """Return the static file that the path names, compressed if the browser accepts that; None if it does not exist."""
    name, version = request.path_params["name"], _version()
    if name == _PLOTLY:
        headers = _KEPT if str(request.url).endswith(plotly_url()) else _ASKED_FOR
        return _script(request, await asyncio.to_thread(_compressed_plotly), headers)
    headers = _KEPT if request.path_params.get("version") == version else _ASKED_FOR
    if name == SCRIPTS:
        return _script(request, await asyncio.to_thread(_compressed_scripts, version), headers)
    if name not in _FILES:
        return None
    found = FileResponse(_FILES[name], headers=headers, stat_result=_FILES[name].stat())
    if request.headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers={"etag": found.headers["etag"], **headers})
    return found


def _script(request: Request, compressed: bytes, headers: Mapping[str, str]) -> Response:
    vary = {**headers, "vary": "accept-encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(compressed), media_type="text/javascript", headers=vary)
    return Response(compressed, media_type="text/javascript", headers={**vary, "content-encoding": "gzip"})


@functools.lru_cache(1)
def _compressed_scripts(version: str) -> bytes:
    return gzip.compress(joined_scripts().encode(), 9)


def joined_scripts() -> str:
    """Return one script with all modules; each is a function that returns its exports, called on first use."""
    modules = []
    for name, path in sorted(_FILES.items()):
        if path.suffix != ".js":
            continue
        text = path.read_text(encoding="utf-8")
        exported = ", ".join(found[1] for found in _EXPORT.findall(text))
        text = _IMPORT.sub(lambda found: f'{f"const {found[1]} = " if found[1] else ""}need("{found[2]}");', text)
        body = _EXPORT.sub(lambda found: found[1], text)
        modules.append(f'"{name}"() {{\n{body}return {{ {exported} }};\n}},\n')
    return _LOADER % "".join(modules)


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
