"""`ArtifactStore`: named data sets, models and code with versions, beside the runs of a folder.

    _artifacts/contents/ab/<sha256>          each content once, over all artifacts and runs
    _artifacts/versions/<name>/v1.json       the manifest of a version, which never changes
    _artifacts/versions/<name>/made/v1/<uid> an empty file for each run that logged it
    _artifacts/versions/<name>/used/v1/<uid> an empty file for each run that used it
    _artifacts/versions/<name>/aliases/      see `sacristan.observers.artifacts.aliases`
    _artifacts/incoming/                     files that are not complete yet

There are no locks (see `sacristan.observers.artifacts`). Without hard links, two processes that log one
content at the same time may create two versions with the same digest, which is harmless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.observers.artifacts import ArtifactVersion, check_name, digest_of, parse_reference
from sacristan.observers.artifacts.aliases import (
    LATEST,
    AliasMoves,
    Move,
    Named,
    check_alias,
    check_removable,
    is_same,
    named_at,
    named_by,
    next_move,
    not_an_alias,
)
from sacristan.observers.artifacts.intake import Incoming, make_read_only, take_tree
from sacristan.observers.artifacts.manifests import Manifests, checked_metadata
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError, ArtifactMovedError, ArtifactNotFoundError
from sacristan.observers.record.copies import CopyProgress, make_shared
from sacristan.observers.record.files import shown_path, sync_file
from sacristan.observers.record.folders import claimed

_log = logging.getLogger(__name__)

ARTIFACTS = "_artifacts"
# Lists of artifact versions in the record of a run, and the marks of its relation to them.
RELATIONS = {"artifacts_logged": "made", "artifacts_used": "used"}
# Before the name of a content that is about to be deleted.
_ASIDE = ".removing-"


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The runs that made and used a version, by uid, in the order in which they started.

    Attributes:
        made_by: The runs that logged it.
        used_by: The runs that used it.
    """

    made_by: tuple[str, ...]
    used_by: tuple[str, ...]


