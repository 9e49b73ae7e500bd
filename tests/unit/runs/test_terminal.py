import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.commands.logs import Sieve
from runs.commands.terminal import fit, harmless, strict
from runs.commands.wording import duration_text, time_text, utc, value_text
from runs.query.flattening import changes, dotted, is_same


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 名前 …", "plain é 名前 …"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x00\x07\x7f\x9b2J", r"\x00\x07\x7f\x9b2J"),
        ("abc\u202egnp.exe", r"abc\u202egnp.exe"),
        ("a\u2028b\u200bc\ufeff", r"a\u2028b\u200bc\ufeff"),
        ("\udc80", r"\udc80"),
    ],
)
def test_harmless_shows_what_a_terminal_would_obey(text, expected):
    assert harmless(text) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain\n50%\r100%\n\ttab", "plain\n50%\r100%\n\ttab"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        (b"a\x1b[2Jb\x1b[10;10Hc\x1b[?1049hd", "abcd"),
        (b"a\x1b]0;title\x07b\x1b]52;c;aGk=\x1b\\c", "abc"),
        (b"a\x1bP+q544e\x1b\\b\x1b(0c\x1bcd", "abcd"),
        (b"a\x08b\x00", r"a\x08b\x00"),
        (b"a\x1b", r"a\x1b"),
        (b"a\x1b]0;never ends", r"a\x1b]0;never ends"),
        ("é\u202e".encode(), r"é\u202e"),
        (b"\xff", "\ufffd"),
        (b"\x9b2J", "\ufffd2J"),
        ("\x9b2J".encode(), r"\x9b2J"),
    ],
)
def test_sieve_keeps_text_and_colours_only_however_it_is_cut(data, expected):
    for size in range(1, len(data) + 1):
        sieve = Sieve()
        parts = [sieve.take(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(parts) + sieve.take(b"", is_last=True) == expected
    sieve = Sieve(colours=False)
    assert "\x1b" not in sieve.take(data) + sieve.take(b"", is_last=True)


@given(st.lists(st.sampled_from(["\x1b", "[", "]", "3", "m", "J", "\x07", "\\", "P", "a", "\n", "\x9c"]), max_size=30))
def test_sieve_lets_no_other_sequence_through(parts):
    sieve = Sieve()
    text = sieve.take("".join(parts).encode()) + sieve.take(b"", is_last=True)
    rest = re.sub("\x1b\\[[0-9]*m", "", text)
    assert "\x1b" not in rest
    assert "\x07" not in rest


@pytest.mark.parametrize(
    ("widths", "least", "is_kept", "room", "expected", "left_out"),
    [
        ([2, 10, 10], [2, 8, 8], [True, False, False], 80, [2, 10, 10], []),
        ([2, 30, 10], [2, 8, 8], [True, False, False], 40, [2, 24, 10], []),
        ([2, 30, 20], [2, 8, 8], [True, False, False], 30, [2, 12, 12], []),
        ([2, 30, 20], [2, 8, 8], [True, False, False], 20, [2, 16, 0], [2]),
        ([9, 30], [9, 8], [True, False], 4, [9, 0], [1]),
        ([100], [100], [True], 20, [100], []),
    ],
)
def test_fit_cuts_the_widest_then_leaves_out_the_last(widths, least, is_kept, room, expected, left_out):
    assert fit(widths, least, is_kept, room) == (expected, left_out)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(20, 200),
)
def test_fit_fits(columns, room):
    widths = [width for width, _ in columns]
    least = [min(width, low) for width, low in columns]
    found, left_out = fit(widths, least, [True, *[False] * (len(columns) - 1)], room)
    there = [width for width in found if width]
    assert sum(there) + 2 * (len(there) - 1) <= room
    assert found[0]
    assert all(width >= low for width, low in zip(found, least, strict=True) if width)
    assert left_out == [i for i, width in enumerate(found) if not width]


def test_strict_json_says_numbers_that_json_lacks_as_texts():
    document = {"a": [math.nan, math.inf, -math.inf, 1.5], 3: (True, None)}
    text = json.dumps(strict(document), allow_nan=False)
    assert json.loads(text) == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "3": [True, None]}
    assert math.isnan(float("NaN"))
    assert float("-Infinity") == -math.inf


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
     (math.nan, "nan"), ("x", "x"), ([1, math.nan], '[1, "NaN"]'), (10**20, "1" + "0" * 20)],
)  # fmt: skip
def test_value_text(value, text):
    assert value_text(value) == text


def test_times(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_text("2026-01-31T20:00:00.5") == "2026-02-01 05:00"
        assert time_text("odd") == "odd"
        assert time_text(None) == "-"
        assert time_text(5) == "5"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert utc("2026-01-31T20:00:00") == "2026-01-31T20:00:00Z"
    assert utc("2026-01-31T20:00:00+00:00") == "2026-01-31T20:00:00+00:00"
    assert utc("odd") == "odd"


def test_changes_of_flat_documents():
    old = dotted({"a": {"b": 1, "c": {}}, "nan": math.nan, "gone": 0, "flag": True, "list": [1, {"x": math.nan}]})
    new = dotted({"a": {"b": 2, "c": {}}, "nan": math.nan, "new": 0, "flag": 1, "list": [1, {"x": math.nan}]})
    found = changes(old, new)
    assert found.changed == {"a.b": (1, 2), "flag": (True, 1)}
    assert (found.added, found.removed) == ({"new": 0}, {"gone": 0})
    assert not changes(old, old)
    assert is_same(1, 1.0)
