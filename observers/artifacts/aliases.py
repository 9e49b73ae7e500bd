"""Aliases: names of versions that move, such as `champion`.

    _artifacts/versions/<name>/aliases/<alias>.<number>.json   one move of an alias, which never changes

An alias is the list of its moves, which is only appended to; the last one says which version it names. A move gets its
number as a manifest does, by a hard link: if two processes move an alias at once, one of them learns what it names now.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.observers.artifacts.manifests import put_once
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError, ArtifactMovedError, ArtifactNotFoundError
from sacristan.observers.record.copies import share
from sacristan.observers.record.files import read_regular, sync_file, sync_folder
from sacristan.observers.record.identity import user_name
from sacristan.observers.record.json_text import parse_json, storable_text
from sacristan.observers.record.redaction import typed_command

# Always names the newest version; nobody moves it.
LATEST = "latest"
# When an alias got what it names, as `Move.time`, and the digest of that version; None for no version.
Named = tuple[str, str | None]
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSION = re.compile(r"[vV]?\d+")
_FILE = re.compile(r"(?P<alias>.+)\.(?P<number>[1-9]\d{0,8})\.json")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?")
_MAX_BYTES, MAX_TEXT = 2**16, 200


@dataclasses.dataclass(frozen=True)
class Move:
    """A move of an alias from one version to another, number 1 being its first.

    `version` and `digest` are those that it names from then on, None if it was removed; one from another store, to a
    version that this one lacks, has a digest alone. `was` is the number before, or None. `via` says how the user `by`
    is known: `board`, `token` or `proxy`, empty for the user of a process. `run` is the uid of the run whose code moved
    it.
    """

    alias: str
    number: int
    version: int | None
    digest: str | None
    was: int | None
    by: str
    via: str
    run: str | None
    time: str

    @classmethod
    def of(cls, document: Any) -> Move | None:
        """Return the move of a document; None if it is damaged."""
        kinds = {"alias": str, "number": int, "by": str, "via": str, "time": str}
        if not isinstance(document, Mapping) or not all(isinstance(document.get(k), t) for k, t in kinds.items()):
            return None
        numbers = [document.get(name) for name in ("version", "was")]
        texts = [document.get(name) for name in ("digest", "run")]
        if not all(value is None or isinstance(value, int) for value in numbers):
            return None
        if not all(value is None or (isinstance(value, str) and len(value) <= MAX_TEXT) for value in texts):
            return None
        is_valid = _ALIAS.fullmatch(document["alias"]) and document["number"] > 0 and _TIME.fullmatch(document["time"])
        if not is_valid or max(len(document["by"]), len(document["via"])) > MAX_TEXT:
            return None
        values: dict[str, Any] = {field.name: document.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**values)

    @property
    def key(self) -> str:
        """Its identity among the moves of an artifact."""
        return f"{self.alias}.{self.number}"

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        named = "no version" if self.version is None else f"v{self.version}"
        return f"{named} since {self.time[:19].replace('T', ' ')} UTC, by {self.by}"


def check_alias(alias: Any) -> str:
    """Check an alias, and return it."""
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        raise ArtifactError(
            f"alias: got {alias!r}, expected up to 64 letters (a-z, A-Z), digits, dots, underscores and hyphens, "
            "a letter or digit first"
        )
    if _VERSION.fullmatch(alias):
        raise ArtifactError(f"alias: got {alias!r}, which reads like a version, and versions never move; use a word")
    if alias == LATEST:
        raise ArtifactError("alias: got 'latest', which always names the newest version; use another word")
    return alias


def next_move(
    last: Move | None,
    name: str,
    alias: str,
    version: tuple[int, str] | None,
    *,
    was: int | str | None = None,
    by: str | None = None,
    via: str = "",
    run: str | None = None,
    time: str | None = None,
    where: str = "",
) -> Move:
    """Return the move of an alias after its `last` one to a version, number and digest, or None to remove it.

    `was` is the version that the alias must name now, such as 6 or `v6`, empty for none, by default any; if it names
    another, this raises ArtifactMovedError, and ArtifactNotFoundError if an alias that names none is removed.
    """
    now = None if last is None else last.version
    if was is not None and (expected := _expected(was)) != now:
        named = "no version" if last is None else last
        raise ArtifactMovedError(
            f"{name}:{alias} names {named}; expected {'no version' if expected is None else f'v{expected}'}: look at "
            "it, and move it again"
        )
    if version is None and now is None:
        command = typed_command(where, "artifacts", "alias", name)
        raise ArtifactNotFoundError(f"{name}:{alias}: there is no such alias; to see those that there are: {command}")
    return Move(
        alias=alias,
        number=1 if last is None else last.number + 1,
        version=None if version is None else version[0],
        digest=None if version is None else version[1],
        was=now,
        by=storable_text(by or user_name() or "user")[:MAX_TEXT],
        via=via,
        run=run,
        time=time or _time_text(datetime.now(UTC)),
    )


def _time_text(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat(timespec="microseconds")


def named_at(time: datetime, digest: str) -> Named:
    """Return what `latest` names, from when that version was created, in UTC."""
    return _time_text(time), digest


def named_by(places: Iterable[Mapping[str, Named]], digest: str) -> list[str]:
    """Return the aliases that name a version, `latest` first; of several places, the one that moved it last counts."""
    named: dict[str, Named] = {}
    for place in places:
        for alias, entry in place.items():
            named[alias] = max(named.get(alias, entry), entry, key=lambda each: each[0])
    return sorted((alias for alias in named if named[alias][1] == digest), key=lambda alias: (alias != LATEST, alias))


def _expected(was: int | str) -> int | None:
    if isinstance(was, int):
        return was
    if was and not _VERSION.fullmatch(was):
        raise ArtifactError(f"was: got {was!r}, expected a version such as v6, or nothing if the alias must be new")
    return int(was.lstrip("vV")) if was else None


def check_removable(name: str, version: int, newest: int, present: Mapping[str, Move], where: str) -> None:
    """Reject the removal of a version that an alias, or `latest`, names."""
    if named := [alias for alias, move in present.items() if move.version == version]:
        raise ArtifactError(
            f"{name}:v{version} is {', '.join(named)}: move the alias to another version first, or remove it: "
            f"{typed_command(where, 'artifacts', 'alias', name, '--remove', named[0])}"
        )
    if version == newest:
        raise ArtifactError(
            f"{name}:v{version} is the newest version, which {name}:latest names; log a newer one first"
        )


def is_same(move: Move, last: Move | None) -> bool:
    """Tell whether a move leaves an alias where it is."""
    return last is not None and (move.version, move.digest) == (last.version, last.digest)


def carried(there: Sequence[Move], here: Sequence[Move], numbers: Mapping[str, int]) -> list[Move] | None:
    """Return the moves of one alias `there` that are missing `here`; None if both have moved it on their own.

    Moves are known by time and digest. If `numbers`, the versions here by digest, lack the current one, there are none.
    """
    there_ids, here_ids = [_identity(move) for move in there], [_identity(move) for move in here]
    if not here or here_ids[-1] in there_ids or (there and there[-1].digest == here[-1].digest):
        return []
    if there_ids and there_ids[-1] not in here_ids:
        return None
    lacking = here[here_ids.index(there_ids[-1]) + 1 :] if there_ids else here
    last = here[-1]
    if last.digest not in numbers and not (last.digest is None and there_ids):
        return []
    moves: list[Move] = []
    was = there[-1].version if there else None
    for number, move in enumerate(lacking, len(there) + 1):
        version = None if move.digest is None else numbers.get(move.digest)
        moves.append(dataclasses.replace(move, number=number, version=version, was=was))
        was = version
    return moves


def _identity(move: Move) -> tuple[str, str | None]:
    return move.time, move.digest


def present_moves(moves: Iterable[Move]) -> dict[str, Move]:
    """Return the last move of each alias that names a version, by alias, sorted."""
    last: dict[str, Move] = {}
    for move in sorted(moves, key=lambda move: move.number):
        last[move.alias] = move
    return {alias: last[alias] for alias in sorted(last) if last[alias].version is not None}


def not_an_alias(name: str, alias: str, where: str, aliases: Iterable[str]) -> ArtifactNotFoundError:
    """Return the error for an alias that names no version."""
    names = list(aliases)
    hint = word_suggestion(alias, names, f"it has {', '.join(names[:8])}" if names else "it has none")
    return ArtifactNotFoundError(f"{name}:{alias}: {where} has no such alias of {name}; {hint}")


class AliasMoves:
    """The moves of the aliases of an artifact in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def numbers(self) -> dict[str, int]:
        """Return the number of the last move of each alias."""
        last: dict[str, int] = {}
        for match in self._files():
            last[match["alias"]] = max(last.get(match["alias"], 0), int(match["number"]))
        return last

    def keys(self) -> list[str]:
        """Return the `Move.key` of all moves."""
        return sorted(f"{match['alias']}.{match['number']}" for match in self._files())

    def all(self) -> list[Move]:
        """Return all moves, in the order of their times; damaged ones are errors."""
        moves = [self._read(match["alias"], int(match["number"])) for match in self._files()]
        return sorted((move for move in moves if move is not None), key=lambda move: (move.time, move.number))

    def last(self, alias: str) -> Move | None:
        """Return the last move of an alias; None if it never named a version."""
        number = self.numbers().get(alias, 0)
        while number and (move := self._read(alias, number)) is None:
            number -= 1  # a process without hard links has claimed the number, and writes the move now
        return move if number else None

    def present(self) -> dict[str, Move]:
        """Return the last move of each alias that names a version, by alias, sorted."""
        return present_moves(self.last_moves())

    def last_moves(self) -> list[Move]:
        """Return the last move of each alias, also of those that were removed."""
        moves = (self.last(alias) for alias in self.numbers())
        return [move for move in moves if move is not None]

    @staticmethod
    def path(folder: Path, key: str) -> Path:
        return folder / "aliases" / f"{key}.json"

    def add(self, move: Move) -> bool:
        """Append a move; return False if another process was faster."""
        return self.write(f"{move.key}.json", move.document())

    def write(self, name: str, document: Mapping[str, Any]) -> bool:
        """Write the document of a move once; return False if it is there."""
        target = self.folder / name
        temporary = self.folder / f".{name}.{os.urandom(4).hex()}.tmp"
        try:
            with temporary.open("xb") as stream:
                stream.write(json.dumps(document, indent=1).encode())
                stream.flush()
                sync_file(stream.fileno())
            is_first = put_once(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        if is_first:
            share(target)
            sync_folder(self.folder)
        return is_first

    def _files(self) -> list[re.Match[str]]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return []
        return [match for name in names if (match := _FILE.fullmatch(name))]

    def _read(self, alias: str, number: int) -> Move | None:
        path = self.folder / f"{alias}.{number}.json"
        try:
            raw = read_regular(path, _MAX_BYTES)
            move = Move.of(parse_json(raw)) if raw else None
        except (OSError, ValueError, RecursionError) as error:
            raise ArtifactDamagedError(
                f"{path}: this move of the alias {alias} cannot be read ({error}); restore it from a backup, or remove "
                "it, and move the alias again"
            ) from error
        if raw and (move is None or (move.alias, move.number) != (alias, number)):
            raise ArtifactDamagedError(f"{path}: this is no move of the alias {alias}; remove it, and move it again")
        return move
