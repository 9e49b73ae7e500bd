"""The description that makes an archive a Process Run Crate: what ran, by whom, from which files, with which results.

Source: https://w3id.org/ro/wfrun/process/0.5, on https://w3id.org/ro/crate/1.1
"""

from __future__ import annotations

import importlib
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.observers.record.schema import CONFIG, PROVENANCE, RUN, read_json
from sacristan.runs.errors import needing_extra
from sacristan.runs.query.flattening import entry_at, list_of, mapping_of
from sacristan.runs.stores.run import Run

if TYPE_CHECKING:
    from rocrate.rocrate import ROCrate

__all__ = ["LACKS", "METADATA", "check_extra", "described"]

LACKS = (
    "the description of a crate names each file of the runs; metrics, notes and tags are in the archive's own files",
    "no run states a license; add one to ro-crate-metadata.json before you publish the crate",
)
METADATA = "ro-crate-metadata.json"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
_STATUSES = {"RUNNING": "Active", "QUEUED": "Potential", "HELD": "Potential"}


def check_extra() -> None:
    """Check that the extra `rocrate` is installed, before any work is done."""
    with needing_extra("rocrate", "export to rocrate"):
        importlib.import_module("rocrate")


def described(runs: Mapping[str, Run], base: Path) -> dict[str, Any]:
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
    parts = {name: _file(crate, name, path) for path in paths for name in [path.relative_to(base).as_posix()]}
    actions = [_action(crate, run, folder, base, parts) for folder, run in runs.items()]
    crate.root_dataset["mentions"] = actions[0] if len(actions) == 1 else actions
    document: dict[str, Any] = crate.metadata.generate()
    return document


def _file(crate: ROCrate, name: str, path: Path) -> Any:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    properties = {"name": name, "contentSize": str(path.stat().st_size), "encodingFormat": kind}
    return crate.add_file(dest_path=name, properties=properties)


def _action(crate: ROCrate, run: Run, folder: str, base: Path, parts: Mapping[str, Any]) -> Any:
    """Add the action of a run, from its program, settings, sources and resources to all its other files."""
    record = read_json(base / folder / RUN) or {}
    stored = [*list_of(mapping_of(record.get("experiment")).get("sources")), *list_of(record.get("resources"))]
    inputs = [f"{folder}/{CONFIG}", f"{folder}/{PROVENANCE}", *(path for _, path in stored if path)]
    results = [name for name in parts if name.startswith(f"{folder}/") and name not in inputs]
    action = crate.add_action(
        _program(crate, run),
        f"#run-{record.get('uid')}",
        _present(inputs, parts),
        _present(results, parts),
        {"identifier": record.get("uid"), **_properties(run)},
    )
    if user := run["host.user"]:
        action["agent"] = _context(crate, f"#user-{user}", "Person", user)
    return action


def _properties(run: Run) -> dict[str, Any]:
    status, reason = _status(run.status), run["fail_trace"]
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


def _program(crate: ROCrate, run: Run) -> Any:
    program = _context(crate, f"#experiment-{run.name}", "SoftwareApplication", run.name or "experiment")
    git = mapping_of(entry_at(run.provenance, "git"))
    if "url" not in program and str(git.get("url", "")).startswith(("https://", "http://")):
        program["url"] = git["url"]
    program["softwareVersion"] = program.get("softwareVersion") or git.get("commit") or "unknown"
    return program


def _context(crate: ROCrate, id: str, kind: str, name: str) -> Any:
    from rocrate.model.contextentity import ContextEntity

    return crate.dereference(id) or crate.add(ContextEntity(crate, id, {"@type": kind, "name": name}))


def _present(names: Sequence[str], parts: Mapping[str, Any]) -> list[Any]:
    return [parts[name] for name in names if name in parts]


def _status(status: str) -> str:
    return "Completed" if status.startswith("COMPLETED") else _STATUSES.get(status, "Failed")
