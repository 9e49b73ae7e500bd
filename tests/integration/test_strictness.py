"""A setting that does not exist or does not fit stops the run before anything is recorded."""

import json
from typing import Literal

import pytest
from sacred.observers import FileStorageObserver

from sacristan.configs import Map
from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, Ingredient, LabError, UnknownNamedConfigError


@pytest.fixture
def shipped(monkeypatch):
    """Hold the scopes of this module to their types, as those of the lab; `test_settings_of_scripts` has the others."""
    monkeypatch.setattr("sacristan.ingredients.config.scope._SHIPPED", (__file__,))


def make_ingredient():
    part = Ingredient("optimizer")

    @part.config
    def config():
        # learning rate
        lr = 0.1
        # which one
        name = "adam"
        # decay
        decay: float | None = 0.01
        # precision
        mode: Literal["off", "float16", "bfloat16"] = "off"
        # free-form
        options = {}
        # fixed
        schedule = {"steps": 10, "warmup": {"share": 0.1}}

    @part.named_config
    def fast():
        """Go fast."""
        lr = 5.0

    @part.capture
    def build(lr, seed):
        return lr, seed

    return part


@pytest.fixture
def experiment(tmp_path, shipped):
    lab = Experiment("lab", ingredients=[make_ingredient()])
    lab.alias(lr="optimizer.lr")

    @lab.config
    def config(optimizer):
        lr = optimizer["lr"]
        seed = 0
        batch_size = 64
        flag = True
        anything = None
        limit: int | None = None
        sizes = [1, 2]

    @lab.named_config
    def quick():
        """Be quick."""
        lr = 2.0

    @lab.main
    def main(_config):
        return _config

    lab.observers.append(FileStorageObserver(tmp_path / "runs"))
    return lab


@pytest.fixture
def refuse(experiment, tmp_path, capfd):
    """Return what asserts that a command line ends with one line of error, and nothing recorded."""

    def refuse(*words, message):
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            experiment.run_commandline(["lab.py", *words])
        out, err = capfd.readouterr()
        assert left.value.code == 1
        assert (out, err) == ("", f"error: {message}\n")
        assert not (tmp_path / "runs").exists()

    return refuse


@pytest.fixture
def result(experiment):
    """Return what runs the experiment, unobserved, and returns its config."""
    experiment.observers.clear()

    def result(updates=None, *named, **options):
        return experiment.run(config_updates=updates or {}, named_configs=named, options=options).result

    return result


# Entries that do not exist


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bacth_size=3", "bacth_size: got 3, but there is no such entry; did you mean batch_size?"),
        ("optimizer.nmae=sgd", "optimizer.nmae: got 'sgd', but there is no such entry; did you mean optimizer.name?"),
        ("name=sgd", "name: got 'sgd', but there is no such entry; did you mean optimizer.name?"),
        ("optimiser.name=x", "optimiser.name: got 'x', but there is no such entry; did you mean optimizer.name?"),
        (
            "optimizer.schedule.setps=3",
            "optimizer.schedule.setps: got 3, but there is no such entry; did you mean optimizer.schedule.steps?",
        ),
        (
            "optimizer.schedule.warmup.shaer=3",
            "optimizer.schedule.warmup.shaer: got 3, but there is no such entry; "
            "did you mean optimizer.schedule.warmup.share?",
        ),
        (
            "sizes.zzzzzz=3",
            "sizes: got {'zzzzzz': 3} (dict), expected a list of ints; write for example sizes='[1, 2]'",
        ),
        (
            "optimizer.schedule.warmup.warmpu=3",
            "optimizer.schedule.warmup.warmpu: got 3, but there is no such entry; "
            "optimizer.schedule.warmup has: share; "
            "for a new key of optimizer.schedule.warmup, declare it in the scope, or run with --force",
        ),
        (
            "optimizer.zzzzzz=3",
            "optimizer.zzzzzz: got 3, but there is no such entry; "
            "optimizer has: decay, lr, mode, name, options, schedule",
        ),
        (
            "zzzzzz=3",
            "zzzzzz: got 3, but there is no such entry; "
            "the experiment has: anything, batch_size, flag, limit, lr, optimizer, seed, sizes",
        ),
        (
            "_config=3",
            "_config: got 3, but there is no such entry; "
            "the experiment has: anything, batch_size, flag, limit, lr, optimizer, seed, sizes",
        ),
    ],
)
def test_unknown_entry_refused_with_the_nearest(refuse, word, message):
    refuse("with", word, message=message)


