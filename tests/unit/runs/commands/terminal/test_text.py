from __future__ import annotations

import pytest

from sacristan.runs.commands.terminal.text import harmless


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
