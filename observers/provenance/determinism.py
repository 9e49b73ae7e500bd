"""The determinism flags, which decide whether a run repeats bit for bit; they are read without importing torch."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["read_flags", "torch_versions"]

_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")


def read_flags() -> dict[str, Any]:
    """Return the flags in the environment, and those of torch once it is imported; None for unknown ones."""
    found: dict[str, Any] = {name: os.environ.get(name) for name in _VARIABLES}
    torch = _loaded_torch()
    if torch is not None:
        found |= {name: _try(read, torch) for name, read in _OF_TORCH.items()}
    return found


def torch_versions() -> dict[str, Any]:
    """Return the versions of CUDA and cuDNN that torch is built with, None for none; empty before torch is imported."""
    torch = _loaded_torch()
    if torch is None:
        return {}
    return {"cuda": torch.version.cuda, "cudnn": _try(lambda torch: torch.backends.cudnn.version(), torch)}


def _loaded_torch() -> ModuleType | None:
    """Return torch if its import has finished: another thread may be importing it."""
    torch = sys.modules.get("torch")
    return None if torch is None or getattr(torch.__spec__, "_initializing", False) else torch


def _try(read: Callable[[ModuleType], Any], torch: ModuleType) -> Any:
    try:
        return read(torch)
    except Exception:  # torch raises once old and new flags for TF32 have been mixed
        return None


def _num_threads(torch: ModuleType) -> int:
    """Return the number of threads of one operation; a thread that asked before would get its old answer."""
    found = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.append(torch.get_num_threads())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join()
    return found[0]


def _precision(backend: Any) -> str:
    """Return the precision of float32 in matrix products or convolutions: ieee, tf32, or none, which means ieee."""
    # From torch 2.9 on, where reading the older flag warns.
    if hasattr(backend, "fp32_precision"):
        return backend.fp32_precision
    return "tf32" if backend.allow_tf32 else "ieee"


_OF_TORCH: dict[str, Callable[[ModuleType], Any]] = {
    "deterministic_algorithms": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "deterministic_warn_only": lambda torch: torch.is_deterministic_algorithms_warn_only_enabled(),
    "cudnn_deterministic": lambda torch: torch.backends.cudnn.deterministic,
    "cudnn_benchmark": lambda torch: torch.backends.cudnn.benchmark,
    "float32_matmul_precision": lambda torch: torch.get_float32_matmul_precision(),
    "cuda_matmul_float32": lambda torch: _precision(torch.backends.cuda.matmul),
    "cudnn_conv_float32": lambda torch: _precision(getattr(torch.backends.cudnn, "conv", torch.backends.cudnn)),
    "num_threads": _num_threads,
}
