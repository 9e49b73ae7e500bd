"""MLflow, Aim and Trackio in scripts: the record says what their own readers say; they write only if they are let."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from sacristan.configs import to_plain
from sacristan.runs import open_store
from tests.processes import PIPE, run


def run_script(folder, text, *words, **variables):
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "sacristan", "run", *words, "train.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "TRACKIO"))}
    return run(command, cwd=folder, env=env | variables, stdout=PIPE, stderr=PIPE, text=True, cold=True)


def curves_of(found):
    own = [name for name in found.metrics if not name.startswith("system/")]
    return {name: (found.metric(name).steps.tolist(), found.metric(name).values.tolist()) for name in own}


def files_of(found):
    return {name: content.read() for name, content in found.artifacts.items()}


MLFLOW = """
import mlflow, os
from mlflow import MlflowClient

mlflow.set_experiment("digits")
with mlflow.start_run(run_name="first", description="a note", tags={"team": "vision"}) as outer:
    mlflow.log_params({"lr": 0.1, "net": "mlp", "amp": True})
    mlflow.log_param("layers", [1, 2])
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"acc": step / 5, "val/acc": step}, step=step)
    mlflow.set_tag("kind", "test")
    mlflow.log_text("hello", "notes/hello.txt")
    with open("weights.bin", "wb") as stream:
        stream.write(b"weights")
    mlflow.log_artifact("weights.bin")
    with mlflow.start_run(run_name="fold", nested=True):
        mlflow.log_param("fold", 1)
        mlflow.log_metric("loss", 2.0, step=0)
        mlflow.log_text("inner", "inner.txt")
    with mlflow.start_run(run_name="fold", nested=True):
        mlflow.log_metric("loss", 3.0, step=4)
    print(mlflow.get_run(outer.info.run_id).data.metrics["loss"])