def test_unknown_entry_in_a_file_refused(refuse, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("optimizer:\n  schedule: {setps: 3}\n")
    message = "optimizer.schedule.setps: got 3, but there is no such entry; did you mean optimizer.schedule.steps?"
    refuse("with", str(path), message=message)


def test_unknown_entry_stays_unknown_through_later_configs(experiment, refuse):
    experiment.add_config(depth=3, nested={"a": 1})

    @experiment.config
    def more(nested, batch_size):
        half = batch_size // 2

    refuse("with", "dpeth=3", message="dpeth: got 3, but there is no such entry; did you mean depth?")
    way = "for a new key of nested, declare it in the scope, or run with --force"
    refuse("with", "nested.b=3", message=f"nested.b: got 3, but there is no such entry; nested has: a; {way}")
    refuse("with", "depth=x", message="depth: got 'x' (str), expected an int; write for example depth=3")
    assert experiment.run(config_updates={"nested.a": 2}, options={"--unobserved": True}).result.nested == {"a": 2}


# Values of another type


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr=abc", "lr: got 'abc' (str), expected a float; write for example lr=0.1"),
        ("optimizer.lr=abc", "optimizer.lr: got 'abc' (str), expected a float; write for example optimizer.lr=0.1"),
        ("lr=", "lr: got nothing, expected a float; write for example lr=0.1"),
        ("lr=None", "lr: got None (NoneType), expected a float; write for example lr=0.1"),
        ("lr=1e-3,", "lr: got [0.001] (list), expected a float; write for example lr=0.1"),
        ("batch_size=3.7", "batch_size: got 3.7 (float), expected an int; write for example batch_size=64"),
        ("batch_size=True", "batch_size: got True (bool), expected an int; write for example batch_size=64"),
        ("flag=1", "flag: got 1 (int), expected True or False; write for example flag=True"),
        ("flag=yes", "flag: got 'yes' (str), expected True or False; write for example flag=True"),
        ("sizes=3", "sizes: got 3 (int), expected a list of ints; write for example sizes='[1, 2]'"),
        ("sizes=[1,x]", "sizes: got '[1,x]' (str), expected a list of ints; write for example sizes='[1, 2]'"),
        ('sizes=[1,"x"]', "sizes: got [1, 'x'] (list), expected a list of ints; write for example sizes='[1, 2]'"),
        ("limit=few", "limit: got 'few' (str), expected an int or None; write for example limit=None"),
        (
            "optimizer.name=3",
            "optimizer.name: got 3 (int), expected a string; for the text write optimizer.name='\"3\"'",
        ),
        ("lr=nan", "lr: got nan, expected a float; NaN equals nothing, so no run could be found by it"),
        ("lr=-inf", "lr: got '-inf' (str), expected a float; write infinity as lr=-1e999"),
        (
            "optimizer.schedule=3",
            "optimizer.schedule: got 3 (int), expected a dict; write for example optimizer.schedule.steps=10",
        ),
        (
            "optimizer.schedule.warmup.share=x",
            "optimizer.schedule.warmup.share: got 'x' (str), expected a float; "
            "write for example optimizer.schedule.warmup.share=0.1",
        ),
        (
            "optimizer.options=3",
            "optimizer.options: got 3 (int), expected a dict; write for example optimizer.options='{}'",
        ),
        ("lr.x=3", "lr: got {'x': 3} (dict), expected a float; write for example lr=0.1"),
        (
            "optimizer.mode=flaot16",
            "optimizer.mode: got 'flaot16' (str), expected one of off, float16, bfloat16; "
            "did you mean optimizer.mode=float16?",
        ),
        (
            "optimizer.mode=zzz",
            "optimizer.mode: got 'zzz' (str), expected one of off, float16, bfloat16; "
            "write for example optimizer.mode=off",
        ),
        (
            "optimizer=3",
            "optimizer: got 3, but optimizer is an ingredient with entries of its own; "
            "write optimizer.ENTRY=VALUE (see print_config)",
        ),
    ],
)
def test_value_that_does_not_fit_refused(refuse, word, message):
    refuse("with", word, message=message)


