"""Reports of a store: pages of Markdown about its runs, private or shared, with their versions."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import ChangedError, FilterError, StoreError

if TYPE_CHECKING:
    from sacristan.runs.stores.contract import Documents

__all__ = ["Report", "Reports"]

_MAX_TITLE, _MAX_BYTES = 120, 150_000
# Versions that a report keeps; the oldest go first.
_MOST_VERSIONS = 200


@dataclasses.dataclass(frozen=True)
class Report:
    """A version of a report.

    Attributes:
        id: Its identity in the store, of letters and digits; all its versions have the same.
        title, text: One line, and Markdown with blocks; see `sacristan.runs.comparison.report_blocks`.
        owner: The user whose private report it is; empty for a shared one.
        author: Who saved this version.
        at: When, in ISO 8601, UTC.
        number: That of the version, from 1.
    """

    title: str
    text: str
    owner: str = ""
    author: str = ""
    id: str = ""
    at: str = ""
    number: int = 0

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
    """The reports of a store.

    A user sees the shared ones and the private ones of the user. Every method raises StoreError if the folder or the
    database cannot be read or written.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def visible(self, user: str) -> list[Report]:
        """Return the reports that a user sees, as they are now, last saved first."""
        found = [Report.of(id, document) for id, document in self._documents.read("reports").items()]
        return sorted((one for one in found if one and one.owner in ("", user)), key=lambda one: one.at, reverse=True)

    def get(self, id: str, user: str, number: int | None = None) -> Report:
        """Return a report as it is now, or a version of it; StoreError if the user sees none."""
        now = next((one for one in self.visible(user) if one.id == id), None)
        if now is None:
            raise StoreError("there is no such report, or it is private; see which there are under Reports")
        if number is None or number == now.number:
            return now
        found = self._old(id, number)
        if found is None:
            raise StoreError(f"the report {now.title!r} keeps no version {number}")
        return found

    def versions(self, id: str, user: str) -> list[Report]:
        """Return all versions that are kept, the newest first."""
        now = self.get(id, user)
        oldest = max(0, now.number - _MOST_VERSIONS - 1)
        return [now, *filter(None, (self._old(id, number) for number in range(now.number - 1, oldest, -1)))]

    def _old(self, id: str, number: int) -> Report | None:
        return Report.of(id, self._read("report_versions", _version(id, number)))

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
        self._documents.change("report_versions", _version(id, seen), lambda now: kept)
        if seen > _MOST_VERSIONS:
            self._documents.change("report_versions", _version(id, seen - _MOST_VERSIONS), lambda now: None)

    def remove(self, report: Report) -> None:
        """Remove a report with all its versions; ChangedError means that it was saved since it was read, and stays."""

        def checked(now: Any) -> None:
            present = Report.of(report.id, now)
            if present is not None and present.number != report.number:
                raise ChangedError(f"{present.author} saved version {present.number} meanwhile; look at it first")

        self._documents.change("reports", report.id, checked)
        for number in range(report.number - 1, max(0, report.number - _MOST_VERSIONS - 1), -1):
            self._documents.change("report_versions", _version(report.id, number), lambda now: None)


def _version(id: str, number: int) -> str:
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
