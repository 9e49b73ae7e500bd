"""Complete runs as one file, and back.

An archive is a ZIP file: a folder of runs in the lab's layout, with the sources, resources and versions of artifacts
that its runs name, and `manifest.json` with size and SHA-256 of every member. Any tool can unpack it into a store. A
Process Run Crate has `ro-crate-metadata.json` as well: what ran, by whom, from which files, with which results.

Archives are not trusted: one with any other member, or with a member that differs from the manifest, is rejected before
a run is imported.

Source of the crate: https://w3id.org/ro/wfrun/process/0.5, on https://w3id.org/ro/crate/1.1
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import mimetypes
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from sacristan.observers.record.files import relative_path
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.schema import CONFIG, PROVENANCE, RUN, read_json
from sacristan.runs.drawing.output_file import check_output, publish, staging_beside
from sacristan.runs.errors import ArchiveError, RunsError, StoreError, naming_os_errors, needing_extra
from sacristan.runs.query import entry_at, list_of, mapping_of
from sacristan.runs.stores import Copied, Run, Store
from sacristan.runs.stores.opening import open_store
from sacristan.runs.transfer.copying import carry_aliases, stage

if TYPE_CHECKING:
    from rocrate.rocrate import ROCrate

FORMAT = "sacristan-archive-1"
# With aliases of artifacts, which earlier versions reject.
ALIASED_FORMAT = "sacristan-archive-2"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 * 2**20
MAX_MEMBERS = 1_000_000
# Against ZIP bombs: runs unpack to at most so many bytes, or a hundred times the size of the archive.
PLAIN_BYTES, MAX_RATIO = 2**30, 100
_CHUNK_BYTES = 2**20
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_MOVE = r"aliases/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.[1-9]\d{0,8}\.json"
_BESIDE = re.compile(
    r"_(sources|resources)/[^/]+"
    r"|_artifacts/contents/([0-9a-f]{2})/\2[0-9a-f]{62}"
    rf"|_artifacts/versions/{_NAME}/(v[1-9]\d{{0,8}}\.json|(made|used)/v[1-9]\d{{0,8}}/{_NAME}|{_MOVE})"
)
CRATE_LACKS = (
    "the description of a crate names each file of the runs; metrics, notes and tags are in the archive's own files",
    "no run states a license; add one to ro-crate-metadata.json before you publish the crate",
)
CRATE_METADATA = "ro-crate-metadata.json"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
_STATUSES = {"RUNNING": "Active", "QUEUED": "Potential", "HELD": "Potential"}


@dataclasses.dataclass(frozen=True)
class Exported:
    """The contents of an archive.

    Attributes:
        num_files: Number of files in it.
        num_bytes: Size of the archive.
        left_out: A sentence for each part of a run that could not be exported.
    """

    num_files: int
    num_bytes: int
    left_out: tuple[str, ...]


# ---------------------------------------------------------------------- exporting


def export_runs(runs: Sequence[Run], path: str | Path, *, overwrite: bool = False, is_crate: bool = False) -> Exported:
    """Export complete runs into one archive, a ZIP file that `import_runs` reads and that unpacks to a folder of runs.

    Args:
        runs: Runs that have ended, of any stores.
        path: The archive.
        overwrite: Whether to replace an existing file.
        is_crate: Whether to describe the runs in the archive as a Process Run Crate; needs the extra `rocrate`.

    Returns:
        Number of files, size, and what could not be exported.

    Raises:
        MissingExtraError: If the extra is not installed.
        StoreError: If a run is running or cannot be read, or the file exists already or cannot be written. Then no file
            is written.

    Example:
        with open_store("my_runs") as store:
            export_runs(store.find("status=COMPLETED"), "completed.zip")
    """
    path = Path(path)
    check_output(path, overwrite=overwrite)
    if is_crate:
        check_crate_extra()
    left_out: list[str] = []
    # On the disk of the archive, which needs the room anyway.
    with naming_os_errors(f"{path} cannot be written"), staging_beside(path) as folder:
        base, archive = folder / "runs", folder / "archive.zip"
        base.mkdir()
        entries = [_stage(run, base, str(number), left_out) for number, run in enumerate(runs, 1)]
        with open_store(base, is_read_only=True) as staged:
            left_out += dict.fromkeys(text for run in runs for text in carry_aliases(run, staged))
        if is_crate:
            folders = dict(zip((entry["folder"] for entry in entries), runs, strict=True))
            (base / CRATE_METADATA).write_text(json.dumps(_crate_of(folders, base), indent=1))
        with archive.open("wb") as stream:
            count = _write(stream, base, entries, runs[0].store.tell if runs else lambda *_: None, left_out)
            num_bytes = stream.tell()
        publish(archive, path, overwrite=overwrite)
    return Exported(count, num_bytes, tuple(left_out))


def _stage(run: Run, base: Path, folder: str, left_out: list[str]) -> dict[str, str]:
    """Write a run as it is now into a folder of `base`, and return its entry in the manifest."""
    run = run.store.get(run.id)
    if run.is_living or not run.is_whole:
        raise StoreError(f"run {run.id} is {run.status}; export it when it is whole")
    staged = stage(run, base, folder)
    left_out += [f"run {run.id}: {text}" for text in staged.left_out]
    return {"folder": folder, "uid": staged.uid, "name": run.name, "id": run.id}


def _write(
    stream: BinaryIO,
    base: Path,
    entries: list[dict[str, str]],
    tell: Callable[[str, int, int], None],
    left_out: list[str],
) -> int:
    """Write an archive of all files below `base`; return their number."""
    names = sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())
    folders = {entry["folder"] for entry in entries}
    is_aliased = any(PurePosixPath(name).parent.name == "aliases" for name in names)
    manifest: dict[str, Any] = {"format": ALIASED_FORMAT if is_aliased else FORMAT, "runs": entries, "files": {}}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for number, name in enumerate(names):
            if number % 100 == 0:
                tell("packing files", number, len(names))
            if _is_member(name, folders):
                manifest["files"][name] = _pack(archive, base / name, name)
            else:
                left_out.append(f"{name!r}: no file in an archive may be called so")
        archive.writestr(_info(MANIFEST), json.dumps(manifest, indent=1))
    tell("packing files", len(names), len(names))
    return len(manifest["files"])


def _pack(archive: zipfile.ZipFile, path: Path, name: str) -> dict[str, Any]:
    """Write one member, and return its entry in the manifest."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as source, archive.open(_info(name), "w", force_zip64=True) as target:
        while piece := source.read(_CHUNK_BYTES):
            digest.update(piece)
            num_bytes += len(piece)
            target.write(piece)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # dated 1980, so that equal runs make equal archives
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    return info


