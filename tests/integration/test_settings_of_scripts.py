"""Settings of published command lines, under stock Sacred and under the lab: a default is no declaration.

Where both accept a command line, the result is the same; where Sacred accepts a slip, the lab says both ways out.
"""

from __future__ import annotations

import json
import logging
import sys

import pytest
from sacred.arg_parser import get_config_updates

from sacristan.configs import to_plain
from sacristan.ingredients import ConfigError, UnknownEntryError
from sacristan.observers import FileObserver
from sacristan.runs import open_store
from tests.integration.test_idioms_of_sacred import LABS, typed
from tests.processes import run


@pytest.fixture(params=LABS)
def lab(request, tmp_path, monkeypatch):
    """Stock Sacred, and the lab."""
    monkeypatch.chdir(tmp_path)
    return LABS[request.param]


@pytest.fixture
def ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return LABS["sacristan"]


def record(ex, folder):
    """Return the configs that an experiment records."""
    ex.observers.append(FileObserver(folder / "runs"))
    return lambda: [json.loads(path.read_text()) for path in sorted(folder.glob("runs/[0-9]*/config.json"))]


def declare(lab, how):
    """Return an experiment with defaults written in a hurry, in a scope, in a dict, or in an ingredient."""
    if how == "ingredient":
        part = lab.Ingredient("part", save_git_info=False)
        ex = lab.Experiment("study", ingredients=[part], save_git_info=False)
    else:
        ex = part = lab.Experiment("study", save_git_info=False)
    if how == "dict":
        part.add_config(
            {
                "horizon": 0,
                "annealing": 1,
                "lr": 0.5,
                "flag": False,
                "tags": None,
                "sizes": [64, 64],
                "phases": (1, 0, 0),
            }
        )
        part.add_config({"name": "mlp", "names": ["a"], "options": {"width": 8, "deep": {"rate": 1}}})
    else:

        @part.config
        def config():
            horizon = 0
            annealing = 1
            lr = 0.5
            flag = False
            tags = None
            sizes = [64, 64]
            phases = (1, 0, 0)
            name = "mlp"
            names = ["a"]
            options = {"width": 8, "deep": {"rate": 1}}

    if how == "ingredient":
        ex.main(lambda _config: _config["part"])
    else:
        ex.main(lambda _config: _config)
    return ex


HOW = ["scope", "dict", "ingredient"]
ACCEPTED = [
    ("horizon=1e6", "horizon", 1_000_000),
    ("horizon=2.5", "horizon", 2.5),
    ("annealing=1.5", "annealing", 1.5),
    ("annealing=2.0", "annealing", 2),
    ("lr=1", "lr", 1.0),
    ("lr=None", "lr", None),
    ("horizon=None", "horizon", None),
    ("flag=None", "flag", None),
    ("flag=1", "flag", 1),
    ("horizon=True", "horizon", True),
    ("tags=a", "tags", "a"),
    ("tags=[1,2]", "tags", [1, 2]),
    ("sizes=None", "sizes", None),
    ("sizes=[32]", "sizes", [32]),
    ("sizes=(32,16)", "sizes", [32, 16]),
    ("sizes=[32,None]", "sizes", [32, None]),
    ("sizes=64", "sizes", 64),
    ("sizes=large", "sizes", "large"),
    ("phases=[1,0.5,0]", "phases", [1, 0.5, 0]),
    ("phases=(0,1e3)", "phases", [0, 1000]),
    ("name=3", "name", 3),
    ("name=None", "name", None),
    ("name=['a','b']", "name", ["a", "b"]),
    ("options.width=1e2", "options.width", 100),
    ("options.width=0.5", "options.width", 0.5),
    ("options.deep.rate=0.5", "options.deep.rate", 0.5),
    ("options.deep.rate=None", "options.deep.rate", None),
    ("options=None", "options", None),
    ("options=small", "options", "small"),
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("word", "name", "value"), ACCEPTED)
def test_setting_that_sacred_accepts_has_the_same_value(lab, how, word, name, value):
    ex = declare(lab, how)
    found = typed(ex, "-l", "CRITICAL", "with", f"part.{word}" if how == "ingredient" else word).result
    for key in name.split("."):
        found = found[key]
    assert (list(found) if isinstance(found, tuple) else found) == value
    if lab is LABS["sacristan"]:
        assert type(to_plain(found)) is type(value)


