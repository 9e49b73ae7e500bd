"""Numbers of runs, beside whatever else lies in their folder."""

import pytest

from observers.record.numbered_folder import as_number, make_numbered_folder

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
