"""Numbers of runs, beside whatever else lies in their folder."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from sacristan.observers.record.folders import as_number, make_numbered_folder, make_run_folder

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


def test_folder_of_runs_may_be_a_link_to_one_that_is_not_there_yet(tmp_path):
    base = tmp_path / "my_runs"
    base.symlink_to(tmp_path / "elsewhere")
    assert make_run_folder(base) == (base, base / "1", "1")
    assert (tmp_path / "elsewhere" / "1").is_dir()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_folder_of_runs_that_cannot_be_one_is_named_with_the_reason(tmp_path, caplog, kind):
    base = tmp_path / "my_runs"
    if kind == "link":
        base.symlink_to(tmp_path / "unmounted" / "runs")
        reason = f"it is a link to {tmp_path}/unmounted/runs, which does not exist"
    else:
        base.touch()
        reason = "it is no folder"
    elsewhere, folder, _ = make_run_folder(base)
    assert f"{base} cannot be written ({reason}); this run is recorded in {folder}" in caplog.text
    assert not (tmp_path / "unmounted").exists()
    shutil.rmtree(elsewhere)
