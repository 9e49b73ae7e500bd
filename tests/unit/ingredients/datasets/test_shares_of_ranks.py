"""Batches that several processes share: each sample once, whatever is left for the last batch."""

import itertools

import pytest
import torch

from sacristan.ingredients import DataError, LoaderBatches, TensorBatches
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.epochs import StructureBatches
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.ranks import World
from sacristan.ingredients.ranks.group import Ranks

SIZE, BATCH = 3, 6


class Numbers:
    """A dataset of its own positions."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def read(self, key):
        _, number, positions = key
        return torch.tensor(positions), torch.full((len(positions),), number)


def of_tensors(count, **options):
    return TensorBatches(torch.arange(count), torch.arange(count), BATCH, **options)


def of_structures(count, **options):
    return StructureBatches((torch.arange(count), torch.arange(count)), BATCH, **options)


def of_loader(count, **options):
    return LoaderBatches(Numbers(count), torch.device("cpu"), BATCH, 0, False, **options)


KINDS = [of_tensors, of_structures, of_loader]


def shares(make, count, **options):
    """Return the samples of each batch, by rank."""
    ranks = [Ranks(World(rank, SIZE)) for rank in range(SIZE)]
    return [[batch[0].tolist() for batch in make(count, ranks=each, **options).epoch(1)] for each in ranks]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("count", [12, 16, 17])
def test_training_takes_each_sample_once_in_the_batches_of_one_process(make, count):
    found = shares(make, count, shuffle=True, least=SIZE)
    whole = [batch[0].tolist() for batch in make(count, shuffle=True).epoch(1)]
    assert [list(itertools.chain(*parts)) for parts in zip(*found, strict=True)] == whole


@pytest.mark.parametrize("make", KINDS)
def test_training_leaves_out_a_last_batch_with_fewer_samples_than_ranks(make):
    found = shares(make, 14, shuffle=True, least=SIZE)
    assert [[len(batch) for batch in rank] for rank in found] == [[2, 2]] * SIZE
    assert len(make(14, ranks=Ranks(World(0, SIZE)), least=SIZE)) == 2
    assert make(14, ranks=Ranks(World(0, SIZE)), least=SIZE).last_batch_size == BATCH


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("count", [0, 1, 2, 6, 13])
def test_evaluation_takes_each_sample_once(make, count):
    found = shares(make, count)
    assert sorted(itertools.chain(*itertools.chain(*found))) == list(range(count))


def test_ranks_of_a_loader_have_batches_of_different_numbers():
    ranks = [Ranks(World(rank, SIZE)) for rank in range(SIZE)]
    numbers = [[int(batch[1][0]) for batch in of_loader(12, ranks=each).epoch(1)] for each in ranks]
    assert numbers == [[0, 3], [1, 4], [2, 5]]


def test_batches_that_ranks_cannot_share_evenly_are_refused():
    config = {**ingredient.configurations[0](), "name": "digits", "limit": 60, "batch_size": 32}
    prepared = prepare(load_source("digits", seed=0), config, 0)
    ranks = Ranks(World(0, SIZE))
    with pytest.raises(DataError, match=r"data\.batch_size: got 32, which 3 processes cannot share .* such as 33"):
        make_batches(prepared, config, 0, torch.device("cpu"), ranks)
    data = make_batches(prepared, config | {"batch_size": 33}, 0, torch.device("cpu"), ranks)
    assert data.train.ranks is data.test.ranks is ranks
    assert (data.train.least, data.val.least, data.test.least) == (SIZE, 1, 1)


def test_ranks_draw_augmentation_from_streams_of_their_own():
    images = torch.arange(6 * 9.0).reshape(6, 1, 3, 3)
    options = {"augmentation": {"flip": True, "crop": 0, "rotate": 20.0}, "seed": 1}
    alone = next(TensorBatches(images[:2], torch.arange(2), 2, **options).epoch(1))[0]
    drawn = [
        next(
            TensorBatches(
                images[:2].repeat(SIZE, 1, 1, 1), torch.arange(6), 6, ranks=Ranks(World(rank, SIZE)), **options
            ).epoch(1)
        )[0]
        for rank in range(SIZE)
    ]
    assert torch.equal(drawn[0], alone)
    assert not torch.equal(drawn[1], drawn[0])
    assert not torch.equal(drawn[2], drawn[1])
