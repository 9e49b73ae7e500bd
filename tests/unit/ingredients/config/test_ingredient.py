"""Arguments of captured functions, commands and hooks; and twins."""

import logging

import numpy as np
import pytest
import sacred
from sacred.run import Run
from sacred.utils import SignatureError

from sacristan.configs import FrozenList, Map, MutableMap
from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, Ingredient, MissingEntryError, UnknownEntryError

shape = Ingredient("shape")
shape.add_config(sides=3)


@shape.capture
def count_sides(sides):
    return sides


@shape.command(unobserved=True)
def draw_shape():
    return "_" * count_sides()


def make_part():
    part = Ingredient("part")

    @part.config
    def config():
        # how wide
        width = 3
        options = {"rate": 0.5, "inner": {"sizes": [1, 2]}}

    @part.named_config
    def wide():
        """Be wide."""
        width = 100

    @part.capture
    def build(width, options, factor=1):
        return width * factor, options

    @part.capture(prefix="options")
    def rate_of(rate, inner, _config):
        return rate, inner, _config

    @part.command
    def show(_config):
        """Show it."""
        return build(factor=10)[0]

    return part


@pytest.fixture
def part():
    return make_part()


@pytest.fixture
def run(part):
    """Return what runs a function as the main one of an experiment, and returns its result."""

    def run(main, updates=None, **options):
        experiment = Experiment("lab", ingredients=[part])

        @experiment.config
        def config():
            seed = 7
            top = {"a": {"b": [{"c": 1}]}}
            names = ["x", "y"]

        experiment.main(main)
        return experiment.run(config_updates=updates or {}, **options).result

    return run


def all_map(value):
    """Tell whether every dict and list in `value` is a read-only one."""
    if isinstance(value, dict):
        return type(value) is Map and all(map(all_map, value.values()))
    if isinstance(value, list):
        return type(value) is FrozenList and all(map(all_map, value))
    return True


# Map everywhere


def test_main_receives_map_at_every_depth(run):
    def main(_config, top, names, part):
        assert all(map(all_map, (_config, top, names, part)))
        return _config.top.a.b[0].c, top.a.b[0].c, part.options.inner.sizes[1], part.options.rate

    assert run(main) == (1, 1, 2, 0.5)


def test_main_receives_what_was_set(run):
    assert run(lambda part: part.options.rate, {"part.options.rate": 0.9}) == 0.9


def test_captured_function_receives_map(run, part):
    def main():
        width, options = part.build()
        rate, inner, config = part.rate_of()
        assert all(map(all_map, (options, inner, config)))
        return width, rate, inner.sizes[0], config.inner.sizes[0]

    assert run(main) == (3, 0.5, 1, 1)


def test_captured_method_receives_map(run, part):
    class Builder:
        @part.capture
        def build(self, options, _config):
            return self, options.inner.sizes[1], _config.width

    builder = Builder()
    assert run(lambda: builder.build()) == (builder, 2, 3)


def test_command_receives_map(part):
    experiment = Experiment("lab", ingredients=[part])

    @experiment.command
    def look(_config, part):
        return all_map(_config) and all_map(part) and part.width

    assert experiment.run("look").result == 3
    assert experiment.run("part.show").result == 30


def test_hooks_around_the_run_receive_map(part):
    seen = []
    experiment = Experiment("lab", ingredients=[part])

    @part.pre_run_hook
    def before(_config, options):
        seen.append(("before", _config.options.rate, options.rate))

    @part.post_run_hook(prefix="options")
    def after(_config, inner):
        seen.append(("after", _config.rate, inner.sizes[0]))

    @experiment.pre_run_hook
    def first(part, _config):
        seen.append(("first", _config.part.width, part.options.rate))

    @experiment.main
    def main():
        seen.append("main")

    experiment.run()
    assert seen == [("before", 0.5, 0.5), ("first", 3, 0.5), "main", ("after", 0.5, 1)]


def test_config_hook_receives_a_config_and_updates(part):
    seen = {}
    experiment = Experiment("lab", ingredients=[part])

    @part.config_hook
    def fill_in(config, command_name, logger):
        seen.update(config=config, command=command_name, logger=logger)
        return {"options": {"inner": config.part.options.inner}, "width": config.part.width + 1}

    @experiment.main
    def main(part):
        return part.width, part.options.inner.sizes

    assert experiment.run().result == (4, [1, 2])
    assert type(seen["config"].part.options) is MutableMap
    assert seen["command"] == "main"
    assert isinstance(seen["logger"], logging.Logger)
    assert experiment.run(config_updates={"part.width": 9}).result[0] == 9


