"""The machine of a run, and its installed packages.

GPUs come from NVML, NVIDIA's management library, without a CUDA context. NVML numbers all GPUs of the machine or
container in its own order, and ignores `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sacristan.configs.installation import packages_in

__all__ = ["describe_gpus", "load_nvml", "machine", "open_gpus", "packages"]

_log = logging.getLogger(__name__)


def load_nvml() -> ModuleType | None:
    """Return the module `pynvml` of nvidia-ml-py; None without a driver of NVIDIA, as it takes 8 ms to import.

    Call it on the main thread: a process that is forked while another thread imports a module cannot import it.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libnvidia-ml.so.1")  # what pynvml loads
        except OSError:
            return None
    import pynvml

    return pynvml


@contextlib.contextmanager
def open_gpus(nvml: Any) -> Iterator[list[Any]]:
    """Yield NVML's handles of the GPUs, in its order; none without a driver of NVIDIA.

    Raises `nvml.NVMLError` if the driver does not answer.
    """
    if nvml is None:
        yield []
        return
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
    description: dict[str, Any] = {"gpus": [], "gpu_driver": None, "gpu_driver_cuda": None}
    if nvml is None:
        return description
    try:
        with open_gpus(nvml) as handles:
            if handles:
                number = nvml.nvmlSystemGetCudaDriverVersion()
                description["gpu_driver"] = nvml.nvmlSystemGetDriverVersion()
                description["gpu_driver_cuda"] = f"{number // 1000}.{number % 1000 // 10}"
            for handle in handles:
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
                description["gpus"].append({"name": nvml.nvmlDeviceGetName(handle), "memory_bytes": memory})
    except nvml.NVMLError as error:
        description["gpu_error"] = str(error)
    return description


# ---------------------------------------------------------------------- packages and machine


def packages() -> dict[str, str]:
    """Return name and version of every installed package."""
    versions: dict[str, str] = {}
    for entry in sys.path:
        versions = {**_packages(*_folder_state(entry)), **versions}
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def _folder_state(entry: str) -> tuple[str, int]:
    """Return a folder on the search path, and when a package was last added or removed."""
    path = Path(entry)
    try:
        path = path.absolute()
        return str(path), path.stat().st_mtime_ns
    except OSError:
        return str(path), 0


@functools.lru_cache(64)
def _packages(folder: str, _: int) -> dict[str, str]:
    """Return the packages in a folder; the time of its last change is part of the cache's key."""
    if "_vendor" in Path(folder).parts:  # setuptools adds its own copies of packages to the end of the path
        return {}
    versions: dict[str, str] = {}
    for package in packages_in(folder):
        versions.setdefault(package.name, package.version)
    return versions


def machine(nvml: Any = None) -> dict[str, Any]:
    """Return OS, CPU, memory and GPUs of the machine, and the Python that runs; None for unknown values."""
    return {
        "os": platform.platform(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        **describe_gpus(nvml or load_nvml()),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
