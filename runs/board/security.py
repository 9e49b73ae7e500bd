"""Checks of every request, and headers of every answer: hosts, origin, visitor, role.

The pages show what runs wrote, and that is untrusted: names, output, HTML. They are served so that no script runs but
the board's own files. A page of another site that the same browser shows can neither read the board, nor write through
it, nor frame it:

* `Host` must name this machine, so that a foreign name that is made to point here (DNS rebinding) gets nothing.
* Write requests must come from the board's own pages, as `Origin` shows. So pages suppress the referrer only towards
  other sites: without one to the board itself, browsers would hide the origin, too.
* With tokens or a proxy, strangers get nothing but the login. A token is exchanged for a cookie that scripts cannot
  read and that only the board's own pages send along.
* A visitor with the role `read` can send no write request at all. Each route that writes names the role that it needs;
  see `sacristan.runs.board.visits`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import html
import ipaddress
import logging
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sacristan.runs.board.access import NamedToken, Policy, Role, Visitor, is_loopback, user_of_board
from sacristan.runs.errors import ServerError

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
_log = logging.getLogger(__name__)
LOGIN = "/login"
# What a request may send at most.
MAX_BODY = 2**20
_MAX_NAME, _MAX_SECRET = 80, 1_000
_NO_PROXY = "Open the board through its proxy."
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in · Sacristan</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/board.css">
<main class="login"><h1>Sacristan</h1>{}</main></html>"""


def sandboxed(response: Response) -> Response:
    """Sandbox a response with content of a run: no scripts, no loading, framed only by the board's own pages."""
    response.headers["content-security-policy"] = _SANDBOX_POLICY
    return response


class AccessControl:
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
        except HTTPException as error:
            answer = _refuse(error.detail, error.status_code)
        await answer(scope, receive, send_with_headers)

    # ------------------------------------------------------------------ where from

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_own_name(headers.get("host", "")):
            return _refuse(f"got the host {headers.get('host', '')!r}, which is not the name of this machine", 421)
        if scope["method"] in ("GET", "HEAD"):
            return None
        # The scheme is that of a proxy, where there is one.
        if headers.get("origin", "").partition("://")[2] != headers.get("host"):
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


def _refuse(why: str, status: int) -> Response:
    return PlainTextResponse(f"refused: {why}\n", status)


