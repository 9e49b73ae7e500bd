"""Which libraries work beside the record of a script."""

from __future__ import annotations

import pytest

from sacristan.experiments.scripts.capturing import Capture


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, True),
        ({"_stands_in": True}, False),
        ({"_stands_in": True, "also": ["wandb"]}, True),
        ({"_stands_in": True, "also": ["mlflow"]}, False),
        ({"_stands_in": True, "is_guest": True}, True),
    ],
)
def test_library_works_itself_if_it_is_named_or_nothing_stands_in_for_it(state, expected):
    capture = Capture()
    vars(capture).update(state)
    assert capture.lets("wandb") is expected
