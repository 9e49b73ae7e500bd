"""Named configs of a script widen what its entries take; the command line and other people's entries do not."""

import pytest

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, Ingredient


@pytest.fixture
def ex():
    part = Ingredient("part")

    @part.config
    def part_config():
        size = 3

    @part.named_config
    def unsized():
        size = None

    ex = Experiment("vilt", ingredients=[part], save_git_info=False, record_to=None)

    @ex.config
    def config():
        max_steps = 25000
        itm = 0
        losses = {"mlm": 1, "itm": 0}
        rate: float = 0.1

    @ex.named_config
    def endless():
        max_steps = None
        losses = {"mlm": 0.5}
        itm = 0.5

    ex.add_named_config("named", max_steps=None, itm=0.25)

    @ex.named_config
    def wrong():
        part = {"size": "large"}

    @ex.named_config
    def worded():
        itm = "auto"

    @ex.named_config
    def annotated():
        rate = "quick"

    @ex.main
    def main(_config):
        return dict(_config)

    return ex


def config_of(ex, *named, **updates):
    return ex.run(config_updates=updates, named_configs=named, options={"--unobserved": True}).config


def test_named_config_of_the_script_sets_entries_to_other_types(ex):
    config = config_of(ex, "endless")
    assert (config["max_steps"], config["itm"], config["losses"]) == (None, 0.5, {"mlm": 0.5, "itm": 0})
    assert config_of(ex, "named")["itm"] == 0.25
    assert config_of(ex, "part.unsized")["part"]["size"] is None


def test_command_line_takes_what_the_named_config_asked_for_takes(ex):
    config = config_of(ex, "endless", max_steps=10, losses={"itm": 2}, itm=0.7)
    assert (config["max_steps"], config["itm"], config["losses"]) == (10, 0.7, {"mlm": 0.5, "itm": 2})


@pytest.mark.parametrize(
    ("named", "updates", "message"),
    [
        ([], {"itm": "half"}, r"itm: got 'half' \(str\), expected a number; for text declare it"),
        (["endless"], {"max_steps": "abc"}, r"max_steps: got 'abc' \(str\), expected a number"),
        (["endless"], {"losses": {"itm": "x"}}, r"losses.itm: got 'x' \(str\), expected a number"),
        (["wrong"], {}, r"part.size: got 'large' \(str\), expected a number; .* \(the named config wrong sets it\)"),
        (["annotated"], {}, r"rate: got 'quick' \(str\), expected a float; .* \(the named config annotated sets it\)"),
    ],
)
def test_mistakes_are_refused_and_the_named_config_that_made_one_is_named(ex, named, updates, message):
    with pytest.raises(ConfigError, match=message):
        config_of(ex, *named, **updates)


def test_config_file_has_no_such_say(ex, tmp_path):
    (tmp_path / "recipe.yaml").write_text("itm: auto\n")
    assert config_of(ex, "worded")["itm"] == config_of(ex, "worded", itm="auto")["itm"] == "auto"
    with pytest.raises(ConfigError, match=r"itm: got 'auto' \(str\), expected a number"):
        config_of(ex, str(tmp_path / "recipe.yaml"))
