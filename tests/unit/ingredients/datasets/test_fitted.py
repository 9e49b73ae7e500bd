"""The preparation of data, as a checkpoint keeps it."""

import dataclasses

import numpy as np
import pytest

from sacristan.ingredients import CheckpointError, DataError, Source
from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint, split_of
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.datasets.splitting import Split

DEFAULTS = ingredient.configurations[0]()


def fitted(source=None, **config):
    return prepare(source or load_source("wine"), DEFAULTS | config, 3).preparation


@pytest.mark.parametrize("name", ["wine", "diabetes", "digits"])
def test_preparation_comes_back_from_a_checkpoint_bit_for_bit(tmp_path, name):
    kept = fitted(load_source(name), name=name, split_seed=5)
    save_checkpoint({"model": {}, "preparation": kept.state_dict()}, tmp_path / "last.pt")
    for check in (True, False):
        back = preparation_of(load_checkpoint(tmp_path / "last.pt", check=check), tmp_path / "last.pt")
        for field in dataclasses.fields(kept):
            ours, theirs = getattr(kept, field.name), getattr(back, field.name)
            assert type(ours) is type(theirs), field.name
            assert np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs, field.name
        assert (back.split.seed, back.split.split_seed) == (3, 5)


def test_preparation_of_a_later_version_is_read_as_far_as_it_is_known():
    state = fitted().state_dict() | {"colour_space": "lab"}
    assert preparation_of({"preparation": state}, "x.pt").classes == ("class_0", "class_1", "class_2")


def test_preparation_that_lacks_an_entry_is_refused(tmp_path):
    state = {name: value for name, value in fitted().state_dict().items() if name != "classes"}
    with pytest.raises(CheckpointError, match=r"x\.pt: its preparation of the data cannot be read \(.*'classes'\)"):
        preparation_of({"preparation": state}, "x.pt")


def test_state_without_a_preparation_has_its_split_by_its_config():
    state = {"config": {"seed": 4, "data": DEFAULTS | {"val_fraction": 0.3}}, "data": "f" * 64}
    assert preparation_of(state, "x.pt") is None
    assert split_of(state, "x.pt") == Split(4, 4, None, 0.3, 0.15, True, "f" * 64)
    assert split_of({"config": {"seed": 4}}, "x.pt") is None
    assert split_of({"preparation": fitted().state_dict()}, "x.pt") == fitted().split


def test_columns_are_put_into_the_order_of_the_training():
    kept = fitted(Source(np.random.rand(20, 3).astype(np.float32), np.arange(20) % 2, features=("a", "b", "c")))
    assert kept.column_order(["c", "a", "b"], "data.path=x.csv") == [1, 2, 0]
    message = r"data\.path=x\.csv: the columns are not those .* trained on; missing: b; unknown: d, e; rename, add or"
    with pytest.raises(DataError, match=message):
        kept.column_order(["d", "c", "a", "e"], "data.path=x.csv")


def test_shape_of_other_inputs_is_refused():
    fitted().check_shape((13,), "data.path=x.npz")
    with pytest.raises(
        DataError, match=r"data\.path=x\.npz: got inputs of shape 12, expected 13 as the checkpoint was"
    ):
        fitted().check_shape((12,), "data.path=x.npz")
    digits = fitted(load_source("digits"))
    with pytest.raises(
        DataError, match=r"got inputs of shape 1x9x9, expected 1x8x8 .*; resize images .* data\.image_size=8"
    ):
        digits.check_shape((1, 9, 9), "data.path=x")
