"""Placement of data: bytes stay bytes on the device; workers read what does not fit there, with the same bits."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from sacristan.configs import Map
from sacristan.ingredients import DataError, LoaderBatches, Source, TensorBatches
from sacristan.ingredients.data import ingredient, load
from sacristan.ingredients.datasets import batches
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.collating import tensors_of
from sacristan.ingredients.datasets.preparation import fingerprint, prepare
from sacristan.ingredients.datasets.samples import as_samples
from sacristan.ingredients.datasets.sources import describe

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
HERE = __name__
BYTES = np.random.default_rng(0).integers(0, 256, (30, 6, 7, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def named_arrays():
    return {"state": np.arange(20), "action": np.ones((20, 2))}


def samples():
    return [{"state": number} for number in range(20)]


def source(values=BYTES, dtype=np.uint8):
    inputs = as_samples(values, "here")
    floats = inputs.astype(np.float32) / np.float32(255) if inputs.ndim == 4 else inputs.astype(np.float32)
    return Source(inputs if dtype == np.uint8 else floats, LABELS)


def made(of, num_workers=0, device=CPU, **changes):
    config = {**DEFAULTS, "batch_size": 4, "num_workers": num_workers, **changes}
    return make_batches(prepare(of, config, 0), config, 0, device)


def same(one, other, epoch=1, start=0):
    found = list(zip(one.epoch(epoch, start), other.epoch(epoch, start), strict=True))
    return bool(found) and all(all(map(torch.equal, tensors_of(a), tensors_of(b))) for a, b in found)


@pytest.mark.parametrize("values", [BYTES, BYTES[..., 0], BYTES.reshape(30, -1)])
@pytest.mark.parametrize("changes", [{}, {"normalize": "none"}])
def test_bytes_stay_bytes_in_memory_and_give_the_bits_of_floats(values, changes):
    of_bytes, of_floats = (made(source(values, dtype), **changes) for dtype in (np.uint8, np.float32))
    assert (of_bytes.train.inputs.dtype, of_floats.train.inputs.dtype) == (torch.uint8, torch.float32)
    for part in ("train", "val", "test"):
        assert same(getattr(of_bytes, part), getattr(of_floats, part))
        places = [2, 0]
        assert torch.equal(getattr(of_bytes, part).inputs_at(places), getattr(of_floats, part).inputs_at(places))
    assert (of_bytes.fingerprint, of_bytes.input_dtype) == (of_floats.fingerprint, torch.float32)
    assert torch.equal(of_bytes.train.order(0), of_floats.train.order(0))


def test_bytes_augmented_are_floats_augmented():
    augment = {"flip": True, "crop": 1, "rotate": 10.0}
    of_bytes, of_floats = (made(source(BYTES, dtype), augment=augment) for dtype in (np.uint8, np.float32))
    assert same(of_bytes.train, of_floats.train, start=2)


def test_fingerprint_of_bytes_is_that_of_earlier_versions():
    inputs = np.moveaxis(BYTES, -1, 1).astype(np.float32) / np.float32(255)
    total = hashlib.sha256()
    for array in (np.ascontiguousarray(inputs), LABELS):
        total.update(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    assert fingerprint(source()) == total.hexdigest()


def test_stats_of_bytes_are_those_of_floats():
    rows = [describe(prepare(source(BYTES, dtype), DEFAULTS, 0)) for dtype in (np.uint8, np.float32)]
    assert rows[0] == rows[1]


def test_masks_stay_small_in_memory_and_become_labels():
    masks = np.arange(30 * 42).reshape(30, 6, 7) % 3
    data = made(Source(as_samples(BYTES, "here"), masks.astype(np.uint8)))
    assert data.train.targets.dtype == torch.int16
    assert next(data.train.epoch())[1].dtype == torch.int64


@pytest.mark.sampled(2)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_data_kept_out_of_memory_are_read_by_workers_with_the_same_bits(num_workers, dtype):
    inside, outside = made(source(dtype=dtype)), made(source(dtype=dtype), num_workers, in_memory=False)
    assert isinstance(inside.train, TensorBatches)
    assert isinstance(outside.train, LoaderBatches)
    assert same(inside.train, outside.train)
    assert same(inside.train, outside.train, start=3)


@pytest.mark.parametrize(("name", "line"), [("named_arrays", "0.0 MiB in memory"), ("samples", "read by 1 worker")])
def test_structures_say_where_they_lie(name, line):
    config = {**DEFAULTS, "name": f"{HERE}:{name}", "num_workers": 1}
    assert make_batches(load(Map(config), 0), config, 0, CPU).placement == line


def test_data_that_do_not_fit_are_read_by_workers_unless_memory_is_asked_for(monkeypatch):
    monkeypatch.setattr(batches, "_SMALL", 0)
    monkeypatch.setattr(batches, "free_bytes", lambda device: 2 * (BYTES.nbytes + LABELS.nbytes) - 1)
    read, kept = made(source(), num_workers=2), made(source(), in_memory=True)
    assert [type(data.train) for data in (read, kept)] == [LoaderBatches, TensorBatches]
    assert read.placement == "read by 2 workers, as 0.0 MiB are more than half of the free memory"


def test_memory_of_the_machine_is_told():
    assert batches.free_bytes(CPU) > 2**20


def test_images_of_a_folder_lie_in_memory_if_asked_for(tmp_path):
    for number, pixels in enumerate(BYTES):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    parts = []
    for in_memory in (True, None):
        config = {**DEFAULTS, "name": "image_folder", "path": str(tmp_path), "batch_size": 4, "in_memory": in_memory}
        parts.append(make_batches(load(Map(config), 0), config, 0, CPU).train)
    assert [type(part) for part in parts] == [TensorBatches, LoaderBatches]
    assert parts[0].inputs.dtype == torch.uint8
    assert same(*parts)


def test_samples_that_are_read_one_by_one_are_not_put_into_memory():
    config = {**DEFAULTS, "name": f"{HERE}:samples", "in_memory": True}
    with pytest.raises(DataError, match=r"data.in_memory=True: data.name=.*:samples is read item by item, which may"):
        make_batches(load(Map(config), 0), config, 0, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_bytes_take_no_more_than_bytes_of_a_gpu():
    device = torch.device("cuda")
    values = np.zeros((4096, 64, 64), np.uint8)
    before = torch.cuda.memory_allocated()
    data = made(Source(as_samples(values, "here"), np.arange(4096) % 2), device=device)
    next(data.train.epoch(0))
    assert torch.cuda.max_memory_allocated() - before < 1.2 * values.nbytes
