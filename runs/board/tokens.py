"""Named tokens, each with a role, in a file that keeps only their digests."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.observers.record.files import open_regular, replacing
from sacristan.observers.record.locking import claimed
from sacristan.runs.board.visitors import Role
from sacristan.runs.errors import ServerError, naming_os_errors

__all__ = ["NamedToken", "TokenFile", "default_tokens"]

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_TOKENS, _MAX_BYTES = 1_000, 2**20
_SECRET_BYTES, _MAX_USER = 32, 200


def default_tokens() -> Path:
    """Return the file of tokens in the user's folder of settings. Raises ServerError if the user has no home."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (folder if folder.is_absolute() else Path.home() / ".config") / "sacristan" / "tokens.json"
    except RuntimeError as error:
        raise ServerError("this user has no home for a file of tokens; name one: --tokens FILE") from error


@dataclasses.dataclass(frozen=True)
class NamedToken:
    """A token, without its secret.

    Attributes:
        role: Permissions of those who present it.
        digest: SHA-256 of the secret. The secret is 256 random bits, so there is nothing to guess, and a slow hash such
            as scrypt, made for passwords, would only slow down the board.
        user: The account that its visitor's runs are recorded with; empty if that is the name.
    """

    name: str
    role: Role
    digest: str
    created: str
    user: str = ""

    def opens_with(self, secret: str) -> bool:
        """Tell, in constant time, whether a secret matches the token."""
        return hmac.compare_digest(self.digest, _digest(secret))

    @classmethod
    def of(cls, name: str, entry: Any) -> NamedToken:
        """Read a token from an entry of the file; a damaged entry raises ValueError."""
        if not isinstance(entry, Mapping) or not _NAME.fullmatch(name) or entry.get("role") not in _WORDS:
            raise ValueError(f"the entry of {name!r} is damaged")
        if not _DIGEST.fullmatch(str(entry.get("sha256"))):
            raise ValueError(f"the entry of {name!r} is damaged")
        created, user = str(entry.get("created", "")), str(entry.get("user", ""))
        return cls(name, Role[entry["role"].upper()], entry["sha256"], created, user)


_WORDS = [role.word for role in Role]


class TokenFile:
    """A file of named tokens, which only its owner can read. Boards read it for each request, so changes count at once.

    Every method raises ServerError if the file is damaged, if others can read it, or if it cannot be read or written.
    """

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
        if not _NAME.fullmatch(name):
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
            tokens[name] = NamedToken(name, role, _digest(secret), created, user)
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


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