async def read_body(request: Request) -> dict[str, list[str]]:
    """Read the fields of a URL-encoded form; HTTPException if it is longer than `MAX_BODY` or incomplete."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"got a request of more than {MAX_BODY} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the connection ended before the request did") from error
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


@dataclasses.dataclass(frozen=True)
class _Pass:
    """A visitor who presented a token, and the cookie that replaces it."""

    visitor: Visitor
    cookie: str


class Login:
    """Finds out who sends a request, and lets visitors log in."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._problem = ""

    async def answer(self, scope: Scope, receive: Receive) -> Response | Visitor:
        """Return the visitor of a request, or the response for one who has to log in."""
        headers, path = Headers(scope=scope), scope["path"]
        visitor = self._visitor_of_proxy(scope, headers)
        if visitor is not None or self._policy.is_open:
            return visitor or self._capped(user_of_board(), Role.WRITE, "board")
        if path == LOGIN and scope["method"] == "POST":
            fields = await read_body(Request(scope, receive))
            target = _local_path(fields.get("next", ["/"])[0])
            if shown := self._pass_of(fields.get("token", [""])[0]):
                return self._let_in(RedirectResponse(target, 303), shown)
            return self._page(target, "This is not the token.")
        return self._of_link(scope) or self._visitor_of_cookie(headers) or self._for_stranger(scope, headers)

    def _of_link(self, scope: Scope) -> Response | None:
        """Return the response to a URL with a token in it; None for others."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"))
        secret = dict(pairs).get("token")
        if secret is None:
            return None
        if (shown := self._pass_of(secret)) is None:
            return self._page("/", "The token in the address is wrong.")
        # Not a redirect: that of a link on another site would leave the cookie behind.
        path, rest = scope["path"], urlencode([pair for pair in pairs if pair[0] != "token"])
        return self._let_in(_forward(_local_path(f"{path}?{rest}" if rest else path)), shown)

    def _for_stranger(self, scope: Scope, headers: Headers) -> Response:
        query = scope["query_string"].decode("latin-1")
        here = _local_path(scope["path"] + (f"?{query}" if query else ""))
        if headers.get("sec-fetch-site") == "cross-site":
            # A link on another site, whose request leaves the cookie behind; that of the board's own page takes it.
            return _forward(here)
        return self._page(here, "")

    def _capped(self, name: str, role: Role, via: str) -> Visitor:
        return Visitor(name, Role.READ if self._policy.is_read_only else role, via)

    def _visitor_of_proxy(self, scope: Scope, headers: Headers) -> Visitor | None:
        """Return the user whom the proxy names; None for requests from other addresses, whatever their headers."""
        proxy = self._policy.proxy
        if proxy is None or not scope.get("client") or not _is_same(scope["client"][0], proxy.address):
            return None
        names = [_utf8(name) for name in headers.getlist(proxy.header)]
        if not names:
            return None
        if len(names) > 1 or not 0 < len(names[0]) <= _MAX_NAME or not names[0].isprintable():
            raise HTTPException(
                400, f"expected one {proxy.header} with a name of 1 to {_MAX_NAME} printable characters"
            )
        return self._capped(names[0], proxy.role, "proxy")

    # ------------------------------------------------------------------ tokens

    def _named_tokens(self) -> list[NamedToken]:
        """Return the valid tokens; none if their file is damaged, which is printed to the terminal once."""
        problem, tokens = "", list[NamedToken]()
        try:
            tokens = self._policy.tokens.tokens() if self._policy.tokens else []
        except ServerError as error:
            problem = str(error)
        if problem and problem != self._problem:
            _log.error("%s; until then, the board rejects all named tokens", problem)
        self._problem = problem
        return tokens

    def _pass_of(self, secret: str) -> _Pass | None:
        """Return the pass for a secret; it is compared with all tokens, so the time does not reveal a near match."""
        granted = None
        if len(secret) > _MAX_SECRET:  # each comparison would read all of it
            return None
        if self._policy.token is not None and _is_equal(secret, self._policy.token):
            granted = _Pass(self._capped(user_of_board(), Role.WRITE, "token"), self._policy.session)
        for token in self._named_tokens():
            if token.opens_with(secret):
                granted = self._pass_of_named(token)
        return granted

    def _visitor_of_cookie(self, headers: Headers) -> Visitor | None:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._policy.cookie)
        except CookieError:
            return None
        if cookie is None:
            return None
        if self._policy.token is not None and _is_equal(cookie.value, self._policy.session):
            return self._capped(user_of_board(), Role.WRITE, "token")
        # Made again from the file, so a token that was revoked opens nothing.
        passes = [self._pass_of_named(token) for token in self._named_tokens()]
        return next((one.visitor for one in passes if _is_equal(cookie.value, one.cookie)), None)

    def _pass_of_named(self, token: NamedToken) -> _Pass:
        """Return the pass of a named token: its cookie is the digest, signed with the secret of this board."""
        signed = hmac.new(self._policy.session.encode(), token.digest.encode(), hashlib.sha256).hexdigest()
        visitor = dataclasses.replace(self._capped(token.name, token.role, "token"), account=token.user)
        return _Pass(visitor, signed)

    def _let_in(self, response: Response, shown: _Pass) -> Response:
        is_secure = self._policy.is_secure
        response.set_cookie(self._policy.cookie, shown.cookie, httponly=True, samesite="strict", secure=is_secure)
        return response

    def _page(self, target: str, problem: str) -> Response:
        if self._policy.token is None and self._policy.tokens is None:
            return HTMLResponse(_PAGE.format(f'<p role="alert">{_NO_PROXY}</p>'), 401)
        where = "The terminal that the board was started in shows the token."
        if self._policy.tokens is not None:
            where = "Whoever runs the board adds and revokes tokens."
        return HTMLResponse(
            _PAGE.format(f"""<form method="post" action="{LOGIN}">
<input type="hidden" name="next" value="{html.escape(target)}">
<label for="token">Token</label> <input id="token" name="token" type="password" autofocus required>
<button>Log in</button></form><p role="alert">{html.escape(problem)}</p>
<p class="dim">{where}</p>"""),
            401,
        )


def _utf8(text: str) -> str:
    """Return a header, which Starlette reads as Latin-1, as the UTF-8 that proxies send; unchanged if that fails."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        return text


def _is_same(client: str, address: str) -> bool:
    """Compare IP addresses; an IPv4 client of a server that listens on `::` appears as `::ffff:10.0.0.5`."""
    try:
        ips = [ipaddress.ip_address(text) for text in (client, address)]
    except ValueError:
        return False
    first, second = (getattr(ip, "ipv4_mapped", None) or ip for ip in ips)
    return first == second


def _is_equal(secret: str, expected: str) -> bool:
    return hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), expected.encode())


def _local_path(text: str) -> str:
    """Return a path of this server; the first page if it leads elsewhere."""
    return text if text.startswith("/") and text[1:2] not in ("/", "\\") and text.isprintable() else "/"


def _forward(target: str) -> Response:
    return HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(target)}">')
