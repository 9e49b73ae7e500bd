"""Specs in the shapes of wandb's public documentation are read, and searched, as they are."""

from pathlib import Path

import optuna
import pytest

from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.points import grid_point, representative, suggest
from sacristan.runs.sweeps.study.samplers import make_pruner, make_sampler

EXAMPLES = sorted((Path(__file__).parent / "examples").iterdir())


def names(examples):
    return [path.name for path in examples]


@pytest.mark.parametrize("path", EXAMPLES, ids=names(EXAMPLES))
def test_example_is_searched(path):
    spec = read_spec(path)
    study = optuna.create_study(pruner=make_pruner(spec))
    seen = []
    for number in range(spec.size or 6):
        study.sampler = make_sampler(spec, 0, number)
        trial = study.ask()
        seen.append(suggest(spec, trial))
        study.tell(trial, float(number))
    assert [list(point) for point in seen] == [list(spec.parameters)] * len(seen)
    assert len({str(point) for point in seen}) == len(seen)
    assert [list(point) for point in representative(spec)] == [list(spec.parameters)] * len(representative(spec))


@pytest.mark.parametrize(
    ("name", "size", "parameters"),
    [
        ("grid_booleans.yaml", 8, {"flag1": False, "flag2": True, "optimizer": "sgd"}),
        ("grid_hyperband.yaml", 9, {"channels": 10, "dropout": 0.4, "epochs": 27}),
        (
            "grid_deeply_nested.json",
            4,
            {"nested.inner.x": 0.9, "nested.inner.y": 0.7, "nested.learning_rate": 0.01, "outer": 0},
        ),
    ],
)
def test_example_of_a_grid_has_its_points(name, size, parameters):
    spec = read_spec(Path(__file__).parent / "examples" / name)
    assert spec.size == size
    assert grid_point(spec, 2) == parameters


def test_example_with_a_command_sets_what_the_command_sets():
    spec = read_spec(Path(__file__).parent / "examples" / "command_macros.yaml")
    assert [point["test"] for point in representative(spec)] == [True, True]
    assert len(spec.notes) == 1


def test_numbers_in_scientific_notation_are_numbers():
    spec = read_spec(Path(__file__).parent / "examples" / "bayes_hyperband.yaml")
    assert spec.parameters["decay"].distribution.values == (1e-5, 1e-6, 1e-7)


@pytest.mark.parametrize("path", EXAMPLES, ids=names(EXAMPLES))
def test_installed_package_takes_the_example_too(path, live):
    from sweeps import next_run

    document = {key: value for key, value in read_spec(path).document.items() if key != "command"}
    assert set(next_run(document, []).config) == set(document["parameters"])
