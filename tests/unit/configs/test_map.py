"""`Map`: read at every depth, never written, and a dict wherever a dict goes."""

import copy
import json
import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sacristan.configs import FrozenList, Map, MutableMap, freeze, to_plain
from sacristan.configs.importing import import_sacred

PLAIN = {"model": {"name": "mlp", "options": {"hidden": [64, 32]}}, "groups": [{"match": "*.bias"}, [{"deep": 1}]]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
json_dicts = st.dictionaries(st.text(), json_values, max_size=5)


@pytest.fixture
def cfg():
    return Map(PLAIN)


def depths(value):
    """Yield `value` and everything in it."""
    yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from depths(item)


# Reading


def test_map_dotted_access_reads_every_depth(cfg):
    assert cfg.model.name == "mlp"
    assert cfg.model.options.hidden == [64, 32]


def test_map_dotted_access_reads_dicts_in_lists(cfg):
    assert cfg.groups[0].match == "*.bias"
    assert cfg.groups[1][0].deep == 1


def test_map_dotted_access_reads_dicts_in_tuples():
    assert Map(pair=({"x": 1}, 2)).pair[0].x == 1


def test_map_items_read_what_attributes_read(cfg):
    assert cfg["model"]["options"]["hidden"] is cfg.model.options.hidden


def test_map_unpacks_as_keywords(cfg):
    assert dict(**cfg.model) == {"name": "mlp", "options": {"hidden": [64, 32]}}


def test_map_key_called_like_a_method_leaves_the_method():
    cfg = Map(items=3, keys=4)
    assert list(cfg.items()) == [("items", 3), ("keys", 4)]
    assert cfg["items"] == 3


def test_map_takes_a_mapping_keywords_and_both():
    assert Map([("a", 1)], b={"c": 2}).b.c == 2
    assert Map(mapping=1, self=2) == {"mapping": 1, "self": 2}


def test_map_fromkeys_freezes_the_values():
    cfg = Map.fromkeys(["a", "b"], {"c": 1})
    assert isinstance(cfg, Map)
    assert cfg.b.c == 1


def test_map_missing_name_says_the_nearest(cfg):
    with pytest.raises(AttributeError, match=r"no entry 'optoins' here; did you mean options\?"):
        _ = cfg.model.optoins


def test_map_missing_name_with_several_near_says_all():
    with pytest.raises(AttributeError, match=r"did you mean rate_b or rate_a\?"):
        _ = Map(rate_a=1, rate_b=2).rate_


def test_map_missing_name_without_a_near_one_says_what_there_is(cfg):
    with pytest.raises(AttributeError, match=r"no entry 'zzz' here; it has: name, options"):
        _ = cfg.model.zzz


def test_map_missing_name_in_an_empty_map_says_nothing():
    with pytest.raises(AttributeError, match="it has: nothing"):
        _ = Map().lr


def test_map_missing_name_defaults_in_getattr(cfg):
    assert getattr(cfg, "zzz", 5) == 5
    assert not hasattr(cfg, "zzz")


def test_map_missing_key_raises_key_error(cfg):
    with pytest.raises(KeyError, match="zzz"):
        _ = cfg["zzz"]


def test_map_dir_lists_entries_and_methods():
    assert {"lr", "to_dict", "items"} <= set(dir(Map({"lr": 1, "no name": 2, 3: 4})))
    assert "no name" not in dir(Map({"no name": 2}))


def test_map_repr_is_an_expression_of_it(cfg):
    assert eval(repr(cfg), {"Map": Map}) == cfg


# Writing


@pytest.mark.parametrize(
    "write",
    [
        lambda m: setattr(m, "lr", 1),
        lambda m: setattr(m, "new", 1),
        lambda m: setattr(m, "__class__", dict),
        lambda m: delattr(m, "lr"),
        lambda m: m.__setitem__("lr", 1),
        lambda m: m.__delitem__("lr"),
        lambda m: m.__ior__({"lr": 1}),
        lambda m: m.update(lr=1),
        lambda m: m.update({"lr": 1}),
        lambda m: m.setdefault("new", 1),
        lambda m: m.setdefault("lr"),
        lambda m: m.pop("lr"),
        lambda m: m.pop("new", None),
        lambda m: m.popitem(),
        lambda m: m.clear(),
    ],
)
@pytest.mark.parametrize("path", [[], ["inner"], ["items", 0]])
def test_map_every_way_of_writing_refused(write, path):
    cfg = target = Map({"lr": 0.1, "inner": {"lr": 0.1}, "items": [{"lr": 0.1}]})
    for key in path:
        target = target[key]
    with pytest.raises(TypeError, match=r"read-only inside a run, so this Map cannot be changed.*to_plain\(cfg\)"):
        write(target)
    assert cfg == {"lr": 0.1, "inner": {"lr": 0.1}, "items": [{"lr": 0.1}]}


def test_map_statements_that_write_refused(cfg):
    with pytest.raises(TypeError, match="read-only"):
        cfg.model.name = "cnn"
    with pytest.raises(TypeError, match="read-only"):
        del cfg.model
    with pytest.raises(TypeError, match="read-only"):
        cfg |= {"model": 1}
    assert cfg == PLAIN


@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.__setitem__(0, 9),
        lambda v: v.__setitem__(slice(0, 1), [9]),
        lambda v: v.__delitem__(0),
        lambda v: v.__delitem__(slice(None)),
        lambda v: v.__iadd__([9]),
        lambda v: v.__imul__(2),
        lambda v: v.append(9),
        lambda v: v.extend([9]),
        lambda v: v.insert(0, 9),
        lambda v: v.pop(),
        lambda v: v.pop(0),
        lambda v: v.remove(64),
        lambda v: v.clear(),
        lambda v: v.sort(),
        lambda v: v.sort(reverse=True),
        lambda v: v.reverse(),
    ],
)
def test_list_every_way_of_writing_refused(cfg, write):
    with pytest.raises(TypeError, match="read-only inside a run, so this FrozenList cannot be changed"):
        write(cfg.model.options.hidden)
    assert cfg == PLAIN


