"""A file is replaced as a whole or not at all."""

import stat

import pytest

from observers.record.atomic_file import replacing


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


def test_replacing_writes_what_everyone_may_read(path):
    with replacing(path) as stream:
        stream.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


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
