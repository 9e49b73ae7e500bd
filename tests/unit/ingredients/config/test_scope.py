"""Config scopes: entries, their documentation, their types, and what an update may do."""

import traceback
from typing import Literal

import pytest

from sacristan.ingredients import ConfigError, data, model
from sacristan.ingredients.config.scope import DeclaredDict, Scope, completed, lenient

WIDTHS = {"small": 8, "large": 64}


def full():
    """Declare one entry of every kind."""
    # learning rate
    lr = 0.1
    # file, if any
    path: str | None = None
    mode: Literal["off", "fast"] = "off"  # how to go
    steps = 3
    flag = True
    sizes = [1, 2]
    options = {}
    # sizes of things
    model = {
        # how wide
        "width": 8,
        "deep": {
            # how high
            "height": 2.0,
        },
    }
    total = steps * 2


@pytest.fixture
def scope(monkeypatch):
    """A scope that is held to its types, as those of the lab."""
    monkeypatch.setattr("sacristan.ingredients.config.scope._SHIPPED", (__file__,))
    return Scope(full, "part")


# Entries


def test_scope_locals_are_the_entries(scope):
    assert scope() == {
        "lr": 0.1,
        "path": None,
        "mode": "off",
        "steps": 3,
        "flag": True,
        "sizes": [1, 2],
        "options": {},
        "model": {"width": 8, "deep": {"height": 2.0}},
        "total": 6,
    }


def test_scope_docstring_and_imports_are_no_entries():
    def config():
        """Say something."""
        import math
        from pathlib import Path

        root = math.sqrt(16.0)
        suffix = Path("a.csv").suffix

    assert Scope(config)() == {"root": 4.0, "suffix": ".csv"}


def test_scope_functions_and_classes_are_entries_that_see_the_others():
    def config():
        import math

        factor = 3

        def times(x):
            return math.sqrt(factor * x)

        class Local:
            pass

    entries = Scope(config)({"factor": 12})
    assert entries.keys() == {"factor", "times", "Local"}
    assert (entries["times"](3), entries["Local"].__name__) == (6.0, "Local")


def test_scope_only_a_docstring_has_no_entries():
    def config():
        """Say something."""

    assert Scope(config)() == {}


def test_scope_annotation_without_value_is_no_entry():
    def config():
        x: int  # noqa: F842
        y = 1

    assert Scope(config)() == {"y": 1}


def test_scope_sees_the_globals_of_its_module():
    def config():
        width = WIDTHS["large"]

    assert Scope(config)() == {"width": 64}


def test_scope_error_in_it_points_to_its_line():
    def config():
        """Say something."""
        x = 0
        y: int = 1 // x

    with pytest.raises(ZeroDivisionError) as caught:
        Scope(config)()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert frame.filename == __file__
    assert frame.lineno == config.__code__.co_firstlineno + 3


# Updates


def test_update_reaches_the_entries_that_depend_on_it(scope):
    assert scope({"steps": 5})["total"] == 10


def test_update_int_for_a_float_is_a_float_before_others_depend_on_it():
    def config():
        lr = 0.5
        shown = str(lr)

    updates = {"lr": 1}
    assert repr(dict(Scope(config)(updates))) == "{'lr': 1.0, 'shown': '1.0'}"
    assert repr(updates) == "{'lr': 1.0}"


def test_update_of_a_nested_entry_keeps_the_others(scope):
    assert scope({"model": {"deep": {"height": 3}}})["model"] == {"width": 8, "deep": {"height": 3.0}}


def test_update_known_entries_are_not_added(scope):
    updates = {"lr": 1, "path": "x", "options": {"any": {"key": 1}}, "model": {"width": 1, "deep": {"height": 1}}}
    assert scope(updates).added == set()


def test_update_unknown_entries_are_added_at_every_depth(scope):
    summary = scope({"rl": 1, "new": {"a": {"b": 1}}, "model": {"widht": 1, "deep": {"hieght": 1}}})
    assert summary.added == {"rl", "new", "new.a.b", "model.widht", "model.deep.hieght"}
    assert summary["rl"] == 1


