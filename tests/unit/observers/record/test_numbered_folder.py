"""Numbers of runs, beside whatever else lies in their folder."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from observers.record.numbered_folder import as_number, make_numbered_folder, make_run_folder

ODD = ["\u00b2", "\u0663", "9" * 300, "1e3", "-4", "+5", " 6", "7_0", ""]


@pytest.mark.parametrize("name", ODD)
def test_name_that_is_no_number_is_none(name):
    assert as_number(name) is None


def test_number_in_the_digits_0_to_9_is_one():
    assert [as_number("0"), as_number("007"), as_number("12")] == [0, 7, 12]


def test_run_gets_the_next_number_beside_names_that_only_look_like_one(tmp_path):
    for name in ODD[:2]:
        (tmp_path / name).mkdir()
    (tmp_path / "3").touch()
    folder, number = make_numbered_folder(tmp_path)
    assert (folder, number) == (tmp_path / "4", "4")


def test_file_system_that_has_every_number_is_left_after_many(tmp_path, monkeypatch, caplog):
    base, make = tmp_path / "runs", Path.mkdir
    base.mkdir()

    def refuse(path, *args, **options):
        if path.parent == base:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        make(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    elsewhere, folder, number = make_run_folder(base)
    assert (folder, number) == (elsewhere / "1", "1")
    assert f"{base} cannot be written (File exists); this run is recorded in {folder}" in caplog.text
    shutil.rmtree(elsewhere)