client = MlflowClient()
made = client.create_run(outer.info.experiment_id, run_name="second").info.run_id
client.log_param(made, "lr", 1e-3)
client.log_metric(made, "loss", 7.0, step=3)
client.log_batch(made, metrics=[mlflow.entities.Metric("loss", 6.0, 0, 4)])
client.set_terminated(made, "FAILED")
client.log_metric(outer.info.run_id, "late", 1.0)
print(len(client.search_runs([outer.info.experiment_id])))
"""


def of_mlflow(uri):
    """Return what MLflow's own client reads: of each run name, curves, parameters, tags and files."""
    from mlflow import MlflowClient

    client, found = MlflowClient(uri), []
    [experiment] = [each.experiment_id for each in client.search_experiments() if each.name == "digits"]
    for each in reversed(client.search_runs([experiment])):
        id = each.info.run_id
        series = {name: client.get_metric_history(id, name) for name in each.data.metrics}
        if uri.startswith("sqlite"):  # which has no order of points of the same millisecond
            series = {name: sorted(points, key=lambda one: one.step) for name, points in series.items()}
        curves = {
            name: ([one.step for one in points], [one.value for one in points]) for name, points in series.items()
        }
        tags = {name: text for name, text in each.data.tags.items() if not name.startswith("mlflow.")}
        names = [each.path for each in client.list_artifacts(id) if not each.is_dir]
        names += [
            inner.path
            for each in client.list_artifacts(id)
            if each.is_dir
            for inner in client.list_artifacts(id, each.path)
        ]
        files = {name: open(client.download_artifacts(id, name), "rb").read() for name in names}  # noqa: SIM115, PTH123
        found.append((each.info.run_name, each.info.status, curves, each.data.params, tags, files))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_record_has_what_mlflow_reads_from_its_own_store(tmp_path, monkeypatch, scheme):
    pytest.importorskip("mlflow")
    from sacristan.runs.transfer.trackers import mlflow_stores

    uri = f"sqlite:///{tmp_path}/mlflow.db" if scheme == "sqlite" else str(tmp_path / "mlruns")
    variables = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = run_script(tmp_path, MLFLOW, "--also", "mlflow", **variables)
    assert (done.returncode, done.stdout) == (0, "0.2\n4\n"), done.stderr
    assert "what is logged to run" in done.stderr  # a later one has begun
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    theirs = {(name, number): rest for number, (name, *rest) in enumerate(of_mlflow(uri))}
    (_, outer, *_), (_, fold, params, _, inner), (_, again, *_), (status, second, *_) = theirs.values()
    outer.pop("late")
    with open_store(tmp_path / "my_runs") as store:
        first, last = sorted(store.find(), key=lambda found: found.id)
        parts = {"fold": fold, "fold_2": again}
        nested = {f"{part}/{name}": curve for part, curves in parts.items() for name, curve in curves.items()}
        assert curves_of(first) == outer | nested
        assert (first.status, first.display_name, first.note) == ("COMPLETED", "first", "a note")
        assert {name: str(value) for name, value in first.config.items() if name != "fold"} == theirs["first", 0][2]
        assert {name: str(value) for name, value in first.config["fold"].items()} == params
        assert (first.config["lr"], first.config["amp"]) == (0.1, True)
        assert dict(first.info["mlflow"]["tags"]) == theirs["first", 0][3] == {"team": "vision", "kind": "test"}
        assert files_of(first) == theirs["first", 0][4] | {f"fold/{name}": data for name, data in inner.items()}
        every = [each.read() for each in mlflow_stores.find(Path(uri.removeprefix("sqlite:///")))]
        assert sorted(each.title for each in every) == ["first", "fold", "fold", "second"]
        [imported] = [each for each in every if each.title == "first"]
        late = {curve.name: (curve.steps.tolist(), curve.values.tolist()) for curve in imported.curves}
        assert late.pop("late") == ([0], [1.0])  # what was logged after another run had begun
        assert (late, imported.config) == (curves_of(first), to_plain(first.config))
        assert (imported.title, imported.note, imported.status) == ("first", "a note", "COMPLETED")
        tags = {name: text for name, text in imported.info["mlflow"]["tags"].items() if not name.startswith("mlflow.")}
        assert tags == dict(first.info["mlflow"]["tags"])
        assert (last.name, last.status, status) == ("digits", "FAILED", "FAILED")
        assert (curves_of(last), last.config["lr"]) == (second, 0.001)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reaches_no_server_and_writes_no_folder_unless_it_is_let(tmp_path):
    pytest.importorskip("mlflow")
    text = "import mlflow; mlflow.set_tracking_uri('http://127.0.0.1:9')\n" + MLFLOW
    done = run_script(tmp_path, text, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert (done.returncode, done.stdout) == (0, "0.2\n4\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_runs", "train.py", "weights.bin"]
    with open_store(tmp_path / "my_runs") as store:
        first, second = sorted(store.find(), key=lambda found: found.id)
        assert first.metric("loss").values.tolist() == [1 / (step + 1) for step in range(5)]
        assert curves_of(second) == {"loss": ([3, 4], [7.0, 6.0])}


CONTINUED = """
import mlflow, os

with mlflow.start_run(run_id=os.environ["EARLIER"]) as outer:
    mlflow.log_metric("loss", 0.5, step=7)
    for fold in range(2):
        with mlflow.start_run(nested=True):
            mlflow.log_param("fold", fold)
            mlflow.log_metric("loss", fold, step=0)
print(outer.info.run_id == os.environ["EARLIER"], mlflow.get_run(outer.info.run_id).data.metrics)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [[], ["--also", "mlflow"]], ids=["alone", "also"])
def test_run_of_an_earlier_process_goes_on_and_nested_runs_without_a_name_are_parts(tmp_path, words):
    pytest.importorskip("mlflow")
    variables = {"MLFLOW_TRACKING_URI": str(tmp_path / "mlruns"), "MLFLOW_ALLOW_FILE_STORE": "true"}
    variables |= {"MLFLOW_DISABLE_TELEMETRY": "true"}
    earlier = "import mlflow\nwith mlflow.start_run() as run: print(run.info.run_id)"
    command = [sys.executable, "-c", earlier]
    id = run(command, cwd=tmp_path, env=os.environ | variables, stdout=PIPE, text=True, cold=True).stdout.strip()
    done = run_script(tmp_path, CONTINUED, *words, EARLIER=id, **variables)
    assert (done.returncode, done.stdout) == (0, "True {'loss': 0.5}\n"), done.stderr
    assert f"mlflow: what an earlier process has logged to run {id} is not recorded" in done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        folds = {f"run_{number}/loss": ([0], [number - 2.0]) for number in (2, 3)}
        assert curves_of(found) == {"loss": ([7], [0.5]), **folds}
        assert [found.config[f"run_{number}"]["fold"] for number in (2, 3)] == [0, 1]


AUTOLOGGED = """
import lightning, mlflow, torch

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.25)

