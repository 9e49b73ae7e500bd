"""The examples in the docstrings of what `experiments` and `ingredients` export: each runs, in a run of its own."""

import inspect
import textwrap
import types

import pytest
import torch

from sacristan import experiments, ingredients
from sacristan.experiments import Experiment
from sacristan.ingredients import amp, data, device, loss, metrics, model, optimizer, scheduler, training
from sacristan.observers import FileObserver, run_folder

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
