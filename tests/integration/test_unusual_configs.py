"""Configs with values that JSON lacks: recorded, then resumed, forked, reproduced and used as a config file."""

import json
import os
import sys
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, UnknownEntryError
from tests.processes import run

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import argparse, collections, dataclasses, datetime, decimal, enum, fractions, functools, math, re, types, uuid
from pathlib import Path

import numpy as np

from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint
from sacristan.observers import file_observer, run_folder

OBSERVED = [file_observer("my_runs")]
ex = Experiment("unusual", ingredients=[checkpoint.ingredient], save_git_info=False, system_metrics_s=None)
ex.observers.extend(OBSERVED)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Options:
    lr: float = 0.1
    sizes: tuple = (1, 2)


class Object:
    def __init__(self):
        self.names = {"a", "b", "c"}

    def __repr__(self):
        return "Object"


@ex.config
def config():
    seed = 0
    epochs = 2
    weight = {0: 1.0, 1: 2.5}
    layers = {0: {"lr": 0.1, "sizes": [1]}, "last": {"lr": 0.2, "sizes": []}}
    pairs = {(0, 1): "a", (1, 2): "b"}
    nested = {"inner": {0.5: [{True: 1}]}, "plain": 1}
    words = {"a", "b", "c"}
    frozen = frozenset({("a", 1)})
    data = b"\\x00\\xff"
    array_of_bytes = bytearray(b"ab")
    day = datetime.date(2024, 1, 31)
    moment = datetime.datetime(2024, 1, 31, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)
    hour = datetime.time(1, 2)
    wait = datetime.timedelta(days=1, seconds=3)
    price = decimal.Decimal("0.10")
    share = fractions.Fraction(1, 3)
    root = 1 + 2j
    key = uuid.UUID(int=5)
    steps = range(3, 10, 2)
    part = slice(1, 5)
    queue = collections.deque([1, 2], maxlen=3)
    pattern = re.compile("a+", re.I)
    space = types.SimpleNamespace(a={1})
    arguments = argparse.Namespace(b=2)
    array = np.arange(4.0)
    long = np.linspace(0, 1, 100, dtype=np.float32)
    arrays = [np.ones(2, bool), {"w": np.array([[1, 2]])}]
    scalar = np.array(3.5)
    dtype = np.dtype("float16")
    colour = Colour.RED
    level = Level.LOW
    by_colour = {Colour.RED: 1}
    colours = [Colour.RED, Colour.BLUE]
    options = Options()
    thing = Object()
    power = functools.partial(math.pow, 2)
    function = math.sqrt
    double = lambda x: 2 * x


@ex.named_config
def other():
    weight = {0: 3.0, 1: 4.0}
    words = {"d", "e"}
    day = datetime.date(2025, 1, 31)
    array = np.arange(3.0)
    nested = {"inner": {0.5: [{False: b"c"}]}}


@ex.automain
def main(_config, _run, seed, epochs):
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 1)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        place = keeper.begin(parts)
        with keeper.session():
            while place.epoch < epochs:
                place.epoch, place.step = place.epoch + 1, place.step + 1
                _run.log_scalar("loss", model(torch.ones(2)).item(), place.step)
                keeper.save(place, parts, final=place.epoch == epochs)
                if Path("fail").exists():
                    raise RuntimeError("asked to")
    leave = {"checkpoint", "epochs", "double", "power"}
    shown = lambda value: sorted(value) if isinstance(value, set) else value
    return {name: f"{type(value).__name__} {shown(value)!r}" for name, value in _config.items() if name not in leave}
