"""What a resumed run knows of the earlier session."""

from __future__ import annotations

import json

import pytest

from sacristan.experiments.running.resuming import recorded_data


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"data": {"fingerprint": "3f2a"}}, "3f2a"),
        ({"data": {"fingerprint": 3}}, None),
        ({"data": {}}, None),
        ({"data": None}, None),
        ([], None),
    ],
)
def test_data_of_the_earlier_session_are_known_by_their_fingerprint(tmp_path, info, expected):
    (tmp_path / "info.json").write_text(json.dumps(info))
    assert recorded_data(tmp_path) == expected


def test_data_of_a_session_that_ended_before_are_not_known(tmp_path):
    assert recorded_data(tmp_path) is None
    (tmp_path / "info.json").write_text("{")
    assert recorded_data(tmp_path) is None
