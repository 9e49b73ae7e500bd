"""Who may reach a board, and what they may do: roles, visitors, named tokens, and the policy.

The file of named tokens keeps only their digests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import open_regular, replacing
from sacristan.observers.record.folders import claimed
from sacristan.runs.errors import ServerError, StoreError, naming_os_errors
from sacristan.runs.stores import Author
from sacristan.runs.stores.settings import show

_FORMAT = 1
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_TOKENS, _MAX_BYTES = 1_000, 2**20
_SECRET_BYTES, _MAX_USER = 32, 200
_MIN_TOKEN = 16
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,79}")


class Role(enum.IntEnum):
    """Permissions; each includes the ones before it."""

    READ = 0
    # Tags, notes, names and saved views.
    NOTE = 1
    # Everything else, such as deletion.
    WRITE = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclasses.dataclass(frozen=True)
class Visitor:
    """The sender of a request."""

    name: str = ""  # the user of the board, the name of a token, or the user whom a proxy names; empty before the login
    role: Role = Role.READ
    via: str = ""  # how the board knows the name: `board`, `token` or `proxy`
    account: str = ""  # the user who records the visitor's runs; empty if that is the name

    @property
    def mine(self) -> str:
        """The condition that matches the visitor's own runs; empty before the login."""
        user = self.account or self.name
        return f"user={show(user)}" if user else ""

    @property
    def author(self) -> Author:
        return Author(self.name, self.via)

    @property
    def may_note(self) -> bool:
        return self.role >= Role.NOTE

    @property
    def may_write(self) -> bool:
        return self.role >= Role.WRITE


def user_of_board() -> str:
    """Return the user who started the board."""
    return Author.of_process().name


def default_tokens() -> Path:
    """Return the file of tokens in the user's folder of settings. Raises ServerError if the user has no home."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (folder if folder.is_absolute() else Path.home() / ".config") / "sacristan" / "tokens.json"
    except RuntimeError as error:
        raise ServerError("this user has no home for a file of tokens; name one: --tokens FILE") from error


@dataclasses.dataclass(frozen=True)
class NamedToken:
    """A token, without its secret."""

    name: str
    role: Role
    digest: str  # SHA-256 of the secret: 256 random bits, which need no slow hash such as scrypt
    created: str
    user: str = ""  # the account that its visitor's runs are recorded with; empty if that is the name

    def opens_with(self, secret: str) -> bool:
        """Tell, in constant time, whether a secret matches the token."""
        return hmac.compare_digest(self.digest, _sha256(secret))

    @classmethod
    def of(cls, name: str, entry: Any) -> NamedToken:
        """Read a token from an entry of the file; a damaged entry raises ValueError."""
        if not isinstance(entry, Mapping) or not _TOKEN_NAME.fullmatch(name) or entry.get("role") not in _WORDS:
            raise ValueError(f"the entry of {name!r} is damaged")
        if not _DIGEST.fullmatch(str(entry.get("sha256"))):
            raise ValueError(f"the entry of {name!r} is damaged")
        created, user = str(entry.get("created", "")), str(entry.get("user", ""))
        return cls(name, Role[entry["role"].upper()], entry["sha256"], created, user)


_WORDS = [role.word for role in Role]


class TokenFile:
    """A file of named tokens, which only its owner can read. Boards read it for each request."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tokens(self) -> list[NamedToken]:
        """Return the tokens, sorted by name; none without the file."""
        with naming_os_errors(f"{self.path} cannot be read", kind=ServerError):
            try:
                with open_regular(self.path) as stream:
                    self._check_owner(os.fstat(stream.fileno()))
                    text = stream.read(_MAX_BYTES + 1)
            except FileNotFoundError:
                return []
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise ValueError(f"got format {document['format']!r}, expected {_FORMAT}")
            return [NamedToken.of(name, entry) for name, entry in sorted(document["tokens"].items())]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ServerError(
                f"{self.path} is no file of tokens ({why}); move it away, and add the tokens again"
            ) from error

    def _check_owner(self, status: os.stat_result) -> None:
        if os.name == "nt":
            return
        if status.st_mode & 0o077:
            mode = f"{status.st_mode & 0o777:o}"
            raise ServerError(
                f"{self.path} has the mode {mode}, so others can read or write it; run: chmod 600 {self.path}"
            )
        if status.st_uid not in (0, os.geteuid()):
            raise ServerError(f"{self.path} belongs to another user; expected a file of your own")

    def add(self, name: str, role: Role, user: str = "") -> str:
        """Add a token; return its secret, which nothing can show again.

        The name has at most 40 letters, digits, `.`, `_` and `-`. The visitor's runs are recorded with the account
        `user`, by default the name. Raises ServerError if one of them is invalid, or the name is taken.
        """
        if len(user) > _MAX_USER or not user.isprintable():
            raise ServerError(f"got the user {user[:80]!r}, expected at most {_MAX_USER} printable characters")
        if not _TOKEN_NAME.fullmatch(name):
            raise ServerError(
                f"got the name {name!r}, expected 1 to 40 letters, digits, . _ -, a letter or digit first"
            )
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        with self._changing() as tokens:
            if name in tokens:
                raise ServerError(f"there is a token {name!r} already; revoke it first, or take another name")
            if len(tokens) >= _MAX_TOKENS:
                raise ServerError(f"{self.path} has {len(tokens)} tokens, which is the maximum; revoke some first")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            tokens[name] = NamedToken(name, role, _sha256(secret), created, user)
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token; running boards reject it from then on."""
        with self._changing() as tokens:
            if name not in tokens:
                raise ServerError(f"there is no token {name!r} in {self.path}; list them with: sacristan tokens list")
            del tokens[name]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, NamedToken]]:
        """Lock the file, and write the tokens when the block ends."""
        with naming_os_errors(f"{self.path} cannot be written", kind=ServerError):
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(parents=True, mode=0o700)
            with claimed(self.path.parent):
                tokens = {token.name: token for token in self.tokens()}
                yield tokens
                entries = {
                    token.name: {"role": token.role.word, "sha256": token.digest, "created": token.created}
                    | ({"user": token.user} if token.user else {})
                    for token in tokens.values()
                }
                with replacing(self.path) as stream:
                    if os.name != "nt":
                        os.fchmod(stream.fileno(), 0o600)  # before anything is in it
                    stream.write(json.dumps({"format": _FORMAT, "tokens": entries}, indent=2).encode() + b"\n")


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class Proxy:
    """A proxy in front of the board, whose `header` names the users; only its IP `address` is trusted."""

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
    """Permissions of requests; without token, tokens and proxy, everybody has all permissions."""

    host: str = "127.0.0.1"
    token: str | None = None
    tokens: TokenFile | None = None
    proxy: Proxy | None = None
    public_name: str = ""  # another name that browsers may use for the board, behind a proxy
    is_read_only: bool = False
    is_secure: bool = False
    cookie: str = "board"  # name of the cookie; of boards on one machine, each needs its own
    # Value of the cookie of `token`, and the secret that signs those of named tokens.
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
