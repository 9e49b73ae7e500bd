"""Data that a function or a class of the user's makes, given by its dotted path."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from sacristan.ingredients import ConfigError, DataError, Source
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL

HERE = __name__


def arrays(count=6, features=3):
    return np.arange(count * features, dtype=np.float64).reshape(count, features), np.arange(count) % 2


class Squares(Dataset):
    """A torch data set, read item by item."""

    classes = ("odd", "even")

    def __init__(self, count=8):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return torch.full((2,), float(index**2)), index % 2


class Uneven(Squares):
    def __getitem__(self, index):
        return np.ones(2 + index % 2), 0


class Holes(Squares):
    def __getitem__(self, index):
        return np.where(np.arange(4) < index - 4, np.nan, 1.0), index % 2


class Photos(Squares):
    def __getitem__(self, index):
        return np.full((5, 4, 3), 51, np.uint8), index % 2


class Loaded(Squares):
    """Items that are augmented at random."""

    def __getitem__(self, index):
        return np.random.rand(2) + torch.rand(2).numpy(), index % 2


def pair_of_arrays(count=6):
    return arrays(count)


def pair_of_tensors():
    return torch.ones(4, 2), torch.tensor([0, 1, 0, 1])


def dict_of_parts():
    return {"train": arrays(6), "validation": arrays(3), "test": list(arrays(2))}


def own_source():
    return Source(*arrays(), part=np.array([TRAIN] * 5 + [TEST]))


def drawn_arrays():
    return np.random.rand(6, 2), np.arange(6) % 2


def number():
    return 3


def two_arrays_and_a_number():
    return (*arrays(), 1)


def uneven_arrays():
    return {"a": arrays()[0], "b": arrays(4)[0]}


def uneven_rows():
    return [[1.0, 2.0], [3.0]], [0, 1]


def parts_without_train():
    return {"test": arrays()}


def unknown_parts():
    return {"train": arrays(), "holdout": arrays()}


def part_that_is_no_pair():
    return {"train": np.ones((3, 2))}


def fixed_tensors():
    return TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 1]))


def test_factory_of_arrays_is_read():
    source = load_source(f"{HERE}:pair_of_arrays")
    np.testing.assert_array_equal(source.inputs, arrays()[0])
    assert source.in_memory


def test_factory_with_a_dot_is_read():
    assert len(load_source(f"{HERE}.pair_of_arrays").targets) == 6


def test_factory_takes_options():
    assert len(load_source(f"{HERE}:pair_of_arrays", options={"count": 4}).targets) == 4


def test_factory_of_tensors_is_read_as_arrays():
    source = load_source(f"{HERE}:pair_of_tensors")
    assert source.inputs.shape == (4, 2)
    assert source.targets.tolist() == [0, 1, 0, 1]


def test_factory_of_parts_keeps_them():
    assert load_source(f"{HERE}:dict_of_parts").part.tolist() == [TRAIN] * 6 + [VAL] * 3 + [TEST] * 2


def test_factory_of_a_source_is_taken_with_its_inputs_as_float32():
    source = load_source(f"{HERE}:own_source")
    assert source.inputs.dtype == np.float32
    assert source.part.tolist() == [TRAIN] * 5 + [TEST]


def test_factory_of_another_package_is_read():
    source = load_source("sklearn.datasets:make_classification", options={"n_samples": 30})
    assert source.inputs.shape == (30, 20)


def test_factory_that_draws_gives_the_same_data_for_the_same_seed():
    one, again, other = (load_source(f"{HERE}:drawn_arrays", seed=seed).inputs for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).all()


@pytest.mark.parametrize("name", ["Squares", "fixed_tensors"])
def test_factory_of_a_torch_dataset_is_read_item_by_item(name):
    source = load_source(f"{HERE}:{name}")
    assert not source.in_memory
    values, target = source.inputs[1]
    assert values.dtype == np.float32
    assert target == source.targets[1] == 1


def test_factory_of_a_dataset_with_classes_names_them():
    assert load_source(f"{HERE}:Squares").classes == ("odd", "even")


def test_factory_of_a_dataset_of_photos_gives_channels_first_in_0_to_1():
    values, _ = load_source(f"{HERE}:Photos").inputs[0]
    assert values.shape == (3, 5, 4)
    np.testing.assert_allclose(values, 0.2, rtol=1e-6)


def test_factory_of_a_dataset_counts_missing_values_per_sample():
    assert load_source(f"{HERE}:Holes").missing.tolist() == [0, 0, 0, 0, 0, 1, 2, 3]


def test_factory_of_a_dataset_drawn_at_random_has_one_digest():
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    one, again = load_source(f"{HERE}:Loaded"), load_source(f"{HERE}:Loaded", seed=1)
    assert one.digest == again.digest
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_factory_of_an_empty_dataset_has_no_samples():
    assert len(load_source(f"{HERE}:Squares", options={"count": 0}).targets) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "number",
            r"got a int, expected a pair \(inputs, targets\), a dict or tuple of arrays \(not of lists\), a",
        ),
        ("two_arrays_and_a_number", r"got a tuple, expected a pair \(inputs, targets\)"),
        ("uneven_arrays", r"got arrays of \[4, 6\] rows, expected one row per sample in each"),
        ("uneven_rows", r"got rows of different lengths, expected arrays; return a dataset, and pad with data.collate"),
        ("parts_without_train", r"got parts \['test'\], expected train and, optionally, val and test"),
        ("unknown_parts", r"got parts \['holdout', 'train'\], expected train"),
        ("part_that_is_no_pair", r"got a ndarray, expected a pair \(inputs, targets\)"),
        (
            "Uneven",
            r"items 0 and 1 have .* of shapes \(\(2,\), \(\)\) and \(\(3,\), \(\)\), .*; pad .* data.collate=pad",
        ),
    ],
)
def test_factory_of_anything_else_is_refused(name, message):
    with pytest.raises(DataError, match=f"data.name={HERE}:{name}: .*{message}"):
        load_source(f"{HERE}:{name}")


def test_factory_that_is_no_function_is_refused():
    with pytest.raises(DataError, match=r"data.name: math:pi is a float, expected a function that makes the data"):
        load_source("math:pi")


def test_factory_misspelt_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data.name: .* has no 'pair_of_array'; did you mean 'pair_of_arrays'"):
        load_source(f"{HERE}:pair_of_array")


def test_factory_in_no_module_is_refused():
    with pytest.raises(ConfigError, match=r"data.name: .* there is no module 'no_such_package'"):
        load_source("no_such_package.data:make")


def test_factory_with_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data.options.counts: .* takes no option 'counts'; did you mean 'count'"):
        load_source(f"{HERE}:pair_of_arrays", options={"counts": 4})
