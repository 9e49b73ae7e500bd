"""Projects of MLflow: their data sets and models arrive, whatever lies beside, and damage is called damage."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.observers.record.other_trackers import parse_value
from sacristan.runs import ForeignError, export_to, open_store
from tests.trackers import digest_of, points_of, take, unpack

FILES = {
    "0/meta.yaml": "name: Default\n",
    "7/meta.yaml": "name: digits\n",
    "7/datasets/d1/meta.yaml": "digest: abc123\nname: my digits\nschema: '{}'\nsource: /data\nsource_type: local\n",
    "7/models/m-1/meta.yaml": "model_id: m-1\nname: net\nsource_run_id: run1\nstatus: 2\n",
    "7/models/m-1/params/depth": "3",
    "7/models/m-1/artifacts/w.txt": "weights",
    "7/models/m-2/meta.yaml": "model_id: m-2\nname: net\nsource_run_id: run1\nstatus: 2\n",
    "7/models/m-2/artifacts/sub/w.txt": "more",
    "7/models/m-3/meta.yaml": "lifecycle_stage: deleted\nmodel_id: m-3\nname: gone\nsource_run_id: run1\n",
    "7/models/m-3/artifacts/w.txt": "gone",
    "7/run1/meta.yaml": "run_id: run1\nstatus: 3\nstart_time: 1700000000000\nend_time: 1700000001000\n",
    "7/run1/metrics/loss": "1700000000000 0.5 0\n",
    "7/run1/inputs/i1/meta.yaml": "source_id: d1\nsource_type: DATASET\ntags: {mlflow.data.context: training}\n",
    "7/run1/inputs/i2/meta.yaml": "source_id: ../../../secret\nsource_type: DATASET\ntags: {}\n",
    "7/run2/meta.yaml": "run_id: run2\nstatus: 3\nstart_time: 1700000002000\nend_time: 1700000003000\n",
    "7/run2/inputs/i1/meta.yaml": "source_id: d1\nsource_type: DATASET\ntags: {}\n",
}


@pytest.fixture
def project(tmp_path):
    """A project's folder with a folder of runs."""
    for name, text in FILES.items():
        path = tmp_path / "project" / "mlruns" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def test_data_sets_and_models_of_a_project_arrive_as_used_artifacts_and_files(project, store, tmp_path):
    (project / "secret").mkdir()
    (project / "secret" / "meta.yaml").write_text("name: secret\n")
    before = digest_of(project)
    outcomes = take(project, store)
    reason = "a data set that it used, whose description is missing"
    assert [(run.outcome, run.left_out) for run in outcomes] == [("new", (reason,)), ("new", ())]
    first, second = (store.get(run.id) for run in outcomes)
    files = {"files/models/net/w.txt": b"weights", "files/models/net-m-2/sub/w.txt": b"more"}
    assert {name: content.read() for name, content in first.artifacts.items()} == files
    assert first.info["mlflow"]["datasets"] == [
        {"name": "my digits", "digest": "abc123", "tags": {"mlflow.data.context": "training"}}
    ]
    assert first.info["mlflow"]["models"][0]["params"] == {"depth": "3"}
    [version] = first["artifacts_used"]
    assert [version] == second["artifacts_used"]
    fetched = first.fetch_version(version, tmp_path / "fetched").copy_to(tmp_path / "data")
    assert json.loads((fetched / "dataset.json").read_text())["source"] == "/data"
    assert digest_of(project) == before
    for path in (project, project / "mlruns", project / "mlruns" / "7"):  # whose models are no runs
        assert [run.outcome for run in take(path, store)] == ["present"] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_data_sets_and_models_are_what_mlflow_has_written(scheme, tmp_path, store, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, DatasetInput, InputTag

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setitem(os.environ, "MLFLOW_DISABLE_TELEMETRY", "true")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    client = MlflowClient("sqlite:///mlflow.db" if scheme == "sqlite" else "./mlruns")
    experiment = client.create_experiment("digits")
    run = client.create_run(experiment).info.run_id
    data = Dataset(name="digits", digest="abc123", source_type="local", source="/data", schema="{}", profile="{}")
    client.log_inputs(run, datasets=[DatasetInput(data, [InputTag("context", "training")])])
    model = client.create_logged_model(experiment, name="net", source_run_id=run, params={"depth": "3"})
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.txt").write_text("weights")
    client.log_model_artifacts(model.model_id, str(tmp_path / "weights"))
    client.finalize_logged_model(model.model_id, "READY")
    client.set_terminated(run)
    [outcome] = take(project, store)
    assert (outcome.outcome, outcome.left_out) == ("new", ())
    found = store.get(outcome.id)
    assert found.artifacts["files/models/net/w.txt"].read() == b"weights"
    assert [entry["name"] for entry in found["artifacts_used"]] == ["digits-abc123"]
    [model] = found.info["mlflow"]["models"]
    assert (model["name"], model["params"]) == ("net", {"depth": "3"})
    assert found.info["mlflow"]["datasets"][0]["tags"] == {"context": "training"}


def test_database_and_folder_of_one_project_are_both_read_and_each_run_once(project, store, tmp_path):
    path = unpack("mlflow", tmp_path)
    shutil.copy(path / "mlflow.db", project)
    keys = [run.outcome for run in take(project / "mlflow.db", store)]
    outcomes = [run.outcome for run in take(project, store)]
    assert (outcomes.count("present"), outcomes.count("new")) == (len(keys), 2)


def test_runs_of_another_tracker_in_the_same_project_are_mentioned(project, store, capsys):
    pytest.importorskip("wandb")
    (project / "wandb" / "run-1").mkdir(parents=True)
    (project / "wandb" / "run-1" / "run-1.wandb").write_bytes(b":W&B")
    assert main(["--store", store.where, "import", str(project)]) == 0
    note = f"note: {project} also holds runs of wandb; import them with --from wandb"
    assert note in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("name", ["mlflow.db", "renamed.db"])
def test_cut_database_is_called_damaged(name, tmp_path, store, capsys):
    path = unpack("mlflow", tmp_path) / "mlflow.db"
    project = tmp_path / "project"
    project.mkdir()
    (project / name).write_bytes(path.read_bytes()[:5000])
    for place in (project / name, project) if name == "mlflow.db" else (project / name,):
        assert main(["--store", store.where, "import", str(place)]) == 1
        assert "malformed): the database is damaged, or cut off" in capsys.readouterr().err
    with pytest.raises(ForeignError, match="holds no runs of a known tracker"):
        take(tmp_path / "store", store)


def test_points_that_a_flipped_bit_takes_away_from_a_run_of_a_database_are_reported(tmp_path, store):
    path = unpack("mlflow", tmp_path) / "mlflow.db"
    whole = {run.place: run.num_points for run in take(path, store)}
    place = max(whole, key=whole.get)
    key, data, num_fewer = place.rpartition(" ")[2].encode(), path.read_bytes(), 0
    for match in [*re.finditer(key, data)][::14]:
        path.write_bytes(data[: match.start()] + bytes([data[match.start()] ^ 1]) + data[match.start() + 1 :])
        for run in take(path, store):
            if run.num_points < whole.get(run.place, 0):
                num_fewer += 1
                assert "mlflow.db is damaged" in run.left_out[0]
    assert num_fewer


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-3", -3), ("3.0", 3.0), ("1e-3", 0.001), ("2024_01_05", "2024_01_05"), ("007", "007"),
     ("1_0.5", "1_0.5"), ("True", True), ("None", None), ("adam", "adam")],
)  # fmt: skip
def test_parameter_is_the_number_that_its_text_spells(text, value):
    assert (parse_value(text), type(parse_value(text))) == (value, type(value))


