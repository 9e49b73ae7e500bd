"""Keys of runs."""

from __future__ import annotations

import json

import pytest

from sacristan.runs import RunNotFoundError, open_store


def test_beginning_of_many_uids_names_five_of_them(tmp_path):
    for number in range(1, 8):
        folder = tmp_path / str(number)
        folder.mkdir()
        entry = {"experiment": {"name": "e"}, "status": "COMPLETED", "uid": f"abc{number}"}
        (folder / "run.json").write_text(json.dumps(entry))
    with open_store(tmp_path) as store:
        assert store.get("abc7").id == "7"
        with pytest.raises(RunNotFoundError, match="'abc' is the beginning of more than one uid") as refused:
            store.get("abc")
    assert str(refused.value).count("(abc") == 5