@pytest.mark.parametrize("word", ["horizon=1e6", "phases=[1,2.0,3]", "options.width=64.0"])
def test_whole_float_for_an_int_is_recorded_as_an_int(ours, tmp_path, word):
    ex = declare(ours, "scope")
    recorded = record(ex, tmp_path)
    typed(ex, "with", word)
    (tmp_path / "mine.yaml").write_text("horizon: 1000000.0\nphases: [1, 2.0, 3]\noptions: {width: 64.0}\n")
    typed(ex, "with", "mine.yaml")
    name = word.partition("=")[0].partition(".")[0]
    assert [".0" in json.dumps(config[name]) for config in recorded()] == [False, False]


SLIPS = [
    (
        "horizon=abc",
        r"'abc' \(str\), expected a number; for text declare it in the scope, horizon: int \| str = 0, or",
    ),
    ("horizon=abc", r"or run with --force, as in: --force with X=abc$"),
    ("horizon=10k", r"expected a number; did you mean X=10000\? For text declare it in the scope"),
    ("lr='1,5'", r"did you mean X=1\.5\?"),
    ("lr=0.1s", r"did you mean X=0\.1\?"),
    ("lr=", "nothing, expected a number; for text"),
    ("lr=nan", "expected a float; NaN equals nothing"),
    ("lr=-inf", "write infinity as X=-1e999"),
    (
        "flag=yes",
        r"'yes' \(str\), expected True or False; did you mean X=True\? For text declare .*flag: bool \| str =",
    ),
    ("flag=off", r"did you mean X=False\?"),
    ("flag=maybe", "expected True or False; for text declare"),
    (
        "sizes=[1,'b']",
        r"\[1, 'b'\] \(list\), expected a list of numbers; for text .*sizes: list = \[64, 64\], or run",
    ),
    ("sizes=[1,b", r"'\[1,b' \(str\), expected a list of numbers; for text declare .* sizes: list \| str = \[64, 64\]"),
    ("names=[a,b]", r"""expected a list of strings; did you mean X='\["a", "b"\]'\?$"""),
    ("options={width: 3}", r"""expected a dict; did you mean X='\{"width": 3\}'\?$"""),
    (
        "options.width=wide",
        "expected a number; for text make its default None, or run with --force, as in: .*width=wide",
    ),
    ("options.deep.rate=fast", "expected a number"),
]


@pytest.mark.parametrize(("word", "message"), SLIPS)
def test_word_for_a_number_or_a_bool_is_rejected_with_both_ways_out(ours, word, message):
    name = word.partition("=")[0]
    for how, prefix in ("scope", ""), ("ingredient", "part."):
        with pytest.raises(
            ConfigError, match=rf"^{prefix}{name}: got .*" + message.replace("X", prefix + name)
        ) as caught:
            declare(ours, how).run(config_updates={prefix + name: _value(word)})
        assert "write for example" not in str(caught.value) or "inf" in word


def _value(word):
    text = word.partition("=")[2]
    return [1, "b"] if text == "[1,'b']" else text.strip("'")


def test_both_ways_out_are_ways_out(ours):
    ex = declare(ours, "scope")
    assert typed(ex, "--force", "with", "horizon=abc").result["horizon"] == "abc"
    ex = ours.Experiment("study", save_git_info=False)

    @ex.config
    def declared():
        horizon: int | str = 0
        sizes: list = [64, 64]

    ex.main(lambda _config: _config)
    found = ex.run(config_updates={"horizon": "abc", "sizes": [1, "b"]}).result
    assert (found["horizon"], found["sizes"]) == ("abc", [1, "b"])


def test_annotated_entry_stays_strict(ours):
    ex = ours.Experiment("study", save_git_info=False)

    @ex.config
    def config():
        steps: int = 3
        flag: bool = False
        options: dict = {"width": 8}

    ex.main(lambda steps: steps)
    assert typed(ex, "with", "steps=1e3").result == 1000
    for name, value in ("steps", 0.5), ("steps", None), ("flag", 1), ("options.width", "x"), ("options", None):
        with pytest.raises(ConfigError, match=rf"{name}: got .*, expected .*; write for example"):
            ex.run(config_updates={name: value})


