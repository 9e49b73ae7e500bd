"""Logins: how the board knows its visitors, by a token or by a header of a proxy."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import html
import ipaddress
import logging
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope

from sacristan.runs.board.policy import Policy
from sacristan.runs.board.tokens import NamedToken
from sacristan.runs.board.visitors import Role, Visitor, user_of_board
from sacristan.runs.errors import ServerError, StoreError

__all__ = ["LOGIN", "MAX_BODY", "Login", "read_body"]

_log = logging.getLogger(__name__)

LOGIN = "/login"
# What a request may send at most.
MAX_BODY = 2**20
_MAX_NAME, _MAX_SECRET = 80, 1_000
_NO_PROXY = "Open the board through its proxy."


async def read_body(request: Request) -> dict[str, list[str]]:
    """Read the fields of a URL-encoded form; StoreError if it is longer than `MAX_BODY` or incomplete."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise StoreError(f"got a request of more than {MAX_BODY} bytes")
    except ClientDisconnect as error:
        raise StoreError("the connection ended before the request did") from error
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
        """Return the visitor of a request, or the response for one who has to log in.

        A malformed request raises StoreError.
        """
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
        given = parse_qsl(scope["query_string"].decode("latin-1"))
        secret = dict(given).get("token")
        if secret is None:
            return None
        if (shown := self._pass_of(secret)) is None:
            return self._page("/", "The token in the address is wrong.")
        # Not a redirect: that of a link on another site would leave the cookie behind.
        path, rest = scope["path"], urlencode([pair for pair in given if pair[0] != "token"])
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

    # ------------------------------------------------------------------ proxy

    def _visitor_of_proxy(self, scope: Scope, headers: Headers) -> Visitor | None:
        """Return the user whom the proxy names; None for requests from other addresses, whatever their headers."""
        proxy = self._policy.proxy
        if proxy is None or not scope.get("client") or not _is_same(scope["client"][0], proxy.address):
            return None
        names = [_utf8(name) for name in headers.getlist(proxy.header)]
        if not names:
            return None
        if len(names) > 1 or not 0 < len(names[0]) <= _MAX_NAME or not names[0].isprintable():
            raise StoreError(f"expected one {proxy.header} with a name of 1 to {_MAX_NAME} printable characters")
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
        found = None
        if len(secret) > _MAX_SECRET:  # each comparison would read all of it
            return None
        if self._policy.token is not None and _is_equal(secret, self._policy.token):
            found = _Pass(self._capped(user_of_board(), Role.WRITE, "token"), self._policy.session)
        for token in self._named_tokens():
            if token.opens_with(secret):
                found = self._pass_of_named(token)
        return found

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


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Log in · Sacristan</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/board.css">
<main class="login"><h1>Sacristan</h1>{}</main></html>"""


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


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _local_path(text: str) -> str:
    """Return a path of this server; the first page if it leads elsewhere."""
    return text if text.startswith("/") and text[1:2] not in ("/", "\\") and text.isprintable() else "/"


def _forward(target: str) -> Response:
    return HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(target)}">')