def test_value_in_a_file_that_does_not_fit_refused(refuse, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("optimizer: 3\n")
    message = "optimizer: got 3, but optimizer is an ingredient with entries of its own; write optimizer.ENTRY=VALUE"
    refuse("with", str(path), message=f"{message} (see print_config)")
    path.write_text("batch_size: 3.7\n")
    refuse("with", str(path), message="batch_size: got 3.7 (float), expected an int; write for example batch_size=64")


def test_plain_value_for_an_ingredient_in_a_named_config_refused(experiment, refuse):
    experiment.add_named_config("wrong", optimizer=3)
    message = "optimizer: got 3, but optimizer is an ingredient with entries of its own; write optimizer.ENTRY=VALUE"
    refuse("with", "wrong", message=f"{message} (see print_config)")


@pytest.mark.parametrize(
    ("updates", "path", "expected"),
    [
        ({"lr": 1}, "lr", 1.0),
        ({"optimizer.lr": 1}, "optimizer.lr", 1.0),
        ({"optimizer": {"schedule": {"warmup": {"share": 1}}}}, "optimizer.schedule.warmup.share", 1.0),
        ({"optimizer.decay": 1}, "optimizer.decay", 1.0),
        ({"optimizer.decay": None}, "optimizer.decay", None),
        ({"limit": 3}, "limit", 3),
        ({"sizes": (3, 4)}, "sizes", [3, 4]),
        ({"sizes": []}, "sizes", []),
        ({"anything": "x"}, "anything", "x"),
        ({"anything": [1, {"a": 2}]}, "anything", [1, {"a": 2}]),
        ({"optimizer.mode": "bfloat16"}, "optimizer.mode", "bfloat16"),
        ({"optimizer.options": {"any": {"key": 1}}}, "optimizer.options", {"any": {"key": 1}}),
        ({"optimizer.options.any.key": 1}, "optimizer.options", {"any": {"key": 1}}),
        ({"optimizer.schedule": {"steps": 3}}, "optimizer.schedule", {"steps": 3, "warmup": {"share": 0.1}}),
    ],
)
def test_value_that_fits_is_taken(result, updates, path, expected):
    value = result(updates)
    for key in path.split("."):
        value = value[key]
    assert value == expected
    assert type(value) in (type(expected), Map) or isinstance(value, list)


def test_int_for_a_float_is_recorded_as_a_float(experiment, tmp_path):
    experiment.run(config_updates={"lr": 1, "optimizer.decay": 2}, options={"--capture": "no"})
    recorded = json.loads((tmp_path / "runs" / "1" / "config.json").read_text())
    assert repr(recorded["lr"]) == repr(recorded["optimizer"]["lr"]) == "1.0"
    assert repr(recorded["optimizer"]["decay"]) == "2.0"


# Force


def test_force_lets_suspicious_changes_through(experiment, capfd):
    experiment.observers.clear()
    words = ["bacth_size=3", "batch_size=3.7", "optimizer.nmae=x", "flag=", "optimizer.seed=3"]
    for line in ["lab.py", "with", *words, "--force"], ["lab.py", "--force", "with", *words]:
        config = experiment.run_commandline(line).result
        assert (config.bacth_size, config.batch_size, config.flag) == (3, 3.7, "")
        assert (config.optimizer.nmae, config.optimizer.seed) == ("x", 3)


def test_help_says_what_force_does(experiment, capsys):
    with pytest.raises(SystemExit):
        experiment.run_commandline(["lab.py", "-h"])
    said = " ".join(capsys.readouterr().out.split())
    assert "-f --force Accept settings that no scope declares, values of other types" in said


def test_force_is_recorded_as_it_was_given(experiment, tmp_path):
    for force in (True, False):
        run = experiment.run(options={"--force": force, "--capture": "no"})
        recorded = json.loads((tmp_path / "runs" / run._id / "run.json").read_text())
        assert recorded["meta"]["options"]["--force"] is force
        assert run.force is force


def test_after_force_the_next_run_is_strict_again(experiment, result):
    assert result({"batch_size": 3.7}, **{"--force": True}).batch_size == 3.7
    with pytest.raises(ConfigError, match=r"batch_size: got 3\.7"):
        result({"batch_size": 3.7})


# What is written wrong


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["with", "lr", "0.5"], "lr: got no value, expected one after `=`, without spaces; write lr=0.5"),
        (["with", "lr", "=", "0.5"], "lr: got no value, expected one after `=`, without spaces; write lr=0.5"),
        (["with", "lr", "=0.5"], "lr: got no value, expected one after `=`, without spaces; write lr=0.5"),
        (["with", "lr=", "0.5"], "lr: got nothing after `=`; write lr=0.5, without spaces"),
        (["with", "lr"], "lr: got no value, expected one after `=`, without spaces; write lr=VALUE"),
        (
            ["with", "optimizer.name", "sgd"],
            "optimizer.name: got no value, expected one after `=`, without spaces; write optimizer.name=sgd",
        ),
        (["with", "=0.5"], "got `=0.5` without a name before it; write NAME=0.5, without spaces"),
        (["lr=0.5"], "lr=0.5: got a setting without `with` before it; write with lr=0.5"),
        (["main", "lr=0.5"], "lr=0.5: got a setting without `with` before it; write with lr=0.5"),
        (["wiht", "lr=0.5"], "wiht: there is no such command; did you mean with?"),
        (["quick"], "quick: there is no such command; to use it as a config, write with quick"),
        (
            ["with", "lr=1", "lr.x=2"],
            "lr and lr.x: got both, but lr cannot be one value and a group of entries; give one of them",
        ),
        (
            ["with", "optimizer.options.a=2", "optimizer.options=1"],
            "optimizer.options and optimizer.options.a: got both, but optimizer.options cannot be one value "
            "and a group of entries; give one of them",
        ),
        (
            ["with", "qiuck"],
            "qiuck: there is no such named config, and a setting is written qiuck=VALUE; did you mean quick?",
        ),
        (
            ["with", "optimizer.fats"],
            "optimizer.fats: there is no such named config, and a setting is written optimizer.fats=VALUE; "
            "did you mean optimizer.fast?",
        ),
        (
            ["with", "zzzzzzzz"],
            "zzzzzzzz: there is no such named config, and a setting is written zzzzzzzz=VALUE; "
            "there are: quick, optimizer.fast",
        ),
        (
            ["with", 'optimizer.options={"a.b": 10}'],
            "optimizer.options: got the key 'a.b', expected keys without `.`, and without `$` at first; nest it, as in "
            "{'a': {'b': ...}}",
        ),
        (
            ["with", 'anything=[{"$a": 1}]'],
            "anything: got the key '$a', expected keys without `.`, and without `$` at first; rename it",
        ),
        (
            ["with", "sizes.0=3"],
            "sizes.0: got an item of sizes, expected the whole list; write for example sizes='[1, 2]'",
        ),
        (
            ["with", "sizes.1.n=3"],
            "sizes.1: got an item of sizes, expected the whole list; write for example sizes='[1, 2]'",
        ),
        (
            ["with", "optimizer.name=12e4567"],
            "optimizer.name: got 12e4567, which is inf (float), expected a string; for the text write "
            "optimizer.name='\"12e4567\"'",
        ),
        (
            ["with", "optimizer.name=1.10"],
            "optimizer.name: got 1.10, which is 1.1 (float), expected a string; for the text write "
            "optimizer.name='\"1.10\"'",
        ),
        (
            ["with", "optimizer.name=0x10"],
            "optimizer.name: got 0x10, which is 16 (int), expected a string; for the text write "
            "optimizer.name='\"0x10\"'",
        ),
        (["with", "zz={lr:", "[1,"], "[1,: got a part of a value that has spaces; quote the value: NAME='VALUE'"),
        (["with", "optimizer.lr 3"], "optimizer.lr 3: got a setting without `=`; write optimizer.lr=3"),
        (["with", "no/such.yaml"], "no/such.yaml: there is no such config file; check the path"),
        (["with", "digits_mlp"], "digits_mlp: there is no such named config; did you mean configs/digits_mlp.yaml?"),
    ],
)
def test_words_that_cannot_be_meant_so_refused(refuse, words, message):
    refuse(*words, message=message)