def test_config_hook_may_return_the_config_that_it_changed(part):
    @part.config_hook
    def change(config, command_name, logger):
        config.part.width += 1
        config["part"].update({"more": {"a": 1}})
        config.part.options.inner.sizes.append(3)
        return config

    experiment = Experiment("lab", ingredients=[part])
    experiment.add_config(rate=0.5)

    @experiment.config_hook
    def also(config, command_name, logger):
        config.update({"hook": True, "rate": config.part.width / 8})
        return config

    experiment.main(lambda _config: _config)
    config = experiment.run().result
    assert (config.part.width, config.part.more.a, config.part.options.inner.sizes) == (4, 1, [1, 2, 3])
    assert (config.hook, config.rate) == (True, 0.5)
    assert set(config) == {"part", "rate", "hook", "seed"}
    assert experiment.run(config_updates={"part.width": 9, "rate": 2.0}).result.rate == 2.0


def test_config_hook_of_a_twin_changes_the_twin(part):
    @part.config_hook
    def change(config, command_name, logger):
        if "twin" in config:
            config.twin.width = 7
        return config

    twin = part.twin("twin")
    experiment = Experiment("lab", ingredients=[part, twin])
    experiment.main(lambda part, twin: (part.width, twin.width))
    assert experiment.run().result == (3, 7)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("config.part.width = 9", "config hook hook: changed part.width, but returned nothing; end it with return"),
        ("return 3", "config hook hook: returned 3 .int., expected a dict of changed entries"),
        (
            "config.other.rate = 1.0; return config",
            "config hook hook: changed other.rate, which is not of part",
        ),
    ],
)
def test_config_hook_whose_changes_would_be_lost_refused(part, tmp_path, hook, message):
    names = {}
    exec(f"def hook(config, command_name, logger): {hook}", names)
    other = Ingredient("other")
    other.add_config(rate=0.5)
    part.ingredients.append(other)
    part.config_hook(names["hook"])
    experiment = Experiment("lab", ingredients=[part, other])
    experiment.main(lambda: None)
    with pytest.raises(ConfigError, match=message):
        experiment.run()


def test_config_hook_of_the_experiment_that_changes_an_ingredient_refused(part):
    experiment = Experiment("lab", ingredients=[part])

    @experiment.config_hook
    def change(config, command_name, logger):
        return {"part": {"width": 9}}

    experiment.main(lambda: None)
    with pytest.raises(ConfigError, match=r"config hook change: changed part.width, which is not of the experiment"):
        experiment.run()


def test_config_hook_of_another_form_refused(part):
    with pytest.raises(ValueError, match="Wrong signature for config_hook"):
        part.config_hook(lambda config: {})


# Configs that may be changed


def test_config_is_writable_where_sacreds_settings_say_so(part, monkeypatch):
    monkeypatch.setitem(sacred.SETTINGS.CONFIG, "READ_ONLY_CONFIG", False)

    @part.capture
    def change(options):
        options.inner.sizes.append(3)
        options["new"] = {"a": 1}

    @part.capture
    def look(options, _config):
        assert _config.options is options
        return options.inner.sizes, options.new.a

    experiment = Experiment("lab", ingredients=[part])

    @experiment.main
    def main(_config):
        change()
        _config.rate = 3
        return look()

    run = experiment.run()
    assert run.result == ([1, 2, 3], 1)
    assert run.config["part"]["options"]["inner"]["sizes"] == [1, 2]
    assert "rate" not in run.config


# Arguments from outside


def test_required_argument_may_come_from_outside(part):
    @part.capture
    def load(filename, width):
        return filename, width

    experiment = Experiment("lab", ingredients=[part])
    experiment.main(lambda: load())
    assert experiment.run(config_updates={"part.filename": "a.csv"}).result == ("a.csv", 3)
    with pytest.raises(MissingEntryError, match="load: got no value for the argument filename"):
        experiment.run()


def test_required_argument_ahead_of_one_that_the_caller_hands_over_is_no_entry(part):
    @part.capture
    def load(source, filename, device):
        return source, filename, device

    experiment = Experiment("lab", ingredients=[part])
    experiment.main(lambda: load("s", device="cpu"))
    with pytest.raises(UnknownEntryError, match=r"part.filename: got 'a.csv', but there is no such entry"):
        experiment.run(config_updates={"part.filename": "a.csv"})
    part.add_config(device="cpu")
    experiment.main(lambda: load("s"))
    run = experiment.run("<lambda>", config_updates={"part.filename": "a.csv"})
    assert run.result == ("s", "a.csv", "cpu")


