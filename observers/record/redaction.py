"""Taking credentials out of texts before they are written down or printed."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

__all__ = ["hide_passwords", "hide_user", "is_hidden", "is_secret_name", "redact"]

_SECRET_OPTIONS = ("authmechanismproperties", "tlscertificatekeyfilepassword", "password")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"<>`]+)")
_SECRET = re.compile(r"([?&](?:\w*(?:password|passwd|pwd)|authmechanismproperties)=)[^&#]+", re.IGNORECASE)
_SECRET_NAME = re.compile("pass(w|_|$)|pwd|secret|token|credential|(api|access|private|auth)_?key", re.IGNORECASE)
_HIDDEN = "***"
_IS_HIDDEN = re.compile(r"://[^\s'\"<>`]*(?:\*\*\*@|=\*\*\*(?:[&#]|$))")


def redact(text: str) -> str:
    """Return `text` with user names, passwords and secret options of every `mongodb://` URL in it taken out.

    A text that is one URL, or an option with one, may have anything in its password, escaped or not.

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
    # The last @ ends the password; before the ? of the options, unless the password has a ? of its own.
    options = all(re.match(r"[^@/]+=", option) for option in query.split("&")) if query else True
    if options and ("@" in head or "@" not in query):
        head = head.rpartition("@")[2]
    else:
        head, _, query = rest.rpartition("@")[2].partition("?")
    kept = [(key, value) for key, value in parse_qsl(query) if key.lower() not in _SECRET_OPTIONS]
    return f"{scheme}://{head}?{urlencode(kept)}" if kept else f"{scheme}://{head}"


def is_secret_name(name: str) -> bool:
    """Tell whether the name of a setting, such as an environment variable, tells of a password, a token or a key."""
    return _SECRET_NAME.search(name) is not None


def hide_passwords(value: Any) -> Any:
    """Return a text with `***` in the place of the password of every URL in it; or what JSON holds, with all its texts.

    A password is what stands between : and @, the user of an http URL that has no other, which is a token, and an
    option by that name.

        >>> hide_passwords({"url": "postgresql://ann:s3cret@db.lab/lab", "lr": 0.1})
        {'url': 'postgresql://ann:***@db.lab/lab', 'lr': 0.1}
    """
    if isinstance(value, str):
        return _URL.sub(_without_password, value) if "://" in value else value
    if isinstance(value, dict):
        return {key: hide_passwords(item) for key, item in value.items()}
    return [hide_passwords(item) for item in value] if isinstance(value, list) else value


def hide_user(text: str) -> str:
    """Return a text that may be a mistyped URL, with `***` in the place of all that stands before its last @.

    >>> hide_user("mongodb:/ann:s3cret@db.lab/lab")
    '***@db.lab/lab'
    """
    return f"***@{text.rpartition('@')[2]}" if "@" in text else text


def is_hidden(text: str) -> bool:
    """Tell whether a text holds a URL whose password is hidden."""
    return _IS_HIDDEN.search(text) is not None


def _without_password(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        # In a URL of MongoDB no path or option has an @: the last one ends the password, whatever stands in that.
        users, _, _ = (rest if scheme.startswith("mongodb") else host).rpartition("@")
    elif re.match(r"[^:@]*:(?!\d*$)", host) and not host.startswith("["):
        users = rest.rpartition("@")[0]  # what follows the : is no port: a password with a / or ? of its own
    else:
        users = ""
    after = _SECRET.sub(rf"\1{_HIDDEN}", rest[len(users) :])
    if ":" in users:
        users = f"{users.partition(':')[0]}:{_HIDDEN}"
    elif users and scheme.lower() in ("http", "https"):
        users = _HIDDEN
    return f"{scheme}://{users}{after}"
