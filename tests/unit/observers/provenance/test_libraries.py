import importlib
import subprocess
import sys
import types

import pytest

from sacristan.observers.provenance.gathering import environment_changes
from sacristan.observers.provenance.sources import Libraries, changed_libraries


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package `loose_parts` on the path, and a lab beside it."""
    for name, text in (("__init__", ""), ("one", "value = 1\n"), ("two", "value = 2\n")):
        path = tmp_path / "library" / "loose_parts" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lab").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    yield tmp_path / "library"
    for name in [name for name in sys.modules if name.startswith("loose_parts")]:
        del sys.modules[name]


def test_imported_files_of_a_library_have_digests_and_its_commit(library, tmp_path):
    git = ["git", "-C", str(library), "-c", "user.name=lab", "-c", "user.email=lab@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    libraries = Libraries(tmp_path / "lab")
    importlib.import_module("loose_parts.one")
    assert libraries.look()
    first = libraries.found["loose_parts"]
    assert (first["folder"], first["commit"]) == (str(library), commit)
    assert sorted(first["files"]) == ["loose_parts/__init__.py", "loose_parts/one.py"]
    assert not libraries.look()
    importlib.import_module("loose_parts.two")
    assert libraries.is_stale
    assert libraries.look()
    assert "loose_parts/two.py" in libraries.found["loose_parts"]["files"]


def test_packages_pythons_own_modules_and_the_labs_are_no_libraries(library, tmp_path, monkeypatch):
    module = types.ModuleType("of_the_lab")
    module.__file__ = str(tmp_path / "lab" / "of_the_lab.py")
    (tmp_path / "lab" / "of_the_lab.py").write_text("")
    monkeypatch.setitem(sys.modules, "of_the_lab", module)
    libraries = Libraries(tmp_path / "lab")
    libraries.look()
    assert not {"numpy", "pytest", "json", "_ctypes", "of_the_lab"} & set(libraries.found)


def test_files_that_both_have_decide_whether_a_library_changed():
    old = {"part": {"digest": "a", "files": {"part/a.py": "1", "part/b.py": "2"}}, "gone": {"files": {"gone.py": "1"}}}
    new = {"part": {"digest": "b", "files": {"part/a.py": "1", "part/c.py": "2"}}}
    assert changed_libraries(old, new) == {}
    new["part"]["files"]["part/b.py"] = "3"
    assert changed_libraries(old, new) == {"part": ["part/b.py"]}
    assert environment_changes({"libraries": old}, {"libraries": new}) == {"libraries": {"part": ["a", "b"]}}