def _is_member(name: str, folders: set[str]) -> bool:
    """Tell whether an archive may have a member of this name: in or beside the folders of its runs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    path = relative_path(name)
    if path is None:
        return False
    is_in_a_run = len(path.parts) > 1 and path.parts[0] in folders
    return is_in_a_run or name == CRATE_METADATA or _BESIDE.fullmatch(name) is not None


# ---------------------------------------------------------------------- importing


def import_runs(path: str | Path, store: Store, max_bytes: int | None = None) -> list[Copied]:
    """Import all runs of an archive into a store; runs that the store has already stay unchanged.

    Args:
        path: The archive, as `export_runs` writes it.
        store: The store to import into; `open_store(where, create=True)` creates the folder of a new one.
        max_bytes: Maximum size of the unpacked archive; by default a hundred times its own size, or a gigabyte.

    Returns:
        For each run of the archive the run in the store, and whether it is new.

    Raises:
        ArchiveError: If the file is no archive of runs, or damaged. Then no run is imported.
        StoreError: If a run is damaged, or the store cannot be written.

    Example:
        with open_store("elsewhere", create=True) as store:
            for copied in import_runs("completed.zip", store):
                print(copied.run.id, copied.is_new)
    """
    path = Path(path)
    with store.staging() as base:
        folders = _unpack(path, base / "in", max_bytes, store)
        with open_store(base / "in") as archived:
            staged = []
            for number, folder in enumerate(folders):
                store.tell("reading runs", number, len(folders))
                try:
                    # Each into a folder of its own, as adding one moves shared contents.
                    staged.append(stage(archived.get(folder), base / f"out-{number}"))
                except RunsError as error:
                    raise ArchiveError(f"{path}: {error}; nothing is imported") from error
            store.tell("reading runs", len(folders), len(folders))
            copied = [store.add(one) for one in staged]
            for number, folder in enumerate(folders):
                left_out = (*copied[number].left_out, *carry_aliases(archived.get(folder), store))
                copied[number] = dataclasses.replace(copied[number], left_out=left_out)
        return copied


def _unpack(path: Path, base: Path, max_bytes: int | None, store: Store) -> list[str]:
    """Unpack an archive into `base`, and return the folders of its runs."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked_members(archive)
            files, folders = _manifest(archive, members)
            _check_names(members, files, folders)
            _check_room(path, members, base.parent, max_bytes)
            for number, (name, expected) in enumerate(files.items()):
                if number % 100 == 0:
                    store.tell("unpacking files", number, len(members))
                _extract(archive, members[name], base / name, expected)
            store.tell("unpacking files", len(members), len(members))
    except FileNotFoundError as error:
        raise ArchiveError(f"{path}: there is no such file") from error
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}; nothing is imported") from error
    except RunsError:
        raise
    except Exception as error:  # zlib and struct raise almost anything
        raise ArchiveError(f"{path}: {_reason(error)}; nothing is imported") from error
    return folders


