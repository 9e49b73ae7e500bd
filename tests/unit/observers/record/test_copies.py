"""Copies of files that were cut short and go on, and their progress."""

import io
import os
import threading

import pytest

from sacristan.observers import ArtifactError
from sacristan.observers.record import copies
from sacristan.observers.record.copies import CopyProgress, copy_file, copy_stream, draw_on

MIB = 2**20


class Written(io.BytesIO):
    """A target that counts the bytes written to it."""

    num_bytes = 0

    def write(self, data):
        self.num_bytes += len(data)
        return super().write(data)


def part_of(content, is_there):
    target = Written(is_there)
    assert copy_stream(io.BytesIO(content), target, len(content)) == len(content)
    assert target.getvalue() == content
    return target.num_bytes


@pytest.fixture
def large(tmp_path):
    """A file of 17 MiB."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(17 * MIB))
    return path


def test_only_what_a_part_lacks_is_written():
    content = os.urandom(5 * MIB + 100)
    assert part_of(content, b"") == len(content)
    assert part_of(content, content[: 3 * MIB]) == 2 * MIB + 100
    assert part_of(content, content[: 3 * MIB + 7]) == 2 * MIB + 100
    assert part_of(content, content) == 0
    assert part_of(content, content + b"more") == 0


def test_part_of_another_or_a_damaged_content_is_written_again_from_the_first_difference():
    content = os.urandom(5 * MIB)
    damaged = bytearray(content)
    damaged[2 * MIB + 1] ^= 1
    assert part_of(content, bytes(damaged)) == 3 * MIB
    assert part_of(content, bytes(len(content))) == len(content)
    assert part_of(content, content[: 2 * MIB] + bytes(3 * MIB)) == 3 * MIB


def cut_short(monkeypatch, at):
    """Let the next copy stop after so many bytes, as by Ctrl-C."""
    advance = CopyProgress.advance

    def stop(self, num_bytes):
        advance(self, num_bytes)
        if self._done >= at:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(CopyProgress, "advance", stop)


def test_large_file_leaves_a_part_from_which_the_next_copy_goes_on(large, tmp_path, monkeypatch):
    cut_short(monkeypatch, 9 * MIB)
    target = tmp_path / "out" / "copy"
    target.parent.mkdir()
    with pytest.raises(KeyboardInterrupt):
        copy_file(large, target)
    [part] = target.parent.iterdir()
    assert (part.name, part.stat().st_size) == (".copy.part.tmp", 9 * MIB)
    inode = part.stat().st_ino
    copy_file(large, target)
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_ino == inode
    assert target.read_bytes() == large.read_bytes()


def test_small_file_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "small").write_bytes(bytes(100))
    cut_short(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        copy_file(tmp_path / "small", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_file_that_changes_meanwhile_leaves_no_part(large, tmp_path, monkeypatch):
    advance = CopyProgress.advance

    def change(self, num_bytes):
        advance(self, num_bytes)
        os.utime(large, (0, 0))

    monkeypatch.setattr(CopyProgress, "advance", change)
    with pytest.raises(ArtifactError, match="it changed while it was read"):
        copy_file(large, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == [large]


def test_two_threads_that_add_one_name_both_copy_whole_files(large, tmp_path, monkeypatch):
    started, go_on, errors = threading.Event(), threading.Event(), []
    advance = CopyProgress.advance

    def wait(self, num_bytes):
        advance(self, num_bytes)
        if threading.current_thread() is first and not started.is_set():
            started.set()
            assert go_on.wait(20)

    monkeypatch.setattr(CopyProgress, "advance", wait)
    first = threading.Thread(target=lambda: copy_file(large, tmp_path / "copy"))
    first.start()
    assert started.wait(20)
    (tmp_path / "other").write_bytes(b"other" * 4 * MIB)
    copy_file(tmp_path / "other", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "other").read_bytes()
    go_on.set()
    first.join(20)
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert not errors


def test_progress_is_one_line_that_disappears(monkeypatch):
    monkeypatch.setattr(copies, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(copies, "_REDRAWN_S", 0.0)
    monkeypatch.setattr(copies.time, "monotonic", iter([0.0, 1.0, 2.0]).__next__)
    stream = io.StringIO()
    draw_on(stream)
    try:
        with CopyProgress("net\n.pt", 3_000_000_000) as progress:
            progress.advance(500_000_000)
            progress.advance(500_000_000)
    finally:
        draw_on(None)
    assert stream.getvalue().split("\r")[1:] == [
        "copying net?.pt: 17% of 3.0 GB, 500 MB/s, 5 s left\x1b[K",
        "copying net?.pt: 33% of 3.0 GB, 500 MB/s, 4 s left\x1b[K",
        "\x1b[K",
    ]


def test_quick_copy_and_one_without_a_terminal_show_nothing(capsys):
    stream = io.StringIO()
    for terminal in (stream, None):
        draw_on(terminal)
        with CopyProgress("net.pt", 10) as progress:
            progress.advance(10)
    assert stream.getvalue() == ""
    assert capsys.readouterr() == ("", "")