def test_update_changed_entries_are_modified(scope):
    assert scope({"lr": 0.2, "steps": 3, "model": {"width": 9}}).modified == {"lr", "model.width"}


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"lr": "abc"}, r"part\.lr: got 'abc' \(str\), expected a float; write for example part\.lr=0\.1"),
        ({"lr": ""}, r"part\.lr: got nothing, expected a float; write for example part\.lr=0\.1"),
        ({"lr": None}, r"part\.lr: got None \(NoneType\), expected a float"),
        ({"lr": True}, r"part\.lr: got True \(bool\), expected a float"),
        ({"lr": {"x": 1}}, r"part\.lr: got \{'x': 1\} \(dict\), expected a float"),
        ({"steps": 3.7}, r"part\.steps: got 3\.7 \(float\), expected an int; write for example part\.steps=3"),
        ({"flag": 1}, r"part\.flag: got 1 \(int\), expected True or False"),
        ({"path": 3}, r"part\.path: got 3 \(int\), expected a string or None; for the text put it in quotes$"),
        (
            {"sizes": [1, "a"]},
            r"part\.sizes: got \[1, 'a'\] \(list\), expected a list of ints; write for example part\.sizes='\[1, 2\]'",
        ),
        (
            {"mode": "fsat"},
            r"part\.mode: got 'fsat' \(str\), expected one of off, fast; did you mean part\.mode=fast\?",
        ),
        (
            {"mode": "zzz"},
            r"part\.mode: got 'zzz' \(str\), expected one of off, fast; write for example part\.mode=off",
        ),
        ({"mode": False}, r"part\.mode: got False \(bool\).*in YAML write 'off' in quotes"),
        ({"model": 3}, r"part\.model: got 3 \(int\), expected a dict; write for example part\.model\.width=8"),
        ({"options": 3}, r"part\.options: got 3 \(int\), expected a dict; write for example part\.options='\{\}'"),
        ({"model": {"width": 1.5}}, r"part\.model\.width: got 1\.5 \(float\), expected an int"),
        ({"model": {"deep": {"height": "x"}}}, r"part\.model\.deep\.height: got 'x' \(str\), expected a float"),
        ({"model": {"deep": 1}}, r"part\.model\.deep: got 1 \(int\), expected a dict"),
    ],
)
def test_update_of_another_type_refused(scope, updates, message):
    with pytest.raises(ConfigError, match=message):
        scope(updates)


def test_update_of_another_type_refused_before_others_depend_on_it():
    def config():
        count = 3
        numbers = list(range(count))

    with pytest.raises(ConfigError, match="count: got 'x'"):
        Scope(config)({"count": "x"})


def test_update_of_another_type_passes_when_lenient(scope):
    with lenient(True):
        assert scope({"lr": "abc", "model": 3, "steps": 1.5})["total"] == 3.0
    with pytest.raises(ConfigError, match="expected a float"):
        scope({"lr": "abc"})


def test_lenient_ends_with_an_error(scope):
    with pytest.raises(KeyError, match="x"), lenient(True):
        raise KeyError("x")
    with pytest.raises(ConfigError, match="expected a float"):
        scope({"lr": "abc"})


def test_default_that_misfits_its_annotation_refused():
    def config():
        steps: int = "three"

    with pytest.raises(ConfigError, match=r"steps: got 'three' \(str\), expected an int"):
        Scope(config)()


# Arguments


def test_argument_is_taken_from_the_scopes_before_or_the_other_ingredients():
    def config(steps, other):
        total = steps + other["size"]

    assert Scope(config)(preset={"steps": 3}, fallback={"other": {"size": 4}}) == {"steps": 3, "total": 7}