@pytest.mark.parametrize(
    ("first", "warnings"), [("lr=1", []), ("lr=0.5", ["lr: got 0.5 and then 1; the last one counts"])]
)
def test_of_a_setting_that_is_typed_twice_the_last_one_counts(experiment, caplog, first, warnings):
    experiment.observers.clear()
    run = experiment.run_commandline(["lab.py", "with", first, "batch_size=3", "lr=1"])
    assert run.config["lr"] == 1
    assert [record.getMessage() for record in caplog.records if "counts" in record.getMessage()] == warnings


def test_dotted_key_in_a_scope_refused(tmp_path):
    ex = Experiment("e", base_dir=tmp_path, save_git_info=False)

    @ex.config
    def settings():
        options = {"a.b": 1}

    ex.main(lambda options: None)
    with pytest.raises(
        ConfigError, match=r"^the config scope settings: got the key 'a\.b', expected keys without `\.`"
    ):
        ex.run()
    with pytest.raises(ConfigError, match=r"^add_config: got the key 'a\.b'"):
        ex.add_config({"options": {"a.b": 1}})


def test_unknown_named_config_is_told_before_a_scope_that_raises(tmp_path):
    ex = Experiment("e", base_dir=tmp_path, save_git_info=False)

    @ex.config
    def config():
        lr = undefined  # noqa: F821

    ex.add_named_config("good", lr=1)
    ex.main(lambda: None)
    with pytest.raises(UnknownNamedConfigError, match=r"goood: there is no such named config, .*did you mean good?"):
        ex.run(named_configs=["goood"])
    with pytest.raises(NameError):
        ex.run(named_configs=[])


