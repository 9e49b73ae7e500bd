"""Writing files of a run, such as artifacts or sources, into a folder that their untrusted names cannot leave."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sacristan.configs.map import abbreviated
from sacristan.observers.record.files import relative_path, replacing
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.stores.content import Content

__all__ = ["Fetched", "choose", "fetch", "length_of"]


@dataclasses.dataclass
class Fetched:
    """The result of `fetch`.

    Attributes:
        files: Paths of the written files.
        refused: A sentence with the reason for each file that was not written.
    """

    files: list[Path] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)


def choose(contents: Mapping[str, Content], names: Sequence[str]) -> list[Content]:
    """Return contents by name, all of them if no names are given; an unknown name is a StoreError."""
    for name in names:
        if name not in contents:
            available = abbreviated(map(repr, sorted(contents)))
            raise StoreError(
                f"got the file name {name!r}, expected one of: {available or 'none, the run has no files'}"
            )
    return [contents[name] for name in names or contents]


def length_of(content: Content) -> int | None:
    """Return the size of a content in bytes; None if it is missing."""
    try:
        with content.open() as stream:
            return stream.seek(0, os.SEEK_END) or stream.tell()
    except (StoreError, OSError):
        return None


def fetch(contents: Iterable[Content], folder: str | Path, *, overwrite: bool = False) -> Fetched:
    """Write files of a run into a folder under their names, each completely or not at all.

    Names are untrusted: a name that would lead out of the folder, by `..`, from `/` or through a link, is rejected.

    Args:
        contents: Values of `run.artifacts`, `run.sources` or `run.resources`.
        folder: The folder to write into, which is created if missing.
        overwrite: Whether to replace existing files. If two names are the same file to the file system, the second
            content never replaces the first.

    Returns:
        Paths of the written files, and a sentence for each file that was not written.

    Raises:
        StoreError: If the folder cannot be created.

    Example:
        with open_store("my_runs") as store:
            done = fetch(store.get("latest").artifacts.values(), "files")
            print(done.files, done.refused)
    """
    folder = Path(folder)
    fetched = Fetched()
    with naming_os_errors(f"{folder} cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    for content in contents:
        try:
            fetched.files.append(_write(content, folder, written, overwrite=overwrite))
        except StoreError as error:
            fetched.refused.append(str(error))
        except OSError as error:
            fetched.refused.append(f"{content.name!r} cannot be written ({error.strerror or error})")
    return fetched


def _write(content: Content, folder: Path, written: set[str], *, overwrite: bool) -> Path:
    path = relative_path(content.name)
    if path is None:
        raise StoreError(f"{content.name!r} is not written: it does not stay in the folder, or is no name of a file")
    target = folder / path
    with contextlib.suppress(RuntimeError):  # a link to itself
        target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"{content.name!r} is not written: a link leads out of {folder}")
    same = unicodedata.normalize("NFC", content.name).casefold()
    _check_target(target, overwrite=overwrite and same not in written)
    with replacing(target, durable=False) as stream:
        content.write_to(stream)
    written.add(same)
    return target


def _check_target(target: Path, *, overwrite: bool) -> None:
    is_link = target.is_symlink()
    if not overwrite and (is_link or target.exists()):
        raise StoreError(f"{str(target)!r} already exists; choose another folder, or use --force")
    if target.exists() and not is_link and not target.is_file():
        raise StoreError(f"{str(target)!r} is {'a folder' if target.is_dir() else 'no regular file'}; move it away")
