"""Config files are data: what they may hold, and what is refused."""

import datetime
import functools
import json
import math
import pickle

import pytest
import sacred
import yaml
from sacred.config import load_config_file

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError
from sacristan.ingredients.config.named_configs import guard_sacred, read_config_file, write_config_file

TRICKY = {
    "text that looks like a float": "1e-3",
    "or another": "12e4",
    "or a bool": "off",
    "or nothing": "",
    "beyond ASCII": "é",
    "small": 1e-5,
    "whole": 1.0,
    "limit": math.inf,
    "none": None,
    "flag": True,
    "list": [1, 2.5, {"deep": [[]]}],
    "dict": {"empty": {}},
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# Reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-3e2", -300.0),
        ("+.5e-2", 0.005),
        ("1.e3", 1000.0),
        ("0.5", 0.5),
        (".inf", math.inf),
        ("3", 3),
        ("-3", -3),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("'1e-3'", "1e-3"),
        ("true", True),
        ("null", None),
        ("adam", "adam"),
    ],
)
def test_yaml_scalar_is_what_a_researcher_means(write, text, value):
    assert repr(read_config_file(write("a.yaml", f"x: {text}"))["x"]) == repr(value)


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json"])
def test_file_of_every_kind_is_read(write, name):
    assert read_config_file(write(name, '{"a": {"b": [1, 2.5, null]}}')) == {"a": {"b": [1, 2.5, None]}}


def test_file_path_may_be_a_string(write):
    assert read_config_file(str(write("a.yaml", "a: 1"))) == {"a": 1}


def test_file_without_entries_is_empty(write):
    assert read_config_file(write("a.yaml", "# nothing yet\n")) == {}


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:os.system ['touch {marker}']",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
        "!!python/tuple [1, 2]",
        "!unknown 3",
    ],
)
def test_yaml_tag_that_builds_objects_refused(write, tmp_path, tag):
    marker = tmp_path / "marker"
    with pytest.raises(ConfigError, match=r"a\.yaml: is not valid YAML: could not determine a constructor for the tag"):
        read_config_file(write("a.yaml", "x: " + tag.format(marker=marker)))
    assert not marker.exists()


def test_json_that_jsonpickle_would_run_stays_data(write):
    text = '{"x": [{"py/object": "os.system"}, {"py/set": [1]}, {"json://0": {"py/b64": "YQ=="}}]}'
    opaque, *others = read_config_file(write("a.json", text))["x"]
    assert repr(opaque) == "an object of os.system"
    assert others == [{1}, {0: b"a"}]


def test_keys_that_are_numbers_are_read(write):
    assert read_config_file(write("a.yaml", "weight: {0: 1.0, 0.5: 2}")) == {"weight": {0: 1.0, 0.5: 2}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.yaml",
            "a: 1\nb: 2\na: 3",
            r"a\.yaml: is not valid YAML: the key 'a' stands twice, in line 1 and 3; give it once",
        ),
        ("a.yaml", "g: {x: 1, x: 1}", r"a\.yaml: is not valid YAML: the key 'x' stands twice, in line 1; give it once"),
        ("a.json", '{"g": {"x": 1, "x": 2}}', r"a\.json: is not valid JSON: the key 'x' stands twice; give it once"),
        ("a.yaml", "seed: 010", r"got 010 in line 1, which YAML reads as 8; write 10, or 8, or '010' in quotes"),
        ("a.yaml", "a: [-08]", r"got -08 in line 1, which YAML reads as -8\.0; write -8, or '-08' in quotes"),
        ("a.yaml", "b: 1\na: 1:30", r"got 1:30 in line 2, which YAML reads as 90; write 90, or '1:30' in quotes"),
        ("a.yaml", "a: [1", r"a\.yaml: is not valid YAML: .*expected ',' or ']'"),
        ("a.json", "{'a': 1}", r"a\.json: is not valid JSON: Expecting property name"),
        ("a.yaml", "- a\n- b\n", r"a\.yaml: got a list, expected entries of the form `key: value`"),
        ("a.json", "3", r"a\.json: got a int, expected entries"),
        ("a.yaml", "lr 0.1", r"a\.yaml: got a str, expected entries"),
        ("a.yaml", b"\xff\xfe\x00", r"a\.yaml: cannot be read as text: "),
        ("a.toml", "a = 1", r"a\.toml: got a \.toml file, expected \.yaml, \.yml or \.json"),
        ("a.pickle", pickle.dumps({"a": 1}), r"a\.pickle: got a \.pickle file, expected"),
        ("recipe", "a: 1", r"recipe: got a suffixless file, expected"),
        (
            "a.yaml",
            "optimizer.lr: 1",
            r"a\.yaml: got the key 'optimizer\.lr'; nest it, as in `optimizer: \{lr: \.\.\.\}`",
        ),
        ("a.yaml", "a.b.c: 1", r"a\.yaml: got the key 'a\.b\.c'; nest it, as in `a: \{b: \{c: \.\.\.\}\}`"),
        (
            "a.yaml",
            "model: {layers.0.n: 3}",
            r"key 'layers\.0\.n', an item of the list layers; give the whole list, as in "
            r"`layers: \[\{n: \.\.\.\}, \.\.\.\]`",
        ),
        ("a.yaml", "m.sizes.1: 3", r"of the list m\.sizes; give .*, as in `m: \{sizes: \[\.\.\., \.\.\.\]\}`"),
        ("a.yaml", "1: 2", r"a\.yaml: got the key 1 \(int\), expected text; quote it"),
        ("a.yaml", "g: [{null: 2}]", r"a\.yaml: got the key None \(NoneType\), expected text; quote it"),
        ("a.json", '{"json://1": 2}', r"a\.json: got the key 'json://1', expected the name of a setting"),
        ("a.json", '{"py/set": [2]}', r"a\.json: got the key 'py/set', expected the name of a setting"),
        ("a.yaml", "on: 2", r"a\.yaml: got the key True \(bool\), expected text; quote it"),
        ("a.json", '{"": 2}', r"a\.json: got the key '', expected a name without `\.` and `\$`"),
        ("a.json", '{"a.": 2}', r"a\.json: got the key 'a\.', expected a name"),
        ("a.json", '{"a": {"$b": 2}}', r"a\.json: got the key '\$b', expected a name"),
        ("a.yaml", "day: 2024-01-31", r"a\.yaml: got 2024-01-31 \(date\), expected a number or text; quote it"),
        ("a.yaml", "x: [!!set {a}]", r"a\.yaml: got .*\(set\), expected a number or text"),
    ],
)
def test_file_that_is_no_config_refused(write, name, content, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_config_file(write(name, content))
    assert "\n" not in str(caught.value)


def test_file_that_is_missing_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.yaml: there is no such config file; check the path"):
        read_config_file(tmp_path / "a.yaml")


@pytest.mark.parametrize("kind", [sacred.Experiment, Experiment])
def test_file_that_is_missing_is_an_oserror_as_in_sacred(kind, tmp_path):
    ex = kind("e", save_git_info=False, base_dir=str(tmp_path))
    for add in (ex.add_config, functools.partial(ex.add_named_config, "named")):
        with pytest.raises(OSError, match=r"missing\.json"):
            add(str(tmp_path / "missing.json"))


def test_file_that_is_a_folder_refused(tmp_path):
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"a\.yaml: cannot be read as text: "):
        read_config_file(tmp_path / "a.yaml")


