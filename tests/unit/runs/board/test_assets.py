"""The scripts of the board as one file."""

from __future__ import annotations

import re

import pytest

from sacristan.runs.board.assets import STATIC, joined_scripts


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