def test_no_method_that_changes_a_dict_or_list_is_forgotten():
    reading = {
        dict: {"copy", "fromkeys", "get", "items", "keys", "values"},
        list: {"copy", "count", "index"},
    }
    for base, ours in (dict, Map), (list, FrozenList):
        public = {name for name in vars(base) if not name.startswith("_")}
        writing = (public - reading[base]) | {"__setitem__", "__delitem__"}
        writing |= {name for name in vars(base) if name.startswith("__i") and name not in ("__init__", "__iter__")}
        assert [name for name in writing if getattr(ours, name) is getattr(base, name)] == []


def test_map_calling_init_again_changes_nothing(cfg):
    cfg.__init__({"model": 1}, new=2)
    cfg.model.options.hidden.__init__([9])
    assert cfg == PLAIN


def test_map_changing_its_source_leaves_it():
    source = {"a": {"b": [1]}}
    cfg = Map(source)
    source["a"]["b"].append(2)
    source["a"]["c"] = 3
    assert cfg == {"a": {"b": [1]}}


# Copying


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_a_map_is_plain_and_read_without_the_lab(cfg, protocol):
    pickled = pickle.dumps([cfg, dict(cfg), cfg.groups, MutableMap(cfg)], protocol)
    assert b"configs" not in pickled
    for again, wanted in zip(pickle.loads(pickled), [cfg, cfg, cfg.groups, cfg], strict=True):
        assert again == wanted
        assert {type(value) for value in depths(again)}.isdisjoint({Map, FrozenList, MutableMap})


@pytest.mark.parametrize("kind", [Map, MutableMap])
def test_worker_gets_a_config_with_dotted_access(cfg, kind):
    import_sacred()
    again = pickle.loads(ForkingPickler.dumps(kind(cfg)))
    assert [type(value) for value in depths(again)] == [type(value) for value in depths(kind(cfg))]
    assert again == cfg


def test_map_deepcopy_is_plain_at_every_depth_and_can_be_changed(cfg):
    again = copy.deepcopy(cfg)
    assert again == cfg
    assert {type(value) for value in depths(again)}.isdisjoint({Map, FrozenList, MutableMap})
    again["model"]["options"]["new"] = {"a": 1}
    again["groups"].append("another")
    del again["model"]["name"]
    assert "new" not in cfg.model.options
    assert "name" in cfg.model
    assert len(again["groups"]) == len(cfg.groups) + 1
    assert type(copy.deepcopy(cfg.groups)) is list


def test_copies_of_a_config_are_written_and_read_without_the_lab(cfg, tmp_path):
    import torch

    import_sacred()
    for saved in (cfg, dict(cfg), copy.deepcopy(cfg)):
        torch.save({"config": saved}, tmp_path / "saved.pt")
        assert torch.load(tmp_path / "saved.pt", weights_only=True)["config"] == cfg
    for copied in (cfg, dict(cfg), cfg.copy(), copy.deepcopy(cfg), MutableMap(cfg)):
        for dump in (yaml.dump, yaml.safe_dump):
            assert yaml.safe_load(dump(copied)) == to_plain(cfg)
        assert json.loads(json.dumps(copied)) == to_plain(cfg)


