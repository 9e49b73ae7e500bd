"""Objects from names in a config, and options that must fit a signature."""

import fractions
import re
import sys

import pytest

from sacristan.configs import Map
from sacristan.configs.packages import install_command
from sacristan.ingredients import ConfigError, LabError, MissingDependencyError, OptimizerError
from sacristan.ingredients.config.construct import build, check_options, import_object, is_dotted_path, require


class Thing:
    def __init__(self, size, rate=0.1, *, name="thing"):
        if rate < 0:
            raise ValueError("rate must not be negative")
        self.size, self.rate, self.name = size, rate, name


def take_any(size, **options):
    return size, options


# Names


@pytest.mark.parametrize("name", ["package.Class", "package.module:Class", "module:Class", "a.b:Outer.Inner"])
def test_dotted_path_of_an_object_is_one(name):
    assert is_dotted_path(name)


@pytest.mark.parametrize(
    "name", ["AdamW", "", ".", ":", "a.", ".a", "a:", ":a", "a b.c", "a-b.c", "models/net.py", "1.5"]
)
def test_dotted_path_of_no_object_is_none(name):
    assert not is_dotted_path(name)


@pytest.mark.parametrize("path", ["fractions.Fraction", "fractions:Fraction"])
def test_import_object_finds_it_in_its_module(path):
    assert import_object(path, "model.name") is fractions.Fraction


def test_import_object_finds_it_in_a_class():
    assert import_object("fractions:Fraction.from_float", "model.name") == fractions.Fraction.from_float


def test_import_object_unknown_module_refused():
    message = (
        r"^model\.name: got 'nowhere\.Net', but there is no module 'nowhere'; "
        r"give package\.module:object for a module in this folder or an installed one$"
    )
    with pytest.raises(ConfigError, match=message):
        import_object("nowhere.Net", "model.name")


def test_import_object_unknown_submodule_refused():
    with pytest.raises(ConfigError, match=r"there is no module 'json\.nowhere'"):
        import_object("json.nowhere:Net", "model.name")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder of its own, which Python does not look into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_import_object_looks_into_the_working_folder_last(elsewhere):
    (elsewhere / "my_nets_here").mkdir()
    (elsewhere / "my_nets_here" / "deep.py").write_text("class Net: pass\n")
    (elsewhere / "fractions.py").write_text("Fraction = None\n")
    before = list(sys.path)
    assert import_object("fractions.Fraction", "model.name") is fractions.Fraction
    assert sys.path == before
    assert import_object("my_nets_here.deep:Net", "model.name").__name__ == "Net"
    assert sys.path == [*before, str(elsewhere)]
    assert import_object("my_nets_here.deep:Net", "model.name").__name__ == "Net"


def test_import_object_from_the_working_folder_that_lacks_a_package_says_so(elsewhere):
    (elsewhere / "my_needy_net.py").write_text("import package_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        import_object("my_needy_net:Net", "model.name")


def test_import_object_misspelt_object_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"got 'fractions\.Fractoin', but fractions has no 'Fractoin'; did you mean"):
        import_object("fractions.Fractoin", "model.name")


def test_import_object_unlike_any_object_refused():
    with pytest.raises(ConfigError, match=r"but fractions has no 'zzzzzz'; check the spelling$"):
        import_object("fractions:zzzzzz", "model.name")


def test_import_object_module_that_lacks_a_package_says_so(tmp_path, monkeypatch):
    (tmp_path / "needy_module.py").write_text("import package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        import_object("needy_module:Net", "model.name")


# Options


def test_options_that_fit_are_taken():
    check_options(Thing, {"rate": 0.5, "name": "x"}, "model.options", {"size": 1})
    check_options(take_any, {"anything": 1}, "model.options", {"size": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"raet": 1}, r"^model\.options\.raet: Thing takes no option 'raet'; did you mean 'rate'\?$"),
        ({"zzz": 1}, r"^model\.options\.zzz: Thing takes no option 'zzz'; it takes: rate, name$"),
        ({"size": 2}, r"^model\.options\.size: Thing gets 'size' from the lab already; remove it from model\.options$"),
    ],
)
def test_options_that_do_not_fit_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_options(Thing, options, "model.options", {"size": 1})


def test_options_for_what_takes_none_refused():
    with pytest.raises(ConfigError, match=r"takes no option 'x'; it takes: no options$"):
        check_options(lambda: None, {"x": 1}, "loss.options")


def test_options_without_a_required_one_refused():
    with pytest.raises(
        ConfigError, match=r"^model\.options: Thing needs a value for 'size'; write model\.options\.size="
    ):
        check_options(Thing, {}, "model.options")


def test_build_makes_the_object_of_both():
    thing = build(Thing, Map(rate=0.5), "model.options", size=3)
    assert (thing.size, thing.rate, thing.name) == (3, 0.5, "thing")


def test_build_hands_over_plain_dicts_and_lists():
    _, options = build(take_any, Map(nested={"a": [1]}), "model.options", size=3)
    assert type(options["nested"]) is dict
    assert type(options["nested"]["a"]) is list


def test_build_value_that_is_refused_keeps_the_reason():
    message = r"^model\.options: Thing refuses rate=-1: rate must not be negative$"
    with pytest.raises(ConfigError, match=message) as caught:
        build(Thing, {"rate": -1}, "model.options", size=1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_build_value_that_is_refused_raises_what_the_caller_wants():
    with pytest.raises(OptimizerError, match=r"^optimizer\.options: Thing refuses its defaults: rate must not"):
        build(Thing, {}, "optimizer.options", OptimizerError, size=1, rate=-1)


def test_build_error_of_the_lab_passes_as_it_is():
    def refuse():
        raise OptimizerError("no such luck")

    with pytest.raises(OptimizerError, match=r"^no such luck$"):
        build(refuse, {}, "model.options")


@pytest.mark.filterwarnings("ignore:import experiments is now")
def test_module_of_an_earlier_release_is_found_by_its_old_name_and_no_other():
    assert import_object("experiments.text:network", "model.name").__module__ == "sacristan.experiments.text"
    with pytest.raises(ConfigError, match=r"model.name: got 'experiments.txet:network', but there is no module 'exper"):
        import_object("experiments.txet:network", "model.name")


def test_require_installed_package_returns_it():
    assert require("fractions", "extra", "this test") is fractions


def test_require_missing_package_names_the_extra():
    message = (
        r"^reading bottles needs the package 'no_such', which is not installed; "
        f"install it with: {re.escape(install_command('wine'))}$"
    )
    with pytest.raises(MissingDependencyError, match=message) as caught:
        require("no_such.package", "wine", "reading bottles")
    assert isinstance(caught.value, LabError)
    assert isinstance(caught.value, ImportError)