"""


class Lab:
    """A folder with the script and its runs."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "unusual.py").write_text(SCRIPT)

    def python(self, *words, code=0):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *words]
        done = run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def result(self, number):
        return json.loads((self.folder / "my_runs" / str(number) / "run.json").read_text())["result"]


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("named", ["", "other"])
def test_all_kinds_are_resumed_forked_reproduced_and_read_as_a_file(lab, named):
    settings = ["seed=0", *filter(None, [named])]
    lab.python("unusual.py", "with", *settings)
    whole = lab.result(1)
    assert whole["weight"] == f"Map Map({ {0: 3.0, 1: 4.0} if named else {0: 1.0, 1: 2.5} })"
    assert whole["colours"] == "FrozenList [<Colour.RED: 1>, <Colour.BLUE: 2>]"
    assert whole["level"] == "Level <Level.LOW: 1>"
    lab.python("unusual.py", "with", "my_runs/1/config.json")
    assert lab.result(2) == whole
    lab.python("-m", "sacristan", "fork", "1", "with", "epochs=3", "weight.1=7")
    forked = "{0: 3.0, 1: 7.0}" if named else "{0: 1.0, 1: 7.0}"
    assert lab.result(3) == {**whole, "weight": f"Map Map({forked})"}
    done = lab.python("-m", "sacristan", "reproduce", "1")
    assert done.stdout.startswith("IDENTICAL"), done.stdout
    (lab.folder / "fail").touch()
    lab.python("unusual.py", "with", *settings, code=1)
    (lab.folder / "fail").unlink()
    lab.python("-m", "sacristan", "resume", "5")
    assert lab.result(5) == whole
    (lab.folder / "fail").touch()
    lab.python("unusual.py", "with", *settings, code=1)
    (lab.folder / "fail").unlink()
    done = lab.python("unusual.py", "with", *settings, "checkpoint.resume=auto")
    assert lab.result(6) == whole, done.stderr
    lab.python("unusual.py", "save_config", "with", "my_runs/1/config.json", "config_filename=saved.yaml", code=1)


GIVEN = {}  # a scope sees globals alone


def make(folder, value, other=None):
    GIVEN.update(value=value, other=other)
    ex = Experiment("e", save_git_info=False, base_dir=str(folder), system_metrics_s=None, record_to=folder / "my_runs")

    @ex.config
    def config():
        x = GIVEN["value"]

    @ex.named_config
    def named():
        x = GIVEN["other"]

    @ex.main
    def main(x):
        ex.seen = x

    return ex


WEIGHT = {0: 1.0, 1: 2.5}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("value", "words", "expected"),
    [
        (WEIGHT, ["x.1=3"], {0: 1.0, 1: 3.0}),
        (WEIGHT, ["x={0: 1, 1: 3}"], {0: 1.0, 1: 3.0}),
        (WEIGHT, ["x={1: 3}"], {0: 1.0, 1: 3.0}),
        ({0: {"a": 1}, (1, 2): 3}, ["x.0.a=2"], {0: {"a": 2}, (1, 2): 3}),
        ({"a": {0: 1}, "b": 2}, ["x.a.0=5"], {"a": {0: 5}, "b": 2}),
        ({}, ["x={0: 1}"], {0: 1}),
        (None, ["x={0: 1, 'a': 2}"], {0: 1, "a": 2}),
        ({0: 1, "0": 2}, ["x.0=3"], {0: 1, "0": 3}),
        ({(0, 1): 2}, ["x={(0, 1): 3}"], {(0, 1): 3}),
        ({(0, 1): 2}, ["x.(0, 1)=3"], {(0, 1): 3}),
        ({1, 2}, ["x={3, (4, 5)}"], {3, (4, 5)}),
        (None, ["x=[b'a', (1, 2)]"], [b"a", [1, 2]]),
    ],
)
def test_keys_that_are_no_texts_are_set_on_the_command_line(tmp_path, value, words, expected):
    ex = make(tmp_path, value)
    ex.run_commandline(["e.py", "with", *words, "seed=0"])
    assert ex.seen == expected
    config = json.loads((tmp_path / "my_runs" / "1" / "config.json").read_text())
    again = make(tmp_path, value)
    again.run(named_configs=[str(tmp_path / "my_runs" / "1" / "config.json")])
    assert again.seen == expected
    assert json.loads((tmp_path / "my_runs" / "2" / "config.json").read_text()) == config


