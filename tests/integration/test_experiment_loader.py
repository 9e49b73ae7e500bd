"""`ExperimentLoader` gives what incense gives, over a database and over a folder, and refuses what incense does not."""

import pandas as pd
import pymongo
import pytest

from sacristan.runs import ExperimentLoader, FilterError, RunNotFoundError, StoreError


@pytest.fixture(scope="module", params=[pytest.param("mongo", marks=pytest.mark.slow), "folder"])
def loader(request, lab):
    where = f"{lab.url}/{lab.database.name}" if request.param == "mongo" else lab.folder / "runs"
    with ExperimentLoader(where) as loader:
        yield loader


@pytest.fixture(scope="module")
def theirs(lab):
    incense = pytest.importorskip("incense", reason="incense 0.0.15 installs on Python 3.11 only")
    loader = incense.ExperimentLoader(mongo_uri=lab.url, db_name=lab.database.name, unpickle=False)
    yield loader
    loader._database.client.close()


def ids(found):
    return sorted(experiment.id for experiment in found)


QUESTIONS = {
    "all": lambda loader: loader.find_all(),
    "ids": lambda loader: loader.find_by_ids([3, 1]),
    "name": lambda loader: loader.find_by_name("^rec.*d$"),
    "no name": lambda loader: loader.find_by_name("^ec"),
    "number": lambda loader: loader.find_by_config_key("lr", 0.2),
    "text": lambda loader: loader.find_by_config_key("data.name", "^dig"),
    "key": lambda loader: loader.find_by_key("status", "FAIL"),
    "result": lambda loader: loader.find_by_key("result.accuracy", 0.5),
    "query": lambda loader: loader.find({"$or": [{"config.lr": {"$gt": 0.1}}, {"config.how": "badly"}]}),
    "latest": lambda loader: loader.find_latest(3),
    "latest by": lambda loader: [loader.find_latest(attr="config.lr")],
}


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_questions_have_the_answers_of_incense(loader, theirs, question):
    assert ids(question(loader)) == ids(question(theirs))


FIELDS = ("config", "result", "command", "meta", "fail_trace", "start_time", "stop_time", "heartbeat", "captured_out")


# The run that is dead was reaped in the database alone, which gave it a time of its end.
@pytest.mark.parametrize("kind", ["completed", "again", "failed", "queued"])
def test_experiment_has_the_fields_of_incense(loader, theirs, lab, kind):
    ours, expected = (one.find_by_id(lab.runs[kind]) for one in (loader, theirs))
    assert repr(ours) == repr(expected)
    for name in FIELDS:
        value = getattr(expected, name, None)
        if name == "captured_out" and kind != "queued" and value is not None and len(value) > 1000:
            assert getattr(ours, name).startswith(value[:1000])
        elif name in ("start_time", "stop_time", "heartbeat") and value is not None:
            assert abs((getattr(ours, name) - value).total_seconds()) < 1.1  # a folder has its own last heartbeat
        else:
            assert getattr(ours, name, None) == value, name
    assert ours.experiment.name == expected.experiment.name
    assert {key: ours.to_dict()[key] for key in ("_id", "config", "status")} == {
        key: expected.to_dict()[key] for key in ("_id", "config", "status")
    }


def test_metrics_are_the_series_of_incense_beyond_its_20_000_points_too(loader, theirs, lab):
    ours, expected = (one.find_by_id(lab.runs["completed"]).metrics for one in (loader, theirs))
    assert set(ours) == set(expected)
    assert len(ours["train/loss"]) == 25_000
    for name in expected:
        pd.testing.assert_series_equal(ours[name].head(20_000), expected[name])
    assert loader.find_by_id(lab.runs["queued"]).metrics == {}
    with pytest.raises(KeyError):
        ours["train/los"]


@pytest.mark.filterwarnings("ignore:GridOut property:DeprecationWarning")
def test_artifacts_are_those_of_incense(loader, theirs, lab, tmp_path):
    ours, expected = (one.find_by_id(lab.runs["completed"]).artifacts for one in (loader, theirs))
    assert ours.keys() == expected.keys()
    for name, artifact in expected.items():
        mine = ours[name]
        assert (repr(mine), mine.content, mine.extension) == (repr(artifact), artifact.content, artifact.extension)
    expected["large.bin"].save(str(tmp_path / "theirs"))
    saved = ours["large.bin"].save(tmp_path / "ours")
    assert saved.read_bytes() == (tmp_path / "theirs" / saved.name).read_bytes()
    table = expected["results/table.csv"]
    table.file.seek(0)
    pd.testing.assert_frame_equal(ours["results/table.csv"].show(), table.render())


PROJECTIONS = [
    {"on": ["config.lr", "status", "experiment.name"]},
    {"on": ["config.lr", "config.data.batch_size", "start_time"], "rename": None},
    {"on": ["config.data.name", {"config.tags": len}, {("config", "lr"): lambda lr: 2 * lr}]},
    {"on": ["result.accuracy", "info.note.short"], "on_missing": "ignore"},
]