@pytest.mark.parametrize(
    ("word", "warning"),
    [
        ("name=3", 'Changed type of config entry "name" from str to int'),
        ("flag=1", 'Changed type of config entry "flag" from bool to int'),
        ("sizes=64", 'Changed type of config entry "sizes" from list to int'),
        ("lr=None", 'Changed type of config entry "lr" from float to NoneType'),
        ("options.width=None", 'Changed type of config entry "options.width" from int to NoneType'),
        ("horizon=0.5", None),
        ("horizon=1e6", None),
        ("tags=3", None),
        ("phases=[1,0]", None),
    ],
)
def test_change_of_kind_warns_as_in_sacred(lab, caplog, word, warning):
    with caplog.at_level(logging.WARNING):
        typed(declare(lab, "scope"), "with", word)
    found = [record.getMessage() for record in caplog.records if "Changed type" in record.getMessage()]
    assert found == ([warning] if warning else [])


# Arguments that no scope declares


def with_arguments(lab, default):
    """Return an experiment whose main function takes a dict that no scope declares."""
    ex = lab.Experiment("study", save_git_info=False)
    ex.add_config(lr=0.5)
    if default == "required":
        ex.main(lambda lr, reg: (lr, reg))
    elif default == "annotated":

        @ex.main
        def main(lr, reg: dict):
            return lr, reg

    elif default == "captured":
        fit = ex.capture(lambda reg: reg)
        ex.main(lambda lr: (lr, fit()))
    elif default == "prefix":
        fit = ex.capture(lambda reg: reg, prefix="net")
        ex.main(lambda lr: (lr, fit()))
    else:
        ex.main({"none": lambda lr, reg=None: (lr, reg), "empty": lambda lr, reg={}: (lr, reg)}.get(default) or _keys)
    return ex


def _keys(lr, reg={"dropout": 0.1, "other": 2}):
    return lr, reg


DEFAULTS = ["required", "annotated", "captured", "prefix", "none", "empty", "keys"]


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("way", ["key", "dict", "deep", "file", "named", "python"])
def test_dict_for_an_argument_that_no_scope_declares(lab, tmp_path, default, way):
    ex = with_arguments(lab, default)
    name = "net.reg" if default == "prefix" else "reg"
    nested = {"net": {"reg": {"dropout": 0.5}}} if default == "prefix" else {"reg": {"dropout": 0.5}}
    (tmp_path / "mine.json").write_text(json.dumps(nested))
    ex.add_named_config("big", nested)
    if way == "python":
        assert ex.run(config_updates=nested).result == (0.5, {"dropout": 0.5})
        return
    words = {"key": f"{name}.dropout=0.5", "dict": f"{name}={{'dropout':0.5}}", "file": "mine.json", "named": "big"}
    if way == "deep":
        words["deep"] = f"{name}.dropout.rate=0.5"
    expected = {"dropout": {"rate": 0.5}} if way == "deep" else {"dropout": 0.5}
    if (way, default) == ("deep", "keys") and lab is LABS["sacristan"]:
        with pytest.raises(UnknownEntryError, match=r"reg\.dropout\.rate: got 0\.5, but there is no such entry"):
            ex.run(config_updates={"reg.dropout.rate": 0.5})
        return
    assert typed(ex, "with", words[way]).result == (0.5, expected)


def test_typo_in_a_dict_for_an_argument_is_rejected(ours):
    for default, name in ("keys", "reg.dropuot"), ("keys", "rge.dropout"), ("required", "rge.dropout"):
        with pytest.raises(UnknownEntryError, match=rf"{name}: got 0\.5, but there is no such entry; did you mean reg"):
            with_arguments(ours, default).run(config_updates={name: 0.5, **({"reg": 1} if default == "none" else {})})


def test_default_of_an_argument_says_its_kind(lab):
    ex = lab.Experiment("study", save_git_info=False)

    @ex.main
    def main(steps=10, rate=0.5, sizes=(1, 2), flag=False):
        return steps, rate, list(sizes), flag

    assert typed(ex, "with", "steps=1e3", "sizes=[1,0.5]").result == (1000, 0.5, [1, 0.5], False)
    assert typed(ex, "with", "steps=0.5", "rate=None", "flag=1").result == (0.5, None, [1, 2], 1)
    if lab is LABS["sacristan"]:
        assert type(typed(ex, "with", "steps=1e3").result[0]) is int
        with pytest.raises(
            ConfigError, match=r"steps: got 'abc' .str., expected a number; for text make its default None"
        ):
            ex.run(config_updates={"steps": "abc"})


# Named configs


