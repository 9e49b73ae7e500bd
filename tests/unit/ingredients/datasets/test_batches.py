"""Batches: their order and their random draws depend on (seed, epoch) alone."""

import gc
import multiprocessing
import random
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from sacristan.ingredients import DataError, LoaderBatches, Source, TensorBatches
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.datasets.splitting import TEST, TRAIN

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")


class Items:
    """The samples of an array, read one by one."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index % 2


class Noisy(Items):
    """Samples that draw from every global generator."""

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(1).item()
        return self.inputs[index] + np.float32(noise), index % 2


class Renewed(Items):
    """Samples that are drawn again in each epoch, and count how often."""

    epoch = count = noise = 0

    def set_epoch(self, epoch):
        self.epoch, self.noise, self.count = epoch, np.float32(random.random()), self.count + 1

    def __getitem__(self, index):
        return self.inputs[index] * 0 + np.float32([self.epoch, self.noise, self.count]), index % 2


class Damaged(Items):
    """Samples of which one cannot be read once the data have been looked through."""

    def __getitem__(self, index):
        if index == 3:
            raise DataError("data.path: 3.png cannot be read")
        return super().__getitem__(index)


def numbers(count, shape=(2,)):
    """Return samples filled with their own number."""
    values = np.arange(count, dtype=np.float32).reshape(-1, *[1] * len(shape))
    return np.broadcast_to(values, (count, *shape)).copy()


def in_memory(count=20, shape=(2,)):
    return Source(numbers(count, shape), np.arange(count) % 2)


def item_by_item(count=20, shape=(2,), kind=Items):
    return Source(kind(numbers(count, shape)), np.arange(count) % 2, digest="digest")


def made(source, seed=0, **changes):
    augment = {**DEFAULTS["augment"], **changes.pop("augment", {})}
    config = {**DEFAULTS, "batch_size": 4, "normalize": "none", **changes, "augment": augment}
    return make_batches(prepare(source, config, seed), config, seed, CPU)


def read(batches, epoch=0):
    """Return the inputs and targets of an epoch, one behind the other."""
    found = list(batches.epoch(epoch))
    return torch.cat([inputs for inputs, _ in found]), torch.cat([targets for _, targets in found])


def sizes(batches):
    return [len(targets) for _, targets in batches.epoch(0)]


SOURCES = [in_memory, item_by_item]


# order


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_order_of_items_is_that_of_tensors(seed, epoch):
    tensors, items = (read(made(source(), seed).train, epoch) for source in SOURCES)
    assert torch.equal(tensors[0], items[0])
    assert torch.equal(tensors[1], items[1])


def test_order_of_tensors_is_kept_by_tensor_batches_and_of_items_by_a_loader():
    assert isinstance(made(in_memory()).train, TensorBatches)
    assert isinstance(made(item_by_item()).train, LoaderBatches)


@pytest.mark.parametrize("source", SOURCES)
def test_order_differs_between_epochs_and_seeds(source):
    train = made(source(), 0).train
    orders = [train.order(0), train.order(1), made(source(), 1).train.order(0)]
    assert len({tuple(order.tolist()) for order in orders}) == 3


@pytest.mark.parametrize("source", SOURCES)
def test_order_does_not_depend_on_what_was_read_before(source):
    read_through, fresh = made(source()).train, made(source()).train
    for epoch in range(3):
        inputs, _ = read(read_through, epoch)
    assert torch.equal(inputs, read(fresh, 2)[0])


@pytest.mark.parametrize("source", SOURCES)
def test_order_of_an_epoch_holds_every_training_sample_once(source):
    inputs, targets = read(made(source()).train)
    assert sorted(inputs[:, 0].tolist()) == sorted(set(inputs[:, 0].tolist()))
    assert len(inputs) == 14
    assert torch.equal(targets, inputs[:, 0].long() % 2)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("split", ["val", "test"])
def test_order_of_val_and_test_is_that_of_the_data(source, split):
    batches = getattr(made(source(40)), split)
    numbers = [read(batches, epoch)[0][:, 0].tolist() for epoch in (0, 1)]
    assert numbers[0] == numbers[1] == sorted(numbers[0])


def test_order_stays_what_it_was():
    assert made(in_memory()).train.order(0)[:6].tolist() == [3, 6, 0, 2, 1, 12]


# sizes


@pytest.mark.parametrize("source", SOURCES)
def test_last_batch_holds_the_rest(source):
    train = made(source()).train
    assert sizes(train) == [4, 4, 4, 2]
    assert (len(train), train.num_samples, train.last_batch_size) == (4, 14, 2)


@pytest.mark.parametrize("source", SOURCES)
def test_drop_last_leaves_the_rest_of_the_training_part_only(source):
    data = made(source(), drop_last=True)
    assert data.train.num_samples == 14
    assert sizes(data.train) == [4, 4, 4]
    assert (len(data.train), data.train.last_batch_size) == (3, 4)
    assert sizes(data.val) == [3]


@pytest.mark.parametrize("source", SOURCES)
def test_empty_part_has_no_batches(source):
    val = made(source(), val_fraction=0.0).val
    assert (sizes(val), len(val)) == ([], 0)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_below_one_is_refused(source, batch_size):
    with pytest.raises(DataError, match=rf"data.batch_size: got {batch_size}, expected at least 1"):
        made(source(), batch_size=batch_size)


@pytest.mark.parametrize("source", SOURCES)
def test_batch_size_that_would_leave_no_batch_is_refused(source):
    with pytest.raises(
        DataError, match=r"got 15, but there are 14 training .*; give at most 14, or set data.drop_last"
    ):
        made(source(), batch_size=15, drop_last=True)
    assert len(made(source(), batch_size=14, drop_last=True).train) == 1


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("batch_size", [14, 15, 1000])
def test_batch_size_of_the_whole_training_part_or_more_is_one_batch(source, batch_size):
    assert sizes(made(source(), batch_size=batch_size).train) == [14]


def renewed(num_workers, wrap, **config):
    source = from_factory(wrap(Renewed(numbers(20, (3,)))), "own", task=config.get("task", "auto"))
    return made(source, num_workers=num_workers, **config)


@pytest.mark.parametrize("wrap", [lambda whole: whole, lambda whole: Subset(whole, range(20))])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_is_told_each_epoch_once_in_each_process(num_workers, wrap):
    data = renewed(num_workers, wrap)
    noise = []
    for round, epoch in enumerate((1, 2, 3), start=1):
        inputs, _ = read(data.train, epoch)
        assert inputs[:, 0].unique().tolist() == [epoch]
        assert inputs[:, 2].unique().tolist() == [round * 2 - 1 if num_workers == 0 else round]
        noise += inputs[:, 1].unique().tolist()
        assert read(data.val)[0][:, 0].unique().tolist() == [0]
    assert len({*noise}) == 3
    again = renewed(0, wrap)
    assert read(again.train, 2)[0][0, 1].item() == noise[1]


def test_samples_of_any_structure_are_told_each_epoch_and_resume_in_it():
    data = renewed(0, lambda whole: whole, task="custom")
    found = [torch.cat([inputs for inputs, _ in data.train.epoch(epoch, start)]) for epoch, start in ((2, 0), (2, 2))]
    torch.testing.assert_close(found[0][8:], found[1])
    assert found[0][:, 0].unique().tolist() == [2]


def test_num_workers_below_zero_is_refused():
    with pytest.raises(DataError, match=r"data.num_workers: got -1, expected 0 or more"):
        made(item_by_item(), num_workers=-1)


# what a batch holds


@pytest.mark.parametrize("source", SOURCES)
def test_batch_of_classes_holds_float_inputs_and_labels(source):
    inputs, targets = next(made(source()).train.epoch())
    assert (inputs.dtype, inputs.shape) == (torch.float32, (4, 2))
    assert (targets.dtype, targets.shape) == (torch.int64, (4,))


def test_batch_of_numbers_holds_float_targets():
    data = made(load_source("diabetes"))
    _, targets = next(data.train.epoch())
    assert (targets.dtype, targets.shape) == (torch.float32, (4, 1))
    assert (data.num_targets, data.classes, data.class_counts) == (1, (), ())
    assert data.target_std.shape == (1,)


def test_batch_of_items_is_normalised_as_that_of_arrays():
    tensors, items = (read(made(source(), normalize="standard").train)[0] for source in SOURCES)
    torch.testing.assert_close(tensors, items)
    torch.testing.assert_close(items.mean(0), torch.zeros(2), atol=1e-6, rtol=0)


def test_data_knows_the_classes_and_their_counts_in_training():
    source = Source(numbers(30), np.array([0] * 10 + [1] * 20), part=np.array([TRAIN] * 25 + [TEST] * 5))
    data = made(source, val_fraction=0.0, num_classes=3)
    assert (data.classes, data.class_counts, data.num_targets) == (("0", "1", "2"), (10, 15, 0), 3)


def test_data_knows_the_labels_and_their_counts_in_training():
    targets = np.array([[1, 0, 1]] * 10 + [[0, 0, 1]] * 10)
    data = made(Source(numbers(20), targets, part=np.full(20, TRAIN)), val_fraction=0.0, test_fraction=0.0)
    assert (data.task, data.class_counts, data.num_targets) == ("multilabel", (10, 0, 20), 3)


# workers


@pytest.fixture(scope="module")
def noisy_epochs():
    """Noisy, augmented images of two epochs, as 0 workers read them."""
    return noisy(0)


def noisy(num_workers):
    data = made(
        item_by_item(16, (1, 5, 5), Noisy),
        num_workers=num_workers,
        augment={"flip": True, "crop": 1, "rotate": 20.0},
        normalize="standard",
        val_fraction=0.25,
    )
    return [read(part, epoch) for epoch in (0, 1) for part in (data.train, data.val)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_no_bit_of_any_epoch(num_workers, noisy_epochs):
    for (inputs, targets), (expected, labels) in zip(noisy(num_workers), noisy_epochs, strict=True):
        assert torch.equal(inputs, expected)
        assert torch.equal(targets, labels)


def test_workers_draw_something_else_in_every_epoch(noisy_epochs):
    (val, _), (again, _) = noisy_epochs[1], noisy_epochs[3]
    assert not torch.equal(val, again)


def test_workers_draw_something_else_for_every_sample():
    data = made(Source(Noisy(np.zeros((20, 1), np.float32)), np.arange(20) % 2, digest="digest"))
    assert len(set(read(data.train)[0].ravel().tolist())) == 14


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_start_an_epoch_anew_after_one_was_broken_off(num_workers):
    train = made(item_by_item(kind=Noisy), num_workers=num_workers).train
    expected = read(train, 1)[0]
    next(train.epoch(0))
    assert torch.equal(read(train, 1)[0], expected)


def test_workers_end_with_the_last_reference_to_the_batches():
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        data = made(item_by_item(), num_workers=1)
        read(data.train)
        assert set(multiprocessing.active_children()) > before
        del data
        assert set(multiprocessing.active_children()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_pass_an_error_of_the_lab_on_as_it_is(num_workers):
    data = made(item_by_item(kind=Damaged), num_workers=num_workers, val_fraction=0.0, test_fraction=0.0)
    with pytest.raises(DataError, match=r"^data\.path: 3\.png cannot be read$"):
        read(data.train)


def test_epochs_read_in_turn_keep_their_own_draws():
    train = made(item_by_item(kind=Noisy)).train
    expected = [[inputs for inputs, _ in train.epoch(epoch)] for epoch in (0, 1)]
    for (one, _), (other, _), *both in zip(train.epoch(0), train.epoch(1), *expected, strict=True):
        assert torch.equal(one, both[0])
        assert torch.equal(other, both[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_reading_leaves_the_global_generators(num_workers):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = state()
    data = made(item_by_item(16, (1, 5, 5), Noisy), num_workers=num_workers, augment={"crop": 1}, normalize="standard")
    for part in (data.train, data.val, data.test):
        read(part)
    assert state() == before


@pytest.mark.parametrize("source", SOURCES)
def test_reading_does_not_depend_on_the_global_generators(source):
    random.seed(1)
    one = read(made(source(16, (1, 5, 5)), augment={"flip": True}).train)[0]
    torch.rand(3), np.random.rand(3), random.random()
    assert torch.equal(read(made(source(16, (1, 5, 5)), augment={"flip": True}).train)[0], one)


# augmentation


@pytest.mark.parametrize("source", SOURCES)
def test_augment_changes_training_images_only(source):
    plain, augmented = made(source(40, (1, 5, 5))), made(source(40, (1, 5, 5)), augment={"crop": 2})
    assert not torch.equal(read(augmented.train)[0], read(plain.train)[0])
    for part in ("val", "test"):
        assert torch.equal(read(getattr(augmented, part))[0], read(getattr(plain, part))[0])


def test_augment_of_items_is_that_of_tensors():
    augment = {"flip": True, "crop": 2, "rotate": 30.0}
    tensors, items = (made(source(16, (3, 6, 8)), augment=augment).train for source in SOURCES)
    for epoch in (0, 1):
        assert torch.equal(read(tensors, epoch)[0], read(items, epoch)[0])


def test_augment_draws_anew_for_every_epoch_and_batch():
    train = made(Source(np.ones((20, 1, 6, 6), np.float32), np.arange(20) % 2), augment={"crop": 3}).train
    batches = [inputs for epoch in (0, 1) for inputs, _ in train.epoch(epoch)]
    assert len({tuple(inputs[:2].ravel().tolist()) for inputs in batches}) == len(batches)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("augment", [{"flip": True}, {"crop": 1}, {"rotate": 5.0}])
def test_augment_of_what_is_no_image_is_refused(source, augment):
    with pytest.raises(DataError, match=r"data.augment: got .* on inputs of shape \(2,\), expected images"):
        made(source(), augment=augment)


@pytest.mark.parametrize("crop", [-1, 5, 6])
def test_augment_crop_out_of_range_is_refused(crop):
    with pytest.raises(
        DataError, match=rf"data.augment.crop: got {crop}, expected 0 to 4, less than the size of images of"
    ):
        made(in_memory(20, (1, 5, 8)), augment={"crop": crop})


def test_augment_rotate_below_zero_is_refused():
    with pytest.raises(DataError, match=r"data.augment.rotate: got -5.0, expected 0 or more degrees, either way"):
        made(in_memory(20, (1, 5, 5)), augment={"rotate": -5.0})


@pytest.mark.parametrize("source", [in_memory, item_by_item])
def test_inputs_at_positions_are_those_of_the_split(source):
    prepared = prepare(source(), {**DEFAULTS, "normalize": "standard"}, 0)
    data = make_batches(prepared, {**DEFAULTS, "batch_size": 4}, 0, CPU)
    whole = torch.cat([inputs for inputs, _ in data.val.epoch()])
    assert torch.equal(data.val.inputs_at([2, 0]), whole[[2, 0]])
    raw = data.val.inputs_at([2, 0]) * data.input_std + data.input_mean
    assert torch.allclose(raw[:, 0], torch.from_numpy(prepared.indices["val"][[2, 0]]).float(), atol=1e-5)


def test_inputs_at_of_a_damaged_sample_raises_its_error():
    items = Source(Damaged(numbers(20)), np.arange(20) % 2, digest="", missing=np.zeros(20, int))
    prepared = prepare(items, {**DEFAULTS, "normalize": "none", "test_fraction": 0.0}, 0)
    data = make_batches(prepared, {**DEFAULTS, "batch_size": 4}, 0, CPU)
    [split] = [split for split in ("train", "val") if 3 in prepared.indices[split]]
    place = prepared.indices[split].tolist().index(3)
    with pytest.raises(DataError, match=r"3\.png cannot be read"):
        getattr(data, split).inputs_at([place])


def test_batches_left_in_the_middle_of_an_epoch_go_at_once():
    """In a reference cycle they would wait for the collector, and the end of a process 5 seconds for each worker."""
    batches = made(item_by_item()).train
    iterator = batches.epoch(1)
    next(iterator)
    gone = weakref.ref(batches)
    gc.disable()
    try:
        del iterator, batches
        assert gone() is None
    finally:
        gc.enable()
