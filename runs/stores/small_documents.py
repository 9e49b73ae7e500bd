"""Small documents of a store: saved views, reports with their versions, and who sends which message about a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sacristan.observers.notifying import ABANDONED_S, SENT
from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import ChangedError, FilterError, StoreError
from sacristan.runs.stores.contract import UNSENT, Documents
from sacristan.runs.stores.run import Run

_MAX_NAME, _MAX_QUERY, _MAX_VIEWS = 80, 20_000, 500


@dataclasses.dataclass(frozen=True)
class SavedView:
    """A view with a name."""

    name: str
    query: str  # the query of its URL on the board
    owner: str = ""  # the user whose private view it is; empty for a shared one
    default_since: str = ""  # When it became the default one, in ISO 8601; empty if it is not. The last one counts.

    @property
    def key(self) -> str:
        """Its identity in the store: one view for each owner and name."""
        return hashlib.blake2b(json.dumps([self.owner, self.name]).encode(), digest_size=16).hexdigest()

    @property
    def version(self) -> str:
        """A digest that changes with the view."""
        return hashlib.blake2b(json.dumps(dataclasses.astuple(self)).encode(), digest_size=12).hexdigest()

    @classmethod
    def of(cls, document: Any) -> SavedView | None:
        """Return the view of a document; None if it is damaged."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(document, Mapping) or not all(isinstance(document.get(name), str) for name in names):
            return None
        return cls(**{name: document[name] for name in names})


class SavedViews:
    """The named views of a store; StoreError if the folder or the database cannot be read or written."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def visible(self, user: str) -> list[SavedView]:
        """Return the shared views and those of a user, by name."""
        found = [
            view
            for view in map(SavedView.of, self._documents.read("views").values())
            if view and view.owner in ("", user)
        ]
        return sorted(found, key=lambda view: (view.name.casefold(), view.owner))[:_MAX_VIEWS]

    def default(self, user: str) -> SavedView | None:
        """Return the view that opens first: the user's own default, else the shared one, else None."""
        chosen = [view for view in self.visible(user) if view.default_since]
        return max(chosen, key=lambda view: (view.owner != "", view.default_since), default=None)

    def save(self, view: SavedView, seen: str = "") -> None:
        """Save a view in place of the version `seen`, empty for a new view; ChangedError if another one is there."""
        if not 0 < len(view.name) <= _MAX_NAME or not view.name.isprintable() or view.name != view.name.strip():
            raise FilterError(f"got the name {view.name[:100]!r}, expected 1 to {_MAX_NAME} printable characters")
        if len(view.query) > _MAX_QUERY:
            raise FilterError(f"got a view of {len(view.query)} characters, expected {_MAX_QUERY} at most")
        self._write(view, dataclasses.asdict(view), seen)

    def remove(self, view: SavedView) -> None:
        """Remove a view; ChangedError means that it has changed since it was read, and stays."""
        self._write(view, None, view.version)

    def _write(self, view: SavedView, document: dict[str, Any] | None, seen: str) -> None:
        def written(now: Any) -> dict[str, Any] | None:
            _check_version(view, now, seen)
            return document

        self._documents.change("views", view.key, written)


def _check_version(view: SavedView, now: Any, seen: str) -> None:
    present = SavedView.of(now)
    if now is None and not seen:
        return
    if present is None and now is not None:
        return  # a damaged one is replaced
    if present is None:
        raise ChangedError(f"the view {view.name!r} has been removed; save it under its name again")
    if present.version != seen:
        raise ChangedError(f"there is a view {view.name!r} already, perhaps saved by others; open it first")


_MAX_TITLE, _MAX_BYTES = 120, 150_000
# Versions that a report keeps; the oldest go first.
_MOST_VERSIONS = 200


@dataclasses.dataclass(frozen=True)
class Report:
    """A version of a report."""

    # One line, and Markdown with blocks; see `sacristan.runs.comparison.report_blocks`.
    title: str
    text: str
    owner: str = ""  # the user whose private report it is; empty for a shared one
    author: str = ""  # who saved this version
    id: str = ""  # its identity in the store, of letters and digits; all its versions have the same
    at: str = ""  # when, in ISO 8601, UTC
    number: int = 0  # that of the version, from 1

    @classmethod
    def of(cls, id: str, document: Any) -> Report | None:
        """Return the report of a document; None if it is damaged."""
        if not isinstance(document, Mapping):
            return None
        texts = {name: document.get(name) for name in ("title", "text", "owner", "author", "at")}
        number = document.get("number")
        if not all(isinstance(text, str) for text in texts.values()) or not isinstance(number, int):
            return None
        return cls(**texts, id=id, number=number)  # type: ignore[arg-type]  # all are texts


