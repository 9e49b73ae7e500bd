"""Files of a record that may be opened: regular ones, of a bounded size."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from sacristan.observers.record.files import open_regular, read_regular


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
