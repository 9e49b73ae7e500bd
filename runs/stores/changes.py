"""Changes of a store: runs that are staged and then added in one step, results of adding and removing, and authors."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sacristan.observers.errors import ArtifactError
from sacristan.observers.record.copies import make_shared
from sacristan.observers.record.identity import user_name
from sacristan.observers.record.json_text import storable_text
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.query import mappings_in


@dataclasses.dataclass(frozen=True)
class StagedRun:
    """A whole run in a folder, in the layout of `sacristan.observers.record.schema`, ready for `Store.add`."""

    # The run's folder; the sources, resources and versions of artifacts that it names lie beside it, in `_sources`,
    # `_resources` and `_artifacts`. `Store.add` moves them, so a staged run can be added once.
    folder: Path
    uid: str  # its globally unique id, 32 hexadecimal digits
    left_out: tuple[str, ...] = ()  # a sentence for each part of the run that is missing


class Added(NamedTuple):
    """Result of adding a staged run: its id, whether the store lacked it before, and `Copied.left_out`."""

    id: str
    is_new: bool
    left_out: tuple[str, ...] = ()


@contextlib.contextmanager
def staging_folder(home: Path | None = None) -> Iterator[Path]:
    """Create an empty folder, and delete it at the end of the `with` block.

    It lies in `home`, which is created if missing and deleted when empty, or in the system's folder for temporary
    files.
    """
    with naming_os_errors(f"{home or 'the folder of temporary files'} cannot be written"):
        if home is not None:
            make_shared(home, home.parent)
        path = Path(tempfile.mkdtemp(prefix="runs-", dir=home))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if home is not None:
            with contextlib.suppress(OSError):
                home.rmdir()


@contextlib.contextmanager
def explaining_failure(where: str) -> Iterator[None]:
    """Turn errors of adding a staged run in the `with` block into a StoreError that names the store."""
    try:
        yield
    except ArtifactError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{where} cannot be written ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise StoreError(f"the record of the run is damaged ({type(error).__name__}: {error})") from error


# A starting run may be about to name a content touched so recently.
GRACE_S = 3600.0


@dataclasses.dataclass
class Removed:
    """Result of removing runs and reclaiming files.

    Attributes:
        runs: Ids of the removed runs.
        num_contents: Number of reclaimed files: contents, and half-written files of killed processes.
        num_bytes: Their size.
        num_young: Number of unused contents that stay because they were touched within the last hour.
        unreadable: Ids of runs with an unreadable record, which may name any content, so that none is reclaimed.
        kept: Ids of runs in the trash that could not be deleted.
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    num_contents: int = 0
    num_bytes: int = 0
    num_young: int = 0
    unreadable: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Discarded:
    """A run in the trash."""

    id: str  # the id that it had in the store
    uid: str | None  # its uid; None for a run of stock Sacred
    name: str
    status: str
    at: datetime  # when it was discarded, in UTC
    by: str = ""  # who discarded it; empty if its record does not tell

    @property
    def key(self) -> str:
        """Its uid, or its former id, with which `Store.restore` brings it back."""
        return self.uid or self.id


# The change that moves a run to the trash.
TO_TRASH = "moved to the trash"
# Changes that a run keeps; the oldest go first.
MOST_CHANGES = 100
_MAX_TEXT = 200
# Machines write these.
_NO_CHANGE = frozenset(("changes", "reproductions"))


@dataclasses.dataclass(frozen=True)
class Author:
    """The user who changes runs; `via` is `board`, `token` or `proxy`, and empty for the user of the process."""

    name: str
    via: str = ""

    @classmethod
    def of_process(cls) -> Author:
        return cls(user_name() or "user")


def entry_of(author: Author, what: str) -> dict[str, Any]:
    """Return the entry for a change by an author; a long text is cut."""
    text = storable_text(what)
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return {"time": now, "by": storable_text(author.name)[:_MAX_TEXT], "via": author.via, "what": text}


def discarder(changes: Any) -> str:
    """Return who moved a run to the trash last, by its recorded changes; empty if they do not tell."""
    names = [change.get("by") for change in mappings_in(changes) if change.get("what") == TO_TRASH]
    return str(names[-1] or "") if names else ""


def with_changes(
    changes: Iterable[Mapping[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any], author: Author
) -> dict[str, Any]:
    """Return the new notes on a run, with an entry appended to `changes` for each that differs."""
    new = [entry_of(author, text) for name in after if (text := _change_of(name, before.get(name), after[name]))]
    return {**after, "changes": [*map(dict, changes), *new][-MOST_CHANGES:]} if new else dict(after)


def _change_of(name: str, before: Any, after: Any) -> str:
    """Describe the change of one value; empty if there is none to keep."""
    if name in _NO_CHANGE or before == after or not (before or after):
        return ""
    if isinstance(before or {}, Mapping) and isinstance(after, Mapping):
        signs = [f"+{one}" for one in after if one not in (before or {})]
        signs += [f"-{one}" for one in before or {} if one not in after]
        return f"{name}: {' '.join(signs)}" if signs else ""
    label = name.replace("_", " ")
    return f"{label}: {after}" if after else f"{label} removed"
