"""Streams and tar files: the same batches with any number of workers, and from the middle of an epoch."""

import io
import json
import random
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from sacristan.configs import Map
from sacristan.ingredients import DataError, global_stream
from sacristan.ingredients.config.seed import KeptStream
from sacristan.ingredients.data import ingredient, load
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.item_files import TarShards, decode
from sacristan.ingredients.datasets.loading import StreamBatches
from sacristan.ingredients.datasets.preparation import prepare_alike
from sacristan.ingredients.datasets.sources import describe, kind_of, load_source
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
HERE = __name__


class Numbers(IterableDataset):
    """Numbers in a row; a share of them in a worker, as torch's documentation says."""

    def __init__(self, count=21):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        yield from range(0 if info is None else info.id, self.count, 1 if info is None else info.num_workers)


class Drawn(Numbers):
    """Numbers that are drawn from every global generator, in an order by epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(self.count):
            yield {"number": number + 100 * self.epoch, "drawn": torch.rand(1) + random.random() + np.random.rand()}


class Late(Numbers):
    """Samples that are made when they are needed."""

    def __iter__(self):
        return (lambda n=number: (torch.rand(1), n) for number in range(self.count))


class Sized(Numbers):
    def __len__(self):
        return self.count


def numbers():
    return Numbers()


def drawn():
    return Drawn()


def late():
    return Late()


def sized():
    return {"train": Sized(), "val": Numbers(5), "test": [1, 2, 3]}


def empty():
    return {"train": Sized(0)}


def silent():
    return Numbers(0)


def generator():
    return (number for number in range(4))


def made(name, num_workers=0, **changes):
    given = {"name": f"{HERE}:{name}", "batch_size": 4, "num_workers": num_workers}
    config = {**DEFAULTS, **given, **changes}
    return make_batches(load(Map(config), 0), config, 0, CPU)


def read(batches, epoch=1, start=0):
    return [str(batch) for batch in batches.epoch(epoch, start)]


# streams


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("numbers", {}),
        ("numbers", {"shuffle_buffer": 8}),
        ("drawn", {"shuffle_buffer": 5}),
        ("late", {"shuffle_buffer": 5}),
    ],
)
def test_stream_resumed_in_the_middle_has_the_same_batches_with_any_workers(name, changes, num_workers):
    expected = read(made(name, epoch_samples=30, **changes).train)
    data = made(name, num_workers, epoch_samples=30, **changes)
    assert isinstance(data.train, StreamBatches)
    assert read(data.train, start=3) == expected[3:]
    assert read(data.train) == expected
    assert len(expected) == 8


def test_stream_is_read_in_order_and_again_where_it_ends():
    numbers = torch.cat(list(made("numbers", epoch_samples=30).train.epoch(1)))
    assert numbers.tolist() == [*range(21), *range(9)]


def test_stream_shuffled_holds_the_samples_of_its_epoch_in_another_order_each_time():
    train = made("numbers", epoch_samples=21, shuffle_buffer=8).train
    epochs = [torch.cat(list(train.epoch(epoch))).tolist() for epoch in (1, 2)]
    assert [sorted(found) for found in epochs] == [list(range(21))] * 2
    assert epochs[0] != epochs[1]
    assert max(epochs[0][:8]) < 16


def test_stream_knows_its_epoch_and_leaves_the_global_generators():
    train = made("drawn", epoch_samples=8).train
    before = random.getstate(), torch.get_rng_state().tolist()
    [first, *_], [other, *_] = list(train.epoch(1)), list(train.epoch(2))
    assert (first["number"].tolist(), other["number"].tolist()) == ([100, 101, 102, 103], [200, 201, 202, 203])
    assert not torch.equal(first["drawn"], other["drawn"])
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_parts_of_a_stream_keep_their_lengths():
    data = made("sized")
    assert [part.num_samples for part in (data.train, data.val, data.test)] == [21, 5, 3]
    assert (torch.cat(list(data.val.epoch())).tolist(), next(data.test.epoch()).tolist()) == (
        [0, 1, 2, 3, 4],
        [1, 2, 3],
    )
    assert (data.task, data.placement, len(data.train)) == ("custom", "read by the main process", 6)
    config = Map({**DEFAULTS, "name": f"{HERE}:sized"})
    prepared = load(config, 0)
    assert {name: row["count"] for name, row in describe(prepared)["splits"].items()} == {
        "train": 21,
        "val": 5,
        "test": 3,
    }
    alike = prepare_alike(load_source(config.name), prepared.preparation, config, 1)
    assert alike.fingerprint == prepared.fingerprint


def test_drop_last_leaves_out_the_rest_of_a_stream():
    data = made("numbers", epoch_samples=10, drop_last=True)
    assert len(read(data.train)) == 2


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("numbers", {}, "data.epoch_samples: got None, but .* is a stream of unknown length"),
        ("numbers", {"epoch_samples": 4, "limit": 3}, "data.limit: got 3, but .* is a stream; use data.epoch_samples"),
        ("numbers", {"epoch_samples": 4, "sampler": "balanced"}, "data.sampler: got balanced, but .* is a stream"),
        ("generator", {"epoch_samples": 4}, "got a generator, which can be read only once; return an IterableDataset"),
        ("empty", {}, "the train part of the stream has no samples"),
    ],
)
def test_stream_that_cannot_be_trained_on_is_refused(name, changes, message):
    with pytest.raises(DataError, match=message):
        made(name, **changes)


def test_stream_that_ends_at_once_is_refused_when_it_is_read():
    with pytest.raises(DataError, match="the stream has no samples"):
        next(made("silent", epoch_samples=4).train.epoch())


def test_shuffle_buffer_of_what_lies_in_memory_is_refused():
    config = {**DEFAULTS, "shuffle_buffer": 8}
    with pytest.raises(
        DataError, match=r"data.shuffle_buffer: got 8, but data.name=digits is neither a stream nor in tar"
    ):
        make_batches(load(Map(config), 0), config, 0, CPU)


def test_kept_stream_goes_on_where_it_was_left():
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    with global_stream(0, "name"):
        whole = [draws(), draws()]
    kept, found = KeptStream(0, "name"), []
    for _ in whole:
        with kept:
            found.append(draws())
        draws()
    assert found == whole


# tar files


def write_tar(path, samples, prefix=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for key, members in samples:
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{prefix}{key}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def picture(number):
    stream = io.BytesIO()
    Image.fromarray(np.full((5, 4, 3), number, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def sample(number):
    return f"{number:04}", {"png": picture(number), "cls": b"%d" % (number % 3), "json": json.dumps([number]).encode()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        write_tar(folder / f"part-{shard}.tar", [sample(number) for number in range(shard * 10, shard * 10 + 10)], "a/")
    return folder


def of_tar(folder, num_workers=0, **changes):
    given = {"name": "tar", "path": str(folder), "batch_size": 4, "num_workers": num_workers}
    config = {**DEFAULTS, **given, **changes}
    return make_batches(load(Map(config), 0), config, 0, CPU)


def test_tar_files_hold_samples_by_the_names_of_their_members(shards):
    assert kind_of(str(shards)) == kind_of(str(shards / "part-0.tar")) == "tar"
    found = TarShards(sorted(shards.glob("*.tar")))
    assert (len(found), found.targets[:4], found.shards.tolist()) == (
        40,
        [0, 1, 2, 0],
        [n // 10 for n in range(40)],
    )
    assert found[13]["__key__"] == "a/0013"
    assert (found[13]["json"], found[13]["cls"], found[13]["png"].shape) == ([13], 1, (5, 4, 3))


def test_tar_files_give_classes_to_stratify_by(shards):
    data = of_tar(shards)
    assert (data.task, data.classes, data.train.num_samples) == ("custom", ("0", "1", "2"), 28)
    batch = next(data.train.epoch())
    assert (batch["png"].dtype, batch["png"].shape) == (torch.uint8, (4, 5, 4, 3))


def test_columns_of_tar_files_make_pairs_of_inputs_and_targets(shards):
    data = of_tar(shards, columns=["png", "cls"])
    inputs, targets = next(data.train.epoch())
    assert (data.task, data.input_shape, inputs.dtype, targets.dtype) == (
        "classification",
        (3, 5, 4),
        torch.float32,
        torch.int64,
    )
    with pytest.raises(DataError, match=r"data.columns: the sample a/0000 has no member .jpg; it has png, cls, json"):
        of_tar(shards, columns=["jpg", "cls"])


@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("changes", [{}, {"shuffle_buffer": 6}, {"sampler": "balanced"}, {"epoch_samples": 50}])
def test_tar_files_resumed_in_the_middle_give_the_same_batches_with_any_workers(shards, changes, num_workers):
    expected = read(of_tar(shards, **changes).train)
    assert read(of_tar(shards, num_workers, **changes).train, start=4) == expected[4:]
    assert len(expected) > 6


def test_tar_files_with_a_buffer_are_read_one_behind_the_other(shards):
    data = of_tar(shards, shuffle_buffer=4, val_fraction=0.0, test_fraction=0.0)
    order = data.train.order(1)
    files = torch.div(order, 10, rounding_mode="floor")
    assert sorted(order.tolist()) == list(range(40))
    assert len(set(files[:6].tolist())) == 1
    assert order[:10].tolist() != sorted(order[:10].tolist())
    assert not torch.equal(order, data.train.order(2))


def test_tar_files_of_parts_are_kept_apart(tmp_path):
    for name in ("train-0.tar", "val/0.tar", "test-0.tar"):
        write_tar(tmp_path / name, [sample(number) for number in range(3)])
    assert load_source("tar", str(tmp_path)).part.tolist() == [TRAIN] * 3 + [VAL] * 3 + [TEST] * 3
    write_tar(tmp_path / "more.tar", [sample(1)])
    with pytest.raises(
        DataError, match=r"more.tar belongs to no part, but other files are named for train, val or test"
    ):
        load_source("tar", str(tmp_path))


@pytest.mark.parametrize("name", ["train1", "train-1", "train.1"])
def test_tar_files_are_of_the_part_that_their_name_begins_with(name, tmp_path):
    file = tmp_path / f"{name}.tar"
    write_tar(file, [sample(number) for number in range(3)])
    for path in (tmp_path, file):
        assert load_source("tar", str(path)).part.tolist() == [TRAIN] * 3


def test_tar_files_of_other_content_have_another_fingerprint(tmp_path):
    for folder, number in (("a", 1), ("b", 1), ("c", 2)):
        write_tar(tmp_path / folder / "0.tar", [sample(number)])
    one, same, other = (load_source("tar", str(tmp_path / folder)).digest for folder in "abc")
    assert one == same != other


def test_tar_members_are_decoded_by_their_endings():
    array = io.BytesIO()
    np.save(array, np.arange(3))
    assert decode("seg.npy", array.getvalue()).tolist() == [0, 1, 2]
    assert (decode("txt", b"a"), decode("index", b"7"), decode("pickle", b"\0")) == ("a", 7, b"\0")


def test_tar_file_that_is_damaged_is_refused_by_name(tmp_path):
    (tmp_path / "0.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(DataError, match=r"0.tar cannot be read as a tar file"):
        load_source("tar", str(tmp_path))
    write_tar(tmp_path / "0.tar", [("7", {"png": b"none"})])
    with pytest.raises(DataError, match=r"7.png in .*0.tar cannot be read"):
        TarShards([tmp_path / "0.tar"])[0]
    (tmp_path / "0.tar").unlink()
    with pytest.raises(DataError, match=r"has no tar files in it; expected files like train-0\.tar"):
        load_source("tar", str(tmp_path))
