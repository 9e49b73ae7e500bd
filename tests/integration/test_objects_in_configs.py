"""Classes, functions and lambdas as entries of a config: taken, typed, printed, recorded, given by name."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from sacristan.experiments import Experiment
from sacristan.ingredients import Checkpointer, ConfigError, Ingredient
from sacristan.observers import FileObserver


class Small:
    """A net."""


class Large(Small):
    """Another one."""


def flat(step):
    """Return a rate."""
    return 0.5


@pytest.fixture
def ex(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ex = Experiment("objects", base_dir=Path(__file__).parent, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))

    @ex.config
    def config():
        import math as mathematics

        # the class of the net
        net = Small
        nets = [Small, Large]
        act = math.sqrt
        rate = lambda step: mathematics.sqrt(step)  # noqa: E731

        def shift(x):
            return x + 1

        group = {"cell": collections.OrderedDict, "size": 3}
        library = json
        dtype = torch.float32
        folder = Path("data")
        maybe: type[Small] | None = None
        make: Callable[[], Small] | None = None

    @ex.named_config
    def big():
        net = Large
        rate = flat

    @ex.main
    def main(_config):
        return None

    return ex


def config_of(ex, updates={}, named_configs=()):
    return ex.run(config_updates=updates, named_configs=named_configs).config


def test_scope_keeps_classes_functions_and_modules_as_entries(ex):
    config = config_of(ex)
    assert (config["net"], config["nets"], config["act"]) == (Small, [Small, Large], math.sqrt)
    assert (config["rate"](4), config["shift"](1)) == (2.0, 2)
    assert (config["group"]["cell"], config["library"], config["dtype"]) == (
        collections.OrderedDict,
        json,
        torch.float32,
    )
    assert "mathematics" not in config


def test_main_is_given_the_class_itself(ex):
    ex.main(lambda net, act: (net, act(4)))
    assert ex.run("<lambda>").result == (Small, 2.0)


def test_named_config_changes_a_class_and_a_function(ex):
    config = config_of(ex, named_configs=["big"])
    assert (config["net"], config["rate"]) == (Large, flat)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("entry", "given", "taken"),
    [
        ("net", f"{__name__}:Large", Large),
        ("net", f"{__name__}.Large", Large),
        ("net", Large, Large),
        ("net", lambda: None, None),
        ("act", "math.exp", math.exp),
        ("rate", f"{__name__}:flat", flat),
        ("nets", [f"{__name__}:Large"], [Large]),
        ("group.cell", "collections:Counter", collections.Counter),
        ("library", "json.decoder", json.decoder),
        ("dtype", "torch.float16", torch.float16),
        ("folder", "elsewhere", Path("elsewhere")),
        ("maybe", f"{__name__}:Large", Large),
        ("make", f"{__name__}:Small", Small),
    ],
)
def test_update_gives_an_object_itself_or_by_name(ex, entry, given, taken):
    config = config_of(ex, {entry: given})
    found = config["group"]["cell"] if "." in entry else config[entry]
    assert found == (given if taken is None else taken)


@pytest.mark.parametrize(
    ("entry", "given", "message"),
    [
        ("net", "Large", "net: got 'Large' .str., expected a class or function by its dotted name; write for .*:Small"),
        ("net", 3, "net: got 3 .int., expected a class or function by its dotted name"),
        ("net", f"{__name__}:Lrage", "net: got '.*', but .* has no 'Lrage'; did you mean 'Large'"),
        ("act", "nowhere.exp", "act: got 'nowhere.exp', but there is no module 'nowhere'"),
        (
            "rate",
            "lambda step: 1",
            "rate: got 'lambda step: 1', which cannot be imported: .* name a function: rate=package.module:name",
        ),
        ("nets", ["x"], "nets: got .*, expected a list of class or function by its dotted names"),
        ("library", 3, "library: got 3 .int., expected the name of a module"),
        ("library", "nowhere", "library: got 'nowhere', but there is no module 'nowhere'"),
        ("dtype", "float16", "dtype: got 'float16'"),
        ("folder", 3, "folder: got 3 .int., expected a path"),
        ("maybe", "collections:Counter", "maybe: got 'collections:Counter' .str., expected a subclass of Small"),
    ],
)
def test_update_that_names_no_such_object_refused(ex, tmp_path, entry, given, message):
    with pytest.raises(ConfigError, match=message):
        ex.run(config_updates={entry: given})
    assert not (tmp_path / "runs").exists()


def test_record_has_the_names_and_a_run_of_it_has_the_objects(ex, tmp_path):
    first = config_of(ex, {"net": Large})
    path = tmp_path / "runs" / "1" / "config.json"
    recorded = json.loads(path.read_text())
    assert recorded["net"] == f"{__name__}:Large"
    assert recorded["nets"] == [f"{__name__}:Small", f"{__name__}:Large"]
    assert (recorded["act"], recorded["group"]["cell"]) == ("math:sqrt", "collections:OrderedDict")
    assert recorded["rate"] == "lambda step: mathematics.sqrt(step)"
    assert recorded["shift"].startswith(f"{__name__}:<locals>.shift ")
    assert (recorded["library"], recorded["dtype"], recorded["folder"]) == ("json", "torch:float32", "data")
    again = config_of(ex, named_configs=[str(path)])
    assert again.keys() == first.keys()
    for name in set(first) - {"rate", "shift"}:
        assert again[name] == first[name], name
    assert (again["rate"](9), again["shift"](1)) == (3.0, 2)
    assert json.loads((tmp_path / "runs" / "2" / "config.json").read_text()) == recorded


def test_class_given_where_nothing_is_declared_stays_itself(ex, tmp_path):
    ex.add_config(callback=None)
    assert config_of(ex, {"callback": Small})["callback"] is Small
    assert json.loads((tmp_path / "runs" / "1" / "config.json").read_text())["callback"] == f"{__name__}:Small"


def test_add_config_takes_classes(ex):
    ex.add_config(optimizer=torch.optim.SGD)
    assert config_of(ex, {"optimizer": "torch.optim.Adam"})["optimizer"] is torch.optim.Adam


def test_ingredient_gives_its_functions_the_class(tmp_path):
    part = Ingredient("part", base_dir=Path(__file__).parent)

    @part.config
    def config():
        net = Small

    make = part.capture(lambda net: net())
    ex = Experiment("lab", [part], base_dir=Path(__file__).parent)
    ex.main(lambda: type(make()).__name__)
    assert ex.run(config_updates={"part.net": f"{__name__}:Large"}).result == "Large"


def test_print_config_shows_names(ex, capsys):
    ex.run("print_config", {"act": "math.exp"})
    lines = capsys.readouterr().out.splitlines()
    assert f"net = {__name__}:Small" in "\n".join(lines)
    assert any(line.startswith("act = math:exp") for line in lines)
    assert any(line.startswith(f"nets = [{__name__}:Small, {__name__}:Large]") for line in lines)
    assert any(line.startswith("folder = 'data'") for line in lines)


@pytest.mark.parametrize(("name", "read"), [("a.json", json.load), ("a.yaml", yaml.safe_load)])
def test_save_config_writes_names_that_with_reads(ex, tmp_path, name, read):
    ex.run("save_config", {"config_filename": name, "net": Large})
    with (tmp_path / name).open() as stream:
        assert read(stream)["net"] == f"{__name__}:Large"
    assert config_of(ex, named_configs=[name])["net"] is Large


def test_checkpoint_of_a_run_with_classes_is_read_without_running_code(tmp_path):
    keeper = Checkpointer(tmp_path, {"net": Small, "folder": Path("x"), "seed": 0})
    path = tmp_path / "state.pt"
    torch.save({"config": keeper.config}, path)
    assert torch.load(path, weights_only=True)["config"] == {"net": f"{__name__}:Small", "folder": "x", "seed": 0}
