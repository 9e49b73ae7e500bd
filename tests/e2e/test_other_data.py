"""`evaluate` and `predict` on data that a model was not trained on, as typed."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import run

LAB = Path(__file__).parents[2]
BEST = "checkpoint.path=my_runs/1/checkpoints/best.pt"
HEADER = ["width", "height", "depth", "kind"]


def exp(folder, *words):
    return run([sys.executable, str(LAB / "exp.py"), *words], cwd=folder, capture_output=True, text=True)


def trained(folder, *settings):
    done = exp(folder, "with", *settings)
    assert done.returncode == 0, done.stderr
    return folder


def tried(folder, command, *settings):
    """Run a command on a checkpoint of run 1 with its config, which has to end well."""
    done = exp(folder, command, "with", "my_runs/1/config.json", BEST, *settings)
    assert done.returncode == 0, done.stderr
    return done


def result(done):
    return float(re.search(r"Result: (\S+)", done.stderr).group(1))


def refused(folder, command, *settings):
    done = exp(folder, command, "with", "my_runs/1/config.json", BEST, *settings)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    return line


def predictions(folder):
    newest = max((path for path in (folder / "my_runs").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    with (newest / "predictions.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def write(path, header, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")
    return f"data.path={path.name}"


def things(seed, count, kinds=("box", "can", "jar")):
    """Return rows of measures and kind: each kind has its own place in space."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        centre = {"box": (10, 200, 3), "can": (20, 250, 6), "jar": (30, 300, 9)}[kind]
        rows.append([*(f"{value:.3f}" for value in random.normal(centre, (1.0, 5.0, 0.3))), kind])
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with a model of three kinds of things, trained on a table."""
    folder = tmp_path_factory.mktemp("table")
    path = write(folder / "things.csv", HEADER, things(0, 150))
    return trained(folder, "data.name=csv", path, "data.target=kind", "epochs=20", "lr=0.01")


@pytest.mark.slow
def test_evaluate_prepares_another_file_as_the_one_of_the_training(table):
    # Of one kind alone, with a mean and a deviation that are all its own.
    path = write(table / "cans.csv", HEADER, things(1, 60, ["can"]))
    done = tried(table, "evaluate", path)
    assert result(done) > 0.95
    assert (
        "testing on all of data.path=cans.csv: 60 of 60 samples; the checkpoint was trained on other data"
        in done.stderr
    )


@pytest.mark.slow
def test_evaluate_of_the_file_of_the_training_is_on_the_test_part_that_it_kept_apart(table):
    done = tried(table, "evaluate", "seed=7")
    info = [json.loads((table / "my_runs" / name / "info.json").read_text()) for name in ("1",)]
    assert result(done) == info[0]["test"]["accuracy"]
    assert (
        "testing on the test part of data.path=things.csv: 22 of 150 samples; the checkpoint was not trained on them"
        in done.stderr
    )


@pytest.mark.slow
def test_evaluate_puts_columns_in_another_order_right(table):
    rows = things(2, 60)
    straight = write(table / "straight.csv", HEADER, rows)
    mixed = write(table / "mixed.csv", ["kind", "depth", "width", "height"], [[r[3], r[2], r[0], r[1]] for r in rows])
    assert result(tried(table, "evaluate", straight)) == result(tried(table, "evaluate", mixed)) > 0.95


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["width", "height", "kind"], [[1, 2, "box"]], r"the columns are not those .*; missing: depth; rename, add or"),
        (
            [*HEADER[:3], "colour", "kind"],
            [[1, 2, 3, 4, "box"]],
            r"the columns are not those .*; unknown: colour; re",
        ),
        (HEADER, [[1, 2, 3, "tin"]], r"the checkpoint knows no class tin; its classes are box, can, jar; rename or"),
        (HEADER[:3], [[1, 2, 3]], r"data\.target: bad\.csv has no column 'kind'"),
    ],
)
def test_evaluate_of_what_does_not_fit_ends_with_one_line(table, header, rows, message):
    assert re.search(message, refused(table, "evaluate", write(table / "bad.csv", header, rows)))


def test_predict_of_a_table_without_targets_names_rows_classes_and_probabilities(table):
    rows = things(3, 30)
    path = write(table / "new.csv", HEADER[:3], [row[:3] for row in rows])
    assert result(tried(table, "predict", path)) == 30
    found = predictions(table)
    assert list(found[0]) == ["index", "prediction", "p(box)", "p(can)", "p(jar)"]
    assert [row["index"] for row in found] == [str(number) for number in range(30)]
    assert sum(row["prediction"] == thing[3] for row, thing in zip(found, rows, strict=True)) > 28
    for row in found:
        shares = {kind: float(row[f"p({kind})"]) for kind in ("box", "can", "jar")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
        assert max(shares, key=shares.get) == row["prediction"]


def test_predict_tells_of_a_class_that_the_model_does_not_know(table):
    rows = [*things(4, 6), ["10", "200", "3", "tin"], ["10", "200", "3", ""]]
    done = tried(table, "predict", write(table / "some.csv", HEADER, rows))
    assert "the checkpoint knows no class tin; its classes are box, can, jar; such targets are left out" in done.stderr
    assert [row["target"] for row in predictions(table)] == ["box", "can", "jar", "box", "can", "jar", "", ""]


@pytest.mark.slow
def test_predict_of_values_is_in_their_own_unit(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3)).astype(np.float32)
    np.savez(tmp_path / "values.npz", x=x, y=1000 + 50 * x[:, 0])
    trained(tmp_path, "data.name=npz", "data.path=values.npz", "epochs=30", "lr=0.01")
    np.savez(tmp_path / "new.npz", x=x[:40] * 0.1)
    assert result(tried(tmp_path, "predict", "data.path=new.npz")) == 40
    found = predictions(tmp_path)
    assert list(found[0]) == ["index", "prediction"]
    wanted = 1000 + 50 * 0.1 * x[:40, 0]
    np.testing.assert_allclose([float(row["prediction"]) for row in found], wanted, atol=15)


@pytest.mark.slow
def test_predict_of_labels_has_a_column_for_each(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    rows = [[f"{a:.3f}", f"{b:.3f}", int(a > 0), int(b > 0)] for a, b in x]
    path = write(tmp_path / "labels.csv", ["a", "b", "round", "red"], rows)
    trained(
        tmp_path, "data.name=csv", path, 'data.target=["round","red"]', "data.task=multilabel", "epochs=20", "lr=0.01"
    )
    tried(tmp_path, "predict", write(tmp_path / "new.csv", ["b", "a"], [["-2", "2"], ["2", "-2"]]))
    found = predictions(tmp_path)
    assert list(found[0]) == ["index", "prediction_round", "prediction_red", "p(round)", "p(red)"]
    assert [(row["prediction_round"], row["prediction_red"]) for row in found] == [("1", "0"), ("0", "1")]


@pytest.mark.slow
def test_predict_of_images_without_classes_names_their_files(tmp_path):
    random = np.random.default_rng(0)

    def image(path, bright):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 90, (6, 6), dtype=np.uint8) + (160 if bright else 0)
        Image.fromarray(pixels.astype(np.uint8)).save(path)

    for number in range(40):
        image(tmp_path / "lamps" / ("on" if number % 2 else "off") / f"{number}.png", number % 2)
    settings = ["data.name=image_folder", "data.path=lamps", "data.batch_size=8", "epochs=10", "lr=0.01"]
    trained(tmp_path, *settings)
    for name, bright in (("b.png", True), ("a.png", False), ("more/c.png", True)):
        image(tmp_path / "new" / name, bright)
    tried(tmp_path, "predict", "data.path=new")
    found = [(row["file"], row["prediction"]) for row in predictions(tmp_path)]
    assert found == [("a.png", "off"), ("b.png", "on"), ("more/c.png", "on")]
    assert list(predictions(tmp_path)[0]) == ["file", "prediction", "p(off)", "p(on)"]