def _reason(error: Exception) -> str:
    if isinstance(error, zipfile.BadZipFile | zipfile.LargeZipFile | EOFError | NotImplementedError | RuntimeError):
        return f"it is damaged, or no ZIP file ({error})"
    if isinstance(error, OSError):
        return f"it cannot be unpacked ({error.strerror or error})"
    return f"it is damaged ({type(error).__name__}: {error})"


def _checked_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    if len(archive.infolist()) > MAX_MEMBERS:
        raise ArchiveError(f"it has {len(archive.infolist())} members, expected at most {MAX_MEMBERS}")
    for info in archive.infolist():
        # zipfile cuts `filename` at a NUL and replaces separators; only the original name counts.
        if relative_path(info.orig_filename) is None or info.orig_filename != info.filename:
            raise ArchiveError(f"it has a member {info.orig_filename!r}, which does not stay in its folder")
        if info.filename in members:
            raise ArchiveError(f"it has two members {info.filename!r}")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG) or info.is_dir():
            raise ArchiveError(f"its member {info.filename!r} is no plain file")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveError(f"its member {info.filename!r} is encrypted, or packed in another way")
        members[info.filename] = info
    return members


def _manifest(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Remove the manifest from the members; return its entries of files by name, and the folders of runs."""
    info = members.pop(MANIFEST, None)
    if info is None:
        raise ArchiveError(f"it has no {MANIFEST}; it was not made by: sacristan export")
    if info.file_size > MAX_MANIFEST_BYTES:
        raise ArchiveError(f"its {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        with archive.open(info) as stream:
            manifest = parse_json(stream.read(MAX_MANIFEST_BYTES))
        if manifest["format"] not in (FORMAT, ALIASED_FORMAT):
            use = "use the version of the lab that exported it"
            raise ArchiveError(
                f"its format is {manifest['format']!r}, this version reads {FORMAT} and {ALIASED_FORMAT}; {use}"
            )
        files, folders = manifest["files"], [str(run["folder"]) for run in manifest["runs"]]
        for entry in files.values():
            if not isinstance(entry["bytes"], int) or not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
                raise ValueError("a file has no length or SHA-256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"its {MANIFEST} is invalid ({error})") from error
    are_named_well = all(re.fullmatch(r"[1-9]\d{0,8}", folder) and f"{folder}/{RUN}" in files for folder in folders)
    if not are_named_well or len(set(folders)) != len(folders):
        raise ArchiveError(f"its {MANIFEST} names runs that are not there")
    return files, folders


def _check_names(members: dict[str, zipfile.ZipInfo], files: dict[str, Any], folders: Sequence[str]) -> None:
    run_folders = set(folders)
    for name in members.keys() - files.keys():
        raise ArchiveError(f"its member {name!r} is not in its {MANIFEST}")
    for name, expected in files.items():
        if name not in members:
            raise ArchiveError(f"{name!r} is in its {MANIFEST}, and not in it")
        if not _is_member(name, run_folders):
            raise ArchiveError(f"its member {name!r} is none of a run")
        if members[name].file_size != expected["bytes"]:
            raise ArchiveError(f"its member {name!r} has another length than its {MANIFEST} says")


def _check_room(path: Path, members: dict[str, zipfile.ZipInfo], folder: Path, max_bytes: int | None) -> None:
    total = sum(info.file_size for info in members.values())
    allowed = max(PLAIN_BYTES, MAX_RATIO * path.stat().st_size) if max_bytes is None else max_bytes
    if total > allowed:
        raise ArchiveError(
            f"it unpacks to {total} bytes, expected at most {allowed}; if you trust it, use --max-bytes {total}"
        )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise ArchiveError(f"it unpacks to {total} bytes, and {folder} has room for {free}")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, expected: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), expected["bytes"]
    with archive.open(info) as source, target.open("xb") as stream:
        while piece := source.read(_CHUNK_BYTES):
            left -= len(piece)
            if left < 0:
                break
            digest.update(piece)
            stream.write(piece)
    if left or digest.hexdigest() != expected["sha256"]:
        raise ArchiveError(f"its member {info.filename!r} is not what its {MANIFEST} says")


# ---------------------------------------------------------------------- describing a crate


def check_crate_extra() -> None:
    """Check that the extra `rocrate` is installed, before any work is done."""
    with needing_extra("rocrate", "export to rocrate"):
        importlib.import_module("rocrate")


def _crate_of(runs: Mapping[str, Run], base: Path) -> dict[str, Any]:
    """Return the content of `ro-crate-metadata.json` for the runs in folders below `base`; it is deterministic."""
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version="1.1")
    crate.metadata.extra_contexts.append(_CONTEXT)
    names = ", ".join(dict.fromkeys(run.name for run in runs.values()))
    crate.name = f"Runs of {names}" if names else "Runs"
    crate.description = f"{len(runs)} recorded runs of {names}: settings, code, output, metrics and artifacts"
    crate.license = "No license is stated; ask the authors"
    times = [time for run in runs.values() for time in (run.stop_time, run.start_time) if time]
    crate.datePublished = max(times).isoformat(timespec="seconds") if times else "1970-01-01"
    crate.root_dataset["conformsTo"] = crate.add(
        ContextEntity(crate, _PROFILE, {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"})
    )
    paths = sorted(path for path in base.rglob("*") if path.is_file())
    parts = {name: _add_file(crate, name, path) for path in paths for name in [path.relative_to(base).as_posix()]}
    actions = [_add_action(crate, run, folder, base, parts) for folder, run in runs.items()]
    crate.root_dataset["mentions"] = actions[0] if len(actions) == 1 else actions
    return crate.metadata.generate()


def _add_file(crate: ROCrate, name: str, path: Path) -> Any:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    properties = {"name": name, "contentSize": str(path.stat().st_size), "encodingFormat": kind}
    return crate.add_file(dest_path=name, properties=properties)


def _add_action(crate: ROCrate, run: Run, folder: str, base: Path, parts: Mapping[str, Any]) -> Any:
    """Add the action of a run, from its program, settings, sources and resources to all its other files."""
    record = read_json(base / folder / RUN) or {}
    stored = [*list_of(mapping_of(record.get("experiment")).get("sources")), *list_of(record.get("resources"))]
    inputs = [f"{folder}/{CONFIG}", f"{folder}/{PROVENANCE}", *(path for _, path in stored if path)]
    results = [name for name in parts if name.startswith(f"{folder}/") and name not in inputs]
    action = crate.add_action(
        _add_program(crate, run),
        f"#run-{record.get('uid')}",
        [parts[name] for name in inputs if name in parts],
        [parts[name] for name in results],
        {"identifier": record.get("uid"), **_properties(run)},
    )
    if user := run["host.user"]:
        action["agent"] = _entity(crate, f"#user-{user}", "Person", user)
    return action


def _properties(run: Run) -> dict[str, Any]:
    status = "Completed" if run.status.startswith("COMPLETED") else _STATUSES.get(run.status, "Failed")
    reason = run["fail_trace"]
    properties: dict[str, Any] = {
        "name": f"Run {run.id} of {run.name}",
        "description": " ".join(str(word) for word in run["command_line"] or [run.command]),
        "actionStatus": f"http://schema.org/{status}ActionStatus",
    }
    for key, time in (("startTime", run.start_time), ("endTime", run.stop_time)):
        if time is not None:
            properties[key] = time.isoformat(timespec="seconds")
    if reason and status == "Failed":
        properties["error"] = "".join(reason) if isinstance(reason, list) else str(reason)
    return properties


def _add_program(crate: ROCrate, run: Run) -> Any:
    program = _entity(crate, f"#experiment-{run.name}", "SoftwareApplication", run.name or "experiment")
    git = mapping_of(entry_at(run.provenance, "git"))
    if "url" not in program and str(git.get("url", "")).startswith(("https://", "http://")):
        program["url"] = git["url"]
    program["softwareVersion"] = program.get("softwareVersion") or git.get("commit") or "unknown"
    return program


def _entity(crate: ROCrate, id: str, kind: str, name: str) -> Any:
    from rocrate.model.contextentity import ContextEntity

    return crate.dereference(id) or crate.add(ContextEntity(crate, id, {"@type": kind, "name": name}))
