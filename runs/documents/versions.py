"""Versions of artifacts with the runs that made them: command, data, settings and metrics; and two of them compared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.query import Changes, changes, dotted, mappings_in

if TYPE_CHECKING:
    from sacristan.runs.stores import Run, Store, StoredArtifact

STATISTICS = ("last", "min", "max")


class VersionFile(TypedDict):
    """A file of a version."""

    path: Annotated[str, "Its name in the artifact."]
    bytes: Annotated[int, "Its size."]
    sha256: Annotated[str | None, "Its SHA-256; null if the store does not list it."]


class VersionRun(TypedDict):
    """The run that made a version first."""

    id: Annotated[str, "The run, and its experiment."]
    uid: Annotated[str | None, "The run, and its experiment."]
    name: Annotated[str, "The run, and its experiment."]
    status: Annotated[str, "The run, and its experiment."]
    command: Annotated[str, "The command that made the version, as it was typed; empty if the record lacks it."]
    card: Annotated[str, "The command that writes its model card."]
    data: Annotated[dict[str, str], "Versions of artifacts that it used, by name."]
    config: Annotated[dict[str, Any], "Its settings."]
    result: Annotated[Any, "Its result; null without one."]
    metrics: Annotated[
        dict[str, dict[str, Any]],
        "Last, least and greatest value of each metric, without those of the machine.",
    ]


class RemovedVersion(TypedDict):
    """A version of the artifact that was removed."""

    version: Annotated[int, "Its number."]
    by: Annotated[str, "Who removed it."]
    via: Annotated[str, "How the name is known: `board`, `token` or `proxy`; empty for the user of a process."]
    time: Annotated[str, "When, in UTC."]
    digest: Annotated[str, "Its digest."]


class ShownVersion(TypedDict):
    """A version of an artifact; printed by `show`."""

    name: Annotated[str, "The artifact, and the number of the version."]
    version: Annotated[int, "The artifact, and the number of the version."]
    aliases: Annotated[list[str], "The aliases that name it, with `latest` if it is the newest."]
    type: Annotated[str, "What it was logged with; when, in UTC."]
    digest: Annotated[str, "What it was logged with; when, in UTC."]
    created: Annotated[str | None, "What it was logged with; when, in UTC."]
    metadata: Annotated[dict[str, Any], "What it was logged with; when, in UTC."]
    bytes: Annotated[int, "The size of all files."]
    files: Annotated[list[VersionFile], "Its files."]
    made_by: Annotated[list[str], "Uids of the runs that logged and used it."]
    used_by: Annotated[list[str], "Uids of the runs that logged and used it."]
    run: Annotated[VersionRun | None, "The run that logged it first; null if it is not in the store."]
    removed: Annotated[list[RemovedVersion], "The versions of the artifact that were removed."]


class ComparedVersions(TypedDict):
    """Two versions; printed by `compare`. Each part has what was `changed`, `added` and `removed`."""

    a: Annotated[str, "The versions, such as `net:v3`."]
    b: Annotated[str, "The versions, such as `net:v3`."]
    differ: Annotated[bool, "Whether their files differ."]
    files: Annotated[Changes, "SHA-256 of the files by path."]
    sizes: Annotated[Changes, "Sizes of the files by path."]
    metadata: Annotated[Changes, "Metadata by dotted name."]
    aliases: Annotated[Changes, "Aliases."]
    data: Annotated[Changes, "Versions of artifacts that their runs used."]
    config: Annotated[Changes, "Settings of their runs."]
    metrics: Annotated[Changes, "Results, and statistics of the metrics, of their runs."]


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
    runs_by_uid = {run.uid: run for run in store.find({"uid": {"$in": list(version.made_by)}})}
    return next((runs_by_uid[uid] for uid in version.made_by if uid in runs_by_uid), None)


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
