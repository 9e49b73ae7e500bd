"""Rules of the packages: their imports, the names and exports of modules, and a description of every setting."""

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What of the lab a package may import besides itself.
MAY_IMPORT = {
    "configs": set(),
    "ingredients": {"configs", "observers", "runs"},
    "observers": {"configs"},
    "experiments": {"configs", "ingredients", "observers"},
    "runs": {"configs", "observers"},
    # the folder that is beside them, and holds the names
    "sacristan": {"configs", "experiments", "ingredients", "observers", "runs"},
}
# Every room of the house, from the ground up. A room is a sub-package, a module beside them, or the face of a package,
# its `__init__`; some have a room within. A room imports itself and rooms on lower floors, and none of its own floor.
FLOORS = [
    "old_names names_of_wandb configs.nearest configs.shielding",
    "configs.files configs.map configs.packages configs.slurm configs.standard_streams",
    "configs.importing",
    "configs",
    "observers.errors",
    "observers.record",
    "observers.record.points",
    "observers.record.journal",
    "observers.record.interface",
    "observers.artifacts observers.media observers.notifying observers.provenance",
    "observers.file",
    "observers.mongo observers.tensorboard",
    "observers.options",
    "observers",
    "runs.errors",
    "runs.query",
    "runs.query.index runs.drawing",
    "runs.stores",
    "runs.stores.folders",
    "runs.stores.mongo",
    "runs.stores.opening",
    "runs.transfer.trackers",
    "runs.comparison runs.notebooks runs.transfer",
    "runs.documents",
    "runs.documents.mcp",
    "runs.rerun",
    "runs.work",
    "runs.sweeps",
    "runs.board",
    "runs",
    "runs.commands",
    "ingredients.errors",
    "ingredients.config",
    "ingredients.ranks",
    "ingredients.datasets",
    "ingredients.models",
    "ingredients.checkpoints ingredients.losses",
    "ingredients.deployment",
    "ingredients.precision",
    "ingredients.commands",
    "ingredients.inspection",
    "AN INGREDIENT",
    "ingredients",
    "experiments.new experiments.running",
    "experiments.experiment experiments.training",
    "experiments.scripts",
    "experiments",
    "integrations",
    "experiments.supervised",
    "experiments.finetune experiments.gan experiments.language_model experiments.lightning"
    " experiments.probe experiments.segment experiments.tabular experiments.text",
    "sacristan",
    "command_line",
    "__main__",
    "experiments.__main__ runs.__main__",
]
INGREDIENTS = [
    f"sacristan.ingredients.{path.stem}"
    for path in sorted((ROOT / "ingredients").glob("*.py"))
    if re.search(r"^ingredient = ", path.read_text(encoding="utf-8"), re.MULTILINE)
]
FLOOR = {
    room if room.startswith("sacristan") else f"sacristan.{room}": number
    for number, rooms in enumerate(FLOORS)
    for room in (INGREDIENTS if rooms == "AN INGREDIENT" else rooms.split())
}
# Folders and files at the top of a package.
MOST_AT_TOP = {"runs": 15, "observers": 11}
FILES = sorted(
    path
    for package in MAY_IMPORT
    for path in (ROOT / package).rglob("*.py")  # not through the links to the others
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "sacristan" else ("sacristan", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(name):
    """Return the folder at the top of the repository that a module, or what is in it, is imported from."""
    within = [*name.split("."), ""][1]
    return within if within in MAY_IMPORT else name.partition(".")[0]


MODULES = {module_name(path): path for path in FILES}
# Their own tests look at what they export, as importing the libraries takes seconds.
OF_LIBRARIES = {
    "sacristan.experiments.lightning",
    "sacristan.experiments.running.lightning_logger",
    *(name for name in MODULES if name.startswith("sacristan.integrations.")),
}


@functools.cache
def parse(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def statements(body):
    """Return all statements of a body and within them, without what they compute: imports are statements."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, part, ()))


@functools.cache
def imported(name):
    """Return the dotted name of everything that a module imports: at its top, in functions, and for types alone."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in statements(parse(name).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def tops(name):
    """Return the packages that a module imports from: those of the lab, and the top-level ones of others."""
    return {package_of(found) for found in imported(name)}


# Imports


def test_modules_import_only_what_their_package_may():
    strange = {}
    for name in MODULES:
        package = package_of(name)
        strange[name] = tops(name) & {*MAY_IMPORT, "exp", "tests"} - {package, "sacristan"} - MAY_IMPORT[package]
    assert {name: found for name, found in strange.items() if found} == {}


def test_runs_import_no_torch():
    assert [name for name in MODULES if package_of(name) == "runs" and "torch" in tops(name)] == []


@pytest.mark.slow
def test_runs_load_neither_torch_nor_sacred():
    names = [name for name in MODULES if package_of(name) == "runs"]
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "print([heavy for heavy in ('torch', 'sacred', 'pandas', 'rich') if heavy in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_module_is_called_like_what_its_package_exports(package):
    # Once such a module is imported, it takes the place of the other in the package.
    face = "sacristan" if package == "sacristan" else f"sacristan.{package}"
    module = importlib.import_module(face)
    exported = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    homes = {name.removeprefix(f"{face}.") for name in MODULES}
    assert exported & homes == set()


def room_of(name):
    parts = name.split(".")
    rooms = (".".join(parts[:depth]) for depth in (4, 3, 2, 1))
    return next((room for room in rooms if room in FLOOR and room != "sacristan"), name)


def modules_imported(name):
    """Return the modules of the lab that a module imports anywhere."""
    found = {one if one in MODULES else one.rpartition(".")[0] for one in imported(name)}
    return found & MODULES.keys() - {name}


def test_every_room_has_a_floor():
    assert {room_of(name) for name in MODULES} == FLOOR.keys()
    for package, most in MOST_AT_TOP.items():
        paths = (ROOT / package).iterdir()
        top = {path.name for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert len(top) <= most


def test_modules_import_only_their_own_room_and_lower_floors():
    rooms = {name: room_of(name) for name in MODULES}
    imports = [(name, found) for name in MODULES for found in modules_imported(name) if rooms[found] != rooms[name]]
    assert [(name, found) for name, found in imports if FLOOR[rooms[found]] >= FLOOR[rooms[name]]] == []


def test_modules_import_each_other_without_a_cycle():
    graph = {name: modules_imported(name) for name in MODULES}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


def test_declaring_modules_import_no_torch():
    script = """
import importlib, json, sys
HEAVY = ("torch", "lightning", "sklearn", "pandas", "incense", "psutil", "pynvml")
loaded = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    loaded[name] = [heavy for heavy in HEAVY if heavy in sys.modules]
print(json.dumps(loaded))
"""
    names = [
        *("sacristan", "sacristan.configs", "sacristan.runs", *INGREDIENTS, "sacristan.experiments"),
        *(f"sacristan.experiments.{name}" for name in ("language_model", "lightning", "finetune", "tabular", "text")),
        "exp",
    ]
    command = [sys.executable, "-c", script, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {name: [] for name in names}


# Names


def test_modules_are_called_after_what_they_hold():
    parts = {part for name in MODULES for part in name.split(".")} | {"exp"}
    assert not parts & {"util", "utils", "helper", "helpers", "common", "misc"}


def test_modules_are_not_called_like_those_of_the_standard_library():
    parts = {part for name in MODULES for part in name.split(".") if not part.startswith("__")} | {"exp"}
    assert not parts & sys.stdlib_module_names


def undocumented(name):
    """Return what is missing in a module: its docstring, its exports, or those of its public names."""
    module = importlib.import_module(name)
    missing = [] if module.__doc__ else [f"{name} has no docstring"]
    body = parse(name).body
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    exported = getattr(module, "__all__", [])
    has_names = any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ImportFrom | ast.Assign) for node in body)
    if MODULES[name].name == "__init__.py" and has_names and not exported:
        missing.append(f"{name} has no __all__")
    missing += [f"{name} has no {each}" for each in exported if not hasattr(module, each)]
    things = {each: getattr(module, each, None) for each in [*exported, *defined]}
    documented = [each for each, thing in things.items() if inspect.isroutine(thing) or inspect.isclass(thing)]
    return missing + [f"{name}.{each} has no docstring" for each in documented if not inspect.getdoc(things[each])]


def test_packages_export_what_they_have_and_modules_document_it():
    names = [name for name in MODULES if name not in OF_LIBRARIES and not name.endswith("__main__")]
    assert [line for name in sorted(names) for line in undocumented(name)] == []


def test_packages_of_the_lab_are_all_looked_at():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests", "benchmarks", "docs"} == MAY_IMPORT.keys()


def test_architecture_page_names_files_and_rooms_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {path for path in re.findall(r"`([\w/.]+)`", page) if "/" in path and path.partition("/")[0] in MAY_IMPORT}
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values() if path.name == "__init__.py"}
    top = {room for room in rooms if room.count("/") == 1}
    assert [room for room in sorted(top) if f"{room.partition('/')[2]}/" not in page] == []


# Settings


@pytest.fixture(scope="module")
def experiment():
    spec = importlib.util.spec_from_file_location("exp_under_test", ROOT / "exp.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ex


@pytest.mark.parametrize("model", ["mlp", "cnn", "vit"])
def test_every_entry_has_a_description(experiment, capsys, model):
    for command in ("main", "sweep.run", "export"):
        experiment.run_commandline(["exp.py", "print_config", command, "with", f"model.name={model}"])
    lines = capsys.readouterr().out.splitlines()
    heads = [f"{part.path}:" for part, depth in experiment.traverse_ingredients() if depth]
    assert set(heads) <= set(lines)
    assert [line for line in lines if line not in heads and not re.search(r"  # (\[|\w)", line)] == []
    # One that is cut begins or ends within a sentence.
    docs = [re.sub(r"^\[.*?\] ", "", line.partition("  # ")[2]) for line in lines if line not in heads]
    cut = re.compile(r"^[^({\[]*[)}\]]|[({\[][^)}\]]*$|(,|:|;| a| an| the| of| or| and)$")
    assert [doc for doc in docs if cut.search(doc)] == []


def test_every_named_config_and_command_has_a_description(experiment):
    named = dict(experiment.gather_named_configs()) | dict(experiment.gather_commands())
    assert [name for name, thing in named.items() if not thing.__doc__] == []


def test_every_ingredient_module_is_part_of_the_experiment(experiment):
    used = {part for part, _ in experiment.traverse_ingredients()}
    assert [name for name in INGREDIENTS if importlib.import_module(name).ingredient not in used] == []