# Writing


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json"])
def test_written_file_is_read_back_equal(tmp_path, name):
    write_config_file(TRICKY, tmp_path / name)
    assert repr(read_config_file(tmp_path / name)) == repr(TRICKY)


def test_written_file_says_the_same_to_other_readers(tmp_path):
    write_config_file(TRICKY, tmp_path / "a.yaml")
    write_config_file(TRICKY, tmp_path / "a.json")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text(encoding="utf-8")) == TRICKY
    assert json.loads((tmp_path / "a.json").read_text()) == TRICKY


def test_written_yaml_keeps_the_order_and_the_letters(tmp_path):
    write_config_file({"b": "é", "a": 1}, tmp_path / "a.yaml")
    assert (tmp_path / "a.yaml").read_text(encoding="utf-8") == "b: é\na: 1\n"


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_write_value_that_is_none_of_a_config_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"{name}: a config holds numbers, text, lists and dicts only: .*object"):
        write_config_file({"x": object()}, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_write_file_of_another_kind_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^config_filename: got '.*a\.txt', expected a name ending in \.yaml"):
        write_config_file({}, tmp_path / "a.txt")


def test_write_into_a_missing_folder_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.json: cannot be written: No such file or directory; choose another"):
        write_config_file({}, tmp_path / "missing" / "a.json")


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_written_values_that_json_lacks_are_read_back_equal(tmp_path, name):
    config = {"a": {0: {1, 2}, (1, 2): b"a"}, "day": datetime.date(2024, 1, 31), "url": "mongodb://me:secret@host"}
    write_config_file(config, tmp_path / name)
    assert read_config_file(tmp_path / name) == config


# Sacred's own way


def test_guard_sacred_reads_as_the_lab_does(write, tmp_path):
    guard_sacred()
    guard_sacred()
    assert load_config_file(str(write("a.yaml", "lr: 1e-3"))) == {"lr": 1e-3}
    assert load_config_file(str(write("a.json", '{"x": {"py/set": [1]}}'))) == {"x": {1}}
    with pytest.raises(ConfigError, match=r"b\.json: holds an object of os\.system, which reading does not make"):
        load_config_file(str(write("b.json", '{"x": {"py/object": "os.system"}}')))
    marker = tmp_path / "marker"
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config_file(str(write("c.yml", f"x: !!python/object/apply:os.system ['touch {marker}']")))
    assert not marker.exists()


def test_guard_sacred_refuses_pickles(write):
    guard_sacred()
    with pytest.raises(ValueError, match=r"invalid or unsupported extension \"\.pickle\""):
        load_config_file(str(write("a.pickle", pickle.dumps({"a": 1}))))
