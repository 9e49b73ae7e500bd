from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.commands.terminal.tables import fit


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
