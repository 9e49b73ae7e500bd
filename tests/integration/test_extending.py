"""The rows of "Where a new thing goes" in docs/architecture.md: each is done here, in a copy of the lab."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.runs import open_store
from sacristan.runs.board.serving import create_app
from tests.earlier_stores import ARCHIVES, unpack
from tests.labs import copy_lab
from tests.processes import run

LAB = Path(__file__).parents[2]

# What each addition does to which file: a text stands for a new file, a pair for what is replaced by what.
ADDITIONS = {
    "a command of `runs`": {
        "runs/commands/count.py": '''
"""`count`: how many runs there are."""

import argparse

from sacristan.runs.commands.terminal import open_given
from sacristan.runs.commands.terminal.text import print_text

NO_JSON = "it prints a number"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add none."""


def main(arguments: argparse.Namespace) -> int:
    """Print the number."""
    with open_given(arguments) as store:
        print_text(f"{len(store)} runs")
    return 0
''',
        "runs/commands/__init__.py": (
            '    "look at runs": {\n',
            '    "look at runs": {\n        "count": "count runs",\n',
        ),
    },
    "a kind of medium": {
        "observers/media/spectrograms.py": '''
"""Spectrograms, as images."""

import numpy as np

from sacristan.observers.media.kinds import Media
from sacristan.observers.media.arrays import png_bytes
from sacristan.observers.record.media_files import Content


class Spectrogram(Media):
    """The strength of each frequency over time."""

    kind = "spectrogram"

    def __init__(self, powers):
        self._powers = np.asarray(powers)
        self.num_bytes = self._powers.nbytes

    def encode(self):
        """Make the PNG file."""
        return Content(png_bytes(np.uint8(255 * self._powers)[..., None]), ".png", "image/png", {})
''',
        "observers/media/__init__.py": (
            "HOMES = {\n",
            'HOMES = {\n    "Spectrogram": "sacristan.observers.media.spectrograms",\n',
        ),
    },
    "a setting": {
        "ingredients/data.py": (
            "    # leave out a smaller last training batch\n",
            """    # blur of the images, pixels
    blur = 0.0
    # leave out a smaller last training batch
""",
        ),
    },
    "an ingredient": {
        "ingredients/noise.py": """
'''Ingredient `noise`: what is added to the inputs.'''

from sacristan.ingredients.config.ingredient import Ingredient

__all__ = ["ingredient"]

ingredient = Ingredient("noise")


@ingredient.config
def config():
    # standard deviation of the noise; 0 for none
    level = 0.0
""",
        "experiments/supervised.py": (
            "    return [part.ingredient for part in (*parts, exporting, probe, sweep)]\n",
            """    from sacristan.ingredients import noise

    return [part.ingredient for part in (*parts, exporting, probe, sweep, noise)]
""",
        ),
    },
    "a metric": {
        "experiments/training/meters.py": (
            "METRICS = (\n",
            """def _hits_of_two(loss, outputs, targets):
    hits = outputs.topk(2, 1).indices.eq(targets[:, None]).any(1)
    return [_double(hits.sum()), on_device(len(targets), torch.int64, outputs.device)]


METRICS = (
    LossMetric(("top2",), ("classes",), _hits_of_two, _accuracy),
""",
        ),
        "observers/record/directions.py": ("MEASURED = {", 'MEASURED = {"top2": "max", '),
    },
    "a loss": {
        "ingredients/losses/modules.py": (
            "LOSSES = {\n",
            'LOSSES = {\n    "huber": KnownLoss(nn.HuberLoss, ("regression",)),\n',
        ),
        "ingredients/loss.py": ("smooth_l1, or", "smooth_l1, huber, or"),
    },
    "a model": {
        "ingredients/models/networks.py": (
            "NETWORKS = {",
            '''class Linear(nn.Linear):
    """A linear model of features."""

    def __init__(self, input_shape, num_outputs, bias=True):
        super().__init__(input_shape[0], num_outputs, bias)


