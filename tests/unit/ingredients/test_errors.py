"""The tree of errors, as `sacristan.ingredients.errors` draws it, and that Sacred's own `except` clauses work."""

import ast
import pickle
import re
from pathlib import Path

import pytest
from sacred import utils

from sacristan import ingredients
from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient, errors

ROOT = Path(__file__).parents[3]
NAMES = [name for name in errors.__all__ if name != "LabError"]
SACREDS = {
    "ConfigError": "ConfigError",
    "UnknownEntryError": "ConfigAddedError",
    "UnknownNamedConfigError": "NamedConfigNotFoundError",
    "MissingEntryError": "MissingConfigError",
}
# Signals: no `except Exception` is to hold them up.
OUTSIDE = {"_Skipped", "_Rejected", "Pruned", "Replayed", "Terminated", "Error"}


def test_the_drawing_shows_the_tree():
    parents, drawn = {0: "LabError"}, {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│ ]*)[├└]── (\w+) +(.*)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            parents[depth] = match[2]
            builtin = re.search(r"; an? (\w+)$", match[3])
            drawn[match[2]] = {parents[depth - 1], *([builtin[1]] if builtin else [])}
    sacreds = {getattr(utils, name) for name in SACREDS.values()}
    assert drawn == {name: {b.__name__ for b in getattr(errors, name).__bases__ if b not in sacreds} for name in NAMES}


def test_the_list_of_sacreds_errors_is_right():
    listed = dict(re.findall(r"^    (\w+) +sacred\.utils\.(\w+)$", errors.__doc__, re.MULTILINE))
    assert listed == SACREDS
    for ours, theirs in SACREDS.items():
        assert issubclass(getattr(errors, ours), getattr(utils, theirs))


@pytest.mark.parametrize("name", errors.__all__)
def test_error_is_exported_says_its_message_alone_and_travels_between_processes(name):
    kind = getattr(ingredients, name)
    error = pickle.loads(pickle.dumps(kind("lr: got 0")))
    assert issubclass(kind, errors.LabError)
    assert type(error) is kind
    assert str(error) == "lr: got 0"
    assert not error.print_traceback


@pytest.mark.parametrize("name", SACREDS)
def test_error_that_passes_a_captured_function_says_its_message_alone(name):
    part = Ingredient("part")
    ex = Experiment("errors", ingredients=[part], interactive=True)

    @part.capture
    def fail():
        raise getattr(errors, name)("part.lr: got 0")

    ex.main(lambda: fail())
    with pytest.raises(getattr(errors, name), match=r"^part\.lr: got 0$"):
        ex.run()


def test_every_error_of_the_two_packages_is_under_the_root():
    defined = {}
    for package in ("ingredients", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
                if any(base.endswith(("Error", "Exception", "Interrupt", "Warning")) for base in bases):
                    defined[node.name] = path.relative_to(ROOT).as_posix()
    assert {name for name in defined if name not in OUTSIDE} == set(errors.__all__)
    assert {defined[name] for name in errors.__all__} == {"ingredients/errors.py"}


# What code that was written for Sacred catches


@pytest.fixture
def ex():
    part = Ingredient("part")

    @part.config
    def config():
        # width of a part
        width = 3

    ex = Experiment("errors", ingredients=[part], interactive=True)

    @ex.command
    def build(nowhere):
        return nowhere

    @ex.main
    def main(part):
        return part.width

    return ex


def test_unknown_entry_is_caught_as_sacreds(ex):
    with pytest.raises(utils.ConfigAddedError, match=r"part\.widht: got 3, but there is no such entry"):
        ex.run(config_updates={"part.widht": 3})


@pytest.mark.parametrize("name", ["wide", "nowhere.yaml", "part.width"])
def test_unknown_named_config_is_caught_as_sacreds(ex, name):
    with pytest.raises(utils.NamedConfigNotFoundError, match=f"^{name}: "):
        ex.run(named_configs=[name])


def test_missing_entry_is_caught_as_sacreds(ex):
    with pytest.raises(utils.MissingConfigError, match="build: got no value for the argument nowhere"):
        ex.run("build")


def test_setting_of_another_type_is_caught_as_sacreds_and_as_a_value_error(ex):
    for kind in (utils.ConfigError, utils.SacredError, ValueError):
        with pytest.raises(kind, match=r"part\.width: got 'wide' \(str\), expected a number"):
            ex.run(config_updates={"part.width": "wide"})