def test_mutable_map_takes_dicts_in_every_way_as_such_ones():
    cfg = MutableMap({"a": {"b": [{"c": 1}]}}, d=({"e": 2},))
    cfg.update({"f": {"g": 3}}, h={"i": 4})
    cfg |= {"j": {"k": 5}}
    cfg.setdefault("l", {"m": 6}).m += 1
    assert (cfg.a.b[0].c, cfg.d[0].e, cfg.f.g, cfg.h.i, cfg.j.k, cfg.l.m) == (1, 2, 3, 4, 5, 7)
    assert cfg.setdefault("l") is cfg.l
    assert pickle.loads(pickle.dumps(cfg)) == cfg == copy.deepcopy(cfg)
    assert type(freeze(cfg).a.b[0]) is Map
    assert type(to_plain(cfg)["a"]["b"][0]) is dict


def test_mutable_map_without_the_name_says_which_there_are():
    cfg = MutableMap(rate=1)
    with pytest.raises(AttributeError, match="no entry 'raet' here; did you mean rate"):
        cfg.raet  # noqa: B018
    with pytest.raises(AttributeError, match="no entry 'raet' here; did you mean rate"):
        del cfg.raet


def test_map_deepcopy_copies_the_objects_in_it():
    cfg = Map(value={1, 2})
    assert copy.deepcopy(cfg)["value"] is not cfg.value


@pytest.mark.parametrize("make", [copy.copy, lambda value: value.copy()])
def test_map_copy_is_writable_on_top(cfg, make):
    again = make(cfg)
    again["model"] = 1
    items = make(cfg.groups)
    items.append(1)
    assert type(again) is dict
    assert type(items) is list
    assert cfg == PLAIN


def test_map_to_dict_is_plain_and_writable_at_every_depth(cfg):
    plain = cfg.to_dict()
    assert {type(value) for value in depths(plain)} == {dict, list, str, int}
    plain["model"]["options"]["hidden"].append(16)
    plain["groups"][1][0]["deep"] = 2
    assert cfg == PLAIN


def test_to_plain_reaches_into_tuples(cfg):
    assert to_plain((cfg, [cfg])) == (PLAIN, [PLAIN])
    assert type(to_plain((cfg,))[0]) is dict


def test_freeze_leaves_what_is_frozen_or_no_container(cfg):
    value = object()
    assert freeze(cfg) is cfg
    assert freeze(cfg.groups) is cfg.groups
    assert freeze(value) is value


# A dict wherever a dict goes


def test_map_equals_a_dict_both_ways(cfg):
    assert cfg == PLAIN
    assert dict.__eq__(PLAIN, cfg) is True
    assert cfg != {}
    assert cfg.groups == PLAIN["groups"]
    assert list.__eq__(PLAIN["groups"], cfg.groups) is True


def test_map_json_writes_it_as_a_dict(cfg):
    assert json.loads(json.dumps(cfg)) == PLAIN
    assert json.dumps(cfg, indent=2, sort_keys=True) == json.dumps(PLAIN, indent=2, sort_keys=True)


def test_map_is_a_dict(cfg):
    assert isinstance(cfg, dict)
    assert isinstance(cfg.groups, list)
    assert {**cfg} == PLAIN
    assert cfg | {"model": 1} == {**PLAIN, "model": 1}


def test_map_crosses_to_a_spawned_process_and_back(cfg):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(getattr, (cfg.model, "name")) == "mlp"
        again = pool.apply(freeze, (cfg,))
    assert again == cfg
    assert isinstance(again.groups[0], Map)


@given(json_dicts)
def test_freeze_and_to_plain_are_inverse(plain):
    frozen = freeze(plain)
    assert frozen == plain
    assert to_plain(frozen) == plain
    assert {type(value) for value in depths(to_plain(frozen))} <= {dict, list, str, int, float, bool, type(None)}


@given(json_dicts)
def test_pickle_and_deepcopy_return_an_equal_dict(plain):
    cfg = Map(plain)
    for again in (pickle.loads(pickle.dumps(cfg)), copy.deepcopy(cfg)):
        assert type(again) is dict
        assert again == cfg
