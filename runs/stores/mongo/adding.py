"""Delivering a staged run into a database, where its status is COPYING until it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sacristan.configs.map import abbreviated
from sacristan.observers.mongo.delivery import Delivery
from sacristan.observers.mongo.documents import Packer
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.schema import (
    MEDIA,
    MEDIA_FOLDER,
    NOTES,
    OWN_FILES,
    RUN,
    checkpoint_files,
    rank_files,
    read_json_if_whole,
    read_json_lines,
)
from sacristan.runs.errors import StoreError
from sacristan.runs.stores.changes import StagedRun
from sacristan.runs.stores.mongo.database import MongoDatabase
from sacristan.runs.stores.mongo.removing import Remover
from sacristan.runs.stores.run import COPYING

__all__ = ["changed_entries", "deliver_whole", "unnamed_files"]

_ATTEMPTS = 10


def deliver_whole(staged: StagedRun, mongo: MongoDatabase) -> Any:
    """Deliver a run and return its `_id`; a second call finishes an interrupted one.

    A StoreError can also mean that another process is delivering the run.
    """
    path = staged.folder / RUN
    record = parse_json(path.read_bytes())
    with mongo.errors():
        Remover(mongo).forget(staged.uid)
        path.write_text(json.dumps({**record, "status": COPYING}))
        where = mongo.collections
        delivery = Delivery(
            staged.folder,
            staged.folder.parent,
            mongo.database,
            where.prefix,
            collection=where.collection,
            with_checkpoints=True,
        )
        _deliver(delivery, mongo)
        notes = read_json_if_whole(staged.folder / NOTES)
        if notes:
            mongo.confirmed.runs.update_one({"_id": delivery.run_id, "uid": staged.uid}, {"$set": notes})
        # The true status comes last: now the run is whole.
        path.write_text(json.dumps(record))
        _deliver(delivery, mongo)
    return delivery.run_id


def _deliver(delivery: Delivery, mongo: MongoDatabase) -> None:
    for _ in range(_ATTEMPTS):
        delivery.advance(last=True)
        if delivery.is_complete:
            return
    raise StoreError(
        f"the run is in {mongo.where} as run {delivery.run_id} and not complete: its record is damaged, or others copy "
        "it at the same time"
    )


def unnamed_files(folder: Path) -> tuple[str, ...]:
    """Return a sentence on the files of a run that a database has no place for; nothing if there are none."""
    record = parse_json((folder / RUN).read_bytes())
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    earlier = {entry["file"] for entry in record.get("earlier_artifacts", ())}
    known = {*OWN_FILES, *record["artifacts"], *earlier, *(name for name, _ in checkpoint_files(folder))}
    known |= {path.relative_to(folder).as_posix() for path in rank_files(folder).values()}
    rest = sorted(name for name in names - known if not name.startswith(f"{MEDIA_FOLDER}/"))
    if not rest:
        return ()
    shown = abbreviated(map(repr, rest), 3)
    return (f"{len(rest)} files of its folder that the record does not name: {shown}",)


def changed_entries(folder: Path) -> tuple[str, ...]:
    """Return a sentence for each entry of a run that a database can only hold in a changed form."""
    record = parse_json((folder / RUN).read_bytes())
    details = record.get("artifact_details", {})
    entries = {f"metadata of the artifact {name!r}": one.get("metadata") for name, one in details.items()}
    entries |= {f"media entry {n}": entry for n, entry in enumerate(read_json_lines(folder / MEDIA), 1)}
    sentences = []
    for name, entry in entries.items():
        packer = Packer(str(record["uid"]))
        packer.entry(entry)
        if not packer.is_exact:
            sentences.append(f"{name}: its keys with . or $, integers over 34 digits or lone surrogates are changed")
    return tuple(sentences)
