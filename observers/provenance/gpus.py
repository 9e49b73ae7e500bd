"""The GPUs of this machine by NVML, NVIDIA's management library, without a CUDA context.

NVML numbers all GPUs of the machine or container in its own order, and ignores `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["describe_gpus", "load_nvml", "open_gpus"]


def load_nvml() -> ModuleType:
    """Return the module `pynvml` of nvidia-ml-py.

    Call it on the main thread: a process that is forked while another thread imports a module cannot import it.
    """
    import pynvml

    return pynvml


@contextlib.contextmanager
def open_gpus(nvml: Any) -> Iterator[list[Any]]:
    """Yield NVML's handles of the GPUs, in its order; none without a driver of NVIDIA.

    Raises `nvml.NVMLError` if the driver does not answer.
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
    """Return name and memory of the GPUs, the driver's version, and the newest CUDA that it supports.

    Without a driver, `gpus` is empty and the versions are None; if the driver does not answer, `gpu_error` says why.
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
