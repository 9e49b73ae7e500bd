"""The run's document within MongoDB's limits: 16 MB, 100 levels, 64-bit integers, UTF-8, and keys without dots.

Any JSON of a run is made storable. If it is too large or too deep, the large parts are stored as files, as JSON, and a
stand-in replaces them:

    {"stored_as_file": "6f1d0c...", "bytes": 20971520}

The small entries beside a large one stay where readers and queries look for them. Lists that Sacred's readers need
(artifacts, resources, sources, metrics) stay lists, truncated, and the whole list is in `<name>_file`. `restore` puts
the files back in place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import bson

from sacristan.observers.record.json_text import is_large, is_text_only, parse_json, storable_integer, storable_text

__all__ = ["ENTRY_BYTES", "FILE", "LIST_BYTES", "MAX_DEPTH", "Packer", "files_in", "object_id", "restore", "stored_key"]

# About 20 entries and 4 lists of these sizes fit into 16 MB, and listing runs stays fast.
ENTRY_BYTES = 256 * 1024
LIST_BYTES = 2 * 2**20
MAX_DEPTH = 64
# Smaller values are not worth a separate file.
_WORTH_BYTES = 1024
# The entry of a stand-in that names the file of a large value.
FILE = "stored_as_file"


def object_id(*parts: str | int) -> bson.ObjectId:
    """Return the ObjectId made from the first 12 bytes of a SHA-256."""
    text = "\0".join(map(str, parts))
    return bson.ObjectId(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:12])


class Packer:
    """Makes entries of one run's document storable.

    Args:
        uid: The run's uid; files of stand-ins belong to this run alone.

    Attributes:
        files: The files of stand-ins: content by id. Some may not be used in the end.
        is_exact: Whether everything packed so far can be restored exactly.
    """

    def __init__(self, uid: str, limit: int = ENTRY_BYTES) -> None:
        self.uid = uid
        self.limit = limit
        self.files: dict[bson.ObjectId, bytes] = {}
        self.is_exact = True

    def entry(self, value: Any) -> Any:
        """Return a value as BSON holds it, within the limit.

        Parts that are too large or too deep become stand-ins, whose files are added to `files`. A value nested too
        deeply even for a file becomes a text that says so.
        """
        try:
            packed, size = self._pack(value, 0)
            return packed if size <= self.limit else self._stand_in(value)[0]
        except RecursionError:
            try:
                return self._stand_in(value)[0]
            except RecursionError:
                return "(nested too deeply to be stored)"

    def whole_file(self, content: bytes) -> dict[str, Any]:
        """Return the stand-in for a whole JSON file, and add the file to `files`.

        Its id is made from the SHA-256 and the run, so the same content is stored once.
        """
        file_id = object_id("entry", self.uid, hashlib.sha256(content).hexdigest())
        self.files[file_id] = content
        return {FILE: str(file_id), "bytes": len(content)}

    def list_entry(self, name: str, values: Sequence[Any], limit: int = LIST_BYTES) -> dict[str, Any]:
        """Return the entry of a list; one above `limit` bytes, roughly, is truncated, and has a `<name>_file`."""
        kept: list[Any] = []
        total = 0
        for value in values:
            packed, size = self._pack(value, MAX_DEPTH - 2)
            total += size + 8
            if total > limit:
                return {name: kept, f"{name}_file": self._stand_in(values)[0]}
            kept.append(packed)
        return {name: kept}

    def _pack(self, value: Any, depth: int) -> tuple[Any, int]:
        """Return a value as BSON holds it, and its size in bytes, roughly."""
        if isinstance(value, Mapping | list | tuple):
            if depth >= MAX_DEPTH and value:
                return self._stand_in(value)
            return self._pack_mapping(value, depth) if isinstance(value, Mapping) else self._pack_list(value, depth)
        if isinstance(value, int) and not isinstance(value, bool) and is_large(value):
            if not is_text_only(value):
                return bson.Decimal128(str(value)), 16
            value = storable_integer(value)
            self.is_exact = False
        if isinstance(value, str):
            storable = storable_text(value)
            self.is_exact &= storable == value
            return storable, len(storable.encode()) + 5
        return value, 12

    def _pack_list(self, values: Sequence[Any], depth: int) -> tuple[Any, int]:
        packed = [self._pack(value, depth + 1) for value in values]
        size = 5 + sum(size for _, size in packed) + len(packed) * (2 + len(str(len(packed))))
        return [value for value, _ in packed], size

    def _pack_mapping(self, values: Mapping[str, Any], depth: int) -> tuple[Any, int]:
        packed: dict[str, Any] = {}
        sizes: dict[str, tuple[int, Any]] = {}
        total = 5
        for original, value in values.items():
            key = stored_key(original)
            self.is_exact &= key == original
            while key in packed:  # "a.b" and "a,b" differ
                key += "_"
            packed[key], size = self._pack(value, depth + 1)
            sizes[key] = size, value
            total += size + len(key.encode()) + 2
        for key in sorted(sizes, key=lambda key: -sizes[key][0]) if total > self.limit else ():
            size, value = sizes[key]
            if total <= self.limit or size < _WORTH_BYTES:
                break
            packed[key], smaller = self._stand_in(value)
            total += smaller - size
        return (packed, total) if total <= self.limit else self._stand_in(values)

    def _stand_in(self, value: Any) -> tuple[dict[str, Any], int]:
        return self.whole_file(json.dumps(value, default=str).encode()), 80


def files_in(value: Any) -> Iterator[bson.ObjectId]:
    """Yield the ids of the files of all stand-ins in a packed value."""
    if isinstance(value, list):
        for item in value:
            yield from files_in(item)
    elif isinstance(value, dict):
        if bson.ObjectId.is_valid(value.get(FILE)):
            yield bson.ObjectId(value[FILE])
        for item in value.values():
            yield from files_in(item)


def restore(value: Any, read: Callable[[bson.ObjectId], bytes]) -> Any:
    """Return a packed value with the files of its stand-ins in their places."""
    if isinstance(value, list):
        return [restore(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if not bson.ObjectId.is_valid(value.get(FILE)):
        return {key: restore(item, read) for key, item in value.items()}
    whole = parse_json(read(bson.ObjectId(value[FILE])))
    beside = {key: restore(item, read) for key, item in value.items() if key not in (FILE, "bytes")}
    return {**whole, **beside} if isinstance(whole, dict) else whole


def stored_key(key: Any) -> str:
    """Return a key as MongoDB holds it: without dots, null characters and a leading dollar sign.

    A dot becomes a comma, and a leading dollar sign an at sign, as in Sacred. Different keys may become the same one.
    """
    text = storable_text(str(key)).replace(".", ",").replace("\0", "")
    return f"@{text[1:]}" if text.startswith("$") else text