@pytest.mark.parametrize(
    ("value", "updates", "error", "message"),
    [
        (WEIGHT, {"x": {7: 1.0}}, UnknownEntryError, r"^x: got the key 7, expected one of 0, 1$"),
        (WEIGHT, {"x": {"b": 1.0}}, UnknownEntryError, r"^x: got the key 'b', expected one of 0, 1$"),
        ({"a": 1}, {"x": {0: 1}}, UnknownEntryError, r"^x: got the key 0, expected one of 'a'$"),
        (WEIGHT, {"x": {1: "much"}}, ConfigError, r"^x\.1: got 'much' \(str\), expected a number; for text"),
        (WEIGHT, {"x": "{[]: 1}"}, ConfigError, r"^x: got '\{\[\]: 1\}' \(str\), expected a dict"),
        (WEIGHT, {"y": {0: 1}}, UnknownEntryError, r"^y: got \{0: 1\}, but there is no such entry"),
        (WEIGHT, {0: 1}, ConfigError, r"^got a setting named 0 \(int\), expected the name of an entry$"),
    ],
)
def test_keys_that_do_not_exist_are_rejected(tmp_path, value, updates, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path, value).run(config_updates=updates)


def test_origin_of_an_entry_with_a_number_as_key_is_that_of_its_dict(tmp_path):
    make(tmp_path, WEIGHT).run_commandline(["e.py", "with", "x.1=3", "seed=0"])
    origins = json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())["meta"]["origins"]
    assert origins == [{"origin": "command line", "entries": ["seed", "x.json://0", "x.json://1"]}]


def test_literal_that_no_dict_can_hold_is_a_text(tmp_path):
    make(tmp_path, None).run_commandline(["e.py", "with", "x={[]: 1}"])
    assert json.loads((tmp_path / "my_runs" / "1" / "config.json").read_text())["x"] == "{[]: 1}"


class Thing:
    """An object of the author's own class."""

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("default", "named", "updates"),
    [
        (None, [], {"x": Thing(1)}),
        (None, ["named"], {}),
        ({}, [], {"x": {"a": Thing(1)}}),
        (Thing(0), [], {"x": Thing(1)}),
    ],
)
def test_object_that_no_record_gives_back_is_rejected_before_the_training(tmp_path, default, named, updates):
    ex = make(tmp_path, default, Thing(2))
    with pytest.raises(ConfigError, match=r"^x.*: got .*Thing.*, which cannot be read back from the record: the run"):
        ex.run(named_configs=named, config_updates=updates)
    assert not (tmp_path / "my_runs").exists()
    ex.run(named_configs=named, config_updates=updates, options={"--force": True})
    assert (tmp_path / "my_runs" / "1" / "config.json").exists()
    make(tmp_path, default, Thing(2)).run(named_configs=named, config_updates=updates, options={"--unobserved": True})


def test_config_that_is_nested_too_deeply_for_a_record_is_rejected_before_the_training(tmp_path):
    deep = 0
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ConfigError, match=r"^x: got lists and dicts nested more than \d+ levels deep in the config"):
        make(tmp_path, None).run(config_updates={"x": deep}, options={"--force": True})
    assert not (tmp_path / "my_runs").exists()


def test_default_that_differs_each_time_is_rejected_before_the_training(tmp_path):
    ex = Experiment(
        "e", save_git_info=False, base_dir=str(tmp_path), system_metrics_s=None, record_to=tmp_path / "my_runs"
    )

    @ex.config
    def config():
        x = Thing(os.urandom(8))

    @ex.main
    def main(x):
        pass

    with pytest.raises(ConfigError, match=r"^x: got .*Thing.*, which cannot be read back from the record"):
        ex.run()


def test_object_of_a_file_that_is_not_the_default_any_more_is_rejected(tmp_path):
    make(tmp_path, Thing(1)).run()
    config = str(tmp_path / "my_runs" / "1" / "config.json")
    same = make(tmp_path, Thing(1))
    same.run(named_configs=[config])
    assert same.seen.size == 1
    for force in (False, True):
        with pytest.raises(
            ConfigError, match=r"^x: got an object of .*Thing from a file, .* and the default here differs; restore it"
        ):
            make(tmp_path, Thing(2)).run(named_configs=[config], options={"--force": force})
    changed = make(tmp_path, Thing(2))
    changed.run(named_configs=[config], config_updates={"x": None}, options={"--force": True})
    assert changed.seen is None
