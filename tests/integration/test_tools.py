"""Ingredients that are tools: only some commands read their settings, which stand in no other config."""

from __future__ import annotations

import json
import re

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient
from sacristan.observers import FileObserver


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that makes an experiment with two tools; `needs` are those that its `send` names."""
    monkeypatch.chdir(tmp_path)

    def make(*needs):
        tools = {name: Ingredient(name, is_tool=True, base_dir=tmp_path) for name in ("drill", "press")}

        @tools["drill"].config
        def config():
            # turns a minute
            speed = 3
            bits = {"small": 1}

        tools["press"].add_config(force=1)

        @tools["drill"].command(unobserved=True)
        def turn(speed):
            """Turn."""
            return speed

        @tools["press"].capture
        def pressed(force):
            return force

        ex = Experiment("shop", list(tools.values()), base_dir=tmp_path, system_metrics_s=None)
        ex.observers.append(FileObserver("my_runs"))
        ex.add_config(lr=0.1)

        @ex.command(needs=needs)
        def send():
            """Send."""
            return pressed()

        @ex.main
        def main():
            return pressed()

        return ex

    return make


def typed(ex, *words):
    return ex.run_commandline(["shop.py", *words])


def test_run_holds_the_settings_that_its_command_reads(make, tmp_path):
    ex = make("press")
    assert typed(ex).result == 1  # a function of a tool has its defaults in any run
    assert typed(ex, "send", "with", "press.force=2").result == 2
    read = [json.loads((tmp_path / "my_runs" / id / "config.json").read_text()) for id in "12"]
    assert [{*config} - {"seed"} for config in read] == [{"lr"}, {"lr", "press"}]
    assert typed(ex, "drill.turn", "with", "drill.speed=5").config["drill"] == {"speed": 5, "bits": {"small": 1}}


def test_tool_that_no_command_needs_is_read_by_any(make):
    ex = make()
    assert typed(ex, "with", "press.force=4").result == 4
    assert ex.run().config["press"] == {"force": 1}


@pytest.mark.parametrize("word", ["drill.speed=5", "drill.bits.small=2"])
def test_setting_of_a_tool_that_the_command_does_not_read_is_refused(make, capsys, tmp_path, word):
    name, _, value = word.partition("=")
    with pytest.raises(SystemExit):
        typed(make("press"), "with", word)
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {name}: got {value}, but main does not read it; leave it out, or run a command that does: drill.turn"
    )
    assert not (tmp_path / "my_runs").exists()
    assert typed(make("press"), "with", word, "--force").result == 1


@pytest.mark.parametrize("word", ["drill.sped=5", "dril.speed=5", "press.forc=1"])
def test_mistyped_setting_of_a_tool_gets_its_name(make, capsys, word):
    with pytest.raises(SystemExit):
        typed(make("press"), "with", word)
    assert f"did you mean {'press.force' if 'forc' in word else 'drill.speed'}?" in capsys.readouterr().err


def test_settings_of_tools_in_a_file_are_for_the_commands_that_read_them(make, tmp_path):
    (tmp_path / "all.json").write_text('{"lr": 1.0, "drill": {"speed": 3}, "press": {"force": 6}}')
    ex = make("press")
    assert typed(ex, "send", "with", "all.json").result == 6
    assert "drill" not in typed(ex, "with", "all.json").config  # as it is at its defaults
    assert ex.run(config_updates={"drill": {"speed": 3}}).result == 1


def test_print_config_prints_the_settings_of_a_command(make, capsys):
    def printed(*words):
        capsys.readouterr()
        typed(make("press"), *words)
        return capsys.readouterr().out

    assert not {"drill:", "press:"} & {*printed("print_config").splitlines()}
    assert "drill:\n" in printed("print_config", "drill.turn")
    changed = printed("print_config", "drill.turn", "with", "drill.speed=5")
    assert re.search(r"^  speed = 5 +# \[command line\] turns a minute$", changed, re.M)
    assert "press:\n" in printed("print_config", "-l", "WARNING", "send")
    assert "press" not in printed("print_config", "main")


def test_print_config_of_an_unknown_command_names_the_nearest(make, capsys):
    with pytest.raises(SystemExit):
        typed(make("press"), "print_config", "drill.tur")
    assert "drill.tur: there is no such command or setting; did you mean drill.turn?" in capsys.readouterr().err


def test_save_config_saves_the_settings_of_a_command(make, tmp_path):
    ex = make("press")
    typed(ex, "save_config", "send", "with", "press.force=9")
    assert json.loads((tmp_path / "config.json").read_text())["press"] == {"force": 9}
    assert typed(ex, "send", "with", "config.json").result == 9
    typed(ex, "save_config")
    assert "press" not in json.loads((tmp_path / "config.json").read_text())
