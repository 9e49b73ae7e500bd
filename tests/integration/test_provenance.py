"""Provenance of a run, and its parent: in the folder and in MongoDB."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import exp
from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, Ingredient
from sacristan.observers import FileObserver, MongoObserver
from sacristan.observers.provenance.gathering import packages
from sacristan.observers.record.identity import new_uid


def load(folder, name="run.json"):
    return json.loads((Path(folder) / name).read_text())


def record(main, *observers, meta_info=None, options={}):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", **options}, meta_info=meta_info)


# What a run was made of


@pytest.fixture
def switches():
    """Put torch's switches back."""
    before = torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.backends.cudnn.benchmark = before[0]
    torch.use_deterministic_algorithms(before[1])
    torch.set_num_threads(before[2])


def test_switches_that_the_run_sets_are_recorded_as_they_were_and_became(tmp_path, database, mongo_url, switches):
    def main():
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(before["num_threads"] + 1)

    torch.backends.cudnn.benchmark = False
    before = {"cudnn_benchmark": False, "num_threads": torch.get_num_threads()}
    record(main, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, db_name=database.name))
    found = load(tmp_path / "runs" / "1", "provenance.json")
    assert found["determinism"]["cudnn_benchmark"] is True
    assert found["determinism"]["num_threads"] == before["num_threads"] + 1
    assert found["determinism"]["deterministic_algorithms"] is False
    assert found["determinism_before"] == before
    assert (found["machine"]["cuda"], found["machine"]["cudnn"]) == (
        torch.version.cuda,
        torch.backends.cudnn.version(),
    )
    assert {"gpus", "gpu_driver", "gpu_driver_cuda"} <= found["machine"].keys()
    in_database = database.runs.find_one()["provenance"]
    assert in_database["determinism"] == found["determinism"]
    assert in_database["determinism_before"] == before


def test_switches_of_a_run_without_beats_are_read_at_its_end(tmp_path, switches):
    def main():
        torch.use_deterministic_algorithms(True)

    record(main, FileObserver(tmp_path / "runs"), options={"--beat-interval": "0"})
    found = load(tmp_path / "runs" / "1", "provenance.json")
    assert found["determinism"]["deterministic_algorithms"] is True
    assert found["determinism_before"] == {"deterministic_algorithms": False}


def test_switches_that_stay_leave_no_entry_of_before(tmp_path):
    record(lambda: 1, FileObserver(tmp_path / "runs"))
    found = load(tmp_path / "runs" / "1", "provenance.json")
    assert found["determinism"]["deterministic_algorithms"] is False
    assert "determinism_before" not in found


KILLED = """
ex.observers.append(FileObserver("runs"))
@ex.automain
def main(_run):
    print("torch" in sys.modules, flush=True)
    import torch
    torch.backends.cudnn.deterministic = True
    while True: time.sleep(0.05)
"""


@pytest.mark.slow
def test_switches_of_a_killed_run_that_imported_torch_late_are_recorded(tmp_path, start, wait_for):
    recorded = start(tmp_path, KILLED, "-b", "0.1", cold=True)
    path = tmp_path / "runs" / "1" / "provenance.json"

    def deterministic():
        return path.exists() and json.loads(path.read_text())["determinism"].get("cudnn_deterministic")

    wait_for(deterministic, "the switch")
    recorded.process.kill()
    recorded.process.wait()
    assert "cuda" in json.loads(path.read_text())["machine"]
    assert recorded.out.read_text().strip() == "False"


def test_run_without_torch_has_the_switches_of_the_environment_and_no_torch(tmp_path, start):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(): return 'torch' in sys.modules\n"
    start(tmp_path, body, cold=True).finish()
    assert load(tmp_path / "runs" / "1")["result"] is False
    found = load(tmp_path / "runs" / "1", "provenance.json")
    assert set(found["determinism"]) == {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"}
    assert "cuda" not in found["machine"]


def test_main_records_its_switches_and_the_fingerprint_of_its_data(tmp_path, monkeypatch, switches):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "put back afterwards")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    settings = {"data.name": "wine", "epochs": 1, "device.deterministic": True}
    exp.ex.run(config_updates=settings)
    folder = tmp_path / "my_runs" / "1"
    found = load(folder, "provenance.json")["determinism"]
    assert (found["deterministic_algorithms"], found["CUBLAS_WORKSPACE_CONFIG"]) == (True, ":4096:8")
    data = load(folder, "info.json")["data"]
    assert data["name"] == "wine"
    assert len(data["fingerprint"]) == 64


@pytest.mark.parametrize("names", ["LAB_*,SITE", " SITE , LAB_ONE,LAB_URL,LAB_TOKEN,"])
def test_variables_that_an_option_names_are_recorded_without_secrets(tmp_path, monkeypatch, caplog, names):
    for name, value in (("LAB_ONE", "1"), ("LAB_URL", "mongodb://me:hidden@host/db"), ("LAB_TOKEN", "hidden")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SITE", raising=False)
    record(lambda: 1, FileObserver(tmp_path / "runs"), options={"--environment": names})
    found = load(tmp_path / "runs" / "1")["meta"]
    assert found["environment"] == {"LAB_ONE": "1", "LAB_URL": "mongodb://host/db", "SITE": None}
    assert found["options"]["--environment"] == names
    hidden = "-E: not recorded, because they hold secrets, or their names suggest it: LAB_TOKEN"
    assert hidden in caplog.messages
    assert "hidden" not in (tmp_path / "runs" / "1" / "run.json").read_text()


def test_enforce_clean_rejects_a_run_whose_sources_are_not_committed(tmp_path, start):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(): return 1\n"

    def rejected():
        recorded = start(tmp_path, body, "--enforce_clean")
        assert recorded.process.wait(60) == 1
        return recorded.err.read_text()

    def git(*words):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)

    assert (
        rejected() == f"error: -e: git cannot compare {tmp_path} with a commit; commit the sources, or leave out -e\n"
    )
    script = tmp_path / "recorded.py"
    git("init")
    git("add", "recorded.py")
    git("-c", "user.name=Ada", "-c", "user.email=", "commit", "-m", "first")
    for _ in range(2):  # the record of the first is no change
        start(tmp_path, body, "-e").finish()
    (tmp_path / "new.py").touch()
    script.write_text("import new\n" + script.read_text())
    assert rejected() == "error: -e: not committed: recorded.py, new.py; commit them, or leave out -e\n"
    assert len(list((tmp_path / "runs").glob("[0-9]*"))) == 2