@pytest.fixture
def optimizing(tmp_path):
    """Return what makes an experiment whose named configs give its dicts other keys."""

    def make(lab):
        part = lab.Ingredient("part", save_git_info=False)
        part.add_config(model={"layers": 3})
        part.capture(lambda model: model)
        ex = lab.Experiment("study", ingredients=[part], save_git_info=False)

        @ex.config
        def config():
            optimizer = {"name": "sgd", "lr": 0.1, "more": {"nesterov": False}}

        @ex.named_config
        def adam():
            optimizer = {"name": "adam", "betas": [0.9, 0.99], "more": {"eps": 1e-8}, "new": {"a": {"b": 1}}}

        (tmp_path / "long.json").write_text('{"part": {"model": {"duration": 13}}}')
        ex.add_named_config("long", "long.json")
        part.add_named_config("short", model={"duration": 1})
        ex.main(lambda optimizer, part: (optimizer, part["model"]))
        return ex

    return make


def test_named_config_of_a_script_adds_keys_to_its_dicts(lab, optimizing):
    adam = {"name": "adam", "lr": 0.1, "betas": [0.9, 0.99], "more": {"nesterov": False, "eps": 1e-8}}
    adam["new"] = {"a": {"b": 1}}
    assert typed(optimizing(lab), "with", "adam", "long").result == (adam, {"layers": 3, "duration": 13})
    adam |= {"betas": [0.5, 0.5], "new": {"a": {"b": 2}}}
    words = ["with", "adam", "optimizer.betas=[0.5,0.5]", "optimizer.new.a.b=2", "part.short"]
    assert typed(optimizing(lab), *words).result == (adam, {"layers": 3, "duration": 1})


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["optimizer.beta=1"], "optimizer.beta"),
        (["adam", "optimizer.beta=1"], "optimizer.beta"),
        (["adam", "optimizer.new.a.c=1"], "optimizer.new.a.c"),
        (["optimizer.betas=1"], "optimizer.betas"),
        (["long", "part.model.duratoin=1"], "part.model.duratoin"),
    ],
)
def test_typo_beside_a_named_config_is_rejected(ours, optimizing, words, name):
    updates, named = get_config_updates(words)
    run = optimizing(ours).run
    near = r"did you mean .*\?"
    way = rf"has: .*; for a new key of {name.partition('.')[0]}[.a-z]*, declare it in the scope, or run with --force"
    with pytest.raises(UnknownEntryError, match=rf"^{name}: got .*; .*({near}|{way})$"):
        run(config_updates=updates, named_configs=named)


def test_file_adds_keys_to_the_dicts_of_a_script(lab, optimizing, tmp_path, caplog):
    ex = optimizing(lab)
    (tmp_path / "mine.json").write_text('{"optimizer": {"more": {"eps": 1}}, "part": {"model": {"width": 2}}}')
    found = typed(ex, "with", "mine.json").result
    assert found == ({"name": "sgd", "lr": 0.1, "more": {"nesterov": False, "eps": 1}}, {"layers": 3, "width": 2})
    if lab is LABS["sacristan"]:
        for name in "optimizer.more.eps", "part.model.width":
            assert f'Added new config entry: "{name}"' in caplog.text


@pytest.mark.parametrize(
    "name", ["optimizer.nmae", "optimizer.more.nestrov", "optimizer.mroe.eps", "optimzer.eps", "part.eps", "eps"]
)
def test_slip_in_a_file_is_rejected(ours, optimizing, tmp_path, name):
    entries = 1
    for part in reversed(name.split(".")):
        entries = {part: entries}
    (tmp_path / "mine.json").write_text(json.dumps(entries))
    with pytest.raises(UnknownEntryError, match=rf"^{name}: got 1, but there is no such entry"):
        optimizing(ours).run(named_configs=["mine.json"])


def test_docstrings_that_sacred_records_are_no_settings(lab, tmp_path):
    part = lab.Ingredient("part", save_git_info=False)
    ex = lab.Experiment("study", ingredients=[part], save_git_info=False)

    @part.config
    def of_part():
        """Of the part."""
        size = 1

    @ex.config
    def config():
        """Of the study."""
        steps = 3

    ex.main(lambda steps, part: (steps, part["size"]))
    recorded = {"__doc__": "Of the study.", "steps": 4, "part": {"__doc__": "Of the part.", "size": 2}}
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    assert typed(ex, "with", "config.json").result == (4, 2)


# Scopes


