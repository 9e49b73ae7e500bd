"""`Gathering`: collects what a run is made of while it is active, and keeps `provenance.json` up to date.

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
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sacristan.configs.packages import packages_in
from sacristan.observers.provenance import lab_git_state, lab_version
from sacristan.observers.provenance.sources import (
    Libraries,
    OpenedFiles,
    changed_libraries,
    imported_files,
    variables_in,
)
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.schema import PROVENANCE

_log = logging.getLogger(__name__)

_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")


def read_flags() -> dict[str, Any]:
    """Return the flags in the environment, and those of torch once it is imported; None for unknown ones."""
    flags: dict[str, Any] = {name: os.environ.get(name) for name in _VARIABLES}
    torch = _loaded_torch()
    if torch is not None:
        flags |= {name: _try(read, torch) for name, read in _OF_TORCH.items()}
    return flags


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
    answers = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            answers.append(torch.get_num_threads())

    thread = threading.Thread(target=ask, name="sacristan-threads", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python is exiting
        ask()
    else:
        thread.join()
    return answers[0]


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


class Gathering:
    """Gathers git, packages, libraries and machine in a thread, and determinism flags whenever `look` is called.

    Flags may be set during the run, and torch imported late, so flags and libraries are read when the run is created,
    with its heartbeats, and at its end; then the files and environment variables that it has read are recorded, too
    (with `with_reads`). The caller of `look` holds `lock`. `note_changes` receives the differences from the first
    session.
    """

    def __init__(
        self,
        journal: Journal,
        lock: threading.RLock,
        experiment: Mapping[str, Any],
        note_changes: Callable[[dict[str, Any]], None] | None = None,
        *,
        with_reads: bool = True,
    ) -> None:
        self._journal = journal
        self._note_changes = note_changes
        self._lock = lock
        self._base_dir = Path(experiment["base_dir"])
        self._mainfile = self._base_dir / experiment["mainfile"] if experiment.get("mainfile") else None
        self._nvml = load_nvml()
        self._found: dict[str, Any] | None = None
        self._is_ending = False
        self._first: dict[str, Any] = {}
        self._flags: dict[str, Any] = {}
        self._reads: dict[str, dict[str, Any]] = {}
        self._opened = OpenedFiles(_folders(self._base_dir), journal.folder.parent) if with_reads else None
        if self._opened is not None:
            self._opened.begin()
        self.look()
        self._libraries = Libraries(self._base_dir)
        self._thread = self._begin(self._gather)

    def _begin(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name="sacristan-provenance", daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Read the flags, and write changes; gather libraries that were imported since."""
        if self._found is not None and self._libraries.is_stale and not self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # Python is exiting and starts no thread; `join` gathers them
                self._thread = self._begin(self._gather_libraries)
        flags = read_flags()
        if flags != self._flags:
            self._first = {**flags, **self._first}
            self._flags = flags
            self._write()

    def join(self, timeout_s: float) -> None:
        """Wait until everything is gathered; do not call it under the lock."""
        self._is_ending = self._opened is not None
        self._thread.join(timeout_s)
        if not self._thread.is_alive() and self._libraries.is_stale:
            self._gather_libraries()
        if self._opened is not None:
            self._gather_reads(self._opened)

    def _gather_reads(self, opened: OpenedFiles) -> None:
        opened.end()
        reads: dict[str, dict[str, Any]] = {}
        try:
            sources = imported_files(self._base_dir, self._mainfile)
            reads = {"reads": {"files": opened.contents(), "variables": variables_in(sources)}}
        except Exception:
            _log.exception("reads: could not be gathered; provenance.json goes without")
        with self._lock:
            self._reads, self._is_ending = reads, False
            self._write()

    def _gather(self) -> None:
        """Gather everything that takes long; parts that fail are left out."""
        parts = {
            "git": lambda: lab_git_state(self._base_dir, self._mainfile),
            "lab": lab_version,
            "packages": packages,
            "libraries": self._find_libraries,
            "machine": lambda: machine(self._nvml),
        }
        gathered = {}
        for name, gather in parts.items():
            try:
                gathered[name] = gather()
            except Exception:
                _log.exception("%s: could not be gathered; provenance.json goes without", name)
        with self._lock:
            self._found = gathered
            if not self._is_ending:  # else it is written with what the run has read
                self._write()

    def _find_libraries(self) -> dict[str, Any]:
        self._libraries.look()
        return self._libraries.found

    def _gather_libraries(self) -> None:
        try:
            is_new = self._libraries.look()
        except Exception:
            _log.exception("libraries: could not be gathered; provenance.json goes without the latest")
            return
        with self._lock:
            if is_new and self._found is not None:
                self._found = {**self._found, "libraries": self._libraries.found}
                self._write()

    def _write(self) -> None:
        if self._found is None:
            return
        before = {name: value for name, value in self._first.items() if value != self._flags.get(name, value)}
        document = {**self._found, "determinism": self._flags, **self._reads}
        if "machine" in document:
            document["machine"] = {**document["machine"], **torch_versions()}
        self._write_down({**document, "determinism_before": before} if before else document)

    def _write_down(self, document: dict[str, Any]) -> None:
        if self._note_changes is not None:
            try:
                first = parse_json((self._journal.folder / PROVENANCE).read_bytes())
            except (OSError, ValueError):
                self._note_changes = None  # no earlier session has written it
            else:
                self._note_changes(environment_changes(first, document))
                return
        self._journal.write(PROVENANCE, document)


def _folders(base_dir: Path) -> list[Path]:
    """Return the folders that a run reads files from: the working folder, if it exists, and that of its code."""
    try:
        return [Path.cwd(), base_dir]
    except FileNotFoundError:
        return [base_dir]


# Texts of any length, which only the first session records.
_NOT_COMPARED = {"diff", "untracked"}


_COMPARED = ("git", "packages", "machine", "determinism")


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Return what differs as `{part: {name: [was, is]}}`; libraries are compared by their digests."""
    changes = {part: _differences(part, before.get(part) or {}, now.get(part) or {}) for part in _COMPARED}
    old, new = before.get("libraries") or {}, now.get("libraries") or {}
    changes["libraries"] = {
        name: [old[name].get("digest"), new[name].get("digest")] for name in changed_libraries(old, new)
    }
    return {part: pairs for part, pairs in changes.items() if pairs}


def _differences(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    # Parts of the machine and of the flags are known only once torch is imported.
    names = old.keys() | new.keys() if part in ("git", "packages") else new.keys()
    return {
        name: [old.get(name), new.get(name)] for name in sorted(names - _NOT_COMPARED) if old.get(name) != new.get(name)
    }


def load_nvml() -> ModuleType | None:
    """Return `pynvml`; None without a driver. Call it on the main thread: forks during an import cannot import it."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libnvidia-ml.so.1")  # what pynvml loads
        except OSError:
            return None
    import pynvml

    return pynvml


@contextlib.contextmanager
def open_gpus(nvml: Any) -> Iterator[list[Any]]:
    """Yield NVML's handles in its order, none without a driver; raise NVMLError if that does not answer."""
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
    """Return GPUs, driver and the newest CUDA it supports; `gpu_error` if the driver does not answer."""
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
