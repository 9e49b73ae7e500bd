"""Scripts of the kinds that people have: alone, under `sacristan run`, and with the three lines of `sacristan.init`.

Each form prints the same and ends alike, and the record has what the library's own reader finds, value by value. The
scripts are in `tests/data/scripts`; their comments after `three lines:` are those of `sacristan.init`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, run

SCRIPTS = Path(__file__).parents[1] / "data" / "scripts"
CONFIG_OF_HYDRA = "seed: 0\nsteps: 4\noptimizer:\n  name: sgd\n  lr: 0.1\n"


def of_event_files(folder):
    """Return what TensorBoard reads: of each tag the steps and the values, which are of 32 bits."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = {}
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        reader = EventAccumulator(str(place), {"scalars": 0})
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            events = reader.Scalars(tag)
            curves[tag] = [event.step for event in events], [event.value for event in events]
    return curves


def of_wandb(folder):
    """Return the history in the files of W&B, read by its own protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    from sacristan.runs.transfer.trackers.wandb_files import records

    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    curves = {}
    for record in map(Record.FromString, records(path.read_bytes(), [])):
        if record.HasField("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                if not name.startswith("_") and isinstance(value, int | float):
                    steps, values = curves.setdefault(name, ([], []))
                    steps.append(row["_step"])
                    values.append(value)
    return curves


def of_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(str(folder / "mlruns"))
    [experiment] = [each.experiment_id for each in client.search_experiments() if each.name == "hydra"]
    [found] = client.search_runs([experiment])
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    return {name: ([one.step for one in points], [one.value for one in points]) for name, points in history.items()}


def of_aim(folder):
    """Return what Aim reads from a copy of its repository, with the names that an import gives."""
    from sacristan.runs.transfer.trackers import aim_repositories

    [found] = [each.read() for each in aim_repositories.find(folder)]
    return {curve.name: (curve.steps.tolist(), curve.values.tolist()) for curve in found.curves}


@dataclasses.dataclass
class Script:
    """A script of a table: what it is given, and what is known of its record.

    Attributes:
        words: What is typed.
        read: Reads the curves of a folder by the library itself.
        config: Some of its settings, by dotted name.
        logged: The metrics that its three lines log.
        needs: The packages that it imports.
        varying: Parts of names of metrics that measure time.
        launcher: What starts it, instead of Python alone.
        config_of_lines: Those of its settings that the three lines give; by default `config`.
    """

    words: str
    read: Callable[[Path], Mapping[str, tuple[list, list]]]
    config: Mapping[str, object]
    logged: tuple[str, ...]
    needs: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    config_of_lines: Mapping[str, object] | None = None


TABLE = {
    "mnist": Script(
        "--lr 0.2 --batch-size 8", of_event_files,
        {"lr": 0.2, "batch_size": 8, "epochs": 2, "dry_run": False}, ("train/loss", "test/accuracy"),
    ),
    "gpt": Script(
        "gpt_small.py --learning_rate=0.03", of_wandb,
        {"n_embd": 16, "max_iters": 7, "learning_rate": 0.03, "wandb_project": "owt"},
        ("iter", "train/loss", "val/loss", "lr"), ("wandb",),
    ),
    "ppo": Script(
        "--track --seed 3", of_event_files, {"seed": 3, "track": True, "num_steps": 10},
        ("charts/episodic_return", "losses/policy_loss"), ("wandb", "tyro"),
    ),
    "lightning_cli": Script(
        "fit --model.lr 0.2 --trainer.max_epochs 2", of_event_files, {"fit.model.lr": 0.2, "fit.model.hidden": 4},
        ("train_loss",), ("lightning", "jsonargparse", "typeshed_client"), config_of_lines={"lr": 0.2, "hidden": 4},
    ),
    "hf_trainer": Script(
        "--output_dir out --max_steps 4 --per_device_train_batch_size 2 --logging_steps 2 --eval_strategy steps "
        "--eval_steps 2 --save_strategy no --report_to tensorboard --use_cpu --disable_tqdm True --learning_rate 0.01",
        of_event_files, {"learning_rate": 0.01, "n_embd": 8}, ("train/loss", "eval/loss"),
        ("transformers", "accelerate"),
    ),
    "accelerated": Script(
        "--lr 0.05", of_event_files, {"lr": 0.05, "num_epochs": 2}, ("train_loss",), ("accelerate",)
    ),
    "hydra_app": Script(
        "optimizer.lr=0.2 steps=3", of_mlflow, {"optimizer.lr": 0.2, "optimizer.name": "sgd", "steps": 3},
        ("loss",), ("hydra", "mlflow"),
    ),
    "click_app": Script(
        "train mnist --lr 0.2", of_aim, {"lr": 0.2, "steps": 4, "data": "mnist"}, ("train/loss",), ("click", "aim")
    ),
    "ignite_trainer": Script(
        "--lr=0.05", of_event_files, {"lr": 0.05, "max_epochs": 2}, ("training/batchloss", "lr/group_0"),
        ("ignite", "fire"),
    ),
    "skorch_net": Script(
        "--lr 0.1", of_wandb, {"lr": 0.1, "max_epochs": 3}, ("train_loss", "valid_loss"), ("skorch", "wandb"),
        varying=("dur",),
    ),
    "ranks": Script(
        "--lr 0.05", of_event_files, {"lr": 0.05, "steps": 5}, ("loss",),
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    ),
    "notebook": Script("", of_wandb, {"lr": 0.1}, ("loss",), ("IPython", "wandb"), launcher=("-m", "IPython")),
}  # fmt: skip
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in TABLE if name != "mnist"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mnist", *SLOW])
def test_record_of_each_form_has_what_the_library_reads(tmp_path, monkeypatch, name):
    script = TABLE[name]
    for package in script.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = {form: started(script, name, tmp_path / form, form) for form in ("alone", "run", "lines")}
    assert done["alone"][0] == 0, done["alone"][2]
    assert done["alone"][1], "it prints something"
    for form in ("run", "lines"):
        assert done[form][:2] == done["alone"][:2], done[form][2]
        reads_files = script.read is of_event_files
        theirs = script.read(tmp_path / (form if reads_files else "alone"))
        config = script.config if form == "run" else script.config_of_lines or script.config
        with open_store(tmp_path / form / "my_runs") as store:
            [found] = store.find()
            assert found.status == "COMPLETED"
            assert {name: found.get(f"config.{name}") for name in config} == config
            if name == "notebook" and form == "run":
                assert (found.name, [*found.sources]) == ("train", ["train.ipynb"])
            ours = {metric: curve_of(found, metric) for metric in found.metrics if not metric.startswith("system/")}
        if form == "lines":
            theirs = {name: theirs[name] for name in script.logged}
        else:
            assert {*script.logged} <= {*theirs}
        for metric in [each for each in theirs if each in ours and any(part in each for part in script.varying)]:
            assert ours.pop(metric)[0] == theirs.pop(metric)[0]
        assert as_read(ours, reads_files) == as_read(theirs, reads_files)


def started(script, name, folder, form):
    """Run a script in a folder of its own, in one of its forms; return exit code, output and errors."""
    folder.mkdir()
    text = (SCRIPTS / f"{name}.py").read_text()
    (folder / "train.py").write_text(text.replace("# three lines: ", "") if form == "lines" else text)
    shutil.copy(SCRIPTS / "gpt_small.py", folder)
    (folder / "conf").mkdir()
    (folder / "conf" / "config.yaml").write_text(CONFIG_OF_HYDRA)
    words = [*script.launcher, "train.py", *script.words.split()]
    if name == "notebook":
        words[-1] = make_notebook(folder / "train.py").name
    if form == "run":
        words = ["-m", "sacristan", "run", *(["--", sys.executable] if script.launcher else []), *words]
    if "aim" in script.needs and form != "run":
        run([sys.executable, "-c", "import aim; aim.Repo.from_path('.', init=True)"], cwd=folder, cold=True)
    variables = {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": str(folder / "mlruns"),
        "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder / "ipython"),
    }  # fmt: skip
    done = run([sys.executable, *words], cwd=folder, env=os.environ | variables, stdout=PIPE, stderr=PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


def make_notebook(path):
    """Make a notebook of a script whose cells begin with `# %%`."""
    nbformat = pytest.importorskip("nbformat")
    _, *cells = path.read_text().split("# %%\n")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, path.with_suffix(".ipynb"))
    return path.with_suffix(".ipynb")


def curve_of(found, name):
    series = found.metric(name)
    return series.steps.tolist(), series.values.tolist()


def as_read(curves, is_rounded):
    """Return curves with values as a reader of 32 bits has them."""
    import numpy as np

    rounded = np.float32 if is_rounded else np.float64
    return {name: (steps, [float(rounded(value)) for value in values]) for name, (steps, values) in curves.items()}