def test_argument_that_is_nowhere_refused():
    def config(setps):
        total = setps

    message = r"a config scope of part asks for 'setps'; there is: other, steps"
    with pytest.raises(ConfigError, match=message):
        Scope(config, "part")(preset={"steps": 3}, fallback={"other": {}, "_log": None})


def test_argument_dict_can_be_extended_in_place():
    def config(model):
        model["deep"]["new"] = 5

    scope = Scope(config)
    preset = {"model": {"width": 8, "deep": {}}}
    assert scope(preset=preset)["model"] == {"width": 8, "deep": {"new": 5}}
    summary = scope({"model": {"deep": {"new": 7}}}, preset)
    assert summary["model"]["deep"] == {"new": 7}
    assert summary.added == set()


def test_argument_does_not_make_its_unknown_entries_known():
    def config(model, steps):
        total = steps + model["width"]

    updates = {"steps": 1, "model": {"width": 1, "widht": 2, "deep": {"hieght": 1}}}
    preset = {"steps": 1, "model": {"width": 1, "widht": 2, "deep": {"height": 1.0, "hieght": 1}}}
    assert {"model.widht", "model.deep.hieght"} <= Scope(config)(updates, preset).added


def test_named_config_sets_what_is_not_set_already():
    def fast(steps):
        lr = 5.0
        total = steps

    assert Scope(fast, strict=False)({"lr": "x"}, {"steps": 1}) == {"lr": "x", "steps": 1, "total": 1}


# Documentation


def documented():
    # two lines, of which
    # the last one counts
    two = 1
    behind = 2  # behind it
    bare = 0
    # above
    both = 3  # behind wins

    # with a line between

    apart = 4
    # pylint: disable=all
    none = 5
    unmarked = 6  # type: ignore
    typed: float = 7.0  # a float
    many = [
        1,
        2,
    ]  # after many lines
    # one comment for both
    left, right = 8, 9
    # a call
    call = dict(  # noqa: C408
        # its keyword
        key=1,
    )
    # a group
    group = {
        # its entry
        "entry": 1,
        "other": 2,  # its other
        # inside
        "inner": {"on one line": 3},
    }
    if two:
        # in a branch
        branch = 10
    text = "no # comment"


@pytest.mark.parametrize(
    ("name", "doc"),
    [
        ("two", "two lines, of which the last one counts"),
        ("behind", "behind it"),
        ("bare", None),
        ("both", "behind wins"),
        ("apart", None),
        ("none", None),
        ("unmarked", None),
        ("typed", "a float"),
        ("many", "after many lines"),
        ("left", "one comment for both"),
        ("right", "one comment for both"),
        ("call", "a call"),
        ("call.key", "its keyword"),
        ("group", "a group"),
        ("group.entry", "its entry"),
        ("group.other", "its other"),
        ("group.inner", "inside"),
        ("group.inner.on one line", None),
        ("branch", "in a branch"),
        ("text", None),
        ("seed", "the random seed for this experiment"),
    ],
)
def test_documentation_is_the_comment_above_or_behind(name, doc):
    assert Scope(documented)().docs.get(name) == doc


def test_documentation_of_computed_entries_can_be_added():
    def config():
        model = WIDTHS.copy()

    scope = Scope(config)
    scope.document(model="sizes", model__small="for trials")
    assert scope().docs["model"] == "sizes"
    assert scope().docs["model.small"] == "for trials"


def test_scope_at_another_path_keeps_entries_types_and_documentation(scope):
    scope.document(total="all steps")
    other = scope.at("other")
    assert other() == scope()
    assert other().docs == scope().docs
    assert other().docs["total"] == "all steps"
    with pytest.raises(ConfigError, match=r"^other\.path: got 3"):
        other({"path": 3})


# Entries that came later