mlflow.pytorch.autolog(log_models=False, checkpoint=False)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), 2))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_autologging_of_mlflow_records_what_lightning_trains(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("lightning")
    done = run_script(tmp_path, AUTOLOGGED, MLFLOW_DISABLE_TELEMETRY="true")
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.metric("train_loss").steps.tolist() == [0, 1]
        assert (found.config["optimizer_name"], found.config["lr"], found.config["epochs"]) == ("SGD", 0.25, 2)


AIM = """
import numpy as np
import aim
from aim import Run

run = Run(experiment="digits", system_tracking_interval=None, capture_terminal_logs=False)
run.name, run.description = "first", "a note"
run.add_tag("x")
run["hparams"] = {"lr": 0.1, "net": {"depth": 2}}
run["seed"] = 3
for step in range(4):
    run.track(1 / (step + 1), name="loss", step=step, context={"subset": "train"})
    run.track({"a": step, "b": np.float32(step / 2)}, step=step, context={"rank": 0})
run.track(0.5, name="count")
run.track(0.25, name="count")
run.track(aim.Text("hi"), name="note", step=1)
run.track(aim.Image(np.full((4, 4, 3), 7, "uint8"), caption="dark"), name="image", step=1)
run.track(aim.Distribution(np.arange(10.0)), name="weights", step=1)
print(run["hparams", "lr"], run.get("none", 7), run["hparams"])
run.close()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [[], pytest.param(["--also", "aim"], marks=pytest.mark.slow)], ids=["alone", "also"])
def test_record_has_what_aim_reads_from_its_own_repository(tmp_path, words, monkeypatch):
    pytest.importorskip("aim")
    from sacristan.runs.transfer.trackers import aim_repositories

    if words:
        made = run([sys.executable, "-c", "import aim; aim.Repo.from_path('.', init=True)"], cwd=tmp_path, cold=True)
        assert made.returncode == 0
    done = run_script(tmp_path, AIM, *words)
    assert (done.returncode, done.stdout) == (0, "0.1 7 {'lr': 0.1, 'net': {'depth': 2}}\n"), done.stderr
    assert (tmp_path / ".aim").exists() == bool(words)
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert (found.status, found.display_name, found.note, found.tags) == ("COMPLETED", "first", "a note", ["x"])
        media = {one.name: (one.kind, one.step) for one in found.media}
        assert media == {"note": ("text", 1), "image": ("image", 1), "weights": ("histogram", 1)}
        curves = curves_of(found)
        assert (curves["train/loss"], curves["count"]) == (([0, 1, 2, 3], [1, 0.5, 1 / 3, 0.25]), ([0, 1], [0.5, 0.25]))
        config = {"lr": 0.1, "net": {"depth": 2}, "seed": 3}
        assert {name: found.config[name] for name in found.config} == config
        assert found.info["project"] == "digits"
    if words:
        [theirs] = [each.read() for each in aim_repositories.find(tmp_path)]
        assert {each.name: (each.steps.tolist(), each.values.tolist()) for each in theirs.curves} == curves
        assert {each.name: (each.kind, each.step) for each in theirs.media} == media
        assert (theirs.title, theirs.note, theirs.tags, theirs.config) == ("first", "a note", ["x"], config)


TRACKIO = """
import trackio

for seed in range(2):
    run = trackio.init(project="digits", name=f"seed-{seed}", config={"lr": 0.1, "seed": seed})
    for step in range(3):
        trackio.log({"loss": 1 / (step + 1), "val": {"acc": step}})
    trackio.log({"late": 1.0}, step=7)
    run.log({"later": 1.0})
    trackio.log({"table": trackio.Table(columns=["a"], data=[[1], [2]]), "weights": trackio.Histogram([1.0, 2.0]),
                 "note": trackio.Markdown("**a**")})
    trackio.alert("title", text="text")
    trackio.finish()
"""


@pytest.mark.parametrize("words", [[], ["--also", "trackio"]], ids=["alone", "also"])
def test_record_has_what_is_in_trackios_own_database(tmp_path, words):
    if words and importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed, as it needs pillow below 13; .ci/run has it in a folder of its own")
    done = run_script(tmp_path, TRACKIO, *words, TRACKIO_DIR=str(tmp_path / "theirs"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "theirs").exists() == bool(words)
    theirs = {}
    if words:
        from sacristan.runs.transfer.trackers import trackio_databases

        theirs = {one.title: one for one in (found.read() for found in trackio_databases.find(tmp_path / "theirs"))}
    with open_store(tmp_path / "my_runs") as store:
        for seed, found in enumerate(sorted(store.find(), key=lambda found: found.id)):
            assert (found.status, found.display_name) == ("COMPLETED", f"seed-{seed}")
            assert {name: found.config[name] for name in ("lr", "seed")} == {"lr": 0.1, "seed": seed}
            curves, media = curves_of(found), {one.name: (one.kind, one.step) for one in found.media}
            assert (curves["loss"][0], curves["late"], curves["later"]) == ([0, 1, 2], ([7], [1.0]), ([8], [1.0]))
            assert media == {"table": ("table", 9), "weights": ("histogram", 9), "note": ("text", 9)}
            assert found.alerts[0]["text"] == "title: text"
            if words:
                real = theirs[f"seed-{seed}"]
                assert {
                    each.name: (each.steps.tolist(), each.values.tolist())
                    for each in real.curves
                    if not each.name.startswith("system/")
                } == curves
                assert {each.name: (each.kind, each.step) for each in real.media} == media
                assert real.config == {"lr": 0.1, "seed": seed}


REGISTRY = """
import mlflow, mlflow.pytorch, mlflow.sklearn, numpy, torch
from sklearn.linear_model import LogisticRegression

mlflow.sklearn.autolog(log_models=False)
options = {"pip_requirements": [], "serialization_format": "pickle"}
client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    model = LogisticRegression(C=0.5).fit(numpy.arange(12.0).reshape(6, 2), [0, 1] * 3)
    known = mlflow.sklearn.log_model(model, name="clf", registered_model_name="digits", **options)
    net = mlflow.pytorch.log_model(torch.nn.Linear(2, 1), name="net", **options)
    mlflow.register_model(net.model_uri, "digits")
    client.create_registered_model("other")
    client.create_model_version("other", net.model_uri, run.info.run_id)
    client.set_registered_model_alias("digits", "champion", "1")
    client.set_model_version_tag("digits", "1", "checked", "yes")
    print(client.get_model_version_by_alias("digits", "champion").version, len(client.search_registered_models()))
    print(mlflow.sklearn.load_model("models:/digits@champion").get_params()["C"])
    print(sorted(client.get_run(run.info.run_id).data.metrics))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [[], ["--also", "mlflow"]], ids=["alone", "also"])
