"""The GPUs of this machine by NVML, NVIDIA's management library: no CUDA context is made, and none is needed.

NVML numbers all GPUs of the machine or container in an order of its own; `CUDA_VISIBLE_DEVICES` means nothing to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["describe_gpus", "load_nvml", "open_gpus"]


def load_nvml() -> ModuleType:
    """Return the module `pynvml` of nvidia-ml-py.

    To be called on the main thread: a process that is forked while another thread imports a module cannot import it.
    """
    import pynvml

    return pynvml


@contextlib.contextmanager
def open_gpus(nvml: Any) -> Iterator[list[Any]]:
    """Give NVML's handles of the GPUs, in its order; none where there is no driver of NVIDIA.

    Args:
        nvml: The module `pynvml`, or what stands in for it.

    Raises:
        nvml.NVMLError: If there is a driver, and it does not answer.
    """
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        yield []
        return
    try:
        yield [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def describe_gpus(nvml: Any) -> dict[str, Any]:
    """Return the GPUs with name and memory, the driver's version, and the newest CUDA that it can run.

    Without a driver `gpus` is empty and the versions are None; a driver that does not answer leaves its `gpu_error`.
    """
    found: dict[str, Any] = {"gpus": [], "gpu_driver": None, "gpu_driver_cuda": None}
    try:
        with open_gpus(nvml) as handles:
            if handles:
                number = nvml.nvmlSystemGetCudaDriverVersion()
                found["gpu_driver"] = nvml.nvmlSystemGetDriverVersion()
                found["gpu_driver_cuda"] = f"{number // 1000}.{number % 1000 // 10}"
            for handle in handles:
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
                found["gpus"].append({"name": nvml.nvmlDeviceGetName(handle), "memory_bytes": memory})
    except nvml.NVMLError as error:
        found["gpu_error"] = str(error)
    return found
