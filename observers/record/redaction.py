"""Removing credentials from texts and commands before they are written or printed."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any
from urllib.parse import parse_qsl, urlencode

_SECRET_OPTIONS = ("authmechanismproperties", "tlscertificatekeyfilepassword", "password")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"<>`]+)")
_SECRET = re.compile(r"([?&](?:\w*(?:password|passwd|pwd)|authmechanismproperties)=)[^&#]+", re.IGNORECASE)
_SECRET_NAME = re.compile("pass(w|_|$)|pwd|secret|token|credential|(api|access|private|auth)_?key", re.IGNORECASE)
_HIDDEN = "***"
_IS_HIDDEN = re.compile(r"://[^\s'\"<>`]*(?:\*\*\*@|=\*\*\*(?:[&#]|$))")


def redact(text: str) -> str:
    """Remove user names, passwords and secret options from every `mongodb://` URL in a text.

    If the text is a single URL, or an option with one, its password may contain any character.

    >>> redact("--mongo_db=mongodb://ann:s3cret@db.lab:27017/sacred")
    '--mongo_db=mongodb://db.lab:27017/sacred'
    """
    alone = re.match(r"(?:-\S*?=)?mongodb(?:\+srv)?://", text)
    return re.sub(
        r"mongodb(?:\+srv)?://.+" if alone else r"mongodb(?:\+srv)?://[^\s'\"]+", _hide, text, flags=re.DOTALL
    )


def _hide(match: re.Match[str]) -> str:
    scheme, _, rest = match.group(0).partition("://")
    head, _, query = rest.partition("?")
    # The last @ ends the password; it is before the ? of the options, unless the password contains a ?.
    options = all(re.match(r"[^@/]+=", option) for option in query.split("&")) if query else True
    if options and ("@" in head or "@" not in query):
        head = head.rpartition("@")[2]
    else:
        head, _, query = rest.rpartition("@")[2].partition("?")
    kept = [(key, value) for key, value in parse_qsl(query) if key.lower() not in _SECRET_OPTIONS]
    return f"{scheme}://{head}?{urlencode(kept)}" if kept else f"{scheme}://{head}"


def is_secret_name(name: str) -> bool:
    """Tell whether a name suggests a password, a token or a key."""
    return _SECRET_NAME.search(name) is not None


def hide_passwords(value: Any) -> Any:
    """Replace the password of every URL in a value by `***`.

    A password is the text between : and @, and the value of an option whose name says so. The user of an http URL
    without a password is a token, and hidden as well.

    >>> hide_passwords({"url": "postgresql://ann:s3cret@db.lab/lab", "lr": 0.1})
    {'url': 'postgresql://ann:***@db.lab/lab', 'lr': 0.1}
    """
    if isinstance(value, str):
        return _URL.sub(_without_password, value) if "://" in value else value
    if isinstance(value, dict):
        return {key: hide_passwords(item) for key, item in value.items()}
    return [hide_passwords(item) for item in value] if isinstance(value, list) else value


def hide_user(text: str) -> str:
    """Replace everything before the last @ by `***`, as in a mistyped URL.

    >>> hide_user("mongodb:/ann:s3cret@db.lab/lab")
    '***@db.lab/lab'
    """
    return f"***@{text.rpartition('@')[2]}" if "@" in text else text


def is_hidden(text: str) -> bool:
    """Tell whether a text contains a URL whose password is hidden, so that it cannot be used again."""
    return _IS_HIDDEN.search(text) is not None


def _without_password(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        # In a MongoDB URL, paths and options have no @: the last one ends the password, whatever that contains.
        users, _, _ = (rest if scheme.startswith("mongodb") else host).rpartition("@")
    elif re.match(r"[^:@]*:(?!\d*$)", host) and not host.startswith("["):
        users = rest.rpartition("@")[0]  # no port after the :, but a password that contains / or ?
    else:
        users = ""
    after = _SECRET.sub(rf"\1{_HIDDEN}", rest[len(users) :])
    if ":" in users:
        users = f"{users.partition(':')[0]}:{_HIDDEN}"
    elif users and scheme.lower() in ("http", "https"):
        users = _HIDDEN
    return f"{scheme}://{users}{after}"


def typed_command(where: str, *words: str) -> str:
    """Return a command to paste; `--store` names the store, unless the command uses it anyway or `where` is empty.

    >>> typed_command("other_runs", "card", "1")
    'sacristan --store other_runs card 1'
    """
    usual = os.environ.get("SACRISTAN_STORE") or "my_runs"
    store = [] if where in ("", usual, usual.rstrip("/"), redact(usual)) else ["--store", redact(where)]
    return shlex.join(["sacristan", *store, *words])
