"""Delivery of the journal to MongoDB: `Destination`, described so that no password is ever written or printed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.errors import DestinationError
from sacristan.observers.record.folders import as_number
from sacristan.observers.record.json_text import load_json
from sacristan.observers.record.redaction import hide_user, redact
from sacristan.observers.record.schema import DESTINATION

if TYPE_CHECKING:
    import pymongo

    from sacristan.observers.record.journal import Journal

__all__ = [
    "Destination",
    "as_run_id",
    "database_in",
    "explain",
    "is_logged_out",
    "is_refusal",
    "is_unconfirmed",
    "parse_mongo_option",
    "read_destination",
]

_SHORT = re.compile(
    r"^(?:(?P<host>[0-9A-Za-z][0-9A-Za-z.-]*):(?P<port>\d{1,5}))?(?(host)(?::|$))"
    r"(?:(?P<db>[_A-Za-z][^./\\ \"$*<>:|?!]{0,62})(?:\.(?P<collection>[_A-Za-z][^.:!]{0,62})(?::(?P<id>\d{1,12}))?)?)?"
    r"(?:!(?P<priority>-?\d+))?$"
)
# Arguments of MongoObserver: the group in the short form, and the type.
_ARGUMENTS: dict[str, tuple[str, type]] = {
    "db_name": ("db", str),
    "collection": ("collection", str),
    "overwrite": ("id", int),
    "priority": ("priority", int),
}

# The action that a user needs for a command of the server, if it has another name.
_ACTIONS = {
    **dict.fromkeys(("aggregate", "count", "distinct", "getMore"), "find"),
    "delete": "remove",
    **dict.fromkeys(("findAndModify", "findandmodify"), "update"),
    "createIndexes": "createIndex",
}


@dataclasses.dataclass(frozen=True)
class Destination:
    """A database to deliver to; `url` may contain credentials, and None is mongodb://localhost:27017.

    `collection` is the name of the collection of runs, empty for the usual one. `wanted_id` is the `_id` that the run
    should have, if it is a text; empty for the next number. `overwrite` is the `_id` of the document that the run is to
    take over, and `overwrote` once it has. `checkpoints` is `kept` to deliver those that the run keeps.
    """

    url: str | None = dataclasses.field(default=None, repr=False)
    db_name: str = "sacred"
    prefix: str = ""
    collection: str = ""
    wanted_id: str = ""
    overwrite: str = ""
    overwrote: str = ""
    checkpoints: str = ""

    @property
    def label(self) -> str:
        """The destination without credentials, in messages and as `open_store` takes it."""
        url = redact(self.url or "localhost:27017")
        scheme, _, rest = url.partition("://") if "://" in url else ("mongodb", "", url)
        names = f"#{self.prefix or self.collection}" if self.prefix or self.collection else ""
        return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/{self.db_name}{names}"

    @property
    def address(self) -> str:
        """The destination as `open_store` takes it, with credentials and all names: never print or write it."""
        return f"{self.url or 'mongodb://localhost:27017'}#{self.db_name}/{self.prefix}/{self.collection}"

    @classmethod
    def at(cls, address: str) -> Destination | None:
        """Return the destination of an `address`, or of a URL with `#PREFIX`; None if it is no MongoDB database."""
        url, _, names = address.partition("#")
        if not url.startswith(("mongodb://", "mongodb+srv://")):
            return None
        if names.count("/") < 2:
            return cls(url, database_in(url) or "sacred", names)
        return cls(url, *names.split("/", 2))

    def written(self) -> dict[str, str]:
        """Return the content of `destination.json`, without credentials."""
        entries = dataclasses.asdict(self) | {"url": redact(self.url or "mongodb://localhost:27017")}
        # Earlier versions of this program do not know the others.
        return {name: value for name, value in entries.items() if value or name in ("url", "db_name", "prefix")}

    def note(self, journal: Journal) -> None:
        """Write `destination.json` into the folder of a run."""
        journal.write(DESTINATION, self.written())

    def connect(self, **options: Any) -> pymongo.MongoClient:
        """Return a client that notices an outage within seconds; raise ConfigurationError for an invalid URL."""
        import pymongo

        patience = {"serverSelectionTimeoutMS": 2000, "connectTimeoutMS": 2000, "socketTimeoutMS": 20000}
        url = (self.url or "").lower()  # names of options are case-insensitive
        patience = {name: value for name, value in patience.items() if f"{name.lower()}=" not in url}
        try:
            return pymongo.MongoClient(self.url, **{**patience, "appname": "sacristan", **options})
        except FileNotFoundError as error:
            raise _wrong_url(error) from error


def as_run_id(wanted: Any) -> int | str | None:
    """Return the id that a run should have; a text of digits becomes a number."""
    if isinstance(wanted, str):
        number = as_number(wanted)
        return wanted if number is None else number
    return wanted if isinstance(wanted, int) else None


def explain(error: Exception) -> str:
    """Explain an error in a few words: an outage, a wrong password, missing rights, TLS, or the URL."""
    from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError, ServerSelectionTimeoutError

    text = redact(str(error))
    if is_unconfirmed(error):
        return "too few members of the replica set confirm what they receive in time (no majority)"
    if "No primary available" in text or 'selector "Primary()"' in text:
        return "the replica set has no primary"
    if isinstance(error, OperationFailure) or _has_failed_login(text):
        return _explain_refusal(getattr(error, "code", None), text)
    if isinstance(error, ConfigurationError):
        # pymongo may quote a part of a password.
        quoted = '"' in text or "key=value" in text
        reason = "user and password must be percent-encoded" if quoted else text.splitlines()[0][:200]
        return f"the URL is wrong: {reason}"
    if any(word in text for word in ("SSL", "TLS", "certificate", "CERTIFICATE")):
        return f"TLS fails: {_explain_tls(text)}"
    if not isinstance(error, PyMongoError):
        return f"{type(error).__name__}: {text}"
    if isinstance(error, ServerSelectionTimeoutError) and _closes_each_connection(text):
        return (
            "the server is not reachable: it closes connections, as servers do that require TLS (tls=true in the URL)"
        )
    return "the server is not reachable"


def _closes_each_connection(text: str) -> bool:
    """Tell whether no server has ever answered; one that is killed closes connections, too, but is known."""
    types = set(re.findall(r"server_type: (\w+)", text))
    return (
        types <= {"Unknown"}
        and "topology_type: Unknown" in text
        and "connection closed" in text
        and "refused" not in text
    )


def is_refusal(error: Exception) -> bool:
    """Tell whether retrying soon is useless, because a URL, a user or a certificate has to change first."""
    from pymongo.errors import ConfigurationError, OperationFailure

    if isinstance(error, OperationFailure) or _has_failed_login(str(error)):
        return getattr(error, "code", 18) in (13, 18)
    return isinstance(error, ConfigurationError) or explain(error).startswith("TLS fails")


def is_unconfirmed(error: Exception) -> bool:
    """Tell whether a write was made, but too few members of the replica set confirmed it in time; it may be lost."""
    from pymongo.errors import BulkWriteError, WTimeoutError

    return isinstance(error, WTimeoutError) or (
        isinstance(error, BulkWriteError) and bool((error.details or {}).get("writeConcernErrors"))
    )


def is_logged_out(error: Exception) -> bool:
    """Tell whether the server requires a login, as after the user was dropped: open connections stay without one."""
    return getattr(error, "code", None) == 13 and "requires authentication" in str(error)


def _has_failed_login(text: str) -> bool:
    # After the first failed login, pymongo reports that it finds no server.
    return "Authentication failed" in text


def _explain_refusal(code: int | None, text: str) -> str:
    if code == 18 or ("auth" in text.lower() and "fail" in text.lower()):
        return "the user or password is wrong (authentication failed)"
    if code == 13 and "requires authentication" in text:
        return "the server requires a user and a password; give a URL with them (not authorized)"
    if code == 13:
        return f"the user has no rights {_missing_right(text)} (not authorized)"
    return f"the server refuses: {text.splitlines()[0][:200]}"


def _missing_right(text: str) -> str:
    """Return what a user may not do, from the server's message, as `docs/howto/limit_rights_in_mongodb.md` calls it."""
    match = re.search(r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]+)")?', text)
    if match is None:
        return "on this database"
    database, command, collection = match.groups()
    return f"to {_ACTIONS.get(command, command)} in {database}{f'.{collection}' if collection else ''}"


