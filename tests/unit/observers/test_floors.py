"""The rooms of `observers` stand on floors: imports lead downwards only, lazy and type-only ones included."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "observers"
# A room imports itself and what is below it.
FLOORS = [
    {"errors"},
    {"record"},
    {"media", "artifacts", "provenance"},
    {"file"},
    {"mongo", "tensorboard"},
    {"options", "__init__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def room_of(name):
    return name.split(".")[1] if "." in name else "__init__"


def imports_of(name):
    """Return the modules of the package that a module imports anywhere: at its top, in functions, for types."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & MODULES.keys() - {name, "observers"}


def test_every_room_has_a_floor():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == FLOOR.keys()
    assert len(rooms) <= 10


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_from_its_own_room_or_a_lower_floor(name):
    room = room_of(name)
    upwards = {found for found in imports_of(name) if room_of(found) != room and FLOOR[room_of(found)] >= FLOOR[room]}
    assert upwards == set()


def test_modules_import_each_other_without_a_cycle():
    graph = {name: imports_of(name) for name in MODULES}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


def test_record_needs_neither_torch_nor_sacred():
    names = [name for name in MODULES if room_of(name) in ("errors", "record")]
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "print([heavy for heavy in ('torch', 'sacred', 'pymongo', 'pandas') if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
