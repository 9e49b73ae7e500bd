"""Checks of every request, and headers of every answer: hosts, origin, visitor, role.

The pages show what runs wrote, and that is untrusted: names, output, HTML. They are served so that no script runs but
the board's own files. A page of another site that the same browser shows can neither read the board, nor write through
it, nor frame it:

* `Host` must name this machine, so that a foreign name that is made to point here (DNS rebinding) gets nothing.
* Write requests must come from the board's own pages, as `Origin` shows. So pages suppress the referrer only towards
  other sites: without one to the board itself, browsers would hide the origin, too.
* With tokens or a proxy, strangers get nothing but the login. A token is exchanged for a cookie that scripts cannot
  read and that only the board's own pages send along; see `sacristan.runs.board.logins`.
* A visitor with the role `read` can send no write request at all. Each route that writes names the role that it needs;
  see `sacristan.runs.board.visits`.
"""

from __future__ import annotations

import ipaddress
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sacristan.runs.board.logins import Login
from sacristan.runs.board.policy import Policy, is_loopback
from sacristan.runs.board.visitors import Visitor
from sacristan.runs.errors import StoreError

__all__ = ["Guard", "sandboxed"]

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


def sandboxed(response: Response) -> Response:
    """Sandbox a response with content of a run: no scripts, no loading, framed only by the board's own pages."""
    response.headers["content-security-policy"] = _SANDBOX_POLICY
    return response


class Guard:
    """ASGI middleware that rejects requests which the policy forbids, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy, self._login = app, policy, Login(policy)
        self._names = {
            policy.host,
            policy.public_name.lower(),
            "localhost",
            socket.gethostname().lower(),
            socket.getfqdn().lower(),
        } - {""}

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
            answer = self._refusal(scope) or await self._login_answer(scope, receive) or self._app
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
        return None

    async def _login_answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Note the visitor of a request and return None; or return the response to one who may not send it."""
        visitor: Visitor | Response = Visitor()
        if not (scope["path"].startswith("/static/") or scope["path"] == "/favicon.ico"):
            visitor = await self._login.answer(scope, receive)
        if isinstance(visitor, Response):
            return visitor
        scope["visitor"] = visitor
        if visitor.may_note or scope["method"] in ("GET", "HEAD"):
            return None
        if self._policy.is_read_only:
            return _refuse("the board was started with --read-only", 403)
        return _refuse(f"{visitor.name or 'a stranger'} may read only", 403)

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


def _refuse(why: str, status: int) -> Response:
    return PlainTextResponse(f"refused: {why}\n", status)
