"""Templates, static files, and values as pages show them: colours of runs, times, terminal output as HTML.

plotly.js comes from the installed package. Static files have cache headers for browsers.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import importlib.util
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from sacristan.runs.board.views import is_chart, rooted
from sacristan.runs.drawing import harmless
from sacristan.runs.errors import StoreError
from sacristan.runs.query import TIMES, full_name, time_of
from sacristan.runs.query.texts import duration_text, is_number, short_text, size_text
from sacristan.runs.stores import Run

# A sequence that colours, and any other, which is passed over.
_SEQUENCE = re.compile(
    "\x1b\\[(?P<codes>[0-9;:]{0,64})m|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\\\)?"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
HERE = Path(__file__).parent
# Address and name of the pages that the head of each page leads to.
PAGES = (
    ("/runs", "Runs"),
    ("/compare", "Compare"),
    ("/sweeps", "Sweeps"),
    ("/artifacts", "Artifacts"),
    ("/reports", "Reports"),
)
_STATUSES = frozenset(
    ["completed", "running", "queued", "failed", "unreadable", "dead", "interrupted", "timeout", "pruned"]
)
# Longer values are cut; the page of the run shows more of them.
_MAX_SHOWN = 200
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


def to_html(text: str) -> Markup:
    """Convert terminal output to HTML: keep its colours as classes of spans, and drop all other control sequences.

    A line that was overwritten, as by a progress bar, appears in its last state.
    """
    text = "\n".join(map(_last_state, text.split("\n")))
    parts: list[Markup] = []
    style = _Style()
    end = 0
    for match in _SEQUENCE.finditer(text):
        parts.append(_span(text[end : match.start()], style))
        end = match.end()
        if match["codes"] is not None:
            style.take(match["codes"])
    parts.append(_span(text[end:], style))
    return Markup("").join(parts)


def _last_state(line: str) -> str:
    states = [state for state in line.split("\r") if state]
    return states[-1] if states else ""


def _span(text: str, style: _Style) -> Markup:
    text = _CONTROLS.sub("\ufffd", text)
    names = style.classes()
    if not text or not names:
        return escape(text)
    return Markup('<span class="{}">{}</span>').format(names, text)


class _Style:
    def __init__(self) -> None:
        self._front = self._back = ""
        self._marks: set[str] = set()

    def classes(self) -> str:
        return " ".join(filter(None, (self._front, self._back, *sorted(self._marks))))

    def take(self, codes: str) -> None:
        numbers = [int(code[:4]) if code else 0 for code in re.split("[;:]", codes)]
        while numbers:
            code = numbers.pop(0)
            if code == 0:
                self.__init__()  # type: ignore[misc]  # back to the beginning
            elif code in (1, 2, 3, 4):
                self._marks.add({1: "bold", 2: "faint", 3: "italic", 4: "underline"}[code])
            elif code in (22, 23, 24):
                self._marks -= {22: {"bold", "faint"}, 23: {"italic"}, 24: {"underline"}}[code]
            elif code in (38, 48):
                # One of 256 colours, or any; shown in the nearest of eight is more than nothing, which they get.
                del numbers[: 2 if numbers[:1] == [5] else 4]
            elif code in (39, 49):
                self._front, self._back = ("", self._back) if code == 39 else (self._front, "")
            elif 30 <= code % 60 <= 37:
                self._front = f"fg-{_COLOURS[code % 10]}"
            elif code // 10 in (4, 10) and code % 10 < 8:
                self._back = f"bg-{_COLOURS[code % 10]}"


def chosen_colour(run: Run) -> str:
    """Return the colour that people chose for a run; empty if there is none, or the record is damaged."""
    try:
        return run.display_colour
    except StoreError:
        return ""


def render(template: str, **values: Any) -> str:
    """Fill in a template, escaping every value; a missing value is an error."""
    return _environment().get_template(template).render(**values)


def run_url(id: str, tab: str = "", **more: Any) -> str:
    """Return the URL of a run's page; without `tab`, of its first tab."""
    pairs = {**({"tab": tab} if tab else {}), **more}
    return rooted(f"/runs/{quote(id)}") + (f"?{urlencode(pairs)}" if pairs else "")


def content_url(
    run: Any, kind: str, name: str | int, image: str = "", *, download: bool = False, version: str = ""
) -> str:
    """Return the URL of a file of a run; see `sacristan.runs.board.contents`.

    `kind` is `artifact`, `checkpoint`, `source`, `resource` or `media`. `name` is that of the file, or the number of
    the medium; `image` that of an image in a table. `version` keeps browsers from using an outdated cached copy.
    """
    pairs = [("run", run.id), ("kind", kind), ("name", str(name))]
    pairs += [("image", image)] * bool(image) + [("download", "1")] * download + [("version", version)] * bool(version)
    return rooted(f"/content?{urlencode(pairs)}")


def _shown(value: Any, most: int = _MAX_SHOWN, *, exact: bool = False) -> str:
    """Return a value as a short text for a page, without characters that reverse the order of the line."""
    return harmless(short_text(value, most, exact=exact))


def _time(value: Any) -> Markup | str:
    """Return a recorded time in UTC; a script converts it to the local zone."""
    time = value if isinstance(value, datetime) else time_of(value)
    if time is None:
        return "" if value is None else short_text(value, _MAX_SHOWN)
    iso = time.replace(tzinfo=UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(iso, f"{time:%Y-%m-%d %H:%M} UTC")


def _duration(value: Any) -> str:
    return duration_text(value) if is_number(value) and value == value else ""


def _status_class(status: Any) -> str:
    """Return the class of the style sheet for a status, which may be any text."""
    name = str(status or "").lower()
    return name if name in _STATUSES else "other"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": _duration,
        "short": _shown,
        "size": size_text,
        "time": _time,
    }
    environment.filters["status_class"] = _status_class
    environment.tests |= {"chart": is_chart, "numeric": is_number, "time_field": lambda name: full_name(name) in TIMES}
    environment.globals |= {
        "chosen_colour": chosen_colour,
        "content_url": content_url,
        "pages": PAGES,
        "plotly_url": plotly_url,
    }
    environment.globals |= {"rooted": rooted, "run_url": run_url, "scripts_name": SCRIPTS, "static_url": static_url}
    return environment


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
    response = FileResponse(_FILES[name], headers=headers, stat_result=_FILES[name].stat())
    if request.headers.get("if-none-match") == response.headers["etag"]:
        return Response(status_code=304, headers={"etag": response.headers["etag"], **headers})
    return response


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
        exported = ", ".join(match[1] for match in _EXPORT.findall(text))
        text = _IMPORT.sub(lambda match: f'{f"const {match[1]} = " if match[1] else ""}need("{match[2]}");', text)
        body = _EXPORT.sub(lambda match: match[1], text)
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
