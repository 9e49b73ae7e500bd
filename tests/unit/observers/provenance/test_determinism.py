import json
import os
import sys
import threading
import types

import pytest

from sacristan.observers.provenance.gathering import read_flags, torch_versions
from tests.processes import PIPE, run

# What is changed, and what is read differently after that. After the last one torch refuses to tell the old switch.
CHANGES = {
    "torch.use_deterministic_algorithms(True)": {"deterministic_algorithms": True},
    "torch.use_deterministic_algorithms(True, warn_only=True)": {"deterministic_warn_only": True},
    "torch.backends.cudnn.deterministic = True": {"cudnn_deterministic": True},
    "torch.backends.cudnn.benchmark = True": {"cudnn_benchmark": True},
    "torch.set_float32_matmul_precision('high')": {"float32_matmul_precision": "high", "cuda_matmul_float32": "tf32"},
    "torch.backends.cudnn.allow_tf32 = False": {"cudnn_conv_float32": "none"},
    "torch.set_num_threads(3)": {"num_threads": 3},
    "os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':16:8'": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
    "torch.set_float32_matmul_precision('highest'); torch.backends.cuda.matmul.fp32_precision = 'tf32'": {
        "float32_matmul_precision": None
    },
}
BEFORE = """
import json, sys
from sacristan.observers.provenance.gathering import read_flags, torch_versions
print(json.dumps([read_flags(), torch_versions(), "torch" in sys.modules]))
"""
SCRIPT = """
import json, os, sys, warnings
from sacristan.observers.provenance.gathering import read_flags
import torch
found = [read_flags()]
for change in json.loads(sys.argv[1]):
    exec(change)
    warnings.simplefilter("error")
    found.append(read_flags())
    warnings.resetwarnings()
print(json.dumps(found))
"""


def variables(**more):
    return {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"} | more


def test_read_flags_without_torch_does_not_import_it():
    command = [sys.executable, "-c", BEFORE]
    done = run(command, stdout=PIPE, text=True, check=True, env=variables(PYTHONHASHSEED="7"), cold=True)
    assert json.loads(done.stdout) == [{"PYTHONHASHSEED": "7", "CUBLAS_WORKSPACE_CONFIG": None}, {}, False]


@pytest.fixture(scope="module")
def readings():
    """Read the switches in a process of its own: with torch, and after each change."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(list(CHANGES))]
    return json.loads(run(command, stdout=PIPE, text=True, check=True, env=variables()).stdout)


@pytest.mark.parametrize("change", CHANGES)
def test_read_flags_tells_what_changed_and_only_that(readings, change):
    position = list(CHANGES).index(change)
    before, after = readings[position : 2 + position]
    assert {name: value for name, value in after.items() if value != before[name]} == CHANGES[change]


def test_read_flags_sees_threads_set_after_another_thread_asked():
    import torch

    before, asked, changed, seen = torch.get_num_threads(), threading.Event(), threading.Event(), []

    def beat():
        read_flags()
        asked.set()
        changed.wait()
        seen.append(read_flags()["num_threads"])

    thread = threading.Thread(target=beat)
    thread.start()
    asked.wait()
    torch.set_num_threads(before + 1)
    changed.set()
    thread.join()
    torch.set_num_threads(before)
    assert seen == [before + 1]


def test_read_flags_while_torch_is_being_imported_leaves_it_alone(monkeypatch):
    half = types.ModuleType("torch")
    half.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", half)
    assert set(read_flags()) == {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"}
    assert torch_versions() == {}


def test_torch_versions_are_those_of_torch():
    import torch

    assert torch_versions() == {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
