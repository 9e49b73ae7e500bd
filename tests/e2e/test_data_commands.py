"""Data from the command line: looking at them, and what is refused."""

import itertools
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import run

EXP = Path(__file__).parents[2] / "exp.py"


def exp(folder, *words, cold=False, **environment):
    """Run exp.py in `folder`, as a user does."""
    options = {"env": os.environ | environment, "capture_output": True, "text": True, "timeout": 120, "cold": cold}
    return run([sys.executable, EXP, *words], cwd=folder, **options)


def table(text, *columns):
    """Return the rows below the line that begins with `columns` and above what comes then, by their first word."""
    lines = [line.split() for line in text.splitlines()]
    start = next(number for number, words in enumerate(lines) if words[: len(columns)] == list(columns))
    rows = itertools.takewhile(lambda words: words[0] not in ("class", "cannot"), lines[start + 1 :])
    return {words[0]: words[1:] for words in rows}


@pytest.fixture
def files(tmp_path):
    """A folder with files that people have."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'}" for a, b in rng.normal(size=(60, 2))]
    (tmp_path / "good.csv").write_text("\n".join(["height,width,healthy", *rows]))
    (tmp_path / "holes.csv").write_text("\n".join(["height,width,healthy", *rows, ",,yes", "1,,no", "inf,1,no"]))
    (tmp_path / "empty.csv").write_text("height,width,healthy\n")
    (tmp_path / "same.csv").write_text("\n".join(["height,width,healthy"] + [f"{n},1,yes" for n in range(60)]))
    (tmp_path / "labels.csv").write_text("\n".join(["height,width,grade"] + [f"{n},1,{n % 4}" for n in range(60)]))
    for name in ("cat", "dog"):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "animals" / name / f"{number}.png")
    return tmp_path


@pytest.fixture
def imported(tmp_path):
    """Environment that lets a process write down the modules it imported, and a function to read them."""
    site = tmp_path / "site"
    site.mkdir()
    note = site / "modules.json"
    (site / "sitecustomize.py").write_text(
        "import atexit, json, pathlib, sys\n"
        f"atexit.register(lambda: pathlib.Path({str(note)!r}).write_text(json.dumps(sorted(sys.modules))))\n"
    )
    return {"PYTHONPATH": str(site)}, lambda: json.loads(note.read_text())


def test_stats_of_the_digits_show_splits_and_classes_without_torch(tmp_path, imported):
    environment, modules = imported
    done = exp(tmp_path, "data.stats", cold=True, **environment)
    assert done.returncode == 0, done.stderr
    assert re.match(r"digits: classification, inputs 1x8x8 float32, sha256 [0-9a-f]{64}\n", done.stdout)
    splits = table(done.stdout, "split", "count", "targets", "mean", "std", "missing")
    assert [splits[name][0] for name in ("train", "val", "test")] == ["1,258", "269", "270"]
    assert splits["train"][1:] == ["10", "classes", "0.0000", "1.0000", "0"]
    classes = table(done.stdout, "class", "train", "val", "test")
    assert list(classes) == list("0123456789")
    assert classes["0"] == ["124", "27", "27"]
    assert "numpy" in modules()
    assert "torch" not in modules()
    assert not (tmp_path / "my_runs").exists()


@pytest.mark.slow
def test_stats_of_a_csv_count_missing_values_without_torch(files, imported):
    environment, modules = imported
    done = exp(files, "data.stats", "with", "data.name=csv", "data.path=holes.csv", cold=True, **environment)
    assert done.returncode == 0, done.stderr
    assert "csv: classification, inputs 2 float32" in done.stdout
    splits = table(done.stdout, "split", "count")
    assert [sum(int(splits[name][column]) for name in ("train", "val", "test")) for column in (0, -1)] == [63, 4]
    assert set(table(done.stdout, "class", "train")) == {"no", "yes"}
    assert "Warning" not in done.stderr
    assert "torch" not in modules()


def test_stats_of_an_image_folder_show_its_classes_without_torch(files, imported):
    environment, modules = imported
    settings = ["data.name=image_folder", "data.path=animals"]
    done = exp(files, "data.stats", "with", *settings, cold=True, **environment)
    assert done.returncode == 0, done.stderr
    assert "image_folder: classification, inputs 3x5x6 float32" in done.stdout
    assert table(done.stdout, "class", "train", "val", "test") == {"cat": ["4", "1", "1"], "dog": ["4", "1", "1"]}
    assert "torch" not in modules()


def test_stats_of_a_few_numbers_show_the_range_of_the_targets(tmp_path):
    done = exp(tmp_path, "data.stats", "with", "data.fast", "data.name=diabetes")
    assert done.returncode == 0, done.stderr
    assert "diabetes: regression, inputs 10 float32" in done.stdout
    splits = table(done.stdout, "split", "count", "targets")
    assert {name: row[0] for name, row in splits.items()} == {"train": "210", "val": "45", "test": "45"}
    assert all(25 <= float(row[1]) < float(row[3]) <= 346 and row[2] == "to" for row in splits.values())


def test_training_on_a_folder_of_images_with_workers_works(files):
    settings = ["data.name=image_folder", "data.path=animals", "data.batch_size=4", "data.num_workers=2", "epochs=1"]
    done = exp(files, "with", *settings)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert (files / "my_runs").is_dir()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.stats with data.name=csv data.path=gone.csv", r"data\.path: there is no 'gone.csv' .*; check the path"),
        ("data.stats with data.name=digitz", r"data\.name: got 'digitz', which is unknown; did you mean digits\?"),
        ("data.stats with data.name=csv data.path=empty.csv", r"data\.path: empty.csv has a header but no rows"),
        (
            "data.stats with data.name=csv data.path=labels.csv data.num_classes=3",
            r"data\.num_classes: label out of range: sample 3 has label 3, expected 0 to 2 .*; correct them, or",
        ),
        (
            "with data.name=csv data.path=holes.csv",
            r"data\.name=csv: 4 input values are NaN or infinite, in 3 of 63 samples in the columns height, width;",
        ),
        (
            "with data.name=csv data.path=same.csv",
            r"data\.name=csv: all 60 samples have one class only, expected at least two; check the labels",
        ),
    ],
    ids=["missing-file", "unknown-data", "empty-data", "label-out-of-range", "nan", "one-class"],
)
def test_bad_data_end_with_one_line_that_says_what_to_do(words, message, files):
    done = exp(files, *words.split())
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert re.match(f"error: {message}", errors[0])
    assert "Traceback" not in done.stderr
