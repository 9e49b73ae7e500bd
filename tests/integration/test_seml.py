"""SEML stages, starts, resets and collects runs of our experiments, in an environment with versions that it pins."""

import json
import os
import shutil
import sysconfig

import pymongo
import pytest

from sacristan.runs import Mongod, open_store
from tests import processes

pytestmark = pytest.mark.slow

# As docs/from_sacred.md shows it.
OURS = """
from sacristan.experiments import Experiment
from sacristan.observers import MongoObserver
from seml.database import get_mongo_client, get_mongodb_config
from seml.experiment.experiment import collect_exp_stats

ex = Experiment("ours")
ex.post_run_hook(lambda _run: collect_exp_stats(_run))


def observer_of(collection, overwrite):
    login = get_mongodb_config()
    client = get_mongo_client(**login)
    return MongoObserver(client=client, db_name=login["db_name"], collection=collection, overwrite=overwrite)


@ex.config
def config():
    overwrite = None
    db_collection = None
    if db_collection is not None:
        ex.observers.append(observer_of(db_collection, overwrite))


@ex.automain
def main(_run, lr: float, reg: dict, sizes: list, steps):
    for step in range(steps):
        _run.log_scalar("loss", lr / (step + 1), step)
    if lr < 0:
        raise ValueError("lr is negative")
    return {"loss": lr, "dropout": reg["dropout"]}
"""

# The idioms of SEML's own examples; only the import of Experiment is another one.
THEIRS = """
import logging

import numpy as np
from sacristan.experiments import Experiment
from seml import create_mongodb_observer
from seml.experiment.experiment import MongoDbObserverConfig, collect_exp_stats, setup_logger

ex = Experiment()
setup_logger(ex)


@ex.post_run_hook
def collect_stats(_run):
    collect_exp_stats(_run)


@ex.named_config
def normalize():
    preprocessing = {"mean": 0.377, "std": 0.23}


OBSERVING


class Wrapper:
    @ex.capture(prefix="model")
    def init_model(self, model_type: str, model_params: dict):
        self.model = f"{model_type} {model_params['hidden_sizes']}"

    @ex.capture(prefix="preprocessing")
    def init_preprocessing(self, mean: float, std: float):
        self.mean = mean

    @ex.capture(prefix="training")
    def train(self, patience, num_epochs):
        return {"model": self.model, "mean": self.mean, "accuracy": np.arange(num_epochs) / 2}


@ex.automain
def train(experiment=None, regularization_params: dict = None):
    experiment = experiment or Wrapper()
    experiment.init_model()
    experiment.init_preprocessing()
    logging.info("regularization %s", dict(regularization_params))
    return experiment.train()
"""
OBSERVING = {
    "scope": """
@ex.config
def config():
    overwrite = None
    db_collection = None
    if db_collection is not None:
        ex.observers.append(create_mongodb_observer(db_collection, overwrite=overwrite))
""",
    "as seml.Experiment": "ex.configurations.append(MongoDbObserverConfig(ex))",
}

CONFIG = """
seml:
  executable: {name}.py
  name: {name}
  output_dir: logs
  project_root_dir: .
slurm:
  - sbatch_options: {{mem: 1G}}
"""


