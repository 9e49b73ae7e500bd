import importlib.metadata
import json
import platform
import types

import pytest

from sacristan.observers.provenance.gathering import machine, packages
from sacristan.runs import StoreError, open_store
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.environment import compare_environment, compare_flags, compare_libraries, requirements

SOURCE = "import torch\nimport numpy as np\n\ndef f():\n    from sklearn import metrics\n"


@pytest.fixture
def record(tmp_path):
    """Record a run of this environment; `change` changes its provenance."""

    def write(change=lambda found: None, *, stock=False, number="1"):
        folder = tmp_path / "store" / number
        folder.mkdir(parents=True)
        (folder.parent / "_sources").mkdir(exist_ok=True)
        (folder.parent / "_sources" / "exp.py").write_text(SOURCE)
        experiment = {"name": "exp", "mainfile": "exp.py", "sources": [["exp.py", "_sources/exp.py"]]}
        host = {"python_version": platform.python_version(), "os": ["Linux", platform.platform()]}
        document = {"experiment": experiment, "host": host, "command": "main", "status": "COMPLETED"}
        flags = {"PYTHONHASHSEED": None, "CUBLAS_WORKSPACE_CONFIG": None, "num_threads": 1}
        found = {"packages": packages(), "machine": machine()}
        found |= {"determinism": flags, "libraries": {}}
        if stock:
            experiment["dependencies"] = [
                "numpy==1.0",
                f"torch=={importlib.metadata.version('torch')}",
                "odd==<unknown>",
            ]
        change(document if stock else found)
        (folder / "run.json").write_text(json.dumps(document))
        if not stock:
            (folder / "provenance.json").write_text(json.dumps(found))
        return open_store(folder.parent).get(number)

    return write


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_same_environment_has_no_differences(record):
    found = compare_environment(Record(record()))
    assert (found.differences, found.notes) == ((), ())


def test_packages_that_the_run_could_import_are_loud(record):
    def change(found):
        found["packages"] |= {"numpy": "1.0", "scipy": "1.1", "ruff": "0.0.1", "gone": "1"}
        del found["packages"]["sympy"]

    found = compare_environment(Record(record(change)))
    # scikit-learn needs scipy, torch needs sympy.
    assert sorted(one.name for one in found.loud) == ["numpy", "scipy", "sympy"]
    assert sorted(one.name for one in found.differences if not one.is_loud) == ["gone", "ruff"]
    texts = {one.name: one.text for one in found.differences}
    assert texts["numpy"] == f"package numpy: recorded 1.0, now {importlib.metadata.version('numpy')}"
    assert texts["gone"] == "package gone: recorded 1, now not there"


def test_spelling_of_a_package_is_no_difference(record):
    def change(found):
        found["packages"]["Scikit_Learn"] = found["packages"].pop("scikit-learn")

    assert compare_environment(Record(record(change))).differences == ()


def test_python_and_machine_are_named(record):
    def change(found):
        found["machine"] |= {"python": "3.10.1", "cpu": "Other", "os": "Other", "gpus": [{"name": "H100"}]}

    found = compare_environment(Record(record(change)))
    assert {one.name: one.is_loud for one in found.differences} == {
        "python": True,
        "processor": True,
        "GPUs": True,
        "OS": False,
    }
    assert found.differences[0].text == f"python: recorded 3.10.1, now {platform.python_version()}"
    assert any(one.text.startswith("machine GPUs: recorded H100, now ") for one in found.loud)


def test_flags_of_the_environment_are_told(record, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    [one] = compare_environment(Record(record())).differences
    assert (one.name, one.recorded, one.now, one.is_loud) == ("PYTHONHASHSEED", None, "7", False)


def test_recorded_variables_are_compared(record, monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "/other")
    monkeypatch.setenv("SAME", "1")
    monkeypatch.delenv("GONE", raising=False)
    variables = {"DATA_ROOT": "/data", "SAME": "1", "GONE": None}
    run = record(number="1")
    document = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**document, "meta": {"environment": variables}}))
    [one] = compare_environment(Record(run.store.get("1"))).loud
    assert one.text == "variable DATA_ROOT: recorded /data, now /other"


def test_flags_of_two_runs_are_compared(record):
    def change(found):
        found["determinism"] |= {"num_threads": 4}

    [one] = compare_flags(Record(record(change)), Record(record(number="2")))
    assert one.text == "flag num_threads: recorded 4, now 1"


def test_record_of_stock_sacred_is_compared_as_far_as_it_goes(record):
    def change(document):
        document["host"]["python_version"] = "3.8.0"

    found = compare_environment(Record(record(change, stock=True)))
    assert sorted(one.name for one in found.loud) == ["numpy", "python"]
    assert len(found.notes) == 3


def test_requirements_pin_what_was_installed(record):
    text = requirements(Record(record()))
    lines = text.splitlines()
    assert f"numpy=={importlib.metadata.version('numpy')}" in lines
    assert not any(line.lower().startswith(("sacristan==", "pip==")) for line in lines)
    assert any(line.startswith("# sacristan==") for line in lines)
    assert platform.python_version() in lines[0]


def test_requirements_of_a_build_of_torch_say_where_it_is(record):
    text = requirements(Record(record(lambda found: found["packages"].update(torch="2.5.0+cu121"))))
    assert "--extra-index-url https://download.pytorch.org/whl/cu121\n" in text
    assert "torch==2.5.0+cu121\n" in text


def test_requirements_without_packages_are_refused(record):
    with pytest.raises(StoreError, match="names no packages"):
        requirements(Record(record(lambda found: found.update(packages={}))))


@pytest.mark.parametrize(("own", "is_named"), [("train.py", True), ("configs/map.py", False)])
def test_module_of_an_editable_lab_is_not_named_where_the_record_has_its_other_modules(monkeypatch, own, is_named):
    homes = {"configs": ["sacristan"], "runs": ["sacristan"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: homes)
    old = types.SimpleNamespace(libraries={}, packages={"sacristan": "0.2.0"}, sources={own: None})
    new = types.SimpleNamespace(libraries={"runs": {"folder": "/restored"}})
    found = [entry.text for entry in compare_libraries(old, new)]
    expected = "library runs: recorded of the installed package sacristan 0.2.0, now in /restored"
    assert found == ([expected] if is_named else [])