def test_addresses_of_notifications_are_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("SACRISTAN_NOTIFY", "json://ann:hidden@127.0.0.1:9")
    record(lambda: 1, FileObserver(tmp_path), options={"--environment": "SACRISTAN_*"})
    assert "SACRISTAN_NOTIFY" not in load(tmp_path / "1")["meta"]["environment"]
    assert "hidden" not in (tmp_path / "1" / "run.json").read_text()


def test_main_file_that_is_gone_when_the_run_starts_is_no_error(tmp_path):
    (tmp_path / "gone.py").write_text("")
    names = {"__file__": str(tmp_path / "gone.py"), "Experiment": Experiment}
    exec("ex = Experiment('gone', system_metrics_s=None)\nex.main(lambda: 1)", names)
    (tmp_path / "gone.py").unlink()
    names["ex"].observers.append(FileObserver(tmp_path / "runs"))
    names["ex"].run(options={"--capture": "sys"})
    assert load(tmp_path / "runs" / "1")["experiment"]["mainfile"] == "gone.py"


# Parents


def test_parent_of_the_environment_is_recorded_in_both_stores(tmp_path, database, mongo_url, monkeypatch):
    parent = record(lambda: 1, FileObserver(tmp_path / "runs")).meta_info["uid"]
    monkeypatch.setenv("SACRISTAN_PARENT", parent)
    record(lambda: 2, FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, db_name=database.name))
    assert "parent" not in load(tmp_path / "runs" / "1")
    child = load(tmp_path / "runs" / "2")
    assert child["parent"] == child["meta"]["parent"] == parent == load(tmp_path / "runs" / "1")["uid"]
    assert database.runs.find_one()["parent"] == parent


def test_parent_given_as_meta_info_is_recorded_over_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SACRISTAN_PARENT", new_uid())
    parent = new_uid()
    record(lambda: 1, FileObserver(tmp_path / "runs"), meta_info={"parent": parent})
    assert load(tmp_path / "runs" / "1")["parent"] == parent


def test_parent_that_is_no_uid_is_warned_of_once_and_not_recorded(tmp_path, database, mongo_url, monkeypatch, caplog):
    monkeypatch.setenv("SACRISTAN_PARENT", "../7")
    with caplog.at_level(logging.WARNING):
        record(lambda: 1, FileObserver(tmp_path / "a"), FileObserver(tmp_path / "b"))
        record(lambda: 1, MongoObserver(mongo_url, db_name=database.name, failure_dir=tmp_path / "spool"))
    assert [message.startswith("SACRISTAN_PARENT: got '../7', expected the uid") for message in caplog.messages] == [
        True,
        True,
    ]
    assert "parent" not in load(tmp_path / "a" / "1")
    assert "parent" not in load(tmp_path / "b" / "1")
    assert "parent" not in database.runs.find_one()


def test_parent_reaches_a_process_that_a_run_starts(tmp_path, start, monkeypatch):
    parent = new_uid()
    monkeypatch.setenv("SACRISTAN_PARENT", parent)
    start(tmp_path, "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(): return 1\n").finish()
    assert load(tmp_path / "runs" / "1")["parent"] == parent


def test_packages_are_those_that_are_installed_not_those_within_others():
    import packaging
    import setuptools

    before = packages()
    vendored = str(Path(setuptools.__file__).parent / "_vendor")
    sys.path.append(vendored)
    try:
        assert packages() == before
    finally:
        sys.path.remove(vendored)
    assert before["packaging"] == packaging.__version__


def test_source_that_is_added_is_recorded_wherever_in_the_lab_it_lies(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "rules.txt").write_text("be strict")
    part = Ingredient("part", base_dir=tmp_path)
    part.add_source_file(tmp_path / "conf" / "rules.txt")
    ex = Experiment("recorded", [part], base_dir=tmp_path, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda: None)
    ex.run()
    sources = dict(load(tmp_path / "runs" / "1")["experiment"]["sources"])
    assert (tmp_path / "runs" / sources["conf/rules.txt"]).read_text() == "be strict"


def test_source_that_cannot_be_recorded_is_refused(tmp_path):
    ex = Experiment("recorded", base_dir=tmp_path / "lab", system_metrics_s=None)
    with pytest.raises(ConfigError, match=r"add_source_file: got 'nothing.py', but there is no such file"):
        ex.add_source_file("nothing.py")
    (tmp_path / "elsewhere.py").write_text("")
    ex.add_source_file(tmp_path / "elsewhere.py")
    ex.main(lambda: None)
    with pytest.raises(ConfigError, match=r"add_source_file: .*elsewhere.py is not below .*lab, where the sources of"):
        ex.run()
