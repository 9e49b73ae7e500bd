"""Splits: seeded, stratified, and those that the source gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacristan.ingredients import DataError
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL, Split, split


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    val=st.floats(0, 0.5),
    test=st.floats(0, 0.5),
    stratify=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_split_is_a_repeatable_partition_with_every_class_its_share(labels, val, test, stratify, seed):
    labels = np.array(labels)
    try:
        indices = split(labels, None, val, test, stratify, seed)
    except DataError:
        assert round(test * len(labels)) + round(val / (1 - test) * len(labels)) >= len(labels) - 1
        return
    again = split(labels, None, val, test, stratify, seed)
    assert all((indices[name] == again[name]).all() for name in indices)
    assert sorted(np.concatenate(list(indices.values()))) == list(range(len(labels)))
    assert all((np.diff(index) > 0).all() for index in indices.values())
    assert len(indices["test"]) == round(test * len(labels))
    if stratify:
        for label in np.unique(labels):
            share = np.count_nonzero(labels[indices["test"]] == label)
            assert abs(share - test * np.count_nonzero(labels == label)) < 1


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine"])
def test_split_of_real_data_gives_every_part_its_share_of_every_class(name):
    labels = load_source(name).targets
    indices = split(labels, None, 0.15, 0.2, True, 3)
    for part, share in (("train", 0.65), ("val", 0.15), ("test", 0.2)):
        assert abs(len(indices[part]) - share * len(labels)) <= 1
        for label in np.unique(labels):
            count = np.count_nonzero(labels == label)
            assert abs(np.count_nonzero(labels[indices[part]] == label) - share * count) < 2


def test_split_without_stratify_leaves_the_classes_to_chance():
    labels = np.arange(60) % 2
    shares = {np.count_nonzero(labels[split(labels, None, 0, 0.5, False, seed)["test"]]) for seed in range(20)}
    assert len(shares) > 3


def test_split_of_another_seed_is_another_one():
    labels = np.arange(40) % 2
    one, other = (split(labels, None, 0.2, 0.2, True, seed)["test"] for seed in (0, 1))
    assert one.tolist() != other.tolist()


def test_split_of_a_seed_stays_what_it_was():
    indices = split(np.arange(12) % 2, None, 0.25, 0.25, True, 0)
    assert {name: index.tolist() for name, index in indices.items()} == {
        "train": [4, 5, 6, 7, 10, 11],
        "val": [0, 3, 8],
        "test": [1, 2, 9],
    }


def test_split_with_fractions_of_zero_trains_on_everything():
    indices = split(np.arange(10) % 2, None, 0.0, 0.0, True, 0)
    assert [len(index) for index in indices.values()] == [10, 0, 0]


def test_split_given_whole_is_kept_for_every_seed():
    part = np.array([TEST, TRAIN, VAL, TRAIN])
    for seed in range(3):
        indices = split(np.arange(4), part, 0.5, 0.5, True, seed)
        assert [index.tolist() for index in indices.values()] == [[1, 3], [2], [0]]


@pytest.mark.parametrize(("given_part", "cut"), [(TEST, "val"), (VAL, "test")])
def test_split_given_in_part_cuts_the_other_from_train(given_part, cut):
    part = np.array([TRAIN] * 30 + [given_part] * 10)
    indices = split(np.arange(40) % 2, part, 0.2, 0.2, True, 0)
    kept = {TEST: "test", VAL: "val"}[given_part]
    assert indices[kept].tolist() == list(range(30, 40))
    assert len(indices[cut]) == 6
    assert indices[cut].max() < 30


@pytest.mark.parametrize("name", ["val_fraction", "test_fraction"])
@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_split_fraction_out_of_range_is_refused(name, fraction):
    fractions = {"val_fraction": 0.1, "test_fraction": 0.1, name: fraction}
    with pytest.raises(DataError, match=rf"data.{name}: got {fraction}, expected at least 0 and below 1"):
        split(np.arange(10), None, stratify=False, seed=0, **fractions)


def test_split_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(DataError, match=r"data.val_fraction.*: nothing is left to train on: of 10 samples, all went"):
        split(np.arange(10) % 2, None, 0.6, 0.5, True, 0)


# one split and another

CONFIG = {"limit": None, "val_fraction": 0.15, "test_fraction": 0.15, "stratify": True, "split_seed": None}


def test_split_of_a_config_has_the_seed_of_the_experiment_unless_there_is_one_of_its_own():
    assert (Split.of(CONFIG, 3).seed, Split.of(CONFIG, 3).split_seed) == (3, 3)
    assert (Split.of(CONFIG | {"split_seed": 7}, 3).seed, Split.of(CONFIG | {"split_seed": 7}, 3).split_seed) == (3, 7)


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, []),
        ({"split_seed": 3}, []),
        ({"split_seed": 4}, ["data.split_seed=3"]),
        ({"val_fraction": 0.2, "limit": 9}, ["data.limit=None", "data.val_fraction=0.15"]),
        ({"test_fraction": 0.2, "stratify": False}, ["data.test_fraction=0.15", "data.stratify=True"]),
    ],
)
def test_settings_that_make_another_split_are_named_with_our_values(changed, differing):
    assert Split.of(CONFIG, 3).differing(CONFIG | changed) == differing


def test_splits_are_alike_where_the_same_samples_are_in_the_same_parts():
    labels = np.arange(40) % 2

    def drawn(seed, data="d", **changed):
        split = Split.of(CONFIG | changed, seed)
        return split.drawn(data, split.indices(labels, None, "classification"))

    assert drawn(1).digest != drawn(2).digest != drawn(2, stratify=False).digest
    assert drawn(1).is_like(drawn(1))
    assert not drawn(1).is_like(drawn(2))
    assert not drawn(1).is_like(drawn(1, "other"))
    assert drawn(5, split_seed=1).is_like(drawn(1))
    asked = Split.of(CONFIG, 1)
    assert asked.is_like(drawn(1))
    assert not asked.is_like(drawn(2))
