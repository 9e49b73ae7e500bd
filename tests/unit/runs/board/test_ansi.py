import pytest

from sacristan.runs.board.ansi import to_html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b>&", "plain &lt;b&gt;&amp;"),
        ("\x1b[32mgood\x1b[0m bad", '<span class="fg-green">good</span> bad'),
        ("\x1b[1;91mred\x1b[39m bold", '<span class="fg-red bold">red</span><span class="bold"> bold</span>'),
        ("\x1b[44mblue\x1b[49m.", '<span class="bg-blue">blue</span>.'),
        ("\x1b[38;5;200mpink\x1b[m.", "pink."),
        ("\x1b[38;2;1;2;3mmany\x1b[3mslanted", 'many<span class="italic">slanted</span>'),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("50%\r", "50%"),
        ("windows\r\nend", "windows\nend"),
        ("a\x1b]0;title\x07b\x1b[2Jc\x1b[", "abc"),
        ("\x00\x07\u202egone", "\ufffd\ufffd\ufffdgone"),
        ("\x1b[" + "9" * 100 + "m<script>", "&lt;script&gt;"),
        ("\x1b[31m<script>", '<span class="fg-red">&lt;script&gt;</span>'),
    ],
)
def test_output_as_html_has_colours_and_nothing_else(text, html):
    assert str(to_html(text)) == html