NETWORKS = {"linear": Linear, ''',
        ),
        "ingredients/model.py": (
            "OPTIONS: dict[str, dict[str, Any]] = {\n",
            'OPTIONS: dict[str, dict[str, Any]] = {\n    "linear": {"bias": True},\n',
        ),
    },
    "a source of data": {
        "ingredients/datasets/sources.py": (
            "FILES = {\n",
            """def _read_tsv(path: Path, settings: SourceSettings) -> Source:
    table = np.loadtxt(path, delimiter="\\t", dtype=np.float32)
    return Source(table[:, :-1], table[:, -1:])


FILES = {
    "tsv": FileKind(_read_tsv, ("path",), ".tsv"),
""",
        ),
    },
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A copy of the lab with all of the additions."""
    folder = tmp_path_factory.mktemp("lab")
    copy_lab(folder)
    for files in ADDITIONS.values():
        for name, change in files.items():
            path = folder / name
            if isinstance(change, str):
                path.write_text(change.lstrip(), encoding="utf-8")
                continue
            text = path.read_text(encoding="utf-8")
            assert text.count(change[0]) == 1, name
            path.write_text(text.replace(*change), encoding="utf-8")
    rows = [[x / 10, 1 - x / 10, x / 5 + 0.5] for x in range(40)]
    (folder / "line.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return folder


def python(lab, *words, code=0):
    environment = {**os.environ, "PYTHONPATH": str(lab)}
    done = run([sys.executable, *words], cwd=lab, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_each_addition_touches_three_files_at_most_the_test_included():
    page = (LAB / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (an? [^|]+?) \| (.+?) \|$", page.partition("## Where a new thing goes")[2], re.M))
    for name, files in ADDITIONS.items():
        assert len(files) <= 2
        for path, change in files.items():
            where = str(Path(path).parent) if isinstance(change, str) else path
            assert where in rows[name]


def test_command_is_listed_and_runs(lab):
    assert re.search(r"^ +count +count runs$", python(lab, "-m", "sacristan", "--help"), re.M)
    (lab / "none").mkdir(exist_ok=True)
    assert python(lab, "-m", "sacristan", "--store", "none", "count") == "0 runs\n"
    assert "did you mean count" in python(lab, "-m", "sacristan", "cuont", code=2)


@pytest.mark.slow
def test_tests_of_all_commands_accept_a_new_one(lab):
    shutil.copytree(LAB / "tests", lab / "tests", ignore=shutil.ignore_patterns("data", "__pycache__"))
    shutil.copy2(LAB / "setup.cfg", lab)
    tests = (
        "tests/unit/runs/commands/test_table.py",
        "tests/integration/test_json.py::test_every_command_with_json_has_a_schema",
        "tests/integration/test_permissions.py::test_store_that_cannot_be_read_is_one_line",
    )
    assert " passed" in python(lab, "-m", "pytest", "-q", "-n", "0", "-m", "", *tests)


def test_state_and_unfinished_run_of_an_earlier_version_go_on_with_a_new_setting_ingredient_and_metric(lab):
    earlier = lab / "earlier"
    unpack(next(path for path in ARCHIVES if path.name == "3820e0d.tar.xz"), earlier, "")
    environment = {**os.environ, "PYTHONPATH": str(lab)}

    def train(*words):
        command = [sys.executable, str(lab / "exp.py"), *words]
        done = run(command, cwd=earlier, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    config, state = "my_runs/3/config.json", "resume=my_runs/3/checkpoints/last.pt"
    assert "starts again" not in train("-F", "forks", "with", config, state)
    assert "starts again" in train("-F", "forks", "with", config, state, "data.blur=0.5")
    assert "a new run starts" in train("with", config, "resume=auto", "noise.level=0.5")
    assert "resuming my_runs/3" in train("with", config, "resume=auto")
    with open_store(str(earlier / "my_runs")) as store, open_store(str(earlier / "forks")) as forks:
        (whole, resumed), (fork, other) = map(store.get, (1, 3)), map(forks.get, (1, 2))
        assert fork.config["data"]["blur"] == fork.config["noise"]["level"] == 0.0
        results = [one.metric("val/loss").values[-1] for one in (fork, resumed, other)]
        assert results[:2] == pytest.approx([whole.metric("val/loss").values[-1]] * 2, rel=1e-4)
        assert results[2] != pytest.approx(results[0], rel=1e-4)
        # The metric begins with the session that knows it.
        measured = [set(resumed.metric(f"val/{name}").steps.tolist()) for name in ("top2", "accuracy")]
        assert measured[0] < measured[1]
        assert max(measured[0]) == max(measured[1])


def test_metric_is_measured_monitored_and_compared_by_its_direction(lab):
    words = ["exp.py", "-F", "top", "with", "data.limit=200", "epochs=2", "training.monitor=val/top2"]
    assert "top2" in python(lab, *words)
    assert "did you mean val/top2" in python(lab, *words[:-1], "training.monitor=val/topp2", code=1)
    with open_store(str(lab / "top")) as store:
        run = store.get("latest")
        values, test = run.metric("val/top2").values.tolist(), run.info["test"]
        assert len(values) == 2
        assert test["accuracy"] <= test["top2"] <= 1
    best = load_checkpoint(lab / "top" / "1" / "checkpoints" / "best.pt")
    assert best["epoch"] == 1 + values.index(max(values))
    script = """
from sacristan.runs import open_store
from sacristan.runs.comparison.comparing import direction_of
with open_store("top") as store:
    print(direction_of([store.get(1)], "val/top2.max"))
"""
    assert python(lab, "-c", script) == "max\n"


OWN = """
from pathlib import Path

from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient, checkpoint
from sacristan.observers import file_observer

noise = Ingredient("noise")

@noise.config
def noise_config():
    # standard deviation of the noise
    level = 0.5

ex = Experiment("own", [checkpoint.ingredient])
ex.observers.append(file_observer("my_runs"))

@ex.config
def config():
    seed = 0

@ex.main
def main():
    return Path("fault").exists() and 1 / 0

if __name__ == "__main__":
    ex.run_commandline()
"""


def test_unfinished_run_of_ones_own_experiment_goes_on_with_a_new_ingredient(tmp_path):
    added = OWN.replace("[checkpoint.ingredient]", "[checkpoint.ingredient, noise]")
    declared = added.replace("\nex = ", "\nnoise_config.legacy(level=0.5)\nex = ")
    fault = tmp_path / "fault"

    def start(code, *words):
        (tmp_path / "own.py").write_text(code)
        command = [sys.executable, *(words or ("own.py", "with", "checkpoint.resume=auto"))]
        environment = {**os.environ, "PYTHONPATH": str(LAB)}
        return run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stderr

    fault.touch()
    start(OWN)
    fault.unlink()
    told = start(added)
    assert "my_runs/1 is unfinished, but recorded before there was noise.level=0.5." in told
    fault.touch()
    assert "resuming my_runs/1" in start(declared)
    fault.unlink()
    start(added, "-m", "sacristan", "resume", "1")
    with open_store(str(tmp_path / "my_runs")) as store:
        assert [(each.status, each.config["noise"]["level"]) for each in store] == [("COMPLETED", 0.5)] * 2


def test_medium_is_recorded_delivered_read_and_shown(lab, mongo_url):
    script = """
import numpy as np
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Image, MongoObserver, Spectrogram, TensorBoardObserver

ex = Experiment("sound", record_to=None, save_git_info=False)

@ex.main
def main(_run):
    _run.log_media("whistle", Spectrogram(np.eye(8)), 3)

for observer in (FileObserver("sounds"), TensorBoardObserver("events"), MongoObserver(URL, "sounds")):
    ex.observers.append(observer)
ex.run()

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(str(next(__import__("pathlib").Path("events").rglob("*tfevents*")))).Reload()
assert [(image.step, image.width, image.height) for image in events.Images("whistle")] == [(3, 8, 8)]
"""
    (lab / "sound.py").write_text(script.replace("URL", repr(mongo_url)))
    python(lab, "sound.py")
    # The lab that reads it does not know the kind.
    for where in (lab / "sounds", f"{mongo_url}/sounds"):
        with open_store(str(where)) as store:
            [medium] = store.get("latest").media
            assert (medium.name, medium.kind, medium.step) == ("whistle", "spectrogram", 3)
            assert medium.content.read().startswith(b"\x89PNG")
    with TestClient(create_app(lambda: open_store(lab / "sounds")), base_url="http://127.0.0.1") as client:
        assert '<img class="preview' in client.get("/medium?run=1&number=0").text


def test_loss_model_and_source_are_trained_with(lab):
    words = ["exp.py", "with", "loss.name=huber", "model.name=linear", "data.path=line.tsv", "epochs=3", "lr=0.1"]
    python(lab, *words)
    config = json.loads((lab / "my_runs" / "1" / "config.json").read_text())
    assert (config["loss"]["name"], config["model"]["name"], config["data"]["name"]) == ("huber", "linear", "tsv")
    assert config["model"]["options"] == {"bias": True}
    assert "did you mean linear" in python(lab, "exp.py", "with", "model.name=liner", code=1)
    assert "which data.name=tsv does not read" in python(lab, *words, "data.weights=w", code=1)
