"""Ingredient `device`: the device to compute on, and how repeatable its results are."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.config.seed import seed_globals
from sacristan.ingredients.config.threads import is_asked_for_threads, threads_sleep
from sacristan.ingredients.errors import DeviceError
from sacristan.ingredients.ranks import World
from sacristan.ingredients.ranks.group import Ranks, current
from sacristan.observers.record.identity import is_anonymous

if TYPE_CHECKING:
    import torch

__all__ = [
    "check_gpus",
    "choose_device",
    "gpu_of",
    "ingredient",
    "make_device",
]

_log = logging.getLogger(__name__)

ingredient = Ingredient("device")


@ingredient.config
def config() -> None:
    # device to compute on: auto (cuda, else mps, else cpu), cpu, cuda, cuda:1, mps; each rank has its own GPU
    name = "auto"
    # use only deterministic operations, bit for bit (matters on GPUs, where it costs speed)
    deterministic = False
    # let cuDNN time its algorithms and use the fastest: faster for fixed shapes, not deterministic
    cudnn_benchmark = False
    # precision of float32 in matrix products: highest, high (TF32 on GPUs), medium; None for torch's setting
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    # threads of one CPU operation; None for torch's number, or 1 if they would spin while they wait
    num_threads: int | None = None


config.legacy(name="")  # an experiment without this ingredient chooses the device itself


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject a missing device, and settings that contradict each other."""
    _check_flags(config.deterministic, config.cudnn_benchmark, config.num_threads)
    choose_device(config.name)


@ingredient.capture
def make_device(seed: int, _config: Map, _run: Any = None) -> torch.device:
    """Return the configured device, and set up the process for it. Call it first.

    Sets the determinism flags and the number of threads, and seeds the global random generators of Python, NumPy and
    torch with the stream `global` of `seed`, different on each rank.

    Args:
        seed: Seed of the experiment.

    Raises:
        DeviceError: If this machine lacks the device, or the settings contradict each other.

    Example:
        where = device.make_device(seed)
        network = torch.nn.Linear(4, 2).to(where)
    """
    ranks = current()
    device = _of_rank(choose_device(_config.name), ranks)
    if device.type == "cuda" and device.index is not None:
        # Otherwise calls without a device, such as for page-locked memory, would open a context on the first one, too.
        import torch

        torch.cuda.set_device(device)
    _set_flags(_config.deterministic, _config.cudnn_benchmark, _num_threads(_config.num_threads, device))
    if _config.matmul_precision is not None:
        _set_matmul_precision(_config.matmul_precision)
    seed_globals(seed, "global", *ranks.stream)
    if ranks.size > 1:
        own = {"rank": ranks.rank, "host": socket.gethostname(), "pid": os.getpid(), "device": str(device)}
        if is_anonymous(_run.meta_info):
            del own["host"]
        _run.info["ranks"] = ranks.gather(own)
    return device


def _of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    """Return the device of this rank: the GPU of its number on the node, or the only one that it sees."""
    if ranks.size == 1 or device.type == "cpu":
        return device
    import torch

    if device.index is not None or device.type != "cuda":
        raise DeviceError(
            f"device.name: got {device}, which {ranks.size} processes would share; use cuda, which gives each its own "
            "GPU, or cpu"
        )
    number = gpu_of(ranks.world, torch.cuda.device_count())
    # A number names different GPUs in processes that do not see them all.
    check_gpus(ranks.gather((socket.gethostname(), str(torch.cuda.get_device_properties(number).uuid))))
    return torch.device("cuda", number)


def gpu_of(world: World, num_visible: int) -> int:
    """Return the number of a rank's GPU among those it sees: all of its node, or only its own, as with `srun`."""
    if num_visible == 1:
        return 0
    if world.local_size > num_visible:
        raise DeviceError(
            f"device.name: got {world.local_size} processes on a node with {num_visible} CUDA devices; start torchrun "
            f"with --nproc-per-node {num_visible}"
        )
    return world.local_rank


def check_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Reject ranks that share a GPU, which would slow each other down; `gpus` are host and UUID by rank."""
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise DeviceError(
                f"device.name: got the ranks {gpus.index(gpu)} and {rank} on one GPU of {gpu[0]}; start as many "
                "processes as there are GPUs, or let each see another one (srun --gpus-per-task=1)"
            )


def choose_device(name: str) -> torch.device:
    """Return a device of this machine: `auto` (cuda, else mps, else cpu), or torch's name, such as `cuda:1`."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device.name: got {name!r}, expected auto, cpu, mps, cuda or cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise DeviceError(
                f"device.name: got {name!r}, but this machine has {count} CUDA devices; try device.name=auto"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("device.name: got 'mps', but this machine has none; try device.name=auto")
    elif device.type not in ("cpu", "mps"):
        raise DeviceError(f"device.name: got {name!r}, expected auto, cpu, mps, cuda or cuda:N")
    return device


def _num_threads(wanted: int | None, device: torch.device) -> int | None:
    """Return the number of threads to set; None leaves it to torch."""
    import torch

    if wanted is not None or device.type != "cpu" or threads_sleep() or is_asked_for_threads():
        return wanted
    if torch.get_num_threads() == 1:
        return None
    _log.warning(
        "computing with 1 thread of %d: torch was imported before the lab, so its threads spin while they wait, which "
        "is many times slower where cores are busy; import sacristan.ingredients first, or choose device.num_threads",
        torch.get_num_threads(),
    )
    return 1


def _set_matmul_precision(precision: str) -> None:
    """Set the precision, and log it, as it changes the result of every matrix product."""
    import torch

    torch.set_float32_matmul_precision(precision)
    _log.info("float32 matrix products in %s precision (device.matmul_precision)", precision)


def _check_flags(deterministic: bool, cudnn_benchmark: bool, num_threads: int | None) -> None:
    if deterministic and cudnn_benchmark:
        raise DeviceError(
            "device: got deterministic=True and cudnn_benchmark=True, which contradict; turn one of them off"
        )
    if num_threads is not None and num_threads < 1:
        raise DeviceError(f"device.num_threads: got {num_threads}, expected at least 1 or None")


def _set_flags(deterministic: bool, cudnn_benchmark: bool, num_threads: int | None) -> None:
    import torch

    _check_flags(deterministic, cudnn_benchmark, num_threads)
    if deterministic:
        # cuBLAS reads it on first use: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    is_set = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if is_set != (deterministic, False):  # setting it imports torch's compiler, which takes two seconds
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    if num_threads is not None:
        torch.set_num_threads(num_threads)