@pytest.mark.parametrize("between", ["scope", "dict", "file"])
def test_later_scope_sets_keys_of_a_dict_of_which_the_call_sets_another(lab, tmp_path, between):
    ex = lab.Experiment("study", save_git_info=False)
    ex.add_config(trainer={"precision": 32, "benchmark": False, "deep": {"a": 1, "b": 1}})
    if between == "scope":

        @ex.config
        def without_the_dict():
            steps = 3

    elif between == "dict":
        ex.add_config(steps=3)
    else:
        (tmp_path / "steps.json").write_text('{"steps": 3}')
        ex.add_config("steps.json")

    @ex.config
    def later():
        trainer = {"benchmark": True, "deep": {"b": 2}}

    @ex.config
    def last(trainer):
        trainer["gpus"] = 1

    ex.main(lambda trainer: trainer)
    expected = {"precision": 16, "benchmark": True, "deep": {"a": 5, "b": 2}, "gpus": 1}
    assert typed(ex, "with", "trainer.precision=16", "trainer.deep.a=5").result == expected


def test_named_config_adds_no_keys_to_the_dicts_of_the_lab(ours):
    from sacristan.ingredients import optimizer

    ex = ours.Experiment("study", [optimizer.ingredient], save_git_info=False)
    ex.add_named_config("wrong", optimizer={"betas": 1})
    ex.main(lambda: None)
    with pytest.raises(UnknownEntryError, match=r"optimizer\.betas: got 1, but there is no such entry"):
        ex.run(named_configs=["wrong"])


# Seeds


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("options", [{}, {"--force": True}])
def test_seed_of_none_is_drawn(lab, tmp_path, declared, options):
    part = lab.Ingredient("part", save_git_info=False)
    ex = lab.Experiment("study", ingredients=[part], save_git_info=False)
    draw = part.capture(lambda _seed: _seed)
    if declared:
        ex.add_config(seed=7)
    recorded = record(ex, tmp_path) if lab is LABS["sacristan"] else None
    (tmp_path / "mine.json").write_text('{"seed": null}')

    @ex.main
    def main(seed):
        return seed, draw()

    calls = [{"config_updates": {"seed": None}}, {"named_configs": ["mine.json"]}, {"config_updates": {"seed": None}}]
    seeds = [ex.run(**call, options=options).result[0] for call in calls]
    assert all(type(seed) is int and seed != 7 for seed in seeds)
    assert len(set(seeds)) > 1
    if recorded is not None:
        assert [config["seed"] for config in recorded()] == seeds
        again = ex.run(config_updates={"seed": seeds[0], "part.seed": None}).result
        assert again == ex.run(config_updates={"seed": float(seeds[0])}).result
        (tmp_path / "mine.json").write_text('{"seed": 3.0}')
        assert repr(ex.run(named_configs=["mine.json"]).result[0]) == "3"


def test_seed_of_a_shipped_experiment_may_be_none(ours):
    from sacristan.experiments import supervised

    ex = ours.Experiment("study", ingredients=supervised.ingredients(), save_git_info=False)
    supervised.compose(ex)
    shown = ex.run("print_config", config_updates={"seed": None}, options={"--unobserved": True})
    assert type(shown.config["seed"]) is int


# Records

SCRIPT = """
from sacristan.experiments import Experiment
ex = Experiment("study", save_git_info=False)

@ex.config
def config():
    optimizer = {"name": "sgd", "lr": 0.1}
    steps = 3
    flag = False

@ex.named_config
def adam():
    optimizer = {"betas": [0.9, 0.99]}
    steps = "all"

@ex.automain
def main(_run, optimizer, steps, flag, reg=None):
    _run.log_scalar("loss", len(optimizer), 0)
    return [optimizer["betas"], steps, flag, reg["dropout"]]
"""


def test_run_whose_named_config_sets_more_than_the_defaults_say_is_reproduced_twice(tmp_path):
    (tmp_path / "study.py").write_text(SCRIPT)
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "starts_python": True}
    words = ["with", "adam", "optimizer.betas=[0.5,0.5]", "flag=None", "reg.dropout=0.5"]
    done = run([sys.executable, "study.py", *words], **options)
    assert done.returncode == 0, done.stderr
    for again in "1", "2":
        done = run([sys.executable, "-m", "sacristan", "reproduce", again], **options)
        assert done.stdout.startswith("IDENTICAL"), done.stderr
    with open_store(tmp_path / "my_runs") as store:
        assert [one.result for one in store] == [[[0.5, 0.5], "all", None, 0.5]] * 3
