"""The examples in the docstrings of what the packages export: each runs, in a run or over records of its own."""

import doctest
import importlib
import inspect
import shutil
import textwrap
import types
from pathlib import Path

import pytest
import torch

from sacristan import experiments, ingredients, observers, runs
from sacristan.experiments import Experiment
from sacristan.ingredients import amp, data, device, loss, metrics, model, optimizer, scheduler, training
from sacristan.observers import FileObserver, run_folder
from tests.earlier_stores import ARCHIVES, unpack
from tests.processes import warm_children

ROOT = Path(__file__).parents[2]

PARTS = (device, data, loss, metrics, model, optimizer, scheduler, amp, training, ingredients.checkpoint)
SETTINGS = {"data.limit": 90, "data.batch_size": 16, "model.options.hidden": [8], "training.epochs": 1, "seed": 0}


def documented():
    """Yield name and docstring of everything exported, and of the functions of the ingredients' modules."""
    for package in (experiments, ingredients):
        for name in package.__all__:
            thing = getattr(package, name)
            members = [(name, thing)]
            if isinstance(thing, types.ModuleType):
                members = [(f"{name}.{key}", getattr(thing, key)) for key in thing.__all__]
            callables = [
                (key, member) for key, member in members if inspect.isroutine(member) or inspect.isclass(member)
            ]
            yield from ((key, inspect.getdoc(member) or "") for key, member in callables)


def example_of(doc):
    _, _, rest = doc.partition("\nExample:\n")
    return textwrap.dedent("\n".join(line for line in rest.splitlines() if not line or line.startswith("    ")))


EXAMPLES = {name: example for name, doc in documented() if (example := example_of(doc))}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_in_a_docstring_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A config scope is read from a file.
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[name], encoding="utf-8")
    ex = Experiment("examples", ingredients=[part.ingredient for part in PARTS], interactive=True)

    example = EXAMPLES[name]

    @ex.main
    def main(_config, _run, seed, training):
        where = device.make_device(seed)
        batches = data.make_data(seed, where)
        criterion = loss.make_loss(batches, device=where)
        network = model.make_model(batches.input_shape, criterion.num_outputs, seed).to(where)
        names = {name: getattr(package, name) for package in (ingredients, experiments) for name in package.__all__}
        names |= {
            "__file__": str(file),
            "torch": torch,
            "FileObserver": FileObserver,
            "run_folder": run_folder,
            "precision": amp.make_amp(where),
        }
        names |= {key: value for key, value in locals().items() if key != "names"}
        exec(compile(example, str(file), "exec"), names)

    ex.run(config_updates=SETTINGS)


def test_what_an_experiment_calls_has_an_example():
    without = {name for name, _ in documented()} - EXAMPLES.keys()
    assert {name for name in without if name.partition(".")[2].startswith("make_")} == set()
    assert {"Experiment", "Ingredient", "fit", "evaluate", "predict"} & without == set()


# ---------------------------------------------------------------------- records

# What an example names is replaced by runs of the release with such parts.
REPLACED = {"Content": ('"latest"', "4"), "Medium": ('"latest"', "5"), "diff": ("get(2)", "get(5)")}
# Those that run a training again.
STARTING = {"Tolerance", "fork", "reproduce", "resume"}


def of_records():
    """Yield name and docstring of everything that `observers` and `runs` export, and of its methods."""
    for package in (observers, runs):
        for name in package.__all__:
            thing = getattr(package, name)
            yield name, inspect.getdoc(thing) or ""
            if inspect.isclass(thing):
                members = ((key, inspect.unwrap(member)) for key, member in inspect.getmembers(thing))
                yield from ((f"{name}.{key}", inspect.getdoc(one) or "") for key, one in members if key[0] != "_")


RECORD_EXAMPLES = {name: example for name, doc in of_records() if (example := example_of(doc))}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the runs of a release in `my_runs`, an archive of one of them and a file to import."""
    folder = tmp_path_factory.mktemp("recorded")
    unpack(ARCHIVES[0], folder, "mongodb://127.0.0.1:1/away")
    (folder / "metrics.csv").write_text("step,loss\n0,1.0\n1,0.5\n")
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in STARTING)) for name in RECORD_EXAMPLES]
)
def test_example_in_a_docstring_of_records_runs(name, recorded, request, monkeypatch, capsys):
    if name == "incense":
        pytest.importorskip("incense")  # it needs a Python below 3.12
    monkeypatch.chdir(recorded)
    Path("completed.zip").unlink(missing_ok=True)
    if name == "import_runs":
        shutil.copy("run_1.zip", "completed.zip")
    example = RECORD_EXAMPLES[name].replace(*REPLACED.get(name, ("", "")))
    if "localhost:27017" in example:
        database = request.getfixturevalue("database")
        url = f"{request.getfixturevalue('mongo_url').rstrip('/')}/{database.name}"
        example = example.replace("mongodb://localhost:27017/lab", url)
        with runs.open_store("my_runs") as store, runs.open_store(url) as copies:
            runs.copy(store.get("1"), copies)
    names = {key: getattr(package, key) for package in (observers, runs) for key in package.__all__}
    with runs.open_store("my_runs") as store, warm_children(starts_python=True):
        names["run"] = store.get(1)
        exec(compile(example, name, "exec"), names)
    if name == "incense":
        names["loader"]._database.client.close()
    if "print(" in example and name != "reap":  # of which there may be none
        assert capsys.readouterr().out


MODULES_WITH_PROMPTS = sorted(
    f"sacristan.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}"
    for package in ("configs", "experiments", "ingredients", "observers", "runs")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES_WITH_PROMPTS)
def test_examples_behind_prompts_print_what_they_say(name):
    tried = doctest.testmod(importlib.import_module(name))
    assert (tried.failed, tried.attempted > 0) == (0, True)
