"""`Artifact`: files that a script puts together and logs as one version, with the names that scripts know from W&B."""

from __future__ import annotations

import contextlib
import glob
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sacristan.observers.artifacts import ArtifactVersion
from sacristan.observers.artifacts.aliases import LATEST
from sacristan.observers.errors import ArtifactError, ArtifactMovedError
from sacristan.observers.media.kinds import Media

_log = logging.getLogger(__name__)

# How often to move an alias again that other processes move at the same time.
_MOST_TRIES = 100


class UsedArtifact:
    """A version of an artifact; its files are verified when they are read.

    Attributes:
        version: Such as `v3`; empty before it is logged.
        metadata: Facts about it, by name.
    """

    def __init__(self, version: ArtifactVersion | None) -> None:
        self._version = version
        self._aliases: list[str] | None = None
        self.metadata: dict[str, Any] = {} if version is None else dict(version.metadata)

    @property
    def _stored(self) -> ArtifactVersion:
        if self._version is None:
            raise ArtifactError("artifact: this one is not logged yet; log it first: run.log_artifact(artifact)")
        return self._version

    @property
    def name(self) -> str:
        """Its name and version, such as `digits:v1`."""
        return str(self._stored)

    @property
    def type(self) -> str:
        """Its type."""
        return self._stored.type

    @property
    def version(self) -> str:
        """Its version, such as `v1`; empty before it is logged."""
        return "" if self._version is None else f"v{self._version.version}"

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of its files."""
        return self._stored.digest

    @property
    def size(self) -> int:
        """Bytes of its files together."""
        return self._stored.bytes

    @property
    def aliases(self) -> list[str]:
        """The aliases that name it, among them `latest`; change the list, and call `save`."""
        if self._aliases is None:
            self._aliases = [] if self._version is None else self._version.aliases
        return self._aliases

    def save(self) -> None:
        """Move the aliases that were added to `aliases` to this version, and remove those that were taken away.

        Raises:
            ArtifactError: If an alias cannot be moved.
        """
        version = self._stored
        wanted, before = set(self.aliases), set(version.aliases)
        for alias in sorted(wanted - before - {LATEST}):
            version.alias(alias)
        for alias in sorted(before - wanted - {LATEST}):
            version.remove_alias(alias)
        self._aliases = None

    @property
    def description(self) -> str | None:
        """Its description."""
        return self.metadata.get("description")

    def files(self) -> list[str]:
        """Return the names of its files."""
        return [file.path for file in self._stored.files]

    def download(self, root: str | Path | None = None, **options: Any) -> str:
        """Copy its files into a folder, by default `artifacts/NAME:VERSION`, and return the folder.

        Raises:
            ArtifactError: If a file is damaged or cannot be written.
        """
        return str(self._stored.copy_to(Path("artifacts", str(self._stored)) if root is None else root))

    def file(self, root: str | Path | None = None) -> str:
        """Copy its only file into a folder, and return its path.

        Raises:
            ArtifactError: If it has several, one is damaged, or it cannot be written.
        """
        names = self.files()
        if len(names) != 1:
            raise ArtifactError(f"{self.name}: has {len(names)} files, expected one; use download()")
        return str(Path(self.download(root), names[0]))

    def file_or_folder(self) -> str:
        """Copy its files, and return the path of its only one, or else their folder."""
        return self.file() if len(self.files()) == 1 else self.download()

    def wait(self, timeout: int | None = None) -> Any:
        """Return the artifact: it is kept when `log_artifact` returns."""
        return self


class Artifact(UsedArtifact):
    """A draft of a version: add files, and log it.

        artifact = sacristan.Artifact("digits", type="dataset")
        artifact.add_dir("data/digits")
        run.log_artifact(artifact)

    Args:
        name: Its name: letters, digits, dots, underscores, hyphens.
        type: Its type, such as dataset, model, code.
        description: Kept in its metadata.
        metadata: Facts about it, by name; JSON.
        **options: W&B's other ones, without a meaning.
    """

    def __init__(
        self,
        name: str,
        type: str = "dataset",
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(None)
        self._name, self._type = name, type
        self.metadata = {**(metadata or {}), **({} if description is None else {"description": description})}
        self._paths: dict[str, Path] = {}
        self._links: dict[str, str] = {}
        self._made: tempfile.TemporaryDirectory[str] | None = None

    @property
    def name(self) -> str:
        """Its name; with its version once it is logged."""
        return self._name if self._version is None else super().name

    @property
    def type(self) -> str:
        """Its type."""
        return self._type

    def files(self) -> list[str]:
        """Return the names of its files."""
        return sorted(self._paths) if self._version is None else super().files()

    def add_file(self, local_path: str | Path, name: str | None = None, **options: Any) -> None:
        """Add a file, which is read when the artifact is logged; `name` is its path in the artifact."""
        self._add(name or Path(local_path).name, Path(local_path))

    def add_dir(self, local_path: str | Path, name: str | None = None, **options: Any) -> None:
        """Add all files below a folder, which are read when the artifact is logged; `name` is its path there.

        Raises:
            ArtifactError: If there is no such folder.
        """
        folder = Path(local_path)
        if not folder.is_dir():
            raise ArtifactError(f"{self._name}: {folder} is no folder; add a file by add_file")
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._add(str(PurePosixPath(name or "", path.relative_to(folder).as_posix())), path)

    def add_reference(self, uri: str, name: str | None = None, **options: Any) -> None:
        """Note an address in the metadata, as `references`; its content is not kept, except that of a `file://`."""
        path = Path(str(uri).removeprefix("file://"))
        if str(uri).startswith("file://") and path.exists():
            (self.add_dir if path.is_dir() else self.add_file)(path, name)
        else:
            self._links[name or str(uri).rpartition("/")[2]] = str(uri)

    def add(self, obj: Media, name: str, **options: Any) -> None:
        """Add an image, a table or another of the media, as a file."""
        content = obj.encode()
        with self.new_file(name if PurePosixPath(name).suffix else f"{name}{content.suffix}", "wb") as stream:
            stream.write(content.data)

    @contextlib.contextmanager
    def new_file(self, name: str, mode: str = "w", encoding: str | None = None) -> Iterator[IO[Any]]:
        """Open a new file of the artifact for writing."""
        if self._made is None:
            self._made = tempfile.TemporaryDirectory(prefix="sacristan-artifact-")
        path = Path(self._made.name, f"{len(self._paths)}")
        with path.open(mode, encoding=None if "b" in mode else encoding or "utf-8") as stream:
            yield stream
        self._add(name, path)

    def _add(self, name: str, path: Path) -> None:
        if self._version is not None:
            raise ArtifactError(f"{self._name}: it is logged, and a version never changes; make another Artifact")
        self._paths[str(PurePosixPath(name))] = path

    def log_into(self, run: Any, aliases: Sequence[str] | None = None) -> None:
        """Log it into a run, a `LabRun`; None records nothing."""
        if run is None:
            return
        self.metadata |= {"references": self._links} if self._links else {}
        with self._laid_out() as path:
            version = run.log_artifact(self._name, path, self._type, self.metadata)
        _move_aliases(version, [*self.aliases, *([aliases] if isinstance(aliases, str) else aliases or ())])
        self._version, self._aliases = version, None
        if self._made is not None:
            self._made.cleanup()

    @contextlib.contextmanager
    def _laid_out(self) -> Iterator[Path]:
        """Yield a folder with all files, or the only one."""
        only = next(iter(self._paths.items()), None)
        if only is not None and len(self._paths) == 1 and only[0] == only[1].name:
            yield only[1]
            return
        with tempfile.TemporaryDirectory(prefix="sacristan-artifact-") as folder:
            for name, path in self._paths.items():
                target = Path(folder, name)
                if not target.resolve().is_relative_to(Path(folder).resolve()):
                    raise ArtifactError(f"{self._name}: got a file named {name!r}, which is not below the artifact")
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    target.hardlink_to(path)
                except OSError:
                    _copy(path, target, self._name)
            yield Path(folder)


def _move_aliases(version: ArtifactVersion, aliases: Sequence[str]) -> None:
    """Move aliases to a version; skip `latest`, which moves by itself, and warn of invalid ones."""
    for alias in dict.fromkeys(aliases):
        if alias == LATEST:
            continue
        for _ in range(_MOST_TRIES):
            try:
                version.alias(alias)
            except ArtifactMovedError:
                continue  # another process was faster, and the last one counts
            except ArtifactError as error:
                _log.warning("%s keeps no alias %r: %s", version, alias, error)
            break


def _copy(path: Path, target: Path, name: str) -> None:
    try:
        shutil.copyfile(path, target)
    except OSError as error:
        raise ArtifactError(f"{name}: {path} cannot be read ({error.strerror or error})") from error


def log_artifact(
    run: Any,
    artifact: Any,
    name: str | None,
    type: str | None,
    aliases: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
) -> Artifact:
    """Log an artifact, or a file or folder as one; see `TrackedRun.log_artifact`."""
    if not isinstance(artifact, Artifact):
        path = Path(artifact)
        made = Artifact(name or path.name, type or "unspecified", metadata=metadata)
        (made.add_dir if path.is_dir() else made.add_file)(path)
        artifact = made
    elif metadata:
        artifact.metadata |= metadata
    artifact.log_into(run, aliases)
    return artifact


def use_artifact(run: Any, artifact: Any) -> UsedArtifact:
    """Return a version of an artifact; see `TrackedRun.use_artifact`."""
    if run is None:
        raise ArtifactError("use_artifact: this run is not recorded, and artifacts are kept beside the runs")
    if isinstance(artifact, Artifact) and not artifact.version:
        artifact.log_into(run)
    named = artifact.name if isinstance(artifact, UsedArtifact) else str(artifact)
    return UsedArtifact(run.use_artifact(named.rpartition("/")[2]))  # of W&B's ENTITY/PROJECT/NAME:ALIAS, the last part


def matching(pattern: str | Path) -> list[Path]:
    """Return the files that match a pattern, sorted."""
    return [path for path in map(Path, sorted(glob.glob(str(pattern), recursive=True))) if path.is_file()]  # noqa: PTH207 - an absolute pattern, too
