"""Where runs are delivered to: a MongoDB, named so that no password is ever written down or printed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    import pymongo
    from pymongo.errors import PyMongoError

__all__ = ["DESTINATION_FILE", "Destination", "explain", "parse_mongo_option", "read_destination", "redact"]

DESTINATION_FILE = "destination.json"

_SHORT = re.compile(
    r"^(?:(?P<host>[0-9A-Za-z][0-9A-Za-z.-]*):(?P<port>\d{1,5}))?(?(host)(?::|$))"
    r"(?:(?P<db>[_A-Za-z][^./\\ \"$*<>:|?!]{0,62})(?:\.(?P<collection>[_A-Za-z][^.:!]{0,62})(?::(?P<id>\d{1,12}))?)?)?"
    r"(?:!(?P<priority>-?\d+))?$"
)
_SECRET_OPTIONS = ("authmechanismproperties", "tlscertificatekeyfilepassword", "password")


def redact(text: str) -> str:
    """Return `text` with user names, passwords and secret options of every `mongodb://` URL in it taken out."""

    def hide(match: re.Match) -> str:
        head, _, query = match.group(0).partition("?")
        head = re.sub(r"(mongodb(?:\+srv)?://)[^@/]*@", r"\1", head)
        kept = [(key, value) for key, value in parse_qsl(query) if key.lower() not in _SECRET_OPTIONS]
        return f"{head}?{urlencode(kept)}" if kept else head

    return re.sub(r"mongodb(?:\+srv)?://[^\s'\"]+", hide, text)


@dataclasses.dataclass(frozen=True)
class Destination:
    """A database to deliver to.

    Attributes:
        url: Full URL, which may hold credentials; None is mongodb://localhost:27017.
        db_name: Name of the database.
        prefix: Put before the names of the collections.
    """

    url: str | None = dataclasses.field(default=None, repr=False)
    db_name: str = "sacred"
    prefix: str = ""

    @property
    def label(self) -> str:
        """What it is called in messages and files: without credentials."""
        scheme, _, rest = redact(self.url or "mongodb://localhost:27017").partition("://")
        url = f"{scheme}://{rest.partition('/')[0].partition('?')[0]}"
        return f"{url}/{self.db_name}" + (f" ({self.prefix}_*)" if self.prefix else "")

    def written(self) -> dict[str, str]:
        """Return it as it may be written down: without credentials."""
        return {"url": redact(self.url or "mongodb://localhost:27017"), "db_name": self.db_name, "prefix": self.prefix}

    def connect(self, **options: Any) -> pymongo.MongoClient:
        """Return a client that notices an outage within seconds.

        Raises:
            pymongo.errors.ConfigurationError: If the URL is none.
        """
        import pymongo

        patience = {"serverSelectionTimeoutMS": 2000, "connectTimeoutMS": 2000, "socketTimeoutMS": 20000}
        return pymongo.MongoClient(self.url, **{**patience, "appname": "sacristan", **options})


def explain(error: PyMongoError) -> str:
    """Return in a few words what is wrong: an outage, a wrong password, missing rights, or TLS."""
    from pymongo.errors import ConfigurationError, OperationFailure

    text = redact(str(error))
    if isinstance(error, OperationFailure):
        if error.code == 18 or ("auth" in text.lower() and "fail" in text.lower()):
            return "the user or password is wrong (authentication failed)"
        if error.code == 13:
            return "the user has no rights on this database (not authorized)"
        return f"the server refuses: {text.splitlines()[0][:200]}"
    if isinstance(error, ConfigurationError):
        return f"the URL is wrong: {text.splitlines()[0][:200]}"
    if any(word in text for word in ("SSL", "TLS", "certificate", "CERTIFICATE")):
        return f"TLS fails: {text.split(',')[0][:200]}"
    return "the server is not reachable"


def read_destination(folder: Path) -> Destination | None:
    """Return where the run in `folder` was to be delivered to, without credentials; None if nowhere."""
    try:
        return Destination(**json.loads((folder / DESTINATION_FILE).read_bytes()))
    except FileNotFoundError:
        return None


def parse_mongo_option(text: str) -> dict[str, Any]:
    """Return the arguments of `MongoObserver` that `-m TEXT` stands for.

    Args:
        text: `[host:port:]db_name[.collection[:id]][!priority]` as in Sacred, or a full `mongodb://` or `mongodb+srv://`
            URL with the database as its path.

    Raises:
        ValueError: If it is neither.
    """
    if text.startswith(("mongodb://", "mongodb+srv://")):
        return {"url": text, "db_name": _database_of(text) or "sacred"}
    match = _SHORT.match(text)
    if match is None or not text:
        raise ValueError(
            f"-m: got {redact(text)!r}, expected db_name, host:port:db_name or mongodb://host:port/db_name"
        )
    found: dict[str, Any] = {}
    if match["host"]:
        found["url"] = f"mongodb://{match['host']}:{match['port']}"
    if match["db"]:
        found["db_name"] = match["db"]
    if match["collection"]:
        found["collection"] = match["collection"]
    if match["id"]:
        found["overwrite"] = int(match["id"])
    if match["priority"]:
        found["priority"] = int(match["priority"])
    return found


def _database_of(url: str) -> str:
    return url.partition("//")[2].partition("/")[2].partition("?")[0]