def test_misspelt_file_refused_with_the_nearest(refuse, tmp_path):
    (tmp_path / "digits.yaml").write_text("lr: 1\n")
    message = f"{tmp_path}/digtis.yaml: there is no such config file; did you mean {tmp_path}/digits.yaml?"
    refuse("with", f"{tmp_path}/digtis.yaml", message=message)


def test_contradiction_in_a_whole_line_refused(experiment, capfd):
    with pytest.raises(SystemExit):
        experiment.run_commandline("lab.py with lr=1 lr.x=2")
    assert capfd.readouterr().err.startswith("error: lr and lr.x: got both")


def test_option_with_an_equals_sign_is_no_setting(experiment):
    experiment.observers.clear()
    assert experiment.run_commandline(["lab.py", "-c", "lr=0.5 tried"]).result.lr == 0.1
    assert experiment.run_commandline(["lab.py", "--comment=lr", "with", "lr=0.3"]).result.lr == 0.3


# Seeds


@pytest.mark.parametrize(("word", "shown"), [("-1", "-1"), ("4294967296", "4294967296"), ("x", "'x'"), ("1.5", "1.5")])
def test_seed_that_is_none_refused(refuse, word, shown):
    message = f"seed: got {shown}, expected an int from 0 to 4294967295; write for example seed=1"
    refuse("with", f"seed={word}", message=message)


