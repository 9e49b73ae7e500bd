"""Taking credentials out of texts before they are written down or printed."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

__all__ = ["redact"]

_SECRET_OPTIONS = ("authmechanismproperties", "tlscertificatekeyfilepassword", "password")


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
