import pynvml
import pytest

from sacristan.observers.provenance.gathering import describe_gpus, load_nvml, open_gpus


def test_describe_gpus_names_them_and_the_driver_and_shuts_nvml_down(nvml):
    assert describe_gpus(nvml) == {
        "gpus": [
            {"name": "NVIDIA H100", "memory_bytes": 80 * 2**30},
            {"name": "NVIDIA L4", "memory_bytes": 81 * 2**30},
        ],
        "gpu_driver": "570.86.15",
        "gpu_driver_cuda": "12.8",
    }
    assert nvml.num_open == 0


@pytest.mark.parametrize("kind", ["NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"])
def test_describe_gpus_without_a_driver_finds_none(nvml, kind):
    nvml.broken["nvmlInit"] = getattr(nvml, kind)("none here")
    assert describe_gpus(nvml) == {"gpus": [], "gpu_driver": None, "gpu_driver_cuda": None}


def test_describe_gpus_keeps_the_error_of_a_driver_that_does_not_answer(nvml):
    nvml.broken["nvmlDeviceGetMemoryInfo"] = nvml.NVMLError("GPU is lost")
    found = describe_gpus(nvml)
    assert (found["gpu_driver"], found["gpus"], found["gpu_error"]) == ("570.86.15", [], "GPU is lost")
    assert nvml.num_open == 0


def test_open_gpus_passes_on_other_trouble(nvml):
    nvml.broken["nvmlInit"] = nvml.NVMLError("Driver/library version mismatch")
    with pytest.raises(nvml.NVMLError, match="version mismatch"), open_gpus(nvml):
        pass


def test_the_real_nvml_has_every_name_that_is_used(nvml):
    names = [name for name in dir(nvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_the_real_nvml_describes_this_machine():
    found = describe_gpus(load_nvml())
    assert all(gpu["name"] and gpu["memory_bytes"] > 0 for gpu in found["gpus"])
    assert bool(found["gpus"]) == bool(found["gpu_driver"])