@pytest.mark.parametrize("arguments", PROJECTIONS)
def test_projection_is_the_table_of_incense(loader, theirs, lab, arguments):
    kinds = ["completed", "again"] if "on_missing" in arguments else ["completed", "again", "failed", "dead"]
    chosen = [lab.runs[kind] for kind in kinds]
    ours, expected = (one.find_by_ids(chosen).project(**arguments) for one in (loader, theirs))
    if "start_time" in ours or "start_time" in expected:
        ours, expected = (frame.drop(columns="start_time") for frame in (ours, expected))
    pd.testing.assert_frame_equal(ours, expected)


# The rest holds without incense, too.


def test_projection_of_metrics_reads_one_series_at_a_time(loader, lab):
    chosen = loader.find_by_ids([lab.runs["completed"], lab.runs["again"]])
    table = chosen.project(on=[{"metrics.train/loss": len}, {("metrics", "val.acc"): max}])
    assert table["train/loss_len"].tolist() == [25_000, 25_000]
    assert table["val.acc_max"].tolist() == [0.1, 0.2]
    assert table.index.name == "exp_id"


def test_projection_of_a_path_that_a_run_lacks_is_refused_or_empty(loader, lab):
    chosen = loader.find_by_ids([lab.runs["completed"], lab.runs["failed"]])
    with pytest.raises(FilterError, match=rf"run {lab.runs['failed']} has no 'result.accuracy'; name another path"):
        chosen.project(on=["result.accuracy"])
    with pytest.raises(FilterError, match=f"run {lab.runs['failed']} has no 'metrics.train/loss'"):
        chosen.project(on=[{"metrics.train/loss": min}])
    table = chosen.project(on=["result.accuracy", {"metrics.train/loss": min}], on_missing="ignore")
    assert table["accuracy"].tolist()[0] == 0.5
    assert table.iloc[1].isna().all()
    with pytest.raises(FilterError, match="rename: got 'first', expected 'last' or None"):
        chosen.project(on=["config.lr"], rename="first")
    with pytest.raises(FilterError, match="on_missing: got 'skip', expected 'raise' or 'ignore'"):
        chosen.project(on=["config.lr"], on_missing="skip")


def test_unknown_run_field_and_value_are_refused_by_name(loader):
    with pytest.raises(RunNotFoundError, match="there is no run '99' in"):
        loader.find_by_id(99)
    with pytest.raises(FilterError, match="no run has a field 'lrr'; did you mean lr"):
        loader.find_by_config_key("lrr", 0.1)
    with pytest.raises(FilterError, match="which is no regular expression"):
        loader.find_by_name("(")
    with pytest.raises(FilterError, match=r"config.lr: got the value \[1\], expected a text"):
        loader.find_by_config_key("lr", [1])
    with pytest.raises(AttributeError, match=r"run 1 has no field 'statu'; did you mean status\?"):
        loader.find_by_id(1).statu  # noqa: B018
    with pytest.raises(StoreError, match="got unpickle=True, expected False: decoding stored objects runs code"):
        ExperimentLoader(loader.store.where, unpickle=True)


def test_artifacts_of_a_query_set_are_filtered_and_saved(loader, lab, tmp_path):
    found = loader.find_by_name("recorded")
    tables = found.artifacts.filter("*.csv")
    assert sorted(path.name for path in tables.save(tmp_path, n_threads=2)) == [
        "1_results_table.csv",
        "2_results_table.csv",
    ]
    chosen = loader.find_by_ids([lab.runs["completed"], lab.runs["again"]])
    assert [artifact.content for artifact in chosen.artifacts["large.bin"]] == [bytes(range(256)) * 3_000] * 2
    with pytest.raises(KeyError):
        found.artifacts["large.bin"]
    (tmp_path / "taken").touch()
    with pytest.raises(StoreError, match="taken cannot be created"):
        tables.save(tmp_path / "taken")


def test_find_all_asks_the_database_a_few_questions_whatever_is_read_of_each(lab):
    asked = []

    class Counting(pymongo.monitoring.CommandListener):
        def started(self, event):
            asked.append(event.command_name)

        succeeded = failed = lambda self, event: None

    pymongo.monitoring.register(Counting())
    try:
        with ExperimentLoader(lab.url, lab.database.name) as loader:
            found = loader.find_all()
            before = len(asked)
            assert all(one.config.data.batch_size == 8 and one.experiment.name and one.status for one in found)
            assert len(asked) - before <= 3
    finally:
        pymongo.monitoring._LISTENERS.command_listeners.clear()


def test_unrendered_type_says_what_to_do(loader, lab):
    artifact = loader.find_by_id(lab.runs["completed"]).artifacts["large.bin"]
    with pytest.raises(StoreError, match=r"'large.bin' of run 1 is not rendered: got the type .*call .save\(\)"):
        artifact.render()