def test_seed_in_a_file_that_is_none_refused(refuse, tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: -4\n")
    message = "seed: got -4, expected an int from 0 to 4294967295; write for example seed=1"
    refuse("with", f"{tmp_path}/recipe.yaml", message=message)


def test_seed_at_the_ends_of_its_range_is_taken(result):
    assert [result({"seed": seed}).seed for seed in (0, 2**32 - 1)] == [0, 2**32 - 1]


def test_seed_of_an_ingredient_without_effect_refused(refuse):
    message = "optimizer.seed: got 3, but optimizer draws no random numbers of its own; set seed=3"
    refuse("with", "optimizer.seed=3", message=message)
    message = "optimizer.seed: got 'x', expected an int from 0 to 4294967295; write for example optimizer.seed=1"
    refuse("with", "optimizer.seed=x", message=message)


def test_seed_of_an_ingredient_with_effect_is_taken():
    part, declares = Ingredient("part"), Ingredient("declares")
    declares.add_config(seed=1)

    @part.capture
    def draw(_seed):
        return _seed

    lab = Experiment("lab", ingredients=[part, declares])

    @lab.main
    def main(declares):
        return draw(), declares.seed

    runs = [lab.run(config_updates={"seed": 1, "part.seed": s, "declares.seed": s}).result for s in (5, 6, 5)]
    assert runs[0] == runs[2]
    assert runs[0][0] != runs[1][0]
    assert [run[1] for run in runs] == [5, 6, 5]


# Aliases


@pytest.fixture
def recipe(tmp_path):
    def recipe(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return recipe


def both(config):
    return config.lr, config.optimizer.lr


@pytest.mark.parametrize("name", ["lr", "optimizer.lr"])
def test_alias_set_by_either_name_sets_both(result, name):
    assert both(result({name: 0.3})) == (0.3, 0.3)


def test_alias_set_by_both_names_alike_is_taken(result):
    assert both(result({"lr": 0.3, "optimizer.lr": 0.3})) == (0.3, 0.3)


@pytest.mark.parametrize(("name", "value"), [("quick", 2.0), ("optimizer.fast", 5.0)])
def test_alias_set_by_a_named_config_sets_both(result, name, value):
    assert both(result({}, name)) == (value, value)


@pytest.mark.parametrize("text", ["lr: 3e-1", "optimizer: {lr: 0.3}", "lr: 0.3\noptimizer: {lr: 0.3}"])
def test_alias_set_by_a_file_sets_both(result, recipe, text):
    assert both(result({}, recipe("a.yaml", text))) == (0.3, 0.3)


@pytest.mark.parametrize("name", ["lr", "optimizer.lr"])
@pytest.mark.parametrize("named", ["quick", "optimizer.fast"])
def test_alias_on_the_command_line_goes_before_a_named_config(result, recipe, name, named):
    assert both(result({name: 0.3}, named, recipe("a.yaml", "lr: 7.0"))) == (0.3, 0.3)


def test_alias_set_to_two_values_refused(refuse, recipe):
    message = "lr and optimizer.lr are one setting, but got lr={} and optimizer.lr={}; give one of them"
    refuse("with", "lr=1", "optimizer.lr=2", message=message.format(1, 2))
    refuse("with", recipe("a.yaml", "lr: 1\noptimizer: {lr: 2}"), message=message.format(1.0, 2.0))
    refuse("with", "quick", "optimizer.fast", message=message.format(2.0, 5.0))


def test_alias_of_the_seed_sets_it_before_it_is_drawn():
    ex = Experiment("seeded", record_to=None)
    ex.add_config(draws=7)
    ex.alias(draws="seed")
    ex.main(lambda seed, draws: (seed, draws))
    assert ex.run().result == (7, 7)
    assert ex.run(config_updates={"seed": 3}).result == (3, 3)


def test_seed_as_an_alias_sets_the_entry_to_the_drawn_one():
    part = Ingredient("part")
    part.add_config(seed=3)
    ex = Experiment("seeded", ingredients=[part], record_to=None)
    ex.alias(seed="part.seed")
    ex.main(lambda seed, part: (seed, part["seed"]))
    first, second = ex.run().result
    assert first == second
    assert ex.run(config_updates={"seed": 5}).result == (5, 5)


def test_alias_error_speaks_of_the_name_that_was_typed(refuse, experiment):
    refuse("with", "lr=abc", message="lr: got 'abc' (str), expected a float; write for example lr=0.1")

    @experiment.ingredients[0].config
    def more():
        lr_decay = 0.5

    message = "optimizer.lr_decay: got 'x' (str), expected a float; write for example optimizer.lr_decay=0.5"
    refuse("with", "lr=1", "optimizer.lr_decay=x", message=message)


COMPUTED: list[str] = []


def computed_ingredient():
    part = Ingredient("part")

    @part.config
    def config():
        rate = 0.1
        noted = COMPUTED.append("part")

    return part


@pytest.mark.parametrize("name", ["default", "rate", "part.rate", "named", "file"])
def test_config_is_computed_once_wherever_an_alias_is_set(name, recipe):
    ex = Experiment("once", ingredients=[computed_ingredient()], interactive=True, record_to=None)
    ex.alias(rate="part.rate")

    @ex.config
    def config(part):
        rate = part["rate"]

    @ex.named_config
    def named():
        rate = 0.5

    ex.main(lambda _config: (_config.rate, _config.part.rate))
    COMPUTED.clear()
    given = {"named": ["named"], "file": [recipe("a.yaml", "rate: 0.5")]}.get(name, [])
    run = ex.run(config_updates={name: 0.5} if "rate" in name else {}, named_configs=given)
    assert run.result == ((0.1, 0.1) if name == "default" else (0.5, 0.5))
    assert COMPUTED == ["part"]


def test_config_is_computed_again_where_the_experiment_gives_an_alias_a_value_of_its_own():
    ex = Experiment("twice", ingredients=[computed_ingredient()], interactive=True, record_to=None)
    ex.alias(rate="part.rate")

    @ex.config
    def config():
        rate = 0.7

    ex.main(lambda _config: (_config.rate, _config.part.rate))
    COMPUTED.clear()
    assert ex.run().result == (0.7, 0.7)
    assert COMPUTED == ["part"] * 2


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        ({"rate": "optimizer.lr"}, "rate: there is no such entry, so rate cannot be an alias of optimizer.lr; add it"),
        ({"lr": "optimizer.rl"}, "optimizer.rl: there is no such entry, so lr cannot be an alias of optimizer.rl"),
    ],
)
def test_alias_of_an_entry_that_is_not_there_refused(experiment, alias, message):
    experiment.alias(**alias)
    with pytest.raises(ConfigError, match=message):
        experiment.run()