class ArtifactStore:
    """The artifacts of a folder of runs. Reading executes no code, and creates no folder.

        store = ArtifactStore("my_runs")
        version = store.log("digits", "data/digits", metadata={"classes": 10})
        store.resolve("digits:latest").copy_to("restored")

    Args:
        basedir: The folder of runs, such as my_runs.
    """

    def __init__(self, basedir: str | Path) -> None:
        self.basedir = Path(basedir)
        self.root = self.basedir / ARTIFACTS
        self.contents = self.root / "contents"
        self._manifests = Manifests(self.root / "versions", self.contents, self)

    # ------------------------------------------------------------------ writing

    def log(
        self,
        name: str,
        path: str | Path,
        type: str = "dataset",
        metadata: Mapping[str, Any] | None = None,
        made_by: str | None = None,
    ) -> ArtifactVersion:
        """Keep a file or folder as the newest version of an artifact.

        It is read and copied in the caller's thread. Times and permissions of files, and empty folders, are not kept.
        If a version has the same content, it keeps its type and metadata.

        Args:
            name: The artifact's name.
            path: The file or folder.
            type: Such as dataset, model, code.
            metadata: JSON, by name.
            made_by: The uid of the run that logs it.

        Returns:
            The new version, or the existing one with the same content.

        Raises:
            ArtifactError: If a name is invalid, a file cannot be read or is rejected (see `take_tree`), or the store
                cannot be written; then no partial version is left.
        """
        name, type, metadata = check_name(name), check_name(type, "artifact type"), checked_metadata(metadata)
        with self._writing(name, "make room or check its permissions, and log it again"):
            with Incoming(self.root) as incoming:
                files = take_tree(Path(path), incoming, self._likely(name))
                version = ArtifactVersion(
                    name=name,
                    version=0,
                    digest=digest_of(files),
                    type=type,
                    files=tuple(files),
                    bytes=sum(file.bytes for file in files),
                    metadata=metadata,
                    made_by=made_by,
                    created=datetime.now(UTC),
                    contents=self.contents,
                )
                version = self._publish(incoming, version)
            if made_by is not None:
                self._mark("made", version, made_by)
        if (version.type, version.metadata) != (type, metadata):
            _log.warning("%s has this content already; its type and metadata stay as they were logged first", version)
        return version

    def note_use(self, version: ArtifactVersion, uid: str) -> None:
        """Note that a run used a version, if the version belongs to this store.

        Args:
            version: The version.
            uid: The run's uid.

        Raises:
            ArtifactError: If the store cannot be written.
        """
        with contextlib.suppress(ArtifactDamagedError):
            stored = self._manifests.read(version.name, version.version)
            if stored is not None and stored.digest == version.digest:
                self.note_run("used", stored, uid)

    def note_run(self, relation: str, version: ArtifactVersion, uid: str) -> None:
        """Note that a run made or used a version of this store.

        Args:
            relation: `made` or `used`.
            version: The version.
            uid: The run's uid.

        Raises:
            ArtifactError: If the store cannot be written.
        """
        with self._writing(str(version), "make room or check its permissions"):
            self._mark(relation, version, uid)

    @contextlib.contextmanager
    def _writing(self, subject: str, advice: str) -> Iterator[None]:
        """Report that the store cannot be written."""
        try:
            yield
        except OSError as error:
            raise ArtifactError(f"{subject}: {self.root} cannot be written ({error.strerror}); {advice}") from error

    def _mark(self, relation: str, version: ArtifactVersion, uid: str) -> None:
        folder = self._folder(version.name) / relation / f"v{version.version}"
        make_shared(folder, self.root)
        (folder / check_name(uid, "uid")).touch()

    def _likely(self, name: str) -> set[tuple[str, int]]:
        """Return name and length of the files in the latest version, most of which are usually unchanged."""
        with contextlib.suppress(ArtifactError):
            latest = self._manifests.latest(name)
            return {(file.path, file.bytes) for file in latest.files} if latest else set()
        return set()

    def take(self, version: ArtifactVersion) -> ArtifactVersion:
        """Keep a version of another store.

        Args:
            version: The version.

        Returns:
            The version, with its number in this store.

        Raises:
            ArtifactError: If a content of it is damaged, or this store cannot be written.
        """
        with (
            self._writing(str(version), "make room or check its permissions"),
            Incoming(self.root) as incoming,
            CopyProgress(str(version), version.bytes) as progress,
        ):
            for file in {file.sha256: file for file in version.files}.values():
                if not incoming.holds(file.sha256, file.bytes):
                    with version.stored(file) as stream:
                        if incoming.take(stream, file.bytes, progress)[0] != file.sha256:
                            raise ArtifactDamagedError(f"{version}: the content of {file.path} is not what was logged")
            return self._publish(incoming, dataclasses.replace(version, contents=self.contents))

    def _publish(self, incoming: Incoming, version: ArtifactVersion) -> ArtifactVersion:
        """Make everything in `incoming` visible, the manifest last, and return the version with its number."""
        manifest = incoming.folder / "manifest"
        with manifest.open("wb") as stream:
            stream.write(version.manifest())
            stream.flush()
            sync_file(stream.fileno())
        make_read_only(manifest)
        incoming.flush()
        incoming.publish()
        number = self._manifests.add(manifest, version.name, version.digest)
        return self._manifests.read(version.name, number) or dataclasses.replace(version, version=number)

    # ------------------------------------------------------------------ aliases

    def alias(
        self,
        name: str,
        alias: str,
        version: int | None,
        was: int | str | None = None,
        *,
        by: str | None = None,
        run: str | None = None,
    ) -> Move:
        """Let an alias of an artifact name a version from now on, or none; every move of it is kept.

            store.alias("net", "champion", 7)

        It is moved once or not at all: of two processes that move it at once, one learns what it names now. To move an
        alias to the version that it names changes nothing.

        Args:
            name: The artifact's name.
            alias: Letters, digits, dots, underscores and hyphens; neither `latest` nor the form of a version.
            version: The version's number; None removes the alias. Its moves are kept.
            was: The version that it must name now, such as `v6`; empty if it must name none; by default any.
            by: Who moves it; by default the user of this process.
            run: The uid of the run whose code moves it.

        Returns:
            The move.

        Raises:
            ArtifactMovedError: If the alias names another version than `was`, or another process was faster.
            ArtifactNotFoundError: If there is no such version, or no such alias to remove.
            ArtifactError: If the alias is invalid, or the store cannot be written.
        """
        check_alias(alias)
        folder = self._folder(check_name(name)) / "aliases"
        if version is not None:
            self.resolve(f"{name}:v{version}")
        moves = AliasMoves(folder)
        with self._writing(f"{name}:{alias}", "make room or check its permissions, and move it again"):
            make_shared(folder, self.root)
            with claimed(folder):  # no version is removed meanwhile
                target = None if version is None else self.resolve(f"{name}:v{version}")
                last = moves.last(alias)
                named = None if target is None else (target.version, target.digest)
                move = next_move(last, name, alias, named, was=was, by=by, run=run, where=str(self.basedir))
                if last is not None and is_same(move, last):
                    return last
                if not moves.add(move):
                    raise ArtifactMovedError(
                        f"{name}:{alias} names {moves.last(alias)}: another process was faster; look at it, and move "
                        "it again"
                    )
        return move

    def move_alias(self, version: ArtifactVersion, alias: str, was: int | str | None) -> None:
        """Let an alias name a version of this store; see `ArtifactVersion.alias`."""
        self.alias(version.name, alias, version.version, was)

    def remove_alias(self, version: ArtifactVersion, alias: str) -> None:
        """Remove an alias of a version of this store; see `ArtifactVersion.remove_alias`."""
        self.alias(version.name, alias, None, was=version.version)

    def aliases_of(self, version: ArtifactVersion) -> list[str]:
        """Return the aliases that name a version of this store, `latest` first; see `ArtifactVersion.aliases`."""
        return named_by([self.named(version.name)], version.digest)

    def named(self, name: str) -> dict[str, Named]:
        """Return what `latest` and all aliases of an artifact name, by alias."""
        newest = self._manifests.latest(name)
        latest = {} if newest is None else {LATEST: named_at(newest.created, newest.digest)}
        return latest | {move.alias: (move.time, move.digest) for move in self._moves(name).last_moves()}

    def aliases(self, name: str) -> dict[str, Move]:
        """Return the last move of each alias of an artifact that names a version, by alias.

        Args:
            name: The artifact's name.

        Raises:
            ArtifactDamagedError: If a move cannot be read.
        """
        return self._moves(check_name(name)).present()

    def alias_moves(self, name: str) -> list[Move]:
        """Return all moves of the aliases of an artifact, the oldest first.

        Args:
            name: The artifact's name.

        Raises:
            ArtifactDamagedError: If a move cannot be read.
        """
        return self._moves(check_name(name)).all()

    def _moves(self, name: str) -> AliasMoves:
        return AliasMoves(self._folder(name) / "aliases")

    # ------------------------------------------------------------------ removing

    def remove(self, name: str, version: int) -> None:
        """Remove a version; its number is not given again, and `reclaim` deletes contents that no version has any more.

        Args:
            name: The artifact's name.
            version: The version's number.

        Raises:
            ArtifactNotFoundError: If there is no such version.
            ArtifactError: If an alias or `latest` names it, or the store cannot be written.
        """
        folder = self._folder(check_name(name)) / "aliases"
        self.resolve(f"{name}:v{version}")
        with self._writing(f"{name}:v{version}", "check its permissions"):
            make_shared(folder, self.root)
            with claimed(folder):  # no alias is moved meanwhile
                newest = self.resolve(name).version
                check_removable(name, version, newest, AliasMoves(folder).present(), str(self.basedir))
                self._manifests.remove(name, version)

    def reclaim(self, grace_s: float) -> tuple[list[int], int]:
        """Delete contents that no version has; return their sizes, and how many younger ones stay.

        Args:
            grace_s: Contents that were stored or found again within these seconds stay; a version may soon name them.

        Raises:
            ArtifactDamagedError: If a manifest is damaged, which may name any content; then all stay.
            ArtifactError: If the store cannot be read.
        """
        with self._writing("artifacts", "check its permissions"):
            for path in self.contents.glob(f"??/{_ASIDE}*"):  # of a killed process
                _put_back(path)
            oldest, named, sizes = time.time() - grace_s, self._named_contents(), []
            unused = [path for path in self.contents.glob("??/*") if path.name not in named]
            old = [path for path in unused if path.stat().st_mtime < oldest]
            # Set aside first, so that who logs the same content from now on stores it again.
            aside = [path.rename(path.with_name(_ASIDE + path.name)) for path in old]
            named = self._named_contents()
            for path in aside:
                status = path.stat()
                if path.name.removeprefix(_ASIDE) in named or status.st_mtime >= oldest:
                    _put_back(path)
                else:
                    path.unlink()
                    sizes.append(status.st_size)
        return sizes, len(unused) - len(old)

    def _named_contents(self) -> set[str]:
        every = ((name, number) for name in self.names() for number in self._manifests.numbers(name))
        versions = (self._manifests.read(name, number) for name, number in every)
        return {file.sha256 for version in versions if version is not None for file in version.files}

    # ------------------------------------------------------------------ reading

    def names(self) -> list[str]:
        """Return the names of all artifacts, sorted."""
        return self._manifests.names()

    def versions(self, name: str) -> list[ArtifactVersion]:
        """Return all versions that can be read, the oldest first; each damaged one is logged as an error.

        Args:
            name: The artifact's name.
        """
        return self._manifests.versions(check_name(name))

    def resolve(self, reference: str) -> ArtifactVersion:
        """Return the version that a reference stands for.

        Args:
            reference: `name`, `name:latest`, `name:champion` with an alias, `name:v3`, or `name@` and the start of its
                digest.

        Raises:
            ArtifactNotFoundError: If there is none.
            ArtifactDamagedError: If its manifest is damaged.
            ArtifactError: If the reference is invalid or ambiguous.
        """
        wanted = parse_reference(reference)
        if wanted.digest is not None:
            return self._by_digest(wanted.name, wanted.digest)
        if wanted.alias is not None:
            version = self._by_alias(wanted.name, wanted.alias, reference)
        elif wanted.number is None:
            version = self._manifests.latest(wanted.name)
        else:
            version = self._manifests.read(wanted.name, wanted.number)
        if version is None:
            raise ArtifactNotFoundError(self._not_there(wanted.name, reference))
        return version

    def lineage(self, name: str, version: int) -> Lineage:
        """Return the runs that made and used a version.

        Args:
            name: The artifact's name.
            version: The version's number.

        Raises:
            ArtifactNotFoundError: If there is no such version.
            ArtifactDamagedError: If its manifest is damaged.
        """
        first = self.resolve(f"{name}:v{version}").made_by
        made, used = (self._marks(name, relation, version) for relation in ("made", "used"))
        return Lineage(tuple(sorted(made | ({first} if first else set()))), tuple(sorted(used)))

    def _marks(self, name: str, relation: str, version: int) -> set[str]:
        try:
            return set(os.listdir(self._folder(name) / relation / f"v{version}"))  # noqa: PTH208 - names are wanted
        except OSError:
            return set()

    def _folder(self, name: str) -> Path:
        return self._manifests.home / name

    def _by_digest(self, name: str, digest: str) -> ArtifactVersion:
        versions: dict[str, ArtifactVersion] = {}
        for version in self.versions(name):
            if version.digest.startswith(digest):
                versions.setdefault(version.digest, version)
        if not versions:
            raise ArtifactNotFoundError(self._not_there(name, f"{name}@{digest}"))
        if len(versions) > 1:
            several = ", ".join(f"{version} ({whole[:16]})" for whole, version in versions.items())
            raise ArtifactError(f"{name}@{digest}: it stands for several: {several}; give more digits")
        return next(iter(versions.values()))

    def _by_alias(self, name: str, alias: str, reference: str) -> ArtifactVersion | None:
        if not self._manifests.numbers(name):
            raise ArtifactNotFoundError(self._not_there(name, reference))
        moves = self._moves(name)
        last = moves.last(alias)
        if last is None or last.version is None:
            raise not_an_alias(name, alias, shown_path(self.basedir), moves.present())
        return self._manifests.read(name, last.version)

    def _not_there(self, name: str, reference: str) -> str:
        numbers, where = list(self._manifests.numbers(name)), shown_path(self.basedir)
        if numbers:
            last = f" to v{numbers[-1]}" if len(numbers) > 1 else ""
            return f"{reference}: {where} has no such version of {name}; it has v{numbers[0]}{last}"
        hint = word_suggestion(name, self.names(), "log it first: _run.log_artifact(name, path)")
        return f"{reference}: {where} has no artifact {name}; {hint}"


def _put_back(path: Path) -> None:
    """Give a content that was set aside its name again, unless it was stored again."""
    content = path.with_name(path.name.removeprefix(_ASIDE))
    if content.exists():
        path.unlink()
    else:
        path.rename(content)
