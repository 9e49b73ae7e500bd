from __future__ import annotations

import json
import math
import time
from datetime import datetime

import pytest

from sacristan.runs.query.texts import (
    cell_text,
    count_text,
    duration_text,
    list_text,
    size_text,
    strict,
    time_text,
    utc,
    value_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0s"),
        (59.97, "1m00s"),
        (75, "1m15s"),
        (3599.6, "1h00m"),
        (7384, "2h03m"),
        (273600, "3d04h"),
    ],
)
def test_duration_text(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.123456789, "0.12346"), (12345.678, "12346"), (1e-9, "1e-09"), (7, "7"), (True, "True"),
     (math.nan, "nan"), ("x", "x"), ([1, math.nan], '[1, "NaN"]'), ([0] * 900, "[" + "0, " * 66 + "0..."),
     (10**20, "1" + "0" * 20)],
)  # fmt: skip
def test_value_text(value, text):
    assert value_text(value) == text


def test_times(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_text("2026-01-31T20:00:00.5") == "2026-02-01 05:00"
        assert time_text("2025-01-31T20:00:00", short=True) == "2025-02-01"
        assert time_text(datetime(datetime.now().year, 3, 31, 20), short=True) == "Apr 01 05:00"
        assert time_text("odd") == "odd"
        assert time_text(None) == "-"
        assert time_text(5) == "5"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert utc("2026-01-31T20:00:00") == "2026-01-31T20:00:00Z"
    assert utc("2026-01-31T20:00:00+00:00") == "2026-01-31T20:00:00+00:00"
    assert utc("odd") == "odd"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (123456, "123 kB"), (999999, "1 MB"), (5e15, "5e+03 TB")],
)
def test_size_text(num_bytes, text):
    assert size_text(num_bytes) == text


def test_counts_and_lists_of_names():
    assert [count_text(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert list_text(list("abcde")) == "a, b, c, d, e"
    assert list_text(list("abcdef")) == "a, b, c, d, e, and 1 more"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_that_a_spreadsheet_would_run_is_a_text(text):
    assert cell_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "train/loss", "-1.5", "+3e5", "-inf", "a=1", "'=1"])
def test_other_cells_stay_as_they_are(text):
    assert cell_text(text) == text


def test_strict_json_says_numbers_that_json_lacks_as_texts():
    document = {"a": [math.nan, math.inf, -math.inf, 1.5], 3: (True, None)}
    text = json.dumps(strict(document), allow_nan=False)
    assert json.loads(text) == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "3": [True, None]}
    assert math.isnan(float("NaN"))
    assert float("-Infinity") == -math.inf