def test_required_argument_from_outside_that_the_caller_hands_over_refused(part):
    @part.capture
    def load(filename):
        return filename

    experiment = Experiment("lab", ingredients=[part])
    experiment.main(lambda: load("mine.csv"))
    assert experiment.run().result == "mine.csv"
    with pytest.raises(ConfigError, match=r"filename: got 'a.csv', but load is given its filename by the code"):
        experiment.run(config_updates={"part.filename": "a.csv"})
    assert experiment.run().result == "mine.csv"


# What an argument is filled with


def test_explicit_argument_goes_before_the_config(run, part):
    assert run(lambda: part.build(1, factor=2)[0]) == 2
    assert run(lambda: part.build(width=1)[0]) == 1


def test_config_entry_goes_before_the_default(run, part):
    @part.capture
    def build(width=50, height=60):
        return width, height

    assert run(lambda: build()) == (3, 60)


def test_run_log_seed_and_random_state_are_injected(run, part):
    @part.capture
    def look(_run, _log, _seed, _rnd, _config):
        return _run, _log, _seed, _rnd, _config

    found, log, seed, rnd, config = run(lambda: look())
    assert isinstance(found, Run)
    assert log.name == "part.look"
    assert isinstance(seed, int)
    assert isinstance(rnd, np.random.RandomState | np.random.Generator)
    assert config == {"width": 3, "options": {"rate": 0.5, "inner": {"sizes": [1, 2]}}}


def test_seed_repeats_with_the_run_and_advances_with_the_calls(run, part):
    @part.capture
    def draw(_seed, _rnd):
        return _seed

    first, second = run(lambda: (draw(), draw()))
    assert first != second
    assert run(lambda: (draw(), draw())) == (first, second)


def test_prefix_narrows_the_config(run, part):
    assert run(lambda: part.rate_of()[2]) == {"rate": 0.5, "inner": {"sizes": [1, 2]}}


def test_missing_argument_says_which(run, part):
    @part.capture
    def build(nowhere):
        return nowhere

    with pytest.raises(MissingEntryError, match="build: got no value for the argument nowhere; add it to the config,"):
        run(lambda: build())


def test_missing_argument_names_the_entry_that_was_meant(run, part):
    @part.capture
    def build(widht):
        return widht

    with pytest.raises(MissingEntryError, match=r"build: got no value for the argument widht; did you mean width\?"):
        run(lambda: build())


def test_unexpected_argument_refused(run, part):
    with pytest.raises(SignatureError, match=r"build got unexpected kwarg\(s\): \['widht'\]"):
        run(lambda: part.build(widht=1))
    with pytest.raises(SignatureError, match=r"build got multiple values for argument\(s\) \['width'\]"):
        run(lambda: part.build(1, width=1))


def test_explicit_dict_for_a_config_entry_is_a_map(run, part):
    def main():
        by_name, by_place = part.build(options={"a": {"b": 1}})[1], part.build(1, {"a": {"b": 1}})[1]
        return by_name.a.b, by_place.a.b, type(by_name), type(by_place)

    assert run(main) == (1, 1, Map, Map)


def test_other_explicit_arguments_are_untouched(run, part):
    @part.capture
    def take(things, more, width, *rest, **named):
        return things, more, rest, named

    given = {"a": 1}, [1], {"b": 2}, {"width": 4}
    things, more, rest, named = run(lambda: take(given[0], given[1], 3, given[2], extra=given[3]))
    assert things is given[0]
    assert more is given[1]
    assert rest[0] is given[2]
    assert named["extra"] is given[3]


def test_config_cannot_be_changed_in_a_run(run):
    def main(_config):
        _config.part.width = 4

    with pytest.raises(TypeError, match="a config is read-only inside a run"):
        run(main)


# Declaring


def test_entries_from_both_a_dict_and_keywords_refused(part):
    with pytest.raises(ConfigError, match="got a dict or file and keywords; give the entries in one of the two ways"):
        part.add_config({"a": 1}, b=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "got no entries; give a dict, a file or keywords"),
        ((12,), "got 12 .int., expected a dict, the name of a file, or keywords"),
        (([1],), "got .1. .list., expected a dict"),
    ],
)
def test_add_config_of_anything_else_refused(part, given, message):
    with pytest.raises(ConfigError, match=f"add_config: {message}"):
        part.add_config(*given)
    with pytest.raises(ConfigError, match=f"add_named_config: {message}"):
        part.add_named_config("name", *given)