def test_autologging_and_models_of_mlflow_are_recorded_and_calls_of_its_registry_are_named_once(tmp_path, words):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = run_script(tmp_path, REGISTRY, *words, MLFLOW_TRACKING_URI=uri, MLFLOW_DISABLE_TELEMETRY="true")
    assert done.returncode == 0, done.stderr
    version, value, metrics = done.stdout.splitlines()
    assert (version, value, (tmp_path / "mlflow.db").exists()) == ("1 2", "0.5", bool(words))
    for call in (
        "create_registered_model", "create_model_version", "set_registered_model_alias", "set_model_version_tag",
    ):  # fmt: skip
        assert done.stderr.count(f"sacristan: mlflow: {call} is not recorded\n") == 1
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert (found.status, found.config["C"], found.config["solver"]) == ("COMPLETED", 0.5, "lbfgs")
        assert str(sorted(curves_of(found))) == metrics
        assert "training_accuracy_score" in metrics
        assert {"models/clf/MLmodel", "models/clf/model.pkl", "models/net/MLmodel"} <= {*found.artifacts}


LEFT_OUT = """
import aim, mlflow, numpy, wandb

@mlflow.trace
def trained(rate):
    return rate

with mlflow.start_run():
    trained(0.1)
    mlflow.set_tag("team", "vision")
    mlflow.delete_tag("team")
run = aim.Run()
for tag in ("old", "new"):
    run.add_tag(tag)
run.remove_tag("old")
run.log_info("a line")
run.close()
with wandb.init(project="p", mode="offline") as run:
    table = wandb.Table(columns=["x", "y"], data=[[1, 2]])
    values = {"line": wandb.plot.line(table, "x", "y"), "points": wandb.Object3D(numpy.zeros((4, 3))), "loss": 1.0}
    run.log(values)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [[], ["mlflow", "aim", "wandb"]], ids=["alone", "also"])
def test_what_is_not_recorded_of_each_library_is_named_once_and_nothing_stands_for_it(tmp_path, words):
    for package in ("aim", "mlflow", "wandb"):
        pytest.importorskip(package)
    also = [word for library in words for word in ("--also", library)]
    done = run_script(tmp_path, LEFT_OUT, *also, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db")
    assert done.returncode == 0, done.stderr
    log_line, chart = ("track of LogRecord", "CustomChart") if words else ("log_info", "plot.line")
    calls = ["mlflow: delete_tag", "mlflow: trace", f"aim: {log_line}", f"wandb: {chart}", "wandb: Object3D"]
    named = [line for line in done.stderr.splitlines() if "is not recorded" in line]
    assert sorted(named) == sorted(f"sacristan: {call} is not recorded" for call in calls)
    with open_store(tmp_path / "my_runs") as store:
        *_, tracked, last = sorted(store.find(), key=lambda found: found.id)
        assert ([*tracked.tags], curves_of(last), [*last.media]) == (["new"], {"loss": ([0], [1.0])}, [])
        assert "summary" not in last.info


OF_AIMS_INTEGRATIONS = """
import lightning, torch, transformers
from aim.hugging_face import AimCallback
from aim.pytorch_lightning import AimLogger

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.save_hyperparameters({"lr": 0.1})

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

