"""Unmodified incense reads a database that holds runs of every kind."""

import pytest

incense = pytest.importorskip("incense", reason="incense 0.0.15 installs on Python 3.11 only")
pytestmark = pytest.mark.slow


@pytest.fixture
def loader(lab):
    loader = incense.ExperimentLoader(mongo_uri=lab.url, db_name=lab.database.name)
    yield loader
    loader._database.client.close()


def test_find_all_tells_every_status(lab, loader):
    found = {exp.id: exp.status for exp in loader.find_all()}
    statuses = {"completed": "COMPLETED", "again": "COMPLETED", "failed": "FAILED", "queued": "QUEUED"}
    statuses |= {"dead": "DEAD", "running": "RUNNING"}
    assert found == {lab.runs[kind]: status for kind, status in statuses.items()}


def test_find_by_id_gives_config_result_and_info(lab, loader):
    exp = loader.find_by_id(lab.runs["completed"])
    assert exp.config.lr == 0.1
    assert exp.config.data.batch_size == 8
    assert exp.result["accuracy"] == 0.5
    assert exp.info.note.short == "here"
    assert exp.meta.comment == "a good one"
    assert exp.experiment.name == "recorded"
    assert exp.start_time < exp.stop_time
    assert "begin" in exp.captured_out
    assert [exp.id for exp in loader.find_by_ids([1, 3])] == [1, 3]
    assert exp.to_dict()["config"]["tags"] == ["first", "second"]


def test_find_by_name_and_keys_finds_them(lab, loader):
    everything = sorted(lab.runs.values())
    assert sorted(exp.id for exp in loader.find_by_name("recor")) == everything
    assert [exp.id for exp in loader.find_by_config_key("lr", 0.2)] == [lab.runs["again"]]
    assert sorted(exp.id for exp in loader.find_by_config_key("data.name", "^dig")) == everything
    assert [exp.id for exp in loader.find_by_key("status", "FAILED")] == [lab.runs["failed"]]
    assert [exp.id for exp in loader.find({"result.accuracy": {"$gt": 0.4}, "config.lr": 0.1})] == [1]


def test_find_latest_goes_by_the_start(lab, loader):
    assert loader.find_latest().id == lab.runs["running"]
    assert [exp.id for exp in loader.find_latest(2)] == [lab.runs["running"], lab.runs["dead"]]


def test_metrics_are_series_of_the_first_20_000_points(lab, loader):
    metrics = loader.find_by_id(lab.runs["completed"]).metrics
    assert metrics["train/loss"].index.tolist() == list(range(20_000))
    assert metrics["train/loss"].index.name == "step"
    assert metrics["train/loss"].iloc[9] == 0.1
    assert metrics["val.acc"].tolist() == [0.1]
    assert loader.find_by_id(lab.runs["queued"]).metrics == {}
    assert loader.find_by_id(lab.runs["running"]).metrics["val.acc"].tolist() == [0.1]


def test_artifacts_have_their_types_and_are_saved_under_the_runs_id(lab, loader, tmp_path):
    import pandas as pd

    artifacts = loader.find_by_id(lab.runs["completed"]).artifacts
    assert artifacts.keys() == {"large.bin", "results/table.csv"}
    assert artifacts["large.bin"].content == bytes(range(256)) * 3_000
    table = artifacts["results/table.csv"]
    assert table.content_type == "text/csv"
    assert table.file.metadata == {"rows": 1}
    pd.testing.assert_frame_equal(table.render(), pd.DataFrame({"a": [1], "b": [2]}))
    artifacts["large.bin"].save(str(tmp_path))
    assert (tmp_path / "1_large.bin").stat().st_size == 768_000
    assert loader.find_by_id(lab.runs["queued"]).artifacts == {}


def test_project_over_all_runs_is_a_table(lab, loader):
    table = loader.find_all().project(on=["config.lr", "status", "config.data.batch_size"])
    assert len(table) == len(lab.runs)
    assert table.loc[lab.runs["again"], "lr"] == 0.2


def test_fail_trace_is_there(lab, loader):
    assert "it went badly" in "".join(loader.find_by_id(lab.runs["failed"]).fail_trace)


def test_run_deleted_in_incense_takes_nothing_of_its_twin(lab, loader):
    twin = loader.find_by_id(lab.runs["again"])
    before = {name: artifact.content for name, artifact in twin.artifacts.items()}
    saved = {name: list(lab.database[name].find()) for name in lab.database.list_collection_names()}
    try:
        loader.find_by_id(lab.runs["completed"])._delete_artifacts()
        fresh = incense.ExperimentLoader(mongo_uri=lab.url, db_name=lab.database.name)
        again = fresh.find_by_id(lab.runs["again"])
        assert {name: artifact.content for name, artifact in again.artifacts.items()} == before
        fresh._database.client.close()
    finally:
        for name in ("fs.files", "fs.chunks"):
            for document in saved[name]:
                lab.database[name].replace_one({"_id": document["_id"]}, document, upsert=True)
