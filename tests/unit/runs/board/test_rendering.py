"""Terminal output as HTML, and the scripts of the board as one file."""

from __future__ import annotations

import re

import pytest

from sacristan.runs.board.rendering import STATIC, joined_scripts, to_html


@pytest.fixture(scope="module")
def joined():
    return joined_scripts()


def test_joined_scripts_have_no_statement_of_modules_left(joined):
    assert re.findall(r"^(?:import|export)\b.*|^await\b.*", joined, re.MULTILINE) == []


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_joined_scripts_return_what_modules_export(joined, path):
    text = path.read_text(encoding="utf-8")
    module = joined.split(f'\n"{path.name}"() {{\n')[1].split("\n},\n")[0]
    exported = re.findall(r"^export .*?(\w+)(?: =|\(| \{)", text, re.MULTILINE)
    assert module.rpartition("return ")[2] == f"{{ {', '.join(exported)} }};"
    assert module.count('need("./') == 0
    for name in re.findall(r'"\./([\w.]+)";$', text, re.MULTILINE):
        assert f'need("{name}");' in module
        assert (STATIC / name).is_file()


def test_scripts_import_each_other_without_a_circle():
    imports = {path.name: set(re.findall(r'"\./([\w.]+)";', path.read_text())) for path in STATIC.glob("*.js")}
    while free := {name for name, needed in imports.items() if not needed}:
        imports = {name: needed - free for name, needed in imports.items() if name not in free}
    assert imports == {}, "a module of a circle would see nothing of the others"


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