@pytest.mark.parametrize(
    "kind", ["tensorboard", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mlflow", "wandb"))]
)
def test_status_and_result_come_back_from_our_own_exports(kind, tmp_path, store):
    ex = Experiment("digits", save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.add_config(how="end", layers=3)

    @ex.main
    def run(_run, how):
        _run.log_scalar("loss", 1.0, 5)
        if how == "result":
            _run.log_scalar("result", 0.25, 4)
        if how == "stop":
            raise KeyboardInterrupt
        return {"score": [1, 2]} if how == "nested" else 0.75

    for how in ("end", "result", "nested"):
        ex.run(config_updates={"how": how})
    with pytest.raises(KeyboardInterrupt):
        ex.run(config_updates={"how": "stop"})
    with open_store(tmp_path / "runs") as ours:
        record = ours.get("1").folder / "run.json"
        record.write_text(record.read_text().replace('"status": "COMPLETED"', '"status": "DEAD"'))
        assert {run.outcome for run in export_to(list(ours), tmp_path / "out", kind)} == {"new"}
        outcomes = take(tmp_path / "out" / "mlflow.db" if kind == "mlflow" else tmp_path / "out", store)
        assert [run.outcome for run in outcomes] == ["new"] * 4
        theirs = {run.config["how"]: run for run in store}
        for run in ours:
            back = theirs[run.config["how"]]
            assert (back.status, back.result, back.config["layers"]) == (run.status, run.result, 3)
            assert back.metrics == run.metrics
            for name in ("loss", "result"):
                assert points_of(back).get(name) == points_of(run).get(name)
