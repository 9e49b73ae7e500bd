from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from sacristan.ingredients import DeviceError, Loss, MixedPrecision, TensorBatches
from sacristan.ingredients.inspection.searches import (
    BatchSizes,
    Tried,
    batch_of,
    draw_sizes,
    is_out_of_memory,
    largest,
    largest_batch,
    print_sizes,
)


@pytest.mark.parametrize("most", [1, 2, 7, 8, 100])
@pytest.mark.parametrize("limit", [*range(20), 100, 1000])
def test_largest_is_the_limit_or_little_less_and_never_more(limit, most):
    tried = []

    def fits(size):
        assert 1 <= size <= most
        tried.append(size)
        return size <= limit

    found, true = largest(fits, most), min(limit, most)
    assert found <= true
    assert true - found < max(1, true / 16)
    assert len(tried) == len(set(tried))


def parts(device, num_samples=64, width=4):
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2)).to(device)
    inputs, targets = torch.randn(num_samples, width), torch.zeros(num_samples, dtype=torch.long)
    batches = TensorBatches(inputs.to(device), targets.to(device), 8)
    optimizer = torch.optim.Adam(model.parameters())
    return model, Loss(nn.CrossEntropyLoss(), "classes", 2), batches, optimizer, MixedPrecision(device)


def test_batch_size_is_looked_for_on_cuda_alone():
    with pytest.raises(DeviceError, match="got the device cpu, expected cuda"):
        largest_batch(*parts(torch.device("cpu")))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 20, 64, 100])
def test_batch_to_try_holds_the_first_samples_of_an_epoch(size):
    inputs, targets = torch.arange(64.0).view(64, 1), torch.arange(64)
    found = batch_of(TensorBatches(inputs, targets, 8), size)
    assert torch.equal(found[0], inputs[:size])
    assert torch.equal(found[1], targets[:size])


def test_batch_to_try_takes_its_memory_once():
    batches = TensorBatches(torch.zeros(4096, 256), torch.zeros(4096, dtype=torch.long), 8)
    with torch.profiler.profile(profile_memory=True) as profile:
        batch_of(batches, 4096)
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    peak = max(itertools.accumulate(nbytes for _, nbytes in changes))
    assert peak < 1.1 * 4096 * 257 * 4 + 2**16


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error, is_of_memory):
    assert is_out_of_memory(error) == is_of_memory


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batch_size_is_that_which_the_memory_suffices_for():
    device = torch.device("cuda")
    made = parts(device, 4096, 1024)
    found = largest_batch(*made)
    assert (found.largest, found.tried[-1].size) == (4096, 4096)
    peaks = [each.peak_bytes for each in found.tried]
    assert peaks == sorted(peaks)
    share = 64 * 2**20 / torch.cuda.get_device_properties(device).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction(share, device)
        found = largest_batch(*made)
        assert 0 < found.largest < 4096
        assert {each.peak_bytes is None for each in found.tried if each.size > found.largest} == {True}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_sizes_are_printed_and_drawn(capsys, tmp_path):
    tried = [Tried(1, 2**20, 0.001), Tried(2, 2**21, 0.001), Tried(4, None, None)]
    found = BatchSizes(2, tried, 2**22)
    print_sizes(found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["batch", "size", "peak", "MiB", "samples/s"],
        ["1", "1.0", "1,000"],
        ["2", "2.0", "2,000"],
        ["4", "does", "not", "fit"],
    ]
    draw_sizes(found, tmp_path / "batch_size.png")
    assert (tmp_path / "batch_size.png").read_bytes().startswith(b"\x89PNG")
