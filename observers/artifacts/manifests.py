"""The manifests of the versions in a folder, each under its number.

A manifest is written elsewhere, and gets its number by a hard link, which fails if another process was faster. So
versions are numbered without gaps, and a content gets only one. Without hard links, an empty file claims the number and
the manifest replaces it: readers skip the claim, and a process that is killed in between leaves a number without a
version.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sacristan.observers.artifacts import AliasKeeper, ArtifactVersion, from_manifest
from sacristan.observers.errors import ArtifactDamagedError, ArtifactError
from sacristan.observers.record.copies import make_shared, share
from sacristan.observers.record.files import read_regular, sync_folder
from sacristan.observers.record.json_text import parse_json

_log = logging.getLogger(__name__)

MAX_METADATA_BYTES = 256 * 1024
MAX_METADATA_DEPTH = 32
_MANIFEST = re.compile(r"v([1-9]\d{0,8})\.json")
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EINVAL}
# How long to wait for a manifest whose number another process has claimed, without hard links.
_CLAIM_S = 2.0


class Manifests:
    """The manifests in a folder, `<name>/v<number>.json`."""

    def __init__(self, home: Path, contents: Path, keeper: AliasKeeper) -> None:
        self.home = home
        self.contents = contents
        self._keeper = keeper
        # Digests of manifests that were read, so that frequent logging does not read all of them again.
        self._digests: dict[tuple, str] = {}

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.home) if self.numbers(entry.name))
        except OSError:
            return []

    def numbers(self, name: str) -> dict[int, tuple[int, int, int]]:
        """Return every number in use, in order, with a stamp that changes with the manifest."""
        stamps = {}
        try:
            entries = list(os.scandir(self.home / name))
        except OSError:
            return {}
        for entry in entries:
            match = _MANIFEST.fullmatch(entry.name)
            if match:
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    stamps[int(match[1])] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return dict(sorted(stamps.items()))

    def read(self, name: str, number: int) -> ArtifactVersion | None:
        """Return a version; None if there is none, or only a claim to its number."""
        path = self.home / name / f"v{number}.json"
        try:
            raw = read_regular(path)
            document = parse_json(raw) if raw else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or "it is not JSON"
            raise ArtifactDamagedError(
                f"{name}:v{number}: its manifest {path} is damaged ({reason}); log its content again"
            ) from error
        return from_manifest(document, name, number, self.contents, self._keeper) if raw else None

    def remove(self, name: str, number: int) -> None:
        """Remove a manifest; a killed process leaves it or removes it."""
        (self.home / name / f"v{number}.json").unlink()
        sync_folder(self.home / name)

    def latest(self, name: str) -> ArtifactVersion | None:
        """Return the newest version, or None. If it is damaged, raise: an older one is no substitute."""
        for number in reversed(self.numbers(name)):
            version = self.read(name, number)
            if version is not None:
                return version
        return None

    def versions(self, name: str) -> list[ArtifactVersion]:
        """Return all versions that can be read, the oldest first; each damaged one is logged as an error."""
        versions = []
        for number in self.numbers(name):
            try:
                version = self.read(name, number)
            except ArtifactDamagedError as error:
                _log.error("%s", error)
                continue
            versions += [version] if version is not None else []
        return versions

    def add(self, manifest: Path, name: str, digest: str) -> int:
        """Give a manifest the next free number unless a version has its content; return that version's number."""
        folder = self.home / name
        make_shared(folder, self.home.parent)
        # One listing for both; a manifest between two listings would be neither found nor in the way of the number.
        taken = self.numbers(name)
        newest = max(taken, default=0)
        for number in range(1, newest + 1):
            if self._digest(name, number, taken.get(number)) == digest:
                return number
            if number in taken and taken[number][1] == 0 and self._digest_when_written(name, number) == digest:
                return number
        number = newest + 1
        while not put_once(manifest, folder / f"v{number}.json"):
            # Another process was faster, perhaps with the same content.
            if self._digest_when_written(name, number) == digest:
                return number
            number += 1
        share(folder / f"v{number}.json")
        sync_folder(folder)
        return number

    def _digest(self, name: str, number: int, stamp: tuple[int, int, int] | None) -> str | None:
        """Return the digest of a version; None if it cannot be read."""
        key = (name, number, stamp)
        if key not in self._digests:
            try:
                version = self.read(name, number)
            except ArtifactDamagedError:
                return None
            if version is None:
                return None
            if stamp is None:
                return version.digest
            self._digests[key] = version.digest
        return self._digests[key]

    def _digest_when_written(self, name: str, number: int) -> str | None:
        """Return the digest of a version that another process may be writing; None if it does not appear."""
        path, deadline = self.home / name / f"v{number}.json", time.monotonic() + _CLAIM_S
        try:
            while (version := self.read(name, number)) is None:
                if time.monotonic() > deadline or time.time() - path.stat().st_mtime > _CLAIM_S:
                    return None
                time.sleep(0.02)
        except (ArtifactDamagedError, OSError):
            return None
        return version.digest


def put_once(path: Path, target: Path) -> bool:
    """Move a whole file to its place, if that is free; readers find all of it, an empty file, or nothing."""
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    else:
        return True
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    path.replace(target)
    return True


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of a version as JSON."""

    def as_json(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch; masked ones are null
            is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
            return (value.astype(str) if is_time else value).tolist()
        raise TypeError(f"it holds a {type(value).__name__}")

    if metadata is None:
        return {}
    try:
        text = json.dumps(metadata, default=as_json)
        checked = parse_json(text)
        if not isinstance(checked, dict):
            raise TypeError(f"it is a {type(metadata).__name__}")
        if len(text) > MAX_METADATA_BYTES or _depth(checked) > MAX_METADATA_DEPTH:
            raise ValueError(f"it is larger than {MAX_METADATA_BYTES // 1024} KiB or {MAX_METADATA_DEPTH} levels")
    except Exception as error:  # an object may raise anything when it is inspected
        raise ArtifactError(
            f"artifact metadata: {error}; expected a dict of what JSON holds, up to 256 KiB; put more into a file"
        ) from error
    return checked


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)