# Errors


def test_refusal_leaves_the_experiment_usable(experiment, result):
    for updates in {"optimizer": 3}, {"seed": -1}, {"lr": "x"}, {"zzz": 1}, {"lr": 1, "optimizer.lr": 2}:
        with pytest.raises(ConfigError, match="got"):
            result(updates)
    assert result({"lr": 0.3}).lr == 0.3


def test_error_of_the_lab_in_a_run_ends_the_command_line_with_one_line(experiment, capfd):
    experiment.observers.clear()

    @experiment.command
    def fail():
        raise LabError("nothing to be done")

    with pytest.raises(SystemExit) as left:
        experiment.run_commandline(["lab.py", "fail"])
    assert left.value.code == 1
    assert capfd.readouterr().err == "error: nothing to be done\n"


def test_error_of_the_lab_with_debug_is_raised(experiment):
    with pytest.raises(ConfigError, match="lr: got 'x'"):
        experiment.run(config_updates={"lr": "x"}, options={"--debug": True})


def test_other_error_in_a_run_is_raised_in_process(experiment):
    experiment.observers.clear()

    @experiment.command
    def fail():
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        experiment.run("fail")


def test_interrupt_ends_the_command_line_with_130(experiment, capfd):
    experiment.observers.clear()

    @experiment.command
    def wait():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        experiment.run_commandline(["lab.py", "wait"])
    assert left.value.code == 130
    assert capfd.readouterr().err == "interrupted (Ctrl-C)\n"
    with pytest.raises(KeyboardInterrupt):
        experiment.run("wait")
