"""Integers as inputs: kept as such if asked for, and told where float32 merges them."""

import numpy as np
import pytest
import torch

from sacristan.ingredients import DataError, ModelError
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.samples import from_arrays
from sacristan.ingredients.datasets.source_checks import warn_of_merged
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.inspection.probes import summarize
from sacristan.ingredients.models.building import build_model

DEFAULTS = ingredient.configurations[0]()
WORDS = np.arange(80).reshape(40, 2) % 7
LABELS = np.arange(40) % 2
BIG = 2**24


class Words(torch.nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(7, num_outputs)

    def forward(self, inputs):
        return self.table(inputs)


class Items(list):
    """A dataset with items as (array, label)."""


def items():
    return Items(zip(WORDS, LABELS, strict=True))


def batches_of(source, **config):
    config = {**DEFAULTS, "name": "own", "path": None, "dtype": "int64", **config}
    return make_batches(prepare(source, config, 0), config, 0, torch.device("cpu"))


@pytest.mark.parametrize("made", [lambda: (WORDS, LABELS), items])
def test_whole_numbers_stay_integers_and_are_not_normalised(made):
    source = from_factory(made(), "own", "int64")
    data = batches_of(source)
    inputs, _ = next(data.train.epoch(1))
    assert (inputs.dtype, data.input_dtype, data.preparation.mean) == (torch.int64, torch.int64, None)
    assert set(inputs.unique().tolist()) <= set(range(7))
    model = build_model("own_words:Words", {}, "default", data.input_shape, 2, 0, data.input_dtype)
    assert model(inputs).shape == (len(inputs), 2)
    assert summarize(model, data.input_shape, data.input_dtype)["parameters"] == 14


@pytest.fixture(autouse=True)
def own_words(monkeypatch):
    """Let this file be imported as `own_words`, as a user's module is."""
    import sys

    monkeypatch.setitem(sys.modules, "own_words", sys.modules[__name__])


def test_whole_numbers_of_a_limited_dataset_stay_integers():
    assert batches_of(from_factory(items(), "own", "int64"), limit=20).input_dtype == torch.int64


def test_whole_numbers_for_a_model_of_floats_are_refused_with_their_type():
    with pytest.raises(ModelError, match=r"model.name=mlp does not take inputs of shape \(2,\) and type torch.int64"):
        build_model("mlp", {}, "default", (2,), 2, 0, torch.int64)


def test_whole_numbers_of_other_data_are_those_of_the_model(tmp_path):
    trained = prepare(from_arrays([(None, WORDS, LABELS)], "own", "int64"), {**DEFAULTS, "name": "own"}, 0).preparation
    np.savez(tmp_path / "data.npz", x=WORDS + 1, y=LABELS)
    source = load_source("npz", str(tmp_path / "data.npz"), trained=trained)
    other = prepare_alike(source, trained, {**DEFAULTS, "name": "npz", "path": "data.npz"}, 0)
    assert other.inputs.dtype == np.int64
    np.savez(tmp_path / "data.npz", x=WORDS / 2, y=LABELS)
    with pytest.raises(DataError, match=r"got inputs of type float64, and data.dtype=int64 expects integers"):
        load_source("npz", str(tmp_path / "data.npz"), trained=trained)


def test_whole_numbers_of_a_table_are_refused_where_they_are_not_whole(tmp_path):
    (tmp_path / "t.csv").write_text("word,part,y\n3,noun,0\n9007199254740993,verb,1\n")
    source = load_source("csv", str(tmp_path / "t.csv"), dtype="int64", categorical="auto")
    assert source.inputs.tolist() == [[3, 1, 0], [9007199254740993, 0, 1]]
    (tmp_path / "t.csv").write_text("word,y\n3,0\n,1\n")
    with pytest.raises(DataError, match=r"data.dtype=int64: the column word of .* holds fractions or lacks values"):
        load_source("csv", str(tmp_path / "t.csv"), dtype="int64")


def test_images_are_not_augmented_as_whole_numbers():
    source = from_arrays([(None, np.zeros((40, 4, 4), np.uint8), LABELS)], "own", "int64")
    with pytest.raises(DataError, match=r"data.augment: got data.dtype=int64, expected float32"):
        batches_of(source, augment={"flip": True, "crop": 0, "rotate": 0.0})


def prepared(source, **config):
    return prepare(source, DEFAULTS | {"name": "own", "stratify": False} | config, 0, strict=False)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, float])
def test_integers_that_float32_merges_are_told(dtype, caplog):
    ids = np.array([BIG, BIG + 1, BIG + 2, 5] * 3, dtype)
    prepared(from_arrays([(None, ids, np.arange(12))], "data.path: x.npz"))
    assert (
        "data.name=own: float32 cannot tell integers above 16,777,216 apart: 4 different ones become 3" in caplog.text
    )


@pytest.mark.parametrize("ids", [[BIG, 5], [BIG + 2, BIG + 4], [0.5 + BIG, BIG], []])
def test_integers_that_float32_keeps_apart_are_not_told(ids, caplog):
    warn_of_merged(np.array(ids), "x")
    assert caplog.text == ""


def test_negative_integers_targets_and_columns_that_float32_merges_are_told(tmp_path, caplog):
    ids = np.arange(12) % 2 + BIG
    prepared(from_arrays([(None, -ids, np.arange(12) % 2)], "x"), normalize="none")
    prepared(from_arrays([(None, np.arange(12), ids)], "y"), task="regression", normalize_targets=False)
    (tmp_path / "t.csv").write_text("user,a,y\n" + f"{BIG},1,0\n{BIG + 1},2,1\n" * 6)
    prepared(load_source("csv", str(tmp_path / "t.csv")), normalize="none")
    told = [record.getMessage().partition(": float32")[0] for record in caplog.records]
    assert told == ["data.name=own", "data.target", "data.name=own: the column user"]


def test_integers_of_items_that_float32_merges_are_told(caplog):
    from_factory(Items([(np.array([BIG, 1]), 0), (np.array([BIG + 1, 1]), 1), (np.array([3, 1]), 1)]), "own")
    assert "own: float32 cannot tell integers above 16,777,216 apart" in caplog.text
