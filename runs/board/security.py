"""Checks of every request, and headers of every answer: hosts, token, origin, read-only.

The pages show what runs wrote, and that is untrusted: names, output, HTML. They are served so that no script runs but
the board's own files. A page of another site that the same browser shows can neither read the board, nor write through
it, nor frame it:

* `Host` must name this machine, so that a foreign name that is made to point here (DNS rebinding) gets nothing.
* What writes must come from the board's own pages, which `Origin` tells. So pages send no referrer to others alone:
  without one to themselves, browsers would hide the origin, too.
* With a token, nothing but the login is answered without it. It is exchanged for a cookie that scripts cannot read and
  that goes along with requests of the board's own pages only.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runs.errors import StoreError

__all__ = ["MAX_BODY", "Guard", "Policy", "check_address", "is_loopback", "read_body", "sandboxed"]

# What a request may send at most.
MAX_BODY = 2**20
_MIN_TOKEN = 16
_LOGIN = "/login"
# No text of a run becomes a style, as all of it is escaped; plotly.js sets styles of its own.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_SANDBOX_POLICY = (
    "sandbox; default-src 'none'; img-src data:; media-src data:; font-src data:; style-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Records change; what does not says so itself.
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Policy:
    """Permissions of requests.

    Attributes:
        host: The address that is listened on.
        token: What a browser must show; None lets everybody in.
        is_read_only: Whether nothing can be written.
        is_secure: Whether it is served over TLS.
        cookie: Name of the cookie; of boards on one machine, each needs its own.
        session: Value of the cookie.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    is_read_only: bool = False
    is_secure: bool = False
    cookie: str = "board"
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only.

    Args:
        host: An IP address or a name; of names, only `localhost` is one.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, token: str | None) -> None:
    """Reject an address that others can reach without a token, and a token that can be guessed.

    Args:
        host: The address to listen on.
        token: The token, None for none.

    Raises:
        StoreError: If the combination is unsafe.
    """
    if token is not None and len(token) < _MIN_TOKEN:
        raise StoreError(f"the token has {len(token)} characters, expected at least {_MIN_TOKEN}; --token creates one")
    if token is None and not is_loopback(host):
        raise StoreError(f"on {host}, others could read and change the runs; add --token, or drop --host")


def sandboxed(response: Response) -> Response:
    """Sandbox an answer: no scripts, nothing loaded, framed by the board's own pages only.

    Args:
        response: An answer with content that a run wrote.
    """
    response.headers["content-security-policy"] = _SANDBOX_POLICY
    return response


async def read_body(request: Request) -> dict[str, list[str]]:
    """Read the fields of a form.

    Args:
        request: A request with an URL-encoded body.

    Raises:
        StoreError: If it is longer than `MAX_BODY`, or ends before all of it came.
    """
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise StoreError(f"got a request of more than {MAX_BODY} bytes")
    except ClientDisconnect as error:
        raise StoreError("the connection ended before the request did") from error
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


class Guard:
    """ASGI middleware that refuses what a policy forbids, and adds the headers to every answer.

    Args:
        app: What answers the rest.
        policy: What is allowed.
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy
        self._names = {policy.host, "localhost", socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            answer = self._refusal(scope) or await self._login(scope, receive) or self._app
        except StoreError as error:
            answer = _refuse(str(error), 400)
        await answer(scope, receive, send_with_headers)

    # ------------------------------------------------------------------ where from

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_own_name(headers.get("host", "")):
            return _refuse(f"got the host {headers.get('host', '')!r}, which is not the name of this machine", 421)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if not self._is_own_page(headers):
            return _refuse("write requests must come from the board's own pages", 403)
        if self._policy.is_read_only and scope["path"] != _LOGIN:
            return _refuse("the board was started with --read-only", 403)
        return None

    def _is_own_name(self, host: str) -> bool:
        """Tell whether `Host` names this machine; behind a tunnel its port is another."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)  # no name, which could be made to point here
        except ValueError:
            return name in self._names
        return is_loopback(name) or not is_loopback(self._policy.host)

    def _is_own_page(self, headers: Headers) -> bool:
        # The scheme is that of a proxy, where there is one.
        return headers.get("origin", "").partition("://")[2] == headers.get("host")

    # ------------------------------------------------------------------ who

    async def _login(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to one who is not logged in; None to one who is."""
        token, path = self._policy.token, scope["path"]
        if token is None or path.startswith("/static/"):
            return None
        given = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if path == _LOGIN and scope["method"] == "POST":
            fields = await read_body(Request(scope, receive))
            target = _local_path(fields.get("next", ["/"])[0])
            if _is_equal(fields.get("token", [""])[0], token):
                return self._let_in(RedirectResponse(target, 303))
            return _login_page(target, "This is not the token.", 401)
        if "token" in given:
            if not _is_equal(given.pop("token"), token):
                return _login_page("/", "The token in the address is wrong.", 401)
            # Not a redirect: that of a link on another site would leave the cookie behind.
            return self._let_in(_forward(_local_path(f"{path}?{urlencode(given)}" if given else path)))
        if self._has_cookie(Headers(scope=scope)):
            return None
        here = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        if Headers(scope=scope).get("sec-fetch-site") == "cross-site":
            # A link on another site, whose request leaves the cookie behind; that of the board's own page takes it.
            return _forward(_local_path(here))
        return _login_page(_local_path(here), "", 401)

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._policy.cookie)
        except CookieError:
            return False
        return cookie is not None and _is_equal(cookie.value, self._policy.session)

    def _let_in(self, response: Response) -> Response:
        response.set_cookie(
            self._policy.cookie,
            self._policy.session,
            httponly=True,
            samesite="strict",
            secure=self._policy.is_secure,
        )
        return response


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _local_path(text: str) -> str:
    """Return a path of this server; of what leads elsewhere, the first page."""
    return text if text.startswith("/") and text[1:2] not in ("/", "\\") and text.isprintable() else "/"


def _refuse(why: str, status: int) -> Response:
    return PlainTextResponse(f"refused: {why}\n", status)


def _forward(target: str) -> Response:
    return HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(target)}">')


def _login_page(target: str, problem: str, status: int) -> Response:
    return HTMLResponse(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in · Sacristan</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/board.css">
<main class="login"><h1>Sacristan</h1><form method="post" action="{_LOGIN}">
<input type="hidden" name="next" value="{html.escape(target)}">
<label for="token">Token</label> <input id="token" name="token" type="password" autofocus required>
<button>Log in</button></form><p role="alert">{html.escape(problem)}</p>
<p class="dim">The terminal that the board was started in shows the token.</p></main></html>""",
        status,
    )