def test_add_config_of_an_empty_dict_adds_nothing(run, part):
    part.add_config({})
    assert run(lambda part: part.width) == 3
    with pytest.raises(ConfigError, match="got a dict or file and keywords; give the entries in one of the two ways"):
        part.add_named_config("tall", {"a": 1}, b=2)


def test_named_config_called_twice_alike_refused(part):
    with pytest.raises(KeyError, match='Configuration name "wide" already in use'):
        part.add_named_config("wide", width=1)


def test_add_config_changing_its_source_later_leaves_it(run, part):
    source = {"extra": {"a": 1}}
    part.add_config(source)
    source["extra"]["a"] = 2
    assert run(lambda part: part.extra.a) == 1


def test_capture_of_a_captured_function_is_the_same(part):
    assert part.capture(part.build) is part.build


def test_ingredient_function_that_is_none_refused(part):
    with pytest.raises(AttributeError, match="the ingredient 'part' has no function 'biuld'"):
        _ = part.biuld


def test_sacred_ingredient_can_be_used_beside(part):
    theirs = sacred.Ingredient("theirs", save_git_info=False)
    theirs.add_config(depth=2)
    experiment = Experiment("lab", ingredients=[part, theirs])

    @experiment.main
    def main(theirs, part):
        return theirs.depth, part.width

    assert experiment.run().result == (2, 3)


# Twins


@pytest.fixture
def twins(part):
    twin = part.twin("twin")
    experiment = Experiment("lab", ingredients=[part, twin])

    @experiment.main
    def main():
        return part.build()[0], twin.build()[0], part.build(factor=2)[0], twin.build(factor=2)[0]

    return experiment


def test_twin_has_a_config_of_its_own_in_the_same_run(twins):
    assert twins.run(config_updates={"twin.width": 5}).result == (3, 5, 6, 10)
    assert twins.run(config_updates={"part.width": 5}).result == (5, 3, 10, 6)


def test_twin_has_the_named_configs(twins):
    assert twins.run(named_configs=["twin.wide"]).result[:2] == (3, 100)
    assert twins.run(named_configs=["part.wide"]).result[:2] == (100, 3)


def test_twin_is_as_strict_under_its_own_name(twins):
    with pytest.raises(ConfigError, match=r"^twin\.width: got 'x'"):
        twins.run(config_updates={"twin.width": "x"})
    with pytest.raises(ConfigError, match=r"^twin\.widht: got 1, but there is no such entry"):
        twins.run(config_updates={"twin.widht": 1})


def test_twin_functions_receive_map_and_prefix(part):
    twin = part.twin("twin")
    experiment = Experiment("lab", ingredients=[part, twin])

    @experiment.main
    def main():
        return twin.rate_of()[1].sizes[1]

    assert experiment.run(config_updates={"twin.options.inner.sizes": [1, 9]}).result == 9


def test_twin_functions_call_each_other():
    experiment = Experiment("lab", ingredients=[shape, shape.twin("twin")])

    @experiment.main
    def main():
        pass

    updates = {"twin.sides": 5}
    assert experiment.run("twin.draw_shape", updates).result == "_____"
    assert experiment.run("shape.draw_shape", updates).result == "___"
    assert dict(experiment.gather_commands())["twin.draw_shape"].unobserved


def test_twin_of_add_config_has_its_entries(part):
    part.add_config(height=4)
    twin = part.twin("twin")
    experiment = Experiment("lab", ingredients=[part, twin])

    @experiment.main
    def main(twin, part):
        return twin.height, part.height

    assert experiment.run(config_updates={"twin.height": 5}).result == (5, 4)


def test_twin_has_the_hooks(part):
    seen = []

    @part.pre_run_hook
    def before(width):
        seen.append(width)

    @part.post_run_hook
    def after(width):
        seen.append(-width)

    experiment = Experiment("lab", ingredients=[part, part.twin("twin")])

    @experiment.main
    def main():
        pass

    experiment.run(config_updates={"twin.width": 5})
    assert sorted(seen) == [-5, -3, 3, 5]


def test_twin_documents_its_entries(part):
    experiment = Experiment("lab", ingredients=[part, part.twin("twin")])

    @experiment.main
    def main(_run):
        return _run.config_modifications.docs

    assert experiment.run().result["twin.width"] == "how wide"
