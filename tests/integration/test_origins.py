"""Origins of config values: shown by `print_config`, and kept in the record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient, UnknownNamedConfigError
from sacristan.ingredients.datasets.sources import load_source
from sacristan.observers import FileObserver
from sacristan.runs.sweeps.spec import read_spec


@pytest.fixture
def ex(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("part: {width: 5}\nsteps: 7\n")
    part = Ingredient("part", base_dir=Path(__file__).parent)

    @part.config
    def of_the_part():
        width = 1
        height = 2
        rate = 0.1
        options = {}

    @part.named_config
    def tall():
        height = 100
        width = 4

    @part.config_hook
    def fill_in(config, command_name, logger):
        return {"depth": 3, "height": config.part.height}

    ex = Experiment("origins", [part], base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.alias(rate="part.rate")
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.config
    def config(part):
        rate = part["rate"]
        steps = 10
        name = "a"
        note = "n"

    @ex.named_config
    def quick():
        steps = 2
        rate = 0.5

    ex.add_named_config("noted", note="m")

    @ex.config_hook
    def mark(config, command_name, logger):
        config.name = "b"
        return config

    ex.main(lambda: None)
    return ex


def shown(ex, capsys, *words):
    """Return the origin that `print_config` shows of each entry; "default" where it shows none."""
    capsys.readouterr()
    ex.run_commandline(["origins.py", "print_config", *words])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if " = " in line]
    origins = [re.search(r"  # \[(.*?)\]", line) for line in lines]
    return {
        line.partition(" = ")[0]: origin[1] if origin else "default"
        for line, origin in zip(lines, origins, strict=True)
    }


def test_origin_of_what_nobody_set_is_the_default(ex, capsys):
    assert shown(ex, capsys) == {
        "rate": "default",
        "steps": "default",
        "name": "hook mark",
        "note": "default",
        "seed": "drawn",
        "width": "default",
        "height": "default",
        "depth": "hook fill_in",
        "options": "default",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["steps=3"], {"steps": "command line"}),
        (["seed=3"], {"seed": "command line"}),
        (["part.rate=0.5"], {"rate": "command line"}),
        (["rate=0.5"], {"rate": "command line"}),
        (["quick"], {"steps": "quick", "rate": "quick"}),
        (["quick", "rate=0.7"], {"steps": "quick", "rate": "command line"}),
        (["recipe.yaml"], {"width": "recipe.yaml", "steps": "recipe.yaml"}),
        (
            ["recipe.yaml", "quick", "part.tall"],
            {"width": "part.tall", "height": "part.tall", "steps": "quick", "rate": "quick"},
        ),
        (["part.tall", "recipe.yaml"], {"width": "recipe.yaml", "height": "part.tall", "steps": "recipe.yaml"}),
        (["noted", "name=c"], {"note": "noted", "name": "command line"}),
        (["part.options={'a': 1}"], {"a": "command line"}),
    ],
)
def test_origin_is_what_set_the_value_last(ex, capsys, words, expected):
    found = shown(ex, capsys, "with", *words)
    assert {name: found[name] for name in expected} == expected
    others = {"name": "hook mark", "depth": "hook fill_in", "seed": "drawn"} | expected
    assert {name for name, origin in found.items() if origin != "default"} == set(others)


def test_origins_are_in_the_record(ex, tmp_path):
    ex.run_commandline(["origins.py", "with", "quick", "part.width=3"])
    assert json.loads((tmp_path / "runs" / "1" / "run.json").read_text())["meta"]["origins"] == [
        {"origin": "hook mark", "entries": ["name"]},
        {"origin": "hook fill_in", "entries": ["part.depth"]},
        {"origin": "quick", "entries": ["part.rate", "rate", "steps"]},
        {"origin": "command line", "entries": ["part.width"]},
        {"origin": "drawn", "entries": ["seed"]},
    ]


@pytest.mark.parametrize("word", ["rate=0.5", "part.rate=0.5", "quick"])
def test_print_config_marks_an_alias_and_its_entry_alike(ex, word):
    modified = ex.run_commandline(["origins.py", "print_config", "with", word]).config_modifications.modified
    assert {"rate", "part.rate"} <= modified
    assert "note" not in modified


def test_print_config_marks_no_alias_that_was_not_changed(ex):
    assert not {"rate", "part.rate"} & ex.run("print_config").config_modifications.modified


def test_entry_that_a_file_sets_to_its_default_is_at_its_default(ex, capsys, tmp_path):
    (tmp_path / "as_it_is.yaml").write_text("part: {width: 1, options: {a: 2}}\nsteps: 10\nrate: 0.5\n")
    found = shown(ex, capsys, "with", "as_it_is.yaml")
    assert {name for name, origin in found.items() if origin == "as_it_is.yaml"} == {"a", "rate"}


def test_recipe_of_the_lab_is_read_where_the_project_has_none_and_named_by_its_path(ex, capsys, tmp_path):
    ex.add_config(lr=0.1, epochs=1, data={"path": "", "name": "", "target": "", "batch_size": 1}, model={})
    recipe = str(Path(__file__).parents[2] / "configs" / "own_data.yaml")
    run = ex.run(named_configs=["configs/own_data.yaml"])
    assert run.config["data"]["path"] == "configs/iris.csv"
    assert run.meta_info["named_configs"] == [recipe]
    assert recipe in [group["origin"] for group in run.meta_info["origins"]]
    assert "configs/own_data.yaml" in shown(ex, capsys, "with", "configs/own_data.yaml").values()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own_data.yaml").write_text("lr: 0.5\n")
    run = ex.run(named_configs=["configs/own_data.yaml"])
    assert (run.config["lr"], run.meta_info["named_configs"]) == (0.5, ["configs/own_data.yaml"])
    with pytest.raises(UnknownNamedConfigError, match=r"did you mean configs/own_data\.yaml\?"):
        ex.run(named_configs=["configs/own_dta.yaml"])
    with pytest.raises(UnknownNamedConfigError, match=r"did you mean configs/digits_mlp\.yaml\?"):
        ex.run(named_configs=["configs/digts_mlp.yaml"])


def test_table_and_spec_of_the_lab_are_read_where_the_project_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(load_source("csv", "configs/iris.csv", "species").inputs) == 150
    assert read_spec("configs/sweeps/lr.yaml").run_cap == 40
