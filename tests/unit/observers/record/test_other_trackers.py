"""Names of other trackers, as records have them."""

from __future__ import annotations

import pytest

from sacristan.observers.record.other_trackers import part_name


@pytest.mark.parametrize(
    ("title", "above", "names", "expected"),
    [
        ("fold", "", {""}, "fold"),
        ("fold", "", {"", "fold", "fold_2"}, "fold_3"),
        ("", "", {"", "fold"}, "run_3"),
        ("inner", "fold", {"", "fold"}, "fold/inner"),
        ("inner", "fold", {"", "fold", "fold/inner"}, "fold/inner_2"),
    ],
)
def test_part_of_a_record_has_a_name_of_its_own(title, above, names, expected):
    assert part_name(title, above, names) == expected
