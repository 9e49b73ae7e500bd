"""Versions of artifacts with the runs that made them: command, data, settings and metrics; and two of them compared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.query import Changes, changes, dotted, mappings_in

if TYPE_CHECKING:
    from sacristan.runs.stores import Store
    from sacristan.runs.stores.content import StoredArtifact
    from sacristan.runs.stores.run import Run

STATISTICS = ("last", "min", "max")


class VersionFile(TypedDict):
    """A file of a version.

    Attributes:
        path: Its name in the artifact.
        bytes: Its size.
        sha256: Its SHA-256; null if the store does not list it.
    """

    path: str
    bytes: int
    sha256: str | None


class VersionRun(TypedDict):
    """The run that made a version first.

    Attributes:
        id, uid, name, status: The run, and its experiment.
        command: The command that made the version, as it was typed; empty if the record lacks it.
        card: The command that writes its model card.
        data: Versions of artifacts that it used, by name.
        config: Its settings.
        result: Its result; null without one.
        metrics: Last, least and greatest value of each metric, without those of the machine.
    """

    id: str
    uid: str | None
    name: str
    status: str
    command: str
    card: str
    data: dict[str, str]
    config: dict[str, Any]
    result: Any
    metrics: dict[str, dict[str, Any]]


class RemovedVersion(TypedDict):
    """A version of the artifact that was removed.

    Attributes:
        version: Its number.
        by: Who removed it.
        via: How the name is known: `board`, `token` or `proxy`; empty for the user of a process.
        time: When, in UTC.
        digest: Its digest.
    """

    version: int
    by: str
    via: str
    time: str
    digest: str


class ShownVersion(TypedDict):
    """A version of an artifact; printed by `show`.

    Attributes:
        name, version: The artifact, and the number of the version.
        aliases: The aliases that name it, with `latest` if it is the newest.
        type, digest, created, metadata: What it was logged with; when, in UTC.
        bytes: The size of all files.
        files: Its files.
        made_by, used_by: Uids of the runs that logged and used it.
        run: The run that logged it first; null if it is not in the store.
        removed: The versions of the artifact that were removed.
    """

    name: str
    version: int
    aliases: list[str]
    type: str
    digest: str
    created: str | None
    metadata: dict[str, Any]
    bytes: int
    files: list[VersionFile]
    made_by: list[str]
    used_by: list[str]
    run: VersionRun | None
    removed: list[RemovedVersion]


class ComparedVersions(TypedDict):
    """Two versions; printed by `compare`. Each part has what was `changed`, `added` and `removed`.

    Attributes:
        a, b: The versions, such as `net:v3`.
        differ: Whether their files differ.
        files: SHA-256 of the files by path.
        sizes: Sizes of the files by path.
        metadata: Metadata by dotted name.
        aliases: Aliases.
        data: Versions of artifacts that their runs used.
        config: Settings of their runs.
        metrics: Results, and statistics of the metrics, of their runs.
    """

    a: str
    b: str
    differ: bool
    files: Changes
    sizes: Changes
    metadata: Changes
    aliases: Changes
    data: Changes
    config: Changes
    metrics: Changes


def shown_version(store: Store, version: StoredArtifact) -> ShownVersion:
    """Return a version with its aliases and the run that made it."""
    newest = store.artifact_versions(version.name)[-1].version
    run = _maker_of(store, version)
    return ShownVersion(
        name=version.name,
        version=version.version,
        aliases=store.aliases.names_of(version, newest),
        type=version.type,
        digest=version.digest,
        created=None if version.created is None else version.created.replace(tzinfo=None).isoformat(timespec="seconds"),
        metadata=dict(version.metadata),
        bytes=version.num_bytes,
        files=[VersionFile(path=path, bytes=n, sha256=version.hashes.get(path)) for path, n in version.sizes.items()],
        made_by=list(version.made_by),
        used_by=list(version.used_by),
        run=None if run is None else _run_of(run),
        removed=[RemovedVersion(version=n, **note) for n, note in store.aliases.removed_versions(version.name).items()],  # type: ignore[typeddict-item]  # its entries
    )


def _maker_of(store: Store, version: StoredArtifact) -> Run | None:
    """Return the run that logged a version first; None if it is not in the store."""
    if not version.made_by:
        return None
    found = {run.uid: run for run in store.find({"uid": {"$in": list(version.made_by)}})}
    return next((found[uid] for uid in version.made_by if uid in found), None)


def command_of(run: Run) -> str:
    """Return the command that started a run, as it was typed; empty if the record lacks it."""
    words = run.get("command_line")
    return f"python {shlex.join(map(str, words))}" if isinstance(words, list) and words else ""


def _run_of(run: Run) -> VersionRun:
    metrics = {
        name: {each: values[each] for each in STATISTICS if each in values}
        for name, values in run.statistics().items()
        if not name.startswith("system/")
    }
    return VersionRun(
        id=run.id,
        uid=run.uid,
        name=run.name,
        status=run.status,
        command=command_of(run),
        card=typed_command(run.store.where, "card", run.id),
        data=_data(run),
        config=dict(run.config),
        result=run.result,
        metrics=metrics,
    )


def _data(run: Run | None) -> dict[str, str]:
    entries = [] if run is None else mappings_in(run.get("artifacts_used"))
    return {str(entry.get("name")): f"v{entry.get('version')}" for entry in entries}


def compared_versions(store: Store, old: StoredArtifact, new: StoredArtifact) -> ComparedVersions:
    """Return the differences between two versions, and between the runs that made them."""
    shown = [shown_version(store, version) for version in (old, new)]
    runs = [one["run"] for one in shown]
    return ComparedVersions(
        a=f"{old.name}:v{old.version}",
        b=f"{new.name}:v{new.version}",
        differ=old.digest != new.digest,
        files=changes(*({file["path"]: file["sha256"] for file in one["files"]} for one in shown)),
        sizes=changes(*({file["path"]: file["bytes"] for file in one["files"]} for one in shown)),
        metadata=changes(*(dotted(one["metadata"]) for one in shown)),
        aliases=changes(*(dict.fromkeys(one["aliases"], True) for one in shown)),
        data=changes(*({} if run is None else run["data"] for run in runs)),
        config=changes(*({} if run is None else dotted(run["config"]) for run in runs)),
        metrics=changes(*({} if run is None else _results(run) for run in runs)),
    )


def _results(run: VersionRun) -> dict[str, Any]:
    result: Mapping[str, Any] = dotted({"result": run["result"]})
    return {**result, **dotted(run["metrics"])}
