"""Parquet files and Hugging Face's data sets: numbers become inputs and targets, other rows are samples."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from sacristan.configs import Map
from sacristan.ingredients import DataError, MissingDependencyError
from sacristan.ingredients.data import ingredient, load
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.preparation import prepare_alike
from sacristan.ingredients.datasets.sources import check_options, check_source, kind_of, load_source

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
HERE = __name__

NUMBERS = {"height": [float(n) for n in range(40)], "width": list(range(40)), "label": [n % 2 for n in range(40)]}
TEXTS = {"text": ["so " * (n % 4 + 1) for n in range(40)], "label": [n % 2 for n in range(40)]}
TOKENS = {"tokens": [list(range(n % 4 + 1)) for n in range(40)], "label": [n % 2 for n in range(40)], "w": [1.0] * 40}


def lengths(samples):
    return torch.tensor([len(sample["text"]) for sample in samples]), torch.tensor([one["label"] for one in samples])


def write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def save(tmp_path):
    """Write columns as a data set of Hugging Face, or several under their parts; return its folder."""
    datasets = pytest.importorskip("datasets")

    def save(columns, features=None):
        def made(columns):
            return datasets.Dataset.from_dict(columns, features=features)

        is_dict = all(isinstance(part, dict) for part in columns.values())
        whole = datasets.DatasetDict({key: made(part) for key, part in columns.items()}) if is_dict else made(columns)
        whole.save_to_disk(tmp_path / "saved")
        return tmp_path / "saved"

    return save


def made(path, name=None, num_workers=0, **changes):
    given = {"path": None if path is None else str(path), "name": name or kind_of(str(path)), "batch_size": 4}
    config = {**DEFAULTS, **given, "num_workers": num_workers, **changes}
    return make_batches(load(Map(config), 0), config, 0, CPU)


def read(batches, start=0):
    return [str(batch) for batch in batches.epoch(1, start)]


# both


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
def test_columns_of_numbers_become_inputs_and_targets(kind, save, tmp_path):
    path = write(tmp_path / "a.parquet", NUMBERS) if kind == "parquet" else save(NUMBERS)
    data = made(path)
    assert (kind_of(str(path)), data.task, data.input_shape) == (kind, "classification", (2,))
    assert (data.preparation.features, data.preparation.target_names) == (("height", "width"), ("label",))
    assert data.placement.endswith("in memory")
    chosen = made(path, columns=["label"], target="width", weights="height", sampler="weighted")
    assert (chosen.input_shape, chosen.preparation.target_names) == ((1,), ("width",))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_texts_are_samples_for_a_function_with_any_workers(kind, num_workers, save, tmp_path):
    path = write(tmp_path / "a.parquet", TEXTS) if kind == "parquet" else save(TEXTS)
    data = made(path, collate=f"{HERE}:lengths", num_workers=num_workers)
    assert (data.task, data.classes, data.train.num_samples) == ("custom", ("0", "1"), 28)
    if num_workers == 0:
        assert sorted(next(data.train.epoch())[0].unique().tolist())[0] >= 3
        batch = next(made(path).train.epoch())
        assert batch.keys() == {"text", "label"}
        return
    assert read(data.train, 3) == read(made(path, collate=f"{HERE}:lengths").train)[3:]


def test_lists_of_numbers_are_sequences_to_pad(tmp_path):
    path = write(tmp_path / "a.parquet", TOKENS)
    tokens, labels = next(
        made(path, collate="pad", columns=["tokens"], target="label", sampler="by_length").train.epoch()
    )
    assert torch.equal(tokens.mask.sum(1), tokens.lengths)
    assert labels.shape == (4,)
    batch = next(made(path, collate="pad", sampler="weighted", weights="w").train.epoch())
    assert batch.keys() == {"tokens", "label"}


def test_one_column_of_arrays_and_a_target_are_inputs_and_targets(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [[float(n), 1.0] for n in range(40)], "y": NUMBERS["label"]})
    data = made(path, columns="x", target="y")
    assert (data.task, data.input_shape) == ("classification", (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "labell"}, r"data.target: .* has no column 'labell'; did you mean 'label'\?"),
        ({"columns": ["size"]}, "data.columns: .* has no column 'size'; there are: height, width, label"),
    ],
)
def test_column_that_is_missing_is_refused(changes, message, tmp_path):
    with pytest.raises(DataError, match=message):
        made(write(tmp_path / "a.parquet", NUMBERS), **changes)


# parquet


def test_parquet_files_of_parts_are_kept_apart(tmp_path):
    for name in ("train-0", "train-1", "test-0", "more"):
        write(tmp_path / "folder" / f"{name}.parquet", NUMBERS)
    with pytest.raises(
        DataError, match=r"more\.parquet belongs to no part, but other files are named for train, val or test"
    ):
        made(tmp_path / "folder")
    (tmp_path / "folder" / "more.parquet").unlink()
    data = made(tmp_path / "folder")
    assert [part.num_samples for part in (data.train, data.val, data.test)] == [68, 12, 40]
    trained = data.preparation
    config = Map(
        {
            **DEFAULTS,
            "name": "parquet",
            "path": str(tmp_path / "folder"),
        }
    )
    other = write(tmp_path / "other" / "new.parquet", dict(reversed(NUMBERS.items())))
    alike = prepare_alike(load_source("parquet", str(other)), trained, {**config, "path": str(other)}, 0)
    np.testing.assert_allclose(alike.values(np.arange(2)) * trained.std + trained.mean, [[0, 0], [1, 1]], atol=1e-5)


def test_parquet_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="has no Parquet files in it; expected files like train-0"):
        made(tmp_path / "a", "parquet")
    (tmp_path / "a.parquet").write_text("none")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        made(tmp_path / "a.parquet")
    for name in NUMBERS:
        write(tmp_path / "a" / f"{name}.parquet", {name: NUMBERS[name]})
    with pytest.raises(DataError, match="differ in their columns"):
        made(tmp_path / "a")


# Hugging Face


def test_hugging_face_parts_and_classes_are_kept(save):
    import datasets

    features = datasets.Features(
        {
            "height": datasets.Value("float32"),
            "width": datasets.Value("int64"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    data = made(save({"train": NUMBERS, "validation": NUMBERS, "unsupervised": NUMBERS}, features), test_fraction=0.25)
    assert [part.num_samples for part in (data.train, data.val, data.test)] == [30, 40, 10]
    assert data.classes == ("no", "yes")


def test_hugging_face_builder_reads_files_by_options(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    path = write(tmp_path / "a.parquet", NUMBERS)
    options = {"data_files": str(path), "cache_dir": str(tmp_path / "cache")}
    data = made(None, "huggingface:parquet", options={**options, "split": "train"})
    assert (data.task, data.train.num_samples) == ("classification", 28)
    streamed = made(None, "huggingface:parquet", options={**options, "streaming": True}, epoch_samples=12)
    batch = next(streamed.train.epoch())
    assert (batch["width"].tolist(), streamed.placement) == ([0, 1, 2, 3], "read by the main process")


@pytest.mark.parametrize(
    ("name", "path", "options", "message"),
    [
        (
            "huggingface:parquet",
            None,
            {"data_files": "no/such.parquet"},
            "data.name=huggingface:parquet: it cannot be loaded:",
        ),
        (
            "huggingface:a",
            "folder",
            {},
            "got data.path=folder, expected data.name=huggingface:NAME, or a folder in data.path",
        ),
    ],
)
def test_hugging_face_that_cannot_be_loaded_is_refused(name, path, options, message):
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match=message):
        load_source(name, path, options=options)


def test_hugging_face_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"data.name=huggingface:a needs .*'datasets'.*\[huggingface\]"):
        load_source("huggingface:a")


def test_settings_of_tables_are_checked():
    check_source("huggingface:anything", None)
    check_options("huggingface:a", options={"split": "train"}, columns=["a"], path=None)
    with pytest.raises(DataError, match=r"data.path: got 'x', which data.name=huggingface:a does not read"):
        check_options("huggingface:a", path="x")
    with pytest.raises(DataError, match=r"data.path: got None, but data.name=huggingface reads from a path"):
        check_source("huggingface", None)
