"""Files of a record: regular ones of a bounded size are read, and each is replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sacristan.observers import ArtifactStore
from sacristan.observers.record.append_file import AppendFile
from sacristan.observers.record.files import open_regular, read_regular, replacing, sync_folder, write_once
from sacristan.observers.record.folders import make_numbered_folder


def num_open(path):
    """Return how many descriptors of this process lead to a file; others may be closed by the garbage collector."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(descriptor.readlink())
    return links.count(path.resolve())


@pytest.mark.parametrize("kind", ["FIFO", "device", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as server:  # a path may be too long
            server.bind(path.name)
    before = num_open(path)
    for read in (open_regular, read_regular):
        with pytest.raises(OSError, match="it is no regular file"):
            read(path)
    assert num_open(path) == before


def test_folder_is_refused_as_one(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_file_beyond_the_bound_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, expected at most 4"):
        read_regular(tmp_path / "file", 4)


# ---------------------------------------------------------------------- a file is replaced as a whole or not at


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    return path


def test_replacing_puts_the_new_content_in_place(path):
    with replacing(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_replacing_makes_a_file_that_was_not_there(tmp_path):
    with replacing(tmp_path / "a.bin") as stream:
        stream.write(b"new")
        assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin").read_bytes() == b"new"


@pytest.fixture
def umask():
    """Set the umask: `umask(0o077)`; as before when the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_leaves(tmp_path, umask, mask, mode):
    umask(mask)
    with replacing(tmp_path / "new") as stream:
        stream.write(b"new")
    AppendFile(tmp_path / "appended").create()
    source = tmp_path / "data.csv"
    source.write_text("1")
    version = ArtifactStore(tmp_path).log("data", source, "dataset", None, None)
    manifest = tmp_path / "_artifacts" / "versions" / "data" / "v1.json"
    [content] = (path for path in (tmp_path / "_artifacts" / "contents").rglob("*") if path.is_file())
    assert version.version == 1
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new", tmp_path / "appended", content, manifest)]
    assert modes == [mode, mode, mode & 0o444, mode & 0o444]


def test_files_in_a_shared_folder_belong_to_its_group(tmp_path):
    try:
        os.chown(tmp_path, -1, 12345)
    except PermissionError:
        pytest.skip("only root may give a folder to another group")
    tmp_path.chmod(0o2775)
    with replacing(tmp_path / "new") as stream:
        stream.write(b"new")
    AppendFile(tmp_path / "appended").create()
    assert [(tmp_path / name).stat().st_gid for name in ("new", "appended")] == [12345, 12345]


@pytest.fixture
def synced(monkeypatch):
    """The names of what was waited for, each once, in the order of the first time; those of a file as it was then."""
    names, sync = [], os.fsync

    def spy(descriptor):
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return names


def test_replacing_waits_for_the_content_and_then_for_the_name(path, synced):
    with replacing(path) as stream:
        stream.write(b"new")
    assert len(synced) == 2
    assert synced[0].startswith(".a.bin.")
    assert synced[1] == path.parent.name


def test_replacing_that_need_not_be_durable_waits_for_nothing(path, synced):
    with replacing(path, durable=False) as stream:
        stream.write(b"new")
    assert synced == []


def test_append_file_waits_for_its_name_once(tmp_path, synced):
    file = AppendFile(tmp_path / "a.bin")
    for _ in range(2):
        file.append(b"\n")
        file.sync()
    assert synced == ["a.bin", tmp_path.name, "a.bin"]


def test_new_folder_of_a_run_waits_for_its_name(tmp_path, synced):
    make_numbered_folder(tmp_path / "my_runs")
    assert synced == [tmp_path.name, "my_runs"]
    make_numbered_folder(tmp_path / "my_runs")
    assert synced[2:] == ["my_runs"]


def test_folder_that_cannot_be_synced_is_passed_over(monkeypatch, path):
    def refuse(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    sync_folder(path.parent)


def test_folder_that_the_disk_fails_to_sync_raises(monkeypatch, path):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(path.parent)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no")])
def test_replacing_error_while_writing_leaves_the_old_content_alone(path, error):
    with pytest.raises(type(error), match="no"), replacing(path) as stream:  # noqa: PT012
        stream.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_replacing_path_that_cannot_be_replaced_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"), replacing(tmp_path / "folder") as stream:
        stream.write(b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_replacing_in_a_missing_folder_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"), replacing(tmp_path / "missing" / "a.bin"):
        pass


def test_replacing_at_once_leaves_one_whole_content(path):
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_of_many_who_write_once_one_succeeds_and_its_content_is_whole(tmp_path):
    path, writers = tmp_path / "1.json", 16
    start = threading.Barrier(writers)

    def write(number):
        start.wait()
        return write_once(path, bytes([number]) * 100_000)

    with ThreadPoolExecutor(writers) as pool:
        won = list(pool.map(write, range(writers)))
    assert won.count(True) == 1
    assert path.read_bytes() == bytes([won.index(True)]) * 100_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["1.json"]


def test_write_once_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_once(tmp_path / "missing" / "1.json", b"new")
    assert list(tmp_path.iterdir()) == []
