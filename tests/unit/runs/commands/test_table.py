"""The table of commands: where each lies, and what it has."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.command_line import make_parser
from sacristan.runs import commands
from sacristan.runs.commands import COMMANDS, GROUPS, load, name_of

FOLDER = Path(commands.__file__).parent
LAB = FOLDER.parents[1]


def test_every_module_holds_commands_and_nothing_else():
    homes = {path.stem: set() for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    for home in COMMANDS:
        homes[home.partition(".")[0]].add(home.partition(".")[2])
    for module, classes in homes.items():
        things = vars(importlib.import_module(f"sacristan.runs.commands.{module}"))
        assert {
            name for name, thing in things.items() if inspect.isclass(thing) and hasattr(thing, "main")
        } == classes - {""}


@pytest.mark.parametrize("home", COMMANDS)
def test_commands_have_one_face_and_import_no_other_command(home):
    assert {"JSON", "NO_JSON", "add_arguments", "main"} - set(dir(load(home))) in ({"JSON"}, {"NO_JSON"})
    module = home.partition(".")[0]
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    homes = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = [home.split(".")[3] for home in homes if home and home.startswith("sacristan.runs.commands.")]
    assert {*own} <= {"terminal"}


@pytest.mark.parametrize("words", [[], ["ls"]])
def test_help_lists_every_command(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        make_parser(words).parse_args(["--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    named = [line[0] for line in lines if line and line[0] in set(map(name_of, COMMANDS))]
    assert named == [*map(name_of, COMMANDS)]
    assert [home for group in GROUPS.values() for home in group] == [*COMMANDS]


@pytest.mark.parametrize("name", [*map(name_of, COMMANDS)])
def test_help_of_each_command_says_what_it_takes(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert "--store" in capsys.readouterr().out


def test_one_command_imports_no_other(tmp_path):
    script = """
import sys
from sacristan.__main__ import main
try:
    main(["ls", "--store", sys.argv[1]])
finally:
    commands = "sacristan.runs.commands."
    print(sorted(name for name in sys.modules if name.startswith(commands) and "terminal" not in name))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=LAB, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['sacristan.runs.commands.ls']"


def test_name_of_another_command_may_be_a_value(tmp_path, capsys):
    assert main(["ls", "--store", str(tmp_path / "show")]) == 1
    assert main(["--store", "rm", "show", "ls"]) == 1
    assert capsys.readouterr().err.splitlines()[1].startswith("error: there is no folder rm")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("shwo", "did you mean show?; sacristan --help lists all"),
        ("res", "did you mean resume, sources or restore?; sacristan --help lists all"),
        ("qqqqq", "sacristan --help lists all"),
    ],
)
def test_unknown_command_is_refused_with_the_nearest_ones(word, hint, capsys):
    with pytest.raises(SystemExit) as end:
        main([word, "1"])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: got {word!r}, which is no command; {hint}\n"
