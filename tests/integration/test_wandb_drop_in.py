"""One script with real W&B, offline, and with `import sacristan as wandb`: the records say the same, value by value."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from sacristan.configs import to_plain
from sacristan.runs import open_store
from tests.processes import PIPE, run

pytest.importorskip("wandb")
PIL = pytest.importorskip("PIL")
pytest.importorskip("PIL.Image")
from sacristan.runs.transfer.trackers import wandb_files  # noqa: E402

SCRIPT = """
import json, sys, wave
import numpy as np
if sys.argv[1] == "sacristan":
    import sacristan as wandb
else:
    import wandb

with wave.open("tone.wav", "wb") as tone:
    tone.setparams((1, 2, 8000, 50, "NONE", ""))
    tone.writeframes(np.arange(50, dtype="<i2").tobytes())
pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
run = wandb.init(project="digits", name="first", notes="a note", tags=["a", "b"], group="g", job_type="train",
                 config={"lr": 0.1, "model": {"width": 4, "names": ["x", "y"]}})
wandb.config.epochs = 3
run.config.update({"seed": 7, "none": None})
wandb.define_metric("epoch")
wandb.define_metric("val/*", step_metric="epoch")
wandb.define_metric("loss", summary="min")
for step in range(4):
    wandb.log({"loss": 1 / (step + 1), "part": {"a": step, "b": {"c": True}}})
wandb.log({"open": 1}, commit=False)
wandb.log({"loss": float("nan"), "int": np.int64(3), "float": np.float32(0.5)})
for epoch in range(wandb.config["epochs"]):
    wandb.log({"epoch": epoch, "val/accuracy": epoch / 4})
    wandb.log({"val/loss": 1 - epoch / 4})
wandb.log({"at": 1}, step=50)
wandb.log({"also": 2}, step=50)
wandb.log({"dropped": 3}, step=40)
wandb.log({"after": 4})
wandb.log({"image": wandb.Image(pixels, caption="four"), "weights": wandb.Histogram(np.arange(10.0)),
           "counts": wandb.Histogram(np_histogram=np.histogram([1, 2, 2, 3], bins=3)),
           "table": wandb.Table(columns=["n", "text"], data=[[1, "one"], [2.5, None]]),
           "tone": wandb.Audio("tone.wav", sample_rate=8000), "page": wandb.Html("<b>bold</b>", inject=False),
           "large": np.arange(100.0)})
wandb.log({"word": "text"})
wandb.summary["best"] = 0.25
run.summary.update({"nested": {"z": 1}})
artifact = wandb.Artifact("model", type="model", metadata={"size": 3})
with artifact.new_file("weights.txt") as stream:
    stream.write("1 2 3")
run.log_artifact(artifact)
print(json.dumps(dict(wandb.config), sort_keys=True))
print(run.step, run.name, run.tags, wandb.summary["best"], wandb.summary["after"])
wandb.finish()
print("done")
"""


def content_of(kind, data):
    if kind in ("table", "histogram"):
        return json.loads(data)
    if kind == "image":
        with PIL.Image.open(io.BytesIO(data)) as image:
            return image.mode, image.size, image.tobytes()
    return data if kind == "html" else len(data)


def of_real_wandb(folder):
    (found,) = wandb_files.find(folder / "wandb")
    read = found.read()
    curves = {curve.name: (curve.steps.tolist(), curve.values.tolist()) for curve in read.curves}
    media = [(one.name, one.kind, one.step, content_of(one.kind, one.content.data)) for one in read.media]
    return {
        "config": read.config,
        "curves": {name: curve for name, curve in curves.items() if not name.startswith("system/")},
        "media": sorted(media, key=lambda medium: medium[0]),
        "noted": (read.experiment, read.title, read.note, sorted(read.tags), read.status),
        "groups": (read.info["wandb"]["group"], read.info["wandb"]["job_type"]),
        "summary": {name: read.info["summary"].get(name) for name in ("best", "nested", "word")},
    }


def of_ours(folder):
    with open_store(folder / "my_runs") as store:
        found = store.get(1)
        names = [name for name in found.metrics if not name.startswith("system/")]
        curves = {name: (found.metric(name).steps.tolist(), found.metric(name).values.tolist()) for name in names}
        media = [
            (one.name, one.kind, one.step, content_of(one.kind, one.content.read()))
            for one in found.media
            if one.kind != "text"  # the importer of W&B's files leaves texts out
        ]
        return {
            "config": to_plain(found.config),
            "curves": curves,
            "media": sorted(media, key=lambda medium: medium[0]),
            "noted": (found.name, found.display_name, found.note, sorted(found.tags), found.status),
            "groups": (found.info["group"], found.info["job_type"]),
            "summary": to_plain({name: found.info["summary"].get(name) for name in ("best", "nested", "word")}),
        }


def record(folder, *command, cold=False):
    (folder / "train.py").write_text(SCRIPT)
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    done = run([sys.executable, *command], cwd=folder, env=env, stdout=PIPE, stderr=PIPE, text=True, cold=cold)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    found, outputs = {}, {}
    for library, read in (("wandb", of_real_wandb), ("sacristan", of_ours)):
        folder = tmp_path_factory.mktemp(library)
        outputs[library] = record(folder, "train.py", library, cold=library == "wandb").stdout
        assert (library == "sacristan") == (not Path(folder, "wandb").exists())
        found[library] = read(folder)
    return found["wandb"], found["sacristan"], outputs


def assert_equal(ours, real, part):
    if part == "curves":  # NaN is not equal to itself
        assert sorted(map(repr, ours[part].items())) == sorted(map(repr, real[part].items()))
    else:
        assert ours[part] == real[part]


@pytest.mark.parametrize("part", ["config", "curves", "media", "noted", "groups", "summary"])
def test_records_are_equal(records, part):
    assert_equal(records[1], records[0], part)


def test_outputs_are_equal(records):
    assert records[2]["sacristan"] == records[2]["wandb"]


@pytest.mark.slow
def test_wandb_that_does_its_own_work_as_well_is_recorded_alike(tmp_path):
    done = record(tmp_path, "-m", "sacristan", "run", "--also", "wandb", "train.py", "wandb")
    assert "not recorded" not in done.stderr
    real, ours = of_real_wandb(tmp_path), of_ours(tmp_path)
    real["noted"], ours["noted"] = real["noted"][1:], ours["noted"][1:]  # the record is named by its script
    for part in real:
        assert_equal(ours, real, part)
    with open_store(tmp_path / "my_runs") as store:
        found = store.get(1)
        assert (found.name, found.info["project"], "log" in found.info["captured"]["wandb"]) == (
            "train",
            "digits",
            True,
        )
        assert [str(version["name"]) for version in found["artifacts_logged"]] == ["model"]


def test_experiment_that_logs_with_wandb_has_its_metrics(tmp_path):
    text = """
from sacristan.experiments import Experiment
import wandb
ex = Experiment("wrapped")

@ex.automain
def main(_run):
    run = wandb.init(config={"lr": 0.1})
    for step in range(4):
        wandb.log({"loss": 1 / (step + 1)})
    wandb.log({"last": 0.5}, step=9)
    run.finish()
"""
    (tmp_path / "wrapped.py").write_text(text)
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = run([sys.executable, "wrapped.py"], cwd=tmp_path, env=env, stderr=PIPE, text=True, cold=True)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert {name: found.metric(name).steps.tolist() for name in ("loss", "last")} == {
            "loss": [0, 1, 2, 3],
            "last": [9],
        }
        assert "lr" not in found.config
    assert (tmp_path / "wandb").exists()
