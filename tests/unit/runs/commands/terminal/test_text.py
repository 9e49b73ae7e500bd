from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs.commands.terminal.text import Column, fit, harmless

KEPT, PLAIN, SPARE = Column(is_kept=True), Column(), Column(is_spare=True)


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
    ("columns", "widths", "least", "room", "expected", "left_out"),
    [
        ([KEPT, PLAIN, PLAIN], [2, 10, 10], [2, 8, 8], 80, [2, 10, 10], []),
        ([KEPT, PLAIN, PLAIN], [2, 30, 10], [2, 8, 8], 40, [2, 24, 10], []),
        ([KEPT, PLAIN, PLAIN], [2, 30, 20], [2, 8, 8], 30, [2, 12, 12], []),
        ([KEPT, PLAIN, PLAIN], [2, 30, 20], [2, 8, 8], 20, [2, 16, 0], [2]),
        ([KEPT, PLAIN], [9, 30], [9, 8], 4, [9, 0], [1]),
        ([KEPT], [100], [100], 20, [100], []),
        ([KEPT, SPARE, SPARE, PLAIN], [2, 4, 4, 20], [2, 4, 4, 8], 30, [2, 4, 0, 20], [2]),
        ([KEPT, SPARE, SPARE, PLAIN], [2, 4, 4, 20], [2, 4, 4, 8], 20, [2, 0, 0, 16], [1, 2]),
    ],
)
def test_fit_drops_spare_columns_cuts_the_widest_then_leaves_out_the_last(
    columns, widths, least, room, expected, left_out
):
    assert fit(columns, widths, least, room) == (expected, left_out)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(20, 200),
)
def test_fit_fits(columns, room):
    widths = [width for width, _ in columns]
    least = [min(width, low) for width, low in columns]
    found, left_out = fit([KEPT, *[PLAIN] * (len(columns) - 1)], widths, least, room)
    there = [width for width in found if width]
    assert sum(there) + 2 * (len(there) - 1) <= room
    assert found[0]
    assert all(width >= low for width, low in zip(found, least, strict=True) if width)
    assert left_out == [i for i, width in enumerate(found) if not width]