def test_config_recorded_before_an_entry_existed_is_completed_by_what_the_scope_says():
    def config():
        width = 3
        model = {"deep": 2, "drop": 0.5}

    scope = Scope(config)
    scope.legacy(width=1, model__drop=0.0)
    scope({"width": 7})
    assert scope.legacy_defaults == {"width": 1, "model": {"drop": 0.0}}
    other = scope.at("other")
    other()
    assert other.legacy_defaults == scope.legacy_defaults

    def completed_to(recorded):
        return completed(recorded, scope(), scope.legacy_defaults)

    assert completed_to({"model": {"deep": 4}}) == {"width": 1, "model": {"deep": 4, "drop": 0.0}}
    assert completed_to({"width": 9, "model": None}) == {"width": 9, "model": None}
    assert completed_to({"model": {"of another": 1}}) == {"width": 1, "model": {"of another": 1}}


def test_entry_of_the_lab_meant_its_default_before_it_existed():
    data.config({"name": "csv", "na_values": ["?"], "augment": {"flip": True}})
    expected = {"na_values": [], "augment": {"flip": False, "crop": 0, "rotate": 0.0}, "name": ""}
    assert {name: data.config.legacy_defaults[name] for name in expected} == expected
    model.config({"name": "cnn", "options": {"dropout": 0.5}})
    assert model.config.legacy_defaults["options"] == model.OPTIONS["cnn"]


def test_legacy_of_an_entry_that_does_not_exist_is_rejected(scope):
    scope.legacy(stesp=3)
    with pytest.raises(
        ConfigError, match=r"legacy of the scope full: got part.stesp, .*no such entry; did you mean step"
    ):
        scope()


# Dicts and files


def test_dict_entries_are_held_to_their_types():
    config = DeclaredDict({"lr": 0.1, "model": {"width": 8}}, "part")
    assert repr(dict(config({"lr": 1}))) == "{'lr': 1.0, 'model': {'width': 8}}"
    with pytest.raises(ConfigError, match=r"part\.model\.width: got 'x'"):
        config({"model": {"width": "x"}})


def test_dict_joins_the_entries_before_it():
    config = DeclaredDict({"model": {"height": 2}, "lr": 0.2}, "")
    preset = {"model": {"width": 8}, "lr": 0.1, "steps": 3}
    assert config(preset=preset) == {"model": {"width": 8, "height": 2}, "lr": 0.2, "steps": 3}
    assert config() == {"model": {"height": 2}, "lr": 0.2}


def test_dict_does_not_make_unknown_entries_known():
    updates = {"rl": 1, "model": {"widht": 2}}
    summary = DeclaredDict({"steps": 3, "model": {"width": 8}}, "")(updates, {"rl": 1, "model": {"widht": 2}})
    assert summary.added == {"rl", "model.widht"}


def test_dict_at_another_path_keeps_its_entries():
    with pytest.raises(ConfigError, match=r"^other\.lr: got 'x'"):
        DeclaredDict({"lr": 0.1}, "part").at("other")({"lr": "x"})


def test_scope_that_is_no_function_with_a_body_is_refused():
    with pytest.raises(ConfigError, match="a config scope is a function written with def; got "):
        Scope(lambda: {"lr": 0.1}, "part").check()


def test_scope_that_returns_is_refused():
    def returning():
        width = 3
        return {"height": width}

    with pytest.raises(
        ConfigError, match=r"config scope returning: 'return' outside function \(line \d+ of .*; a scope"
    ):
        Scope(returning)()


def test_scope_with_arguments_that_are_not_names_alone_is_refused():
    def defaulting(width=3):
        height = width

    def collecting(*names):
        height = names

    with pytest.raises(ConfigError, match=r"scope defaulting: got the argument width=3, expected .*; write width$"):
        Scope(defaulting)()
    with pytest.raises(ConfigError, match=r"scope collecting: got the argument \*names, expected .*; write names$"):
        Scope(collecting)()


def test_assignment_to_an_ingredient_raises():
    def config():
        part = {"steps": 3}
        lr = 0.1

    with pytest.raises(
        ConfigError, match=r"of the experiment assigns 'part', which is an ingredient.*set part\.ENTRY in"
    ):
        Scope(config)(fallback={"part": {"steps": 1}, "_log": None})
