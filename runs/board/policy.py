"""`Policy`: who may reach a board, and what they may do."""

from __future__ import annotations

import ipaddress
import re
import secrets
from dataclasses import dataclass, field

from sacristan.runs.board.tokens import TokenFile
from sacristan.runs.board.visitors import Role
from sacristan.runs.errors import ServerError, StoreError

__all__ = ["Policy", "Proxy", "check_address", "is_loopback"]

_MIN_TOKEN = 16
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,79}")


@dataclass(frozen=True)
class Proxy:
    """A proxy in front of the board, which names the users.

    Attributes:
        address: Its IP address, the only one whose header is trusted.
        header: The header that holds the user's name.
        role: Permissions of these users.

    Raises:
        ServerError: If address or header is malformed.
    """

    address: str
    header: str
    role: Role = Role.READ

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            raise ServerError(f"got the proxy {self.address!r}, expected its IP address, such as 10.0.0.5") from error
        if not _HEADER.fullmatch(self.header):
            raise ServerError(f"got the header {self.header!r}, expected a name such as X-Forwarded-User")


@dataclass(frozen=True)
class Policy:
    """Permissions of requests.

    Attributes:
        host: The address to listen on.
        proxy: The proxy that names users. Without it and tokens, everybody has all permissions.
        public_name: Another name that browsers may use for the board, behind a proxy.
        is_read_only: Whether to reject all writes.
        is_secure: Whether it is served over TLS.
        cookie: Name of the cookie; of boards on one machine, each needs its own.
        session: Value of the cookie of `token`, and the secret that signs those of named tokens.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    tokens: TokenFile | None = None
    proxy: Proxy | None = None
    public_name: str = ""
    is_read_only: bool = False
    is_secure: bool = False
    cookie: str = "board"
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def is_open(self) -> bool:
        """True if the board asks nobody to log in."""
        return self.token is None and self.tokens is None and self.proxy is None


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only; of names, only `localhost` is one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(policy: Policy) -> None:
    """Reject an address that others can reach without a login, and a token that can be guessed."""
    if policy.token is not None and len(policy.token) < _MIN_TOKEN:
        raise StoreError(
            f"the token has {len(policy.token)} characters, expected at least {_MIN_TOKEN}; --token creates one"
        )
    if policy.is_open and not is_loopback(policy.host):
        raise StoreError(
            f"on {policy.host}, others could read and change the runs; add --token, --tokens or --proxy, or drop --host"
        )
