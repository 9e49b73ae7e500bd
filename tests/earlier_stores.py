"""Stores that earlier releases of the lab made, unpacked for tests: see `tests/data/make_store.py`."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import bson
from pymongo.database import Database

__all__ = ["ARCHIVES", "load_database", "unpack"]

ROOT = Path(__file__).parents[1]
ARCHIVES = sorted((ROOT / "tests" / "data").glob("*.tar.xz"))
# Where the lab lay that made a store, and its database.
_LAB, _DATABASE = "/tmp/stored/lab", re.compile("mongodb://127.0.0.1:[0-9]+/lab")


def unpack(archive: Path, folder: Path, url: str) -> None:
    """Unpack a store as one that was recorded in `folder`, by a lab at the place of the present one.

    Args:
        archive: The file.
        folder: The folder, for `my_runs/`, `run_1.zip`, `database/` and `made_by.json`.
        url: The database that the runs are delivered to.
    """
    with tarfile.open(archive) as stream:
        stream.extractall(folder, filter="data")
    for path in (folder / "my_runs").glob("[0-9]*/*.json"):
        text = path.read_text()
        if (moved := _moved(text.replace(f'"base_dir": "{_LAB}"', f'"base_dir": "{ROOT}"'), folder, url)) != text:
            path.write_text(moved)


def load_database(folder: Path, database: Database, url: str) -> None:
    """Load the database of an unpacked store, as `mongorestore` does.

    Args:
        folder: The folder that it was unpacked to.
        database: An empty database.
        url: Its URL.
    """

    def move(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: str(ROOT) if key == "base_dir" else move(item) for key, item in value.items()}
        if isinstance(value, list):
            return [move(item) for item in value]
        return _moved(value, folder, url) if isinstance(value, str) else value

    for path in sorted((folder / "database").glob("*.bson")):
        documents = [move(document) for document in bson.decode_all(path.read_bytes())]
        if documents:
            database[path.stem].insert_many(documents)


def _moved(text: str, folder: Path, url: str) -> str:
    database = url.rpartition("/")[2]
    text = text.replace('"db_name": "lab"', f'"db_name": "{database}"').replace('"lab.runs"', f'"{database}.runs"')
    return _DATABASE.sub(url, text).replace(_LAB, str(folder))
