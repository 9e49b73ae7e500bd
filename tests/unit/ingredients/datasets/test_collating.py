from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from sacristan.ingredients.datasets.collating import map_tensors, num_samples, tensors_of, to_device

Pair = namedtuple("Pair", "first second")


def test_structure_stays_as_it_was():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    batch = {"a": [torch.ones(2), (torch.ones(3), "text")], "b": Pair(torch.ones(1), None), "c": packed}
    doubled = map_tensors(batch, lambda part: part.to(torch.float64))
    assert doubled["a"][0].dtype == doubled["a"][1][0].dtype == doubled["c"].data.dtype == torch.float64
    assert doubled["a"][1][1] == "text"
    assert type(doubled["b"]) is Pair
    assert doubled["b"].second is None
    assert to_device(batch, torch.device("meta"))["b"].first.device.type == "meta"


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.ones(4, 2), 4),
        ((torch.ones(3, 2), torch.ones(3)), 3),
        ({"tokens": torch.ones(5, 7), "mask": None}, 5),
        ({"scale": torch.tensor(1.0), "x": torch.ones(2)}, 2),
        (([torch.ones(3, 8, 8), torch.ones(3, 9, 9)], [{"boxes": torch.ones(5, 4)}, {"boxes": torch.ones(0, 4)}]), 2),
    ],
)
def test_samples_of_a_batch_are_counted(batch, expected):
    assert num_samples(batch) == expected


def test_batch_without_samples_is_refused():
    with pytest.raises(TypeError, match="got dict without a tensor or a list"):
        num_samples({"name": "x"})


def test_tensors_come_in_order():
    batch = {"b": torch.tensor([1]), "a": (torch.tensor([2]), ["x", torch.tensor([3])])}
    assert [int(tensor) for tensor in tensors_of(batch)] == [1, 2, 3]
