"""The cache of images between processes: nothing is read twice, and changed files are read again."""

import json
import os
import shutil
import threading

import numpy as np
import pytest
from PIL import Image

from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets import image_folder
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.sources import load_source

DEFAULTS = ingredient.configurations[0]()


def write_image(path, seed, size=6, mode="L"):
    shape = (size, size) if mode == "L" else (size, size, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(path)


@pytest.fixture
def animals(tmp_path):
    for number in range(8):
        write_image(tmp_path / "animals" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    return tmp_path / "animals"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for the cache, for files that changed just now, too."""
    monkeypatch.setenv("SACRISTAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_folder, "_SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def looks(monkeypatch):
    """The names of the images that were looked at (`facts`), and decoded (`pixels`)."""
    found = {"facts": [], "pixels": []}
    facts_of, decoded = image_folder._facts_of, image_folder.ImageFolder._decoded

    def note_facts(file):
        found["facts"].append(file.name)
        return facts_of(file)

    def note_pixels(images, index):
        found["pixels"].append(images.files[index].name)
        return decoded(images, index)

    monkeypatch.setattr(image_folder, "_facts_of", note_facts)
    monkeypatch.setattr(image_folder.ImageFolder, "_decoded", note_pixels)
    return found


def prepared(folder, seed=0, **changes):
    """Return fingerprint, mean and deviation of a folder, and forget what was looked at before."""
    config = {**DEFAULTS, "name": "image_folder", "path": str(folder), **changes}
    source = load_source("image_folder", str(folder), image_size=config["image_size"])
    done = prepare(source, config, seed)
    return done.fingerprint, done.preparation.mean.tolist(), done.preparation.std.tolist()


def content(cache):
    (file,) = cache.iterdir()
    return json.loads(file.read_bytes())["images"]


def test_second_start_reads_no_image_and_finds_the_same(animals, cache, looks, monkeypatch):
    first = prepared(animals)
    assert sorted(looks["facts"]) == [f"{number}.png" for number in range(8)]
    looks["facts"].clear(), looks["pixels"].clear()
    assert prepared(animals) == first
    # For the shape of all, and for that of their statistics.
    assert (looks["facts"], len(looks["pixels"])) == ([], 2)
    monkeypatch.setenv("SACRISTAN_CACHE", "")
    assert prepared(animals) == first


def test_another_split_decodes_those_alone_that_were_not_for_training(animals, cache, looks):
    first = prepared(animals, test_fraction=0.25)
    left = [name for name, image in content(cache).items() if not image["moments"]]
    looks["pixels"].clear()
    assert prepared(animals, val_fraction=0.0, test_fraction=0.0)[0] == first[0]
    assert (len(left), len(looks["pixels"])) == (3, 2 + 3)
    assert all(image["moments"] for image in content(cache).values())


def test_images_that_changed_are_read_again_though_size_and_time_are_put_back(animals, cache, looks):
    file = animals / "cat" / "2.bmp"
    write_image(file, 2)
    first, before = prepared(animals), file.stat()
    write_image(file, 3)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    looks["facts"].clear()
    assert prepared(animals)[0] != first[0]
    assert looks["facts"] == ["2.bmp"]


def test_images_that_changed_within_the_last_seconds_are_not_known(animals, cache, looks, monkeypatch):
    monkeypatch.setattr(image_folder, "_SETTLED_NS", 10**12)
    prepared(animals)
    looks["facts"].clear()
    prepared(animals)
    assert len(looks["facts"]) == 8


def test_images_resized_otherwise_have_statistics_of_their_own(animals, cache, looks):
    assert prepared(animals, image_size=3)[1:] != prepared(animals)[1:]
    facts = next(image for image in content(cache).values() if image["moments"])
    assert sorted(facts["moments"]) == ["grey 3", "grey None"]


def test_images_that_are_gone_or_new_are_noticed(animals, cache, looks):
    prepared(animals)
    (animals / "cat" / "0.png").unlink()
    write_image(animals / "dog" / "9.png", 9)
    looks["facts"].clear()
    prepared(animals)
    assert looks["facts"] == ["9.png"]
    assert sorted(content(cache)) == sorted(f"{('cat', 'dog')[n % 2]}/{n}.png" for n in (1, 2, 3, 4, 5, 6, 7, 9))


DAMAGED = {
    "nothing": b"",
    "no JSON": b"\x00\xff{",
    "a number": b"3",
    "another format": b'{"format": 99, "images": {}}',
    "images of another kind": b'{"format": 1, "images": []}',
    "entries of another kind": b'{"format": 1, "images": {"cat/0.png": 3, "cat/2.png": {"stamp": []}}}',
    "deeply nested": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_cache_that_is_damaged_counts_for_none_and_is_mended(damage, animals, cache, looks):
    first = prepared(animals)
    (file,) = cache.iterdir()
    file.write_bytes(DAMAGED[damage])
    assert prepared(animals) == first
    looks["facts"].clear()
    assert prepared(animals) == first
    assert looks["facts"] == []


@pytest.mark.parametrize("part", ["digest", "size", "mode", "moments"])
def test_entry_that_lacks_a_part_is_read_again(part, animals, cache, looks):
    first = prepared(animals)
    (file,) = cache.iterdir()
    images = content(cache)
    del images["cat/0.png"][part]
    file.write_text(json.dumps({"format": 2, "images": images}))
    looks["facts"].clear()
    assert (prepared(animals), looks["facts"]) == (first, ["0.png"])


def test_cache_that_cannot_be_written_costs_time_alone(animals, cache):
    first = prepared(animals)
    shutil.rmtree(cache)
    cache.write_text("a file in the place of the folder")
    assert prepared(animals) == first


def test_folder_of_images_is_left_as_it_was(animals, cache):
    before = sorted(animals.rglob("*"))
    prepared(animals)
    assert sorted(animals.rglob("*")) == before
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_processes_at_once_leave_a_whole_file(animals, cache):
    expected = prepared(animals)
    failed = []

    def work():
        for turn in range(6):
            if prepared(animals, seed=turn % 2)[0] != expected[0]:
                failed.append(turn)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    assert len(content(cache)) == 8


def test_process_that_reads_meanwhile_sees_a_whole_file(animals, cache):
    prepared(animals)
    before = content(cache)
    with next(cache.iterdir()).open("rb") as stream:
        write_image(animals / "dog" / "9.png", 9)
        prepared(animals)
        assert json.loads(stream.read())["images"] == before
    assert len(content(cache)) == 9


def test_cache_is_bounded_and_those_not_used_for_longest_go(animals, cache, tmp_path, monkeypatch):
    others = [tmp_path / f"other{number}" for number in range(3)]
    for number, folder in enumerate(others):
        shutil.copytree(animals, folder)
        prepared(folder)
        newest = max(cache.iterdir(), key=lambda file: file.stat().st_ctime_ns)
        os.utime(newest, (number, number))
    size = sum(file.stat().st_size for file in cache.iterdir())
    oldest = min(cache.iterdir(), key=lambda file: file.stat().st_mtime)
    monkeypatch.setattr(image_folder, "_MAX_BYTES", size + size // 6)
    prepared(animals)
    assert oldest not in set(cache.iterdir())
    assert len(set(cache.iterdir())) == 3


@pytest.mark.parametrize(("variable", "where"), [("XDG_CACHE_HOME", "sacristan"), ("HOME", ".cache/sacristan")])
def test_cache_is_in_the_users_own_by_default(variable, where, animals, tmp_path, monkeypatch):
    for name in ("SACRISTAN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    prepared(animals)
    assert len(list((tmp_path / "own" / where).glob("images-*.json"))) == 1


# reading batches


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("normalize", ["standard", "none"])
@pytest.mark.parametrize("limit", [None, 20])
def test_batches_of_bytes_are_those_of_single_images_bit_for_bit(mode, normalize, limit, tmp_path):
    import torch

    for number in range(24):
        write_image(tmp_path / "ab"[number % 2] / f"{number}.png", number, mode=mode)
    config = {**DEFAULTS, "name": "image_folder", "path": str(tmp_path), "normalize": normalize, "limit": limit}
    done = prepare(load_source("image_folder", str(tmp_path)), config, 0)
    data = make_batches(done, config, 0, torch.device("cpu"))
    order = data.train.order(2)
    inputs, targets = next(data.train.epoch(2))
    assert inputs.is_contiguous()
    for place, image, target in zip(order.tolist(), inputs, targets, strict=True):
        values, label = done.inputs[int(done.indices["train"][place])]
        by = done.preparation
        expected = values if by.mean is None else (values - by.mean) / by.std
        assert (torch.equal(image, torch.from_numpy(expected)), int(target)) == (True, label)
    assert torch.equal(data.train.inputs_at(order.tolist()), inputs)
