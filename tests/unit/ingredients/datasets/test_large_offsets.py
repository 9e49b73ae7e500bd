"""Numbers with a large offset, such as Unix times, which float32 would round before they are normalised."""

import dataclasses

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.samples import from_arrays
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.losses import build_loss

DEFAULTS = ingredient.configurations[0]()
OFFSET = 1.7e9
SECONDS = np.arange(400.0) // 2
TIMES = np.stack([OFFSET + SECONDS, SECONDS % 7], 1)
LABELS = (SECONDS >= 100).astype(int)
VALUES = OFFSET + 50 * np.sin(SECONDS)


class Items(list):
    """A dataset with items as (array, label)."""


def csv(folder, times, targets):
    rows = (f"{time!r},{other!r},{target!r}" for (time, other), target in zip(times, targets, strict=True))
    (folder / "t.csv").write_text("\n".join(["time,other,y", *rows]))
    return {"name": "csv", "path": str(folder / "t.csv")}


def npz(folder, times, targets):
    np.savez(folder / "t.npz", x=times, y=targets)
    return {"name": "npz", "path": str(folder / "t.npz")}


def parquet(folder, times, targets):
    columns = {"time": times[:, 0], "other": times[:, 1], "target": targets}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    return {"name": "parquet", "path": str(folder / "t.parquet")}


def loaded(write, folder, times, targets, **settings):
    plain = [row.tolist() for row in times], targets.tolist()
    return load_source(**write(folder, *(plain if write is csv else (times, targets))), **settings)


def prepared(source, **config):
    return prepare(source, DEFAULTS | {"name": "own"} | config, 0)


def expected_inputs(made):
    train = TIMES[made.indices["train"]]
    return ((TIMES - train.mean(0)) / train.std(0)).astype(np.float32)


@pytest.mark.parametrize("kind", [float, np.int64])
@pytest.mark.parametrize("write", [csv, npz, parquet])
def test_times_in_files_are_normalised_before_they_are_rounded(write, kind, tmp_path, caplog):
    made = prepared(loaded(write, tmp_path, TIMES.astype(kind), LABELS))
    np.testing.assert_allclose(made.inputs, expected_inputs(made), rtol=1e-6, atol=1e-6)
    assert (made.inputs.dtype, made.preparation.mean.dtype, len(np.unique(made.inputs[:, 0]))) == ("f4", "f8", 200)
    assert caplog.text == ""


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.int32])
def test_times_of_a_dataset_are_normalised_before_they_are_rounded(kind):
    made = prepared(from_factory(Items(zip(TIMES.astype(kind), LABELS, strict=True)), "own"))
    np.testing.assert_allclose(made.values(np.arange(400)), expected_inputs(made), rtol=1e-6, atol=1e-6)
    data = make_batches(made, DEFAULTS | {"batch_size": 400}, 0, torch.device("cpu"))
    inputs, _ = next(data.test.epoch())
    assert inputs.dtype == torch.float32
    np.testing.assert_array_equal(inputs, made.values(made.indices["test"]))


def test_targets_with_an_offset_are_normalised_before_they_are_rounded(tmp_path):
    made = prepared(loaded(npz, tmp_path, TIMES, VALUES))
    loss = build_loss("mse", {}, None, make_batches(made, DEFAULTS, 0, torch.device("cpu")), "cpu")
    np.testing.assert_allclose(loss.own_unit(torch.from_numpy(made.targets))[:, 0], VALUES, rtol=0, atol=1e-4)
    np.testing.assert_allclose(loss.predict(torch.from_numpy(made.targets))[:, 0], VALUES, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [400, 1])
def test_other_data_are_normalised_as_those_of_training_from_a_checkpoint(count, tmp_path):
    trained = prepared(loaded(npz, tmp_path, TIMES, VALUES))
    save_checkpoint({"model": {}, "preparation": trained.preparation.state_dict()}, tmp_path / "last.pt")
    kept = preparation_of(load_checkpoint(tmp_path / "last.pt"), "last.pt")
    config = DEFAULTS | {"name": "own", "part": "all"}
    source = loaded(npz, tmp_path, TIMES[:count], VALUES[:count], trained=kept)
    other = prepare_alike(source, kept, config, 0)
    np.testing.assert_array_equal(other.inputs, trained.inputs[:count])
    np.testing.assert_array_equal(other.targets, trained.targets[:count])
    assert (other.fingerprint == trained.fingerprint) == (count == 400)


def as_before(source, targets):
    """Return the source as earlier versions read it, with all inputs rounded to float32."""
    return dataclasses.replace(source, inputs=source.inputs.astype(np.float32), targets=targets)


@pytest.mark.parametrize("targets", [LABELS, VALUES])
def test_training_of_an_earlier_version_goes_on_with_data_rounded_as_before(targets, tmp_path):
    source = loaded(npz, tmp_path, TIMES, targets)
    now, known = prepared(source), {prepared(as_before(source, LABELS)).fingerprint}
    if targets is VALUES:
        known = {prepared(source, normalize="none", normalize_targets=False).fingerprint}
    before = prepare(source, DEFAULTS | {"name": "own"}, 0, earlier=known)
    assert (before.preparation.mean.dtype, before.fingerprint) == ("f4", *known)
    assert before.fingerprint != now.fingerprint
    train = TIMES[before.indices["train"]].astype(np.float32)
    mean, std = (np.float32(part) for part in (train.mean(0, dtype=float), train.std(0, dtype=float)))
    np.testing.assert_allclose(before.inputs, (TIMES.astype(np.float32) - mean) / std, rtol=1e-6)
    alike = prepare_alike(source, before.preparation, DEFAULTS | {"name": "own", "part": "all"}, 0)
    np.testing.assert_array_equal(alike.inputs, before.inputs)
    np.testing.assert_array_equal(alike.targets, before.targets)


def test_numbers_that_float32_represents_well_keep_their_bits(tmp_path):
    values = np.random.default_rng(0).normal(100, 10, (400, 2))
    made, before = (
        prepared(from_arrays([(None, inputs, LABELS)], "own")) for inputs in (values, values.astype(np.float32))
    )
    assert made.fingerprint == before.fingerprint
    np.testing.assert_array_equal(made.inputs, before.inputs)
    assert made.preparation.mean.dtype == np.float32


@pytest.mark.parametrize("constant", [OFFSET + 0.1, 0.1 + np.arange(400) % 2 * 1e-17, 0.1])
def test_constants_are_not_scaled_by_rounding_errors(constant):
    times = TIMES.copy()
    times[:, 1] = constant
    made = prepared(from_arrays([(None, times, LABELS)], "own"))
    assert made.preparation.std[1] == 1
    np.testing.assert_allclose(made.inputs[:, 1], 0, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize": "none"}, "the column time: float32 cannot tell integers above 16,777,216 apart: 200 different"),
        ({"normalize_targets": False}, "data.target: float32 cannot tell numbers with a large offset apart: 200 diff"),
    ],
)
def test_numbers_that_are_not_normalised_and_that_float32_merges_are_told(settings, message, tmp_path, caplog):
    made = prepared(loaded(csv, tmp_path, TIMES, VALUES), **settings)
    assert message in caplog.text
    assert made.inputs.dtype == made.targets.dtype == np.float32


def test_numbers_beyond_float32_are_infinite(tmp_path):
    times = TIMES.copy()
    times[3, 0] = 1e300
    with pytest.raises(Exception, match="1 input values are NaN or infinite"):
        prepared(loaded(npz, tmp_path, times, LABELS))
