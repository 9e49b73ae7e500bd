from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs.commands.terminal.text import OutputFilter


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
        output_filter = OutputFilter()
        parts = [output_filter.take(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(parts) + output_filter.take(b"", is_last=True) == expected
    output_filter = OutputFilter(colours=False)
    assert "\x1b" not in output_filter.take(data) + output_filter.take(b"", is_last=True)


@given(st.lists(st.sampled_from(["\x1b", "[", "]", "3", "m", "J", "\x07", "\\", "P", "a", "\n", "\x9c"]), max_size=30))
def test_sieve_lets_no_other_sequence_through(parts):
    output_filter = OutputFilter()
    text = output_filter.take("".join(parts).encode()) + output_filter.take(b"", is_last=True)
    rest = re.sub("\x1b\\[[0-9]*m", "", text)
    assert "\x1b" not in rest
    assert "\x07" not in rest