class Reports:
    """The reports of a store; a user sees the shared ones, and the private ones of the user."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def visible(self, user: str) -> list[Report]:
        """Return the reports that a user sees, as they are now, last saved first."""
        reports = [Report.of(id, document) for id, document in self._documents.read("reports").items()]
        return sorted((one for one in reports if one and one.owner in ("", user)), key=lambda one: one.at, reverse=True)

    def get(self, id: str, user: str, number: int | None = None) -> Report:
        """Return a report as it is now, or a version of it; StoreError if the user sees none."""
        now = next((one for one in self.visible(user) if one.id == id), None)
        if now is None:
            raise StoreError("there is no such report, or it is private; see which there are under Reports")
        if number is None or number == now.number:
            return now
        old = self._old(id, number)
        if old is None:
            raise StoreError(f"the report {now.title!r} keeps no version {number}")
        return old

    def versions(self, id: str, user: str) -> list[Report]:
        """Return all versions that are kept, the newest first."""
        now = self.get(id, user)
        oldest = max(0, now.number - _MOST_VERSIONS - 1)
        return [now, *filter(None, (self._old(id, number) for number in range(now.number - 1, oldest, -1)))]

    def _old(self, id: str, number: int) -> Report | None:
        return Report.of(id, self._read("report_versions", _version_name(id, number)))

    def _read(self, kind: str, name: str) -> Any:
        return self._documents.read(kind, names=[name]).get(name)

    def save(self, report: Report, seen: int = 0) -> Report:
        """Save a report in place of its version `seen`, which stays as an old one; without an id it is a new report.

        Returns:
            The new version.

        Raises:
            ChangedError: If the present version is another one; it stays.
            FilterError: If the title or the text is invalid.
        """
        new = dataclasses.replace(
            report,
            id=report.id or secrets.token_hex(8),
            title=_title(report.title),
            text=_text(report.text),
            at=datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds"),
            number=seen + 1,
        )
        if seen:
            self._keep_old(new.id, seen)

        def saved(now: Any) -> dict[str, Any]:
            present = Report.of(new.id, now)
            if present is None and seen:
                raise ChangedError(f"the report {new.title!r} has been removed; save your text as a new one")
            if present is not None and present.number != seen:
                who = present.author or "somebody"
                raise ChangedError(
                    f"{who} saved version {present.number} while you were writing; combine both, and save"
                )
            return _document(new)

        self._documents.change("reports", new.id, saved)
        return new

    def _keep_old(self, id: str, seen: int) -> None:
        """Keep the present version as an old one before another replaces it; writing it again changes nothing."""
        present = Report.of(id, self._read("reports", id))
        if present is None or present.number != seen:
            return  # `save` says so
        kept = _document(present)
        self._documents.change("report_versions", _version_name(id, seen), lambda now: kept)
        if seen > _MOST_VERSIONS:
            self._documents.change("report_versions", _version_name(id, seen - _MOST_VERSIONS), lambda now: None)

    def remove(self, report: Report) -> None:
        """Remove a report with all its versions; ChangedError means that it was saved since it was read, and stays."""

        def checked(now: Any) -> None:
            present = Report.of(report.id, now)
            if present is not None and present.number != report.number:
                raise ChangedError(f"{present.author} saved version {present.number} meanwhile; look at it first")

        self._documents.change("reports", report.id, checked)
        for number in range(report.number - 1, max(0, report.number - _MOST_VERSIONS - 1), -1):
            self._documents.change("report_versions", _version_name(report.id, number), lambda now: None)


def _version_name(id: str, number: int) -> str:
    return f"{id}v{number}"


def _document(report: Report) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(report).items() if name != "id"}


def _title(text: str) -> str:
    title = " ".join("".join(c if c.isprintable() else " " for c in storable_text(text)).split())
    if not 0 < len(title) <= _MAX_TITLE:
        raise FilterError(f"got a title of {len(title)} characters, expected 1 to {_MAX_TITLE}")
    return title


def _text(text: str) -> str:
    text = storable_text(text.replace("\r\n", "\n"))
    if (size := len(text.encode())) > _MAX_BYTES:
        raise FilterError(f"got a report of {size:,} bytes, expected {_MAX_BYTES:,} at most; split it")
    return text


class Messages:
    """The messages about the runs of a store, by event; see `sacristan.observers.notifying`."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def claim(self, run: Run, event: str) -> bool:
        """Claim a message about a run; return False if it was sent, or is being sent."""
        mine = {"state": datetime.now(UTC).isoformat()}
        return self._documents.change("messages", event, lambda now: mine if _is_free(now) else now, run.key)

    def note(self, run: Run, event: str, *, is_sent: bool) -> None:
        """Note whether a receiver took a message that the caller claimed; otherwise it can be claimed again."""
        outcome = {"state": SENT if is_sent else UNSENT}
        is_noted = self._documents.change("messages", event, lambda now: now and outcome, run.key)
        if not is_noted and not self._documents.read("messages", run.key, [event]):
            raise StoreError(f"run {run.id} was removed")

    def is_unsent(self, run: Run, event: str) -> bool:
        """Tell whether a message was tried, but no receiver took it or its sender is gone."""
        now = self._documents.read("messages", run.key, [event]).get(event)
        return now is not None and _is_free(now)


def _is_free(now: Any) -> bool:
    if now is None or now["state"] == UNSENT:
        return True
    abandoned = (datetime.now(UTC) - timedelta(seconds=ABANDONED_S)).isoformat()
    return bool(now["state"] != SENT and now["state"] <= abandoned)