class Seml:
    """A project folder with SEML, and the database that it uses."""

    def __init__(self, folder, programs, server):
        self.folder, self.programs, self.database = folder, programs, server["lab"]
        login = folder / "config" / "seml" / "mongodb.config"
        login.parent.mkdir(parents=True)
        port = server.address[1]
        login.write_text(f"username: me\npassword: se/cret\nport: {port}\nhost: 127.0.0.1\ndatabase: lab\n")
        (folder / "logs").mkdir()
        self.store = f"mongodb://me:se%2Fcret@127.0.0.1:{port}/lab"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SACRISTAN_", "PYTHON"))},
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def __call__(self, *words):
        return self.run("seml", *words)

    def run(self, program, *words):
        command = [self.programs / program, *words]
        done = processes.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        logs = "\n".join(path.read_text() for path in self.folder.glob("logs/*.out"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        return done.stdout

    def add(self, collection, name, script, config):
        (self.folder / f"{name}.py").write_text(script)
        (self.folder / f"{name}.yaml").write_text(CONFIG.format(name=name) + config)
        self(collection, "add", f"{name}.yaml")

    def results(self, collection):
        """Return what `seml.get_results` returns, by id."""
        code = f"import json, seml; print(json.dumps(seml.get_results({collection!r}, progress=False), default=list))"
        return {found["_id"]: found for found in json.loads(self.run("python", "-W", "ignore", "-c", code))}


@pytest.fixture(scope="module")
def programs(tmp_path_factory, request):
    """The folder of SEML's programs, in an environment that has the lab, too."""
    uv = shutil.which("uv") or pytest.skip("needs uv")
    folder = tmp_path_factory.mktemp("seml")
    python = folder / "venv" / "bin" / "python"
    for words in (["venv", "--no-project", folder / "venv"], ["pip", "install", "-p", python, "seml==0.5.7"]):
        done = processes.run([uv, *words], cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"SEML cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    packages = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    # For the lab, after those that SEML needs.
    (packages / "lab.pth").write_text(f"{request.config.rootpath}\n{sysconfig.get_path('purelib')}\n")
    return python.parent


@pytest.fixture
def seml(tmp_path, programs):
    """SEML in a project of its own, with a server that has a user for it."""
    with Mongod(tmp_path / "server") as server, pymongo.MongoClient(server.url) as client:
        client.lab.command("createUser", "me", pwd="se/cret", roles=["readWrite"])
        yield Seml(tmp_path / "project", programs, client)


def test_seml_stages_starts_resets_and_collects_runs_that_our_observer_records(seml):
    seml.add(
        *("grid", "ours", OURS),
        """
fixed: {sizes: [16, 8], reg.dropout: 0.5, steps: 3}
grid:
  lr: {type: choice, options: [0.1, -1.0]}
""",
    )
    runs = seml.database.grid
    staged = {run["_id"]: run for run in runs.find()}
    assert {run["status"] for run in staged.values()} == {"STAGED"}
    seml("grid", "start", "--local")
    assert [run["status"] for run in runs.find(sort=[("_id", 1)])] == ["COMPLETED", "FAILED"]
    for run in runs.find():
        same = staged[run["_id"]].keys() - {"status", "config", "seml"}
        assert {name: run[name] for name in same} == {name: staged[run["_id"]][name] for name in same}
        assert run["seml"].items() >= staged[run["_id"]]["seml"].items()
        assert run["execution"] == {"cluster": "local"}
    assert runs.find_one({"_id": 1})["stats"]["real_time"] > 0
    assert "lr is negative" in "".join(runs.find_one({"_id": 2})["fail_trace"])
    [found] = seml.results("grid").values()
    assert found["result"] == {"loss": 0.1, "dropout": 0.5}
    assert found["config"].items() >= {"lr": 0.1, "overwrite": 1, "sizes": [16, 8]}.items()
    with open_store(f"{seml.store}#grid") as store:
        assert {run.id: run.status for run in store.find()} == {"1": "COMPLETED", "2": "FAILED"}
        assert store.get("1").metric("loss").steps.tolist() == [0, 1, 2]

    seml("grid", "reset", "--yes", "--filter-states", "COMPLETED")
    assert runs.find_one({"_id": 1})["status"] == "STAGED"
    runs.update_one({"_id": 1}, {"$set": {"config.steps": 2}})
    seml("grid", "start", "--local")
    assert [run["status"] for run in runs.find(sort=[("_id", 1)])] == ["COMPLETED", "FAILED"]
    assert seml.database.metrics.find_one({"run_id": 1, "name": "loss"})["steps"] == [0, 1]
    assert seml.database.metrics.count_documents({"run_id": 1, "name": "loss"}) == 1


@pytest.mark.parametrize("observing", ["scope", pytest.param("as seml.Experiment", marks=pytest.mark.nightly)])
def test_experiments_of_seml_run_with_its_own_observer_and_another_import(seml, observing):
    seml.add(
        *("theirs", "theirs", THEIRS.replace("OBSERVING", OBSERVING[observing])),
        """
fixed: {training.patience: 20, training.num_epochs: 3, +preprocessing: normalize, model.model_params.hidden_sizes: [8]}
grid:
  model.model_type: {type: choice, options: [variant_1]}
random:
  samples: 1
  seed: 821
  regularization_params.dropout: {type: uniform, min: 0.0, max: 0.7}
""",
    )
    seml("theirs", "start", "--local")
    [found] = seml.results("theirs").values()
    assert found["result"] == {"model": "variant_1 [8]", "mean": 0.377, "accuracy": [0.0, 0.5, 1.0]}
    assert found["config"]["regularization_params"].keys() == {"dropout"}
    run = seml.database.theirs.find_one()
    assert (run["_id"], run["status"], run["batch_id"]) == (1, "COMPLETED", 1)
    assert run["stats"]["real_time"] > 0
    with open_store(f"{seml.store}#theirs") as store:
        assert store.get("1").status == "COMPLETED"
