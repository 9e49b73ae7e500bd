# ruff: noqa: N801, N802, N818 - the names are NVML's
from __future__ import annotations

import types

import pytest


class Nvml:
    """Stands in for the module `pynvml` on a machine with two GPUs; it was written after NVML's documentation.

    Attributes:
        broken: Names of functions that fail.
        unsupported: Pairs (function, index of a GPU) that this GPU does not support.
        num_open: Initialisations that have not been shut down.
    """

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    class NVMLError_DriverNotLoaded(NVMLError):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self):
        self.broken = {}
        self.unsupported = set()
        self.num_open = 0

    def _call(self, name, handle=None):
        if name in self.broken:
            raise self.broken[name]
        if (name, handle) in self.unsupported:
            raise self.NVMLError_NotSupported("Not Supported")

    def nvmlInit(self):
        self._call("nvmlInit")
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlDeviceGetCount(self):
        self._call("nvmlDeviceGetCount")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion(self):
        return 12080

    def nvmlDeviceGetName(self, handle):
        return ("NVIDIA H100", "NVIDIA L4")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._call("nvmlDeviceGetMemoryInfo", handle)
        return types.SimpleNamespace(total=(80 + handle) * 2**30, used=(handle + 1) * 2**20)

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._call("nvmlDeviceGetUtilizationRates", handle)
        return types.SimpleNamespace(gpu=70 + handle, memory=5)


@pytest.fixture
def nvml() -> Nvml:
    """A stand-in for the module `pynvml`: two GPUs, which can be broken."""
    return Nvml()
