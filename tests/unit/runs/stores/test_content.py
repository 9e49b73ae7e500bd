from __future__ import annotations

import io

import pytest

from sacristan.runs import Content, StoreError
from sacristan.runs.stores.content import missing_content


class Torn(io.BytesIO):
    def read(self, size=-1):
        if self.tell() >= 2**20:
            raise OSError("the disk is gone")
        return super().read(size)


def test_content_is_saved(tmp_path):
    content = Content("a", lambda: io.BytesIO(b"new"))
    assert content.save(tmp_path / "b") == tmp_path / "b"
    assert (tmp_path / "b").read_bytes() == b"new"


def test_a_file_that_is_there_stays_unless_overwriting_is_asked_for(tmp_path):
    path = tmp_path / "b"
    path.write_bytes(b"old")
    with pytest.raises(StoreError, match=r"b already exists; choose another name, or use overwrite=True"):
        Content("a", lambda: io.BytesIO(b"new")).save(path)
    assert path.read_bytes() == b"old"
    Content("a", lambda: io.BytesIO(b"new")).save(path, overwrite=True)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "content", [Content("a", lambda: Torn(b"x" * 2**22)), missing_content("a", "nobody has it")], ids=["torn", "gone"]
)
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(content, tmp_path):
    path = tmp_path / "b"
    path.write_bytes(b"old")
    with pytest.raises(StoreError, match="cannot be"):
        content.save(path, overwrite=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
