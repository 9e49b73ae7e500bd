"""Aliases of artifacts in a store: names of versions that move, such as `champion`."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sacristan.configs.nearest import word_suggestion
from sacristan.observers.artifacts import check_name, parse_reference
from sacristan.observers.artifacts.aliases import (
    LATEST,
    MAX_TEXT,
    Move,
    carried,
    check_alias,
    is_same,
    next_move,
    not_an_alias,
    present_moves,
)
from sacristan.observers.errors import ArtifactError, ArtifactMovedError
from sacristan.observers.record.identity import is_uid
from sacristan.observers.record.json_text import storable_text
from sacristan.observers.record.redaction import typed_command
from sacristan.runs.errors import ChangedError, RunNotFoundError, StoreError
from sacristan.runs.stores.changes import GRACE_S, Removed
from sacristan.runs.stores.record import RunStore

if TYPE_CHECKING:
    from sacristan.runs.stores.content import StoredArtifact

_KIND, _REMOVED = "aliases", "removed_versions"


class Aliases:
    """The aliases of the artifacts of a store, and their moves, all of which are kept.

        store.aliases.move("net", "champion", 7)
        assert store.aliases.resolve("net:champion").version == 7

    Every method raises StoreError if the folder or the database cannot be read or written, or a name is invalid.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def of(self, name: str) -> dict[str, Move]:
        """Return the last move of each alias of an artifact that names a version, by alias."""
        return present_moves(self._last(name).values())

    def moves(self, name: str) -> list[Move]:
        """Return all moves of the aliases of an artifact, the oldest first."""
        return sorted(self._read(name, None), key=lambda move: (move.time, move.number))

    def _read(self, name: str, keys: Collection[str] | None) -> list[Move]:
        _checked(check_name, name)
        moves = map(Move.of, self._store.backend.documents.read(_KIND, name, keys).values())
        return [move for move in moves if move is not None]

    def _last(self, name: str) -> dict[str, Move]:
        """Return the last move of each alias of an artifact; the others, which may be many, are not read."""
        _checked(check_name, name)
        numbers: dict[str, int] = {}
        for key in self._store.backend.documents.read(_KIND, name, entries=()):
            alias, _, number = key.rpartition(".")
            if number.isdecimal():
                numbers[alias] = max(numbers.get(alias, 0), int(number))
        return {move.alias: move for move in self._read(name, [f"{alias}.{n}" for alias, n in numbers.items()])}

    def resolve(self, reference: str) -> StoredArtifact:
        """Return the version that `name`, `name:latest`, `name:v3`, `name:champion` or `name@DIGEST` stands for.

        Raises:
            RunNotFoundError: If there is none.
        """
        wanted = _checked(parse_reference, reference)
        versions = self._store.backend.artifact_versions(wanted.name)
        number, digest = wanted.number, wanted.digest or ""
        if wanted.alias is not None:
            aliases = self.of(wanted.name)
            if wanted.alias not in aliases and versions:
                raise RunNotFoundError(str(not_an_alias(wanted.name, wanted.alias, self._store.where, aliases)))
            number = aliases[wanted.alias].version if versions else None
        found = [
            each for each in versions if each.digest.startswith(digest) and (number is None or each.version == number)
        ]
        if not found:
            where = self._store.where
            if not versions:
                hint = word_suggestion(
                    wanted.name, self._store.backend.artifacts(), "a run logs it: _run.log_artifact(name, path)"
                )
                raise RunNotFoundError(f"{reference}: {where} has no artifact {wanted.name}; {hint}")
            range_text = f"it has v{versions[0].version} to v{versions[-1].version}"
            if gone := self.removed_versions(wanted.name).get(number or 0):
                range_text += f"; {gone['by']} removed v{number} on {gone['time'][:16].replace('T', ' ')} UTC"
            raise RunNotFoundError(f"{reference}: {where} has no such version of {wanted.name}; {range_text}")
        return found[-1]

    def move(self, name: str, alias: str, version: int | None, was: int | str | None = None) -> Move:
        """Let an alias name a version from now on, or none; `Store.author` is kept as the one who moved it.

        It is moved once or not at all. To move an alias to the version that it names changes nothing.

        Args:
            name: The artifact's name.
            alias: Letters, digits, dots, underscores and hyphens; neither `latest` nor the form of a version.
            version: The version's number; None removes the alias. Its moves are kept.
            was: The version that it must name now, such as `v6`; empty if it must name none; by default any.

        Returns:
            The move.

        Raises:
            ChangedError: If the alias names another version than `was`, or another process was faster.
            RunNotFoundError: If there is no such version.
        """
        _checked(check_alias, alias)
        last = self._last(name).get(alias)
        move = self._next(last, name, alias, version, was)
        if is_same(move, last):
            assert last is not None
            return last

        self._write(name, move)
        if version is not None and not self._store.backend.artifact_versions(name, version):
            self.move(name, alias, None if last is None else last.version)  # a database has no lock
            raise ChangedError(f"{name}:v{version} has just been removed; {name}:{alias} names what it named before")
        return move

    def _write(self, name: str, move: Move) -> None:
        def written(now: Any) -> dict[str, Any]:
            if now is not None:
                named = Move.of(now) or "another version"
                raise ChangedError(
                    f"{name}:{move.alias} names {named}: another process was faster; look at it, and move it again"
                )
            if move.version is not None:
                self._require(name, move.version)  # within the lock of a folder
            return move.document()

        self._store.backend.documents.change(_KIND, move.key, written, name)

    def follow(self, name: str, moves: Iterable[Move]) -> list[str]:
        """Let the aliases of an artifact follow those of another store, as a branch of git is fast-forwarded.

        An alias gets the moves that this store lacks, with who made them and when, if this store has the version that
        it names now, and all its own moves are among them. A second call changes nothing.

        Args:
            name: The artifact's name.
            moves: All moves of its aliases in the other store.

        Returns:
            A sentence for each alias that both stores have moved on their own, which stays as it is here.
        """
        numbers = {each.digest: each.version for each in self._store.backend.artifact_versions(name)}
        here, there, stay = _by_alias(self.moves(name)), _by_alias(moves), []
        for alias, theirs in there.items():
            mine = here.get(alias, [])
            lacking = carried(mine, theirs, numbers)
            if lacking is None:
                command = typed_command(self._store.where, "artifacts", "alias", name, "VERSION", alias)
                stay.append(
                    f"alias {name}:{alias} stays {mine[-1]}: {self._store.where} and the other store have both moved "
                    f"it; to move it here: {command}"
                )
            for move in lacking or ():
                self._write(name, move)
        return stay

    def removable(self, names: Sequence[str], older_than_s: float) -> list[tuple[StoredArtifact, list[str]]]:
        """Return the versions that were neither logged nor used within some time, with the aliases that name each.

        The newest version of an artifact, which `latest` names, is left out.

        Args:
            names: Artifacts; all of the store if there are none.
            older_than_s: Seconds since the version was logged, and the last run that logged or used it started.
        """
        found, oldest = [], time.time() - older_than_s
        for name in names or self._store.backend.artifacts():
            present = self.of(name)
            for each in self._store.backend.artifact_versions(name)[:-1]:
                if _last_use(each) < oldest:
                    found.append((each, [alias for alias, move in present.items() if move.version == each.version]))
        return found

    def remove_versions(self, versions: Iterable[StoredArtifact]) -> Removed:
        """Remove versions, and delete the contents that no other version has; an error leaves those that follow.

        `removed_versions` returns from then on who removed them: `Store.author`.

        Raises:
            StoreError: If an alias names one, it is the newest, or it cannot be removed.
        """
        removed = Removed()
        author = self._store.author
        by = {"by": storable_text(author.name)[:MAX_TEXT], "via": author.via}
        for each in versions:
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
            note = {"digest": each.digest, **by, "time": now}
            # First: as long as the version is there, the note says nothing.
            self._store.backend.documents.change(
                _REMOVED, f"v{each.version}", functools.partial(_noted, note), each.name
            )
            self._store.backend.remove_version(each.name, each.version)
        self._store.backend.reclaim(removed, GRACE_S)
        return removed

    def removed_versions(self, name: str) -> dict[int, dict[str, str]]:
        """Return who removed which version of an artifact: `by`, `via`, `time` in UTC, and its `digest`, by number."""
        _checked(check_name, name)
        notes = self._store.backend.documents.read(_REMOVED, name)
        numbers = {int(key[1:]): note for key, note in notes.items() if re.fullmatch(r"v\d{1,9}", key)}
        there = {each.version for each in self._store.backend.artifact_versions(name)} if numbers else set()
        return {
            number: {entry: str(note.get(entry, "")) for entry in ("by", "via", "time", "digest")}
            for number, note in sorted(numbers.items())
            if number not in there and isinstance(note, dict)
        }

    def _next(self, last: Move | None, name: str, alias: str, version: int | None, was: int | str | None) -> Move:
        target = None if version is None else (version, self._require(name, version).digest)
        author = self._store.author
        try:
            return next_move(
                last, name, alias, target, was=was, by=author.name, via=author.via, where=self._store.where
            )
        except ArtifactMovedError as error:
            raise ChangedError(str(error)) from error
        except ArtifactError as error:
            raise StoreError(str(error)) from error

    def _require(self, name: str, version: int) -> StoredArtifact:
        versions = self._store.backend.artifact_versions(name, version)
        return versions[0] if versions else self.resolve(f"{name}:v{version}")

    def names_of(self, version: StoredArtifact, newest: int) -> list[str]:
        """Return the aliases that name a version, with `latest` if it is the newest one."""
        named = [alias for alias, move in self.of(version.name).items() if move.version == version.version]
        return [*([LATEST] if version.version == newest else []), *named]


def _last_use(version: StoredArtifact) -> float:
    """Return when a version was logged, or the last run started that logged or used it; uids begin with that time."""
    runs = [int(uid[:12], 16) / 1000 for uid in (*version.made_by, *version.used_by) if is_uid(uid)]
    return max([0.0 if version.created is None else version.created.timestamp(), *runs])


def _noted(note: dict[str, str], now: Any) -> dict[str, str]:
    return note


def _by_alias(moves: Iterable[Move]) -> dict[str, list[Move]]:
    """Return moves by alias, in the order of their numbers."""
    moves_by_alias: dict[str, list[Move]] = {}
    for move in sorted(moves, key=lambda move: (move.alias, move.number)):
        moves_by_alias.setdefault(move.alias, []).append(move)
    return moves_by_alias


def _checked(check: Any, value: Any) -> Any:
    try:
        return check(value)
    except ArtifactError as error:
        raise StoreError(str(error)) from error
