"""The layout of a config by `print_config`."""

import pytest
from sacred.config.config_summary import ConfigSummary

from sacristan.experiments.running.commands import format_config, in_order

PLAIN = dict.fromkeys(["changed", "type", "added", "doc"], "")
COLOURS = {"changed": "<c>", "type": "<t>", "added": "<a>", "doc": "<d>"}
CONFIG = {"lr": 0.1, "part": {"width": 3, "deep": {"x": [1]}}}


@pytest.fixture
def changes():
    changes = ConfigSummary(docs={"lr": "learning rate", "part.deep": "a group", "part.deep.x": "inside"})
    changes.added, changes.modified = {"part.deep.x"}, {"lr", "part.deep", "part.width"}
    changes.typechanged = {"part.width": (int, str)}
    return changes


def test_format_config_lines_up_entries_and_documentation(changes):
    assert format_config(in_order(CONFIG, {}), changes, PLAIN) == [
        "lr = 0.1     # learning rate",
        "part:",
        "  width = 3",
        "  deep:      # a group",
        "    x = [1]  # inside",
    ]


def test_format_config_colours_what_was_changed_added_or_of_another_type(changes):
    assert format_config(in_order(CONFIG, {}), changes, COLOURS) == [
        "<c>lr = 0.1\033[0m     <d># learning rate\033[0m",
        "part:",
        "<t>  width = 3\033[0m",
        "<c>  deep:\033[0m      <d># a group\033[0m",
        "<a>    x = [1]\033[0m  <d># inside\033[0m",
    ]


def test_format_config_long_value_does_not_push_the_others_away():
    changes = ConfigSummary(docs={"a": "short", "b": "long"})
    lines = format_config([("a", 1), ("b", "x" * 100)], changes, PLAIN)
    assert lines == ["a = 1" + " " * 41 + "# short", f"b = {'x' * 100!r}  # long"]


def test_format_config_wraps_what_it_documents_to_the_width_of_a_terminal():
    changes = ConfigSummary(docs={"lr": "learning rate; the same setting as optimizer.lr", "long": "a list", "b": "b"})
    lines = format_config([("lr", 1), ("long", "x" * 30), ("b", 2), ("c", 3)], changes, PLAIN, columns=50)
    assert lines == [
        "lr = 1                # learning rate; the same",
        "                      # setting as optimizer.lr",
        f"long = {'x' * 30!r}",
        "                      # a list",
        "b = 2                 # b",
        "c = 3",
    ]


def test_format_config_of_nothing_is_nothing():
    assert format_config([], ConfigSummary(), PLAIN) == []