def _explain_tls(text: str) -> str:
    if "verify failed" in text:
        reason = text.partition("verify failed: ")[2].partition(" (")[0]
        return f"the server's certificate is not trusted ({reason}); put tlsCAFile=FILE into the URL"
    if "EOF" in text or "WRONG_VERSION" in text:
        return "the server seems to speak none; leave tls=true out of the URL"
    return text.partition(", ")[0][:200]


def read_destination(folder: Path) -> Destination | None:
    """Return where a run is to be delivered, without credentials; None for nowhere."""
    try:
        return Destination(**load_json(folder / DESTINATION))
    except FileNotFoundError:
        return None


def parse_mongo_option(text: str, option: str = "-m") -> dict[str, Any]:
    """Return the arguments of `MongoObserver` for the option `-m TEXT`, or another one that errors name.

    The text is `[host:port:]db_name[.collection[:id]][!priority]` as in Sacred, or a full `mongodb://` or
    `mongodb+srv://` URL with the database as its path.
    """
    if text.startswith(("mongodb://", "mongodb+srv://")):
        try:
            return {"url": text, "db_name": database_in(text) or "sacred"}
        except DestinationError as error:
            raise DestinationError(f"{option}: {error}") from None
    match = _SHORT.match(text) if text else None
    if match is None:
        raise DestinationError(
            f"{option}: got {hide_user(text)!r}, expected db_name, host:port:db_name or mongodb://host:port/db_name"
        )
    url = {"url": f"mongodb://{match['host']}:{match['port']}"} if match["host"] else {}
    return url | {name: kind(match[group]) for name, (group, kind) in _ARGUMENTS.items() if match[group]}


def database_in(url: str) -> str | None:
    """Return the database in a full `mongodb://` URL, if it names one; errors contain no credentials."""
    from pymongo.errors import InvalidURI
    from pymongo.uri_parser import parse_uri

    try:
        # Without +srv, which would query a name server.
        return parse_uri(url.replace("mongodb+srv://", "mongodb://", 1))["database"]
    except FileNotFoundError as error:
        raise DestinationError(f"got {redact(url)!r}: {explain(_wrong_url(error))}") from None
    except (InvalidURI, ValueError, OSError) as error:
        raise DestinationError(f"got {redact(url)!r}: {explain(error)}") from None


def _wrong_url(error: FileNotFoundError) -> Exception:
    """Return the error that pymongo raises for an invalid URL: its parser opens the certificates that a URL names."""
    from pymongo.errors import ConfigurationError

    return ConfigurationError(f"there is no file {error.filename}")