logger = AimLogger(experiment="digits", train_metric_prefix="train_", system_tracking_interval=None)
trainer = lightning.Trainer(
    max_epochs=1, logger=logger, log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), 2))
logger.experiment.track(7.0, name="late")  # opens the run again, which the end of the training has closed
logger.experiment.close()
settings = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1)
data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)} for _ in range(4)]
arguments = transformers.TrainingArguments(
    "out", max_steps=4, per_device_train_batch_size=1, logging_steps=2, save_strategy="no", report_to="none",
    use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=2,
)
trainer = transformers.Trainer(
    transformers.GPT2LMHeadModel(settings), arguments, train_dataset=data, eval_dataset=data,
    callbacks=[AimCallback(experiment="gpt", system_tracking_interval=None)],
)
trainer.train()
print("done", [row["loss"] for row in trainer.state.log_history if "loss" in row])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_loggers_of_aim_for_lightning_and_transformers_are_recorded(tmp_path):
    for package in ("aim", "lightning", "transformers"):
        pytest.importorskip(package)
    done = run_script(tmp_path, OF_AIMS_INTEGRATIONS)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".aim").exists()
    losses = done.stdout.splitlines()[-1].removeprefix("done ")
    with open_store(tmp_path / "my_runs") as store:
        first, late, second = sorted(store.find(), key=lambda found: found.id)
        assert curves_of(late) == {"late": ([0], [7.0])}
        assert (first.info["project"], curves_of(first)["train/loss"][0]) == ("digits", [0, 1, 2, 3])
        assert first.config["lr"] == 0.1
        curves = curves_of(second)
        assert (second.name, str(curves["loss"][1])) == ("gpt", losses)
        assert curves["loss"][0] == curves["eval/loss"][0] == [2, 4]
