"""Choice of the device, and repeatable computation."""

import logging
import os

import pytest
import torch

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, DeviceError, device, global_stream
from sacristan.ingredients.device import check_gpus, choose_device, gpu_of
from sacristan.ingredients.ranks import World


@pytest.fixture(autouse=True)
def _restored_torch(monkeypatch):
    # Set first, so that it is put back to what it was whatever the code sets.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


def make(**settings):
    """Return what `make_device` returns in a run with these settings."""
    ex = Experiment("device", ingredients=[device.ingredient])
    made = []
    ex.main(lambda: made.append(device.make_device(0)))
    ex.run(config_updates={"device": settings, "seed": 0})
    return made[0]


def test_device_auto_is_the_best_there_is():
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto") == torch.device(best)


def test_device_cpu_is_the_cpu():
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "CPU", "", "cuda:x", "cuda:-1", "meta", "xpu"])
def test_device_unknown_is_refused_with_the_choices(name):
    with pytest.raises(DeviceError, match=rf"device.name: got '{name}', expected auto, cpu, mps, cuda or cuda:N"):
        choose_device(name)


def test_device_cuda_index_that_does_not_exist_is_refused_with_the_count():
    count = torch.cuda.device_count()
    with pytest.raises(DeviceError, match=rf"got 'cuda:{count}', but this machine has {count} CUDA .*device.name=auto"):
        choose_device(f"cuda:{count}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_device_cuda_without_cuda_is_refused():
    with pytest.raises(DeviceError, match=r"device.name: got 'cuda', but this machine has 0 CUDA devices; try device."):
        choose_device("cuda")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is MPS here")
def test_device_mps_without_mps_is_refused():
    with pytest.raises(DeviceError, match=r"device.name: got 'mps', but this machine has none; try device.name=auto"):
        choose_device("mps")


def test_make_device_returns_the_configured_device():
    assert make(name="cpu") == torch.device("cpu")


@pytest.mark.parametrize("before", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_make_device_sets_the_flags_of_determinism_only_where_they_differ(deterministic, before, monkeypatch):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    calls, original = [], torch.use_deterministic_algorithms
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: calls.append(mode) or original(mode))
    make(deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert calls == ([] if before == (deterministic, False) else [deterministic])


def test_make_device_sets_the_number_of_threads():
    torch.set_num_threads(2)
    make(num_threads=1)
    assert torch.get_num_threads() == 1


def test_make_device_without_num_threads_leaves_them():
    torch.set_num_threads(2)
    make()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("asked", "threads"),
    [({}, 1), ({"OMP_WAIT_POLICY": "passive"}, 2), ({"OMP_WAIT_POLICY": "active"}, 1), ({"OMP_NUM_THREADS": "2"}, 2)],
)
def test_make_device_takes_one_thread_where_threads_would_spin(asked, threads, monkeypatch, caplog):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(2)
    make(name="cpu")
    assert torch.get_num_threads() == threads
    assert ("computing with 1 thread of 2: torch was imported before the lab" in caplog.text) is (threads == 1)
    torch.set_num_threads(1)
    make(name="cpu", num_threads=2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("num_threads", [0, -2])
def test_make_device_with_no_threads_is_refused(num_threads):
    with pytest.raises(DeviceError, match=rf"device.num_threads: got {num_threads}, expected at least 1 or None"):
        make(num_threads=num_threads)


def test_make_device_deterministic_refuses_what_is_not_repeatable():
    make(deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_make_device_without_deterministic_turns_it_off_again():
    make(deterministic=True)
    make()
    assert not torch.are_deterministic_algorithms_enabled()


def test_make_device_cudnn_benchmark_is_set():
    make(cudnn_benchmark=True)
    assert torch.backends.cudnn.benchmark
    make()
    assert not torch.backends.cudnn.benchmark


def test_make_device_contradictory_switches_are_refused():
    with pytest.raises(DeviceError, match=r"deterministic=True and cudnn_benchmark=True, which contradict; turn one"):
        make(deterministic=True, cudnn_benchmark=True)


def test_make_device_puts_the_global_generators_at_the_stream_global():
    make()
    drawn = torch.rand(3)
    with global_stream(0, "global"):
        assert torch.equal(torch.rand(3), drawn)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_make_device_with_a_number_makes_it_the_current_one():
    before = torch.cuda.current_device()
    try:
        make(name="cuda:1")
        assert torch.cuda.current_device() == 1
    finally:
        torch.cuda.set_device(before)


def test_make_device_sets_the_precision_of_products_and_says_so(caplog):
    with caplog.at_level(logging.INFO, "sacristan.ingredients.device"):
        make(matmul_precision="high")
        assert torch.get_float32_matmul_precision() == "high"
        make()
        assert torch.get_float32_matmul_precision() == "high"  # left as it is
    said = [record.getMessage() for record in caplog.records if record.name == "sacristan.ingredients.device"]
    assert said == ["float32 matrix products in high precision (device.matmul_precision)"]


def test_precision_of_products_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"device.matmul_precision: got 'low' .* expected one of highest"):
        make(matmul_precision="low")


def test_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees():
    ranks = [World(rank, 4, rank % 2, 2) for rank in range(4)]
    assert [gpu_of(rank, 2) for rank in ranks] == [0, 1, 0, 1]
    assert [gpu_of(rank, 8) for rank in ranks] == [0, 1, 0, 1]
    assert [gpu_of(rank, 1) for rank in ranks] == [0, 0, 0, 0]
    for num_visible in (0, 2):
        with pytest.raises(
            DeviceError, match=f"got 4 processes on a node with {num_visible} CUDA devices; start torchrun"
        ):
            gpu_of(World(3, 4, 3, 4), num_visible)


def test_ranks_that_share_a_gpu_are_refused():
    check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    with pytest.raises(DeviceError, match=r"got the ranks 1 and 2 on one GPU of a; start as many processes"):
        check_gpus([("b", "GPU-1"), ("a", "GPU-1"), ("a", "GPU-1")])
