"""One contract for every store: our files, our MongoDB, stock Sacred's files, stock Sacred's MongoDB."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import bson
import numpy as np
import pymongo
import pytest
import sacred
from sacred.observers import FileStorageObserver
from sacred.observers import MongoObserver as SacredMongoObserver

from sacristan import runs
from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import (
    ArtifactError,
    Audio,
    DestinationError,
    FileObserver,
    Image,
    Media,
    MongoObserver,
    PointCloud,
    Table,
    Text,
)
from sacristan.observers.mongo import parse_mongo_option
from sacristan.observers.record.identity import lease
from sacristan.observers.record.media_files import Content
from sacristan.runs import ChangedError, FilterError, RunNotFoundError, StoreError, Words
from sacristan.runs.query.index import Index
from sacristan.runs.stores.settings import run_labels
from tests import processes

LAB = Path(__file__).resolve().parents[2]
KINDS = ("our-files", "our-mongo", "sacred-files", "sacred-mongo")


class Odd(Media):
    """A kind that `runs` does not know, as a later version may have."""

    kind = "hologram"

    def encode(self):
        return Content(b"\0odd", ".odd", "application/x-odd", {})


def record(kind, folder, url, name):
    """Record seven runs, one after the other, with the recorder of `kind`; return where they lie."""
    experiment = Experiment if kind.startswith("our") else sacred.Experiment
    ex = experiment("contract", base_dir=folder, save_git_info=False)

    @ex.config
    def config():
        lr = 0.1
        model = {"name": "mlp", "hidden": [8, 8], "dropout": None}
        fail = False
        amp = False
        best = 0.0

    @ex.main
    def main(_run, lr, fail, best):
        ex.open_resource(str(folder / "data.csv")).close()
        for step in range(10):
            _run.log_scalar("train/loss", lr * (10 - step), step)
        _run.log_scalar("val/accuracy", best, 9)
        if hasattr(_run, "log_media"):
            picture = np.full((2, 3), 0.5)
            _run.log({"picture": Image(picture), "words": Text("é")}, 3)
            _run.log({"cases": Table(["image", "label", "p"], [[Image(picture), "cat", math.nan]])}, 9)
            points = PointCloud([[1, 2, 3], [4, 5, 6.5]], np.eye(3)[:2])
            _run.log({"sound": Audio([[0.0, -1.0], [1.0, 0.5]], 8000), "points": points, "odd": Odd()}, 9)
        _run.info["test"] = {"accuracy": best}
        print("é trained with", lr)
        (folder / "weights.txt").write_text(f"weights {lr}")
        ex.add_artifact(folder / "weights.txt")
        if fail:
            raise RuntimeError("no luck")
        return best

    with pymongo.MongoClient(url) as client:
        (folder / "data.csv").write_text("1,2\n")
        observer = {
            "our-files": lambda: FileObserver(folder / "store"),
            "our-mongo": lambda: MongoObserver(url, name, failure_dir=folder / "spool"),
            "sacred-files": lambda: FileStorageObserver(folder / "store"),
            "sacred-mongo": lambda: SacredMongoObserver(client=client, db_name=name),
        }[kind]()
        ex.observers.append(observer)
        for updates in (
            {"lr": 0.1, "best": 0.5},
            {"lr": 0.01, "best": 0.9},
            {"lr": 0.001, "best": 0.8, "model": {"name": "cnn"}},
            {"lr": 0.5, "fail": True},
            {"lr": 1.0, "best": math.nan},
            {"lr": 0.02, "best": 0.7, "amp": True, "model": {"dropout": 0.5}},
            {"lr": 0.03, "best": 0.6, "model": {"hidden": [4]}},
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    ex.run(config_updates=updates, options={"--capture": "sys"})
                except RuntimeError:
                    assert updates["fail"]
    return str(folder / "store") if kind.endswith("files") else f"{url}/{name}"


@pytest.fixture(scope="module", params=KINDS)
def store(request, tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp(request.param)
    name = f"contract_{request.param.replace('-', '_')}"
    with runs.open_store(record(request.param, folder, mongo_url, name)) as store:
        yield store
    if request.param.endswith("mongo"):
        with pymongo.MongoClient(mongo_url) as client:
            client.drop_database(name)


def ids(found):
    return [run.id for run in found]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (None, "1234567"),
        ([], "1234567"),
        ("status=COMPLETED", "123567"),
        ("status=FAILED", "4"),
        ([("status", "!=", "COMPLETED")], "4"),
        ("lr<0.03", "236"),
        ("lr<=0.03", "2367"),
        ([("lr", ">", 0.1), ("status", "==", "COMPLETED")], "5"),
        ("config.lr=1", "5"),
        ("lr=1.0", "5"),
        ("model.name=cnn", "3"),
        ("model.name~^m", "124567"),
        ("model.dropout=None", "123457"),
        ("model.dropout!=None", "6"),
        ("model=None", ""),
        ("model!=None", "1234567"),
        ([("model", "in", [None, "x"])], ""),
        ({"model": {"$exists": True}}, "1234567"),
        ([("result", "in", [None, math.nan, 0.9])], "245"),
        ("id>5", "67"),
        ("id<='2'", "12"),
        ("id~^[1-3]$", "123"),
        ([("id", "in", [1, "2", "x"])], "12"),
        ("model.name~^(m+)+lp$", "124567"),
        ({"model.name": {"$regex": "^M", "$options": "i"}}, "124567"),
        ("model.name='<cnn'", ""),
        ("tags.nothing=True", ""),
        ("lr>1000", ""),
        (f"lr<{2**64}", "1234567"),
        (f"lr>{-(10**400)}", "1234567"),
        (f"lr>={2**64}", ""),
        (f"lr={2**64}", ""),
        (f"lr!={2**64}", "1234567"),
        ([("lr", "in", [2**64, 0.1])], "1"),
        (f"id={2**64}", ""),
        ([("model.hidden", "==", [4])], "7"),
        ([("model.hidden", "==", 4)], ""),
        ("amp=True", "6"),
        ("amp=1", ""),
        ("amp!=True", "123457"),
        ([("lr", "in", [0.1, 0.02, "x"])], "16"),
        ([("lr", "in", [])], ""),
        ("val/accuracy.max>=0.7", "236"),
        ("train/loss.last<0.03", "236"),
        ("summary.train/loss.count=10", "1234567"),
        ("info.test.accuracy>=0.8", "23"),
        ("result>=0.8", "23"),
        ("result=nan", "5"),
        ("result<100", "12367"),
        ("lr=abc", ""),
        ({"config.lr": {"$lt": 0.03}}, "236"),
        ({"$or": [{"config.lr": 0.1}, {"config.model.name": "cnn"}]}, "13"),
        ({"$nor": [{"config.lr": 0.1}, {"config.model.name": "cnn"}]}, "24567"),
        ({"lr": {"$not": {"$gt": 0.03}}}, "2367"),
        ({"lr": {"$gte": 0.01, "$lte": 0.03}}, "267"),
        ({"lr": {"$in": [0.1, 0.5]}, "status": "FAILED"}, "4"),
        ({"lr": {"$nin": [0.1, 0.5]}}, "23567"),
        ({"model.dropout": {"$exists": True}}, "6"),
        ({"model.name": {"$regex": "^C", "$options": "i"}}, "3"),
        ({"$or": []}, ""),
        ({"$and": []}, "1234567"),
        ("start>2000-01-01", "1234567"),
        ("start<2000-01-01", ""),
        ("id=3", "3"),
        ("name=contract", "1234567"),
        ("command=main", "1234567"),
    ],
    ids=str,
)
def test_filter_finds_the_same_in_every_store(store, filter, expected):
    assert ids(store.find(filter, sort="id")) == list(expected)


@pytest.mark.parametrize(
    "number", [1, 201, pytest.param(2500, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_filters_of_thousands_of_conditions_find_the_same_in_every_store(store, number):
    index = Path(store.where) / ".index.sqlite"
    inode = index.stat().st_ino if index.exists() else None
    rates = [0.1, 0.001, *(2 + rate for rate in range(number))]
    assert ids(store.find([("lr", "in", rates)], sort="id")) == ["1", "3"]
    assert ids(store.find({"lr": {"$nin": rates}}, sort="id")) == list("24567")
    either = {"$or": [{"lr": rate} for rate in rates]}
    assert ids(store.find(either, sort="id")) == ["1", "3"]
    assert ids(store.find({"$nor": [either, {"status": "FAILED"}]}, sort="id")) == list("2567")
    assert ids(store.find([("lr", ">", 0.02), *[("lr", "!=", rate) for rate in rates]], sort="id")) == list("457")
    assert (index.stat().st_ino if inode else None) == inode


@pytest.mark.parametrize("nest", [lambda inner: {"$and": [inner]}, lambda inner: {"$nor": [inner]}], ids=["and", "nor"])
@pytest.mark.parametrize("depth", [300, 5_000])
def test_filter_nested_too_deep_is_refused(store, nest, depth):
    tree = {"lr": 0.1}
    for _ in range(depth):
        tree = nest(tree)
    with pytest.raises(FilterError, match="got a filter nested more than 100 deep; write it flatter"):
        store.find(tree)


@pytest.mark.parametrize(
    "url",
    ["mongodb:/ann:s3cret@host/lab", "mongod://ann:s3cret@host/lab", "ann:s3:cret@host/lab", "mongodb//a:s3cret@h"],
)
def test_mistyped_url_hides_its_password(url):
    with pytest.raises(StoreError, match=r"got the store '\*\*\*@h") as error:
        runs.open_store(url)
    assert "cret" not in str(error.value)
    with pytest.raises(DestinationError, match="-m: got") as refused:
        parse_mongo_option(url)
    assert "cret" not in str(refused.value)


def forms(time):
    """Return ways to write a time in UTC."""
    zoned = time.replace(tzinfo=UTC)
    east = zoned.astimezone(timezone(timedelta(hours=5, minutes=30)))
    texts = [time.isoformat(), time.isoformat(" "), zoned.isoformat(), f"{time.isoformat()}Z", east.isoformat()]
    return [*texts, time, zoned, east]


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
def test_time_in_any_form_means_the_same_in_every_store(store, operator):
    started = {run.id: datetime.fromisoformat(run["start_time"]) for run in store.find(sort="id", columns=["start"])}
    compare = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[operator]
    middle = started["4"]
    for at in (middle, middle.replace(microsecond=0), middle.replace(second=0, microsecond=0)):
        expected = [id for id, other in started.items() if getattr(other, compare)(at)]
        for form in forms(at):
            assert ids(store.find([("start", operator, form)], sort="id")) == expected, form
    short = middle.replace(second=0, microsecond=0)
    for form, at in ((f"{short:%Y-%m-%dT%H:%M}", short), (f"{short:%Y-%m-%d}", short.replace(hour=0, minute=0))):
        expected = [id for id, other in started.items() if getattr(other, compare)(at)]
        assert ids(store.find(f"start{operator}{form}", sort="id")) == expected
    assert ids(store.find([("start", "in", forms(middle))], sort="id")) == [i for i in started if started[i] == middle]
    with pytest.raises(FilterError, match="start ~: a time is compared with"):
        store.find("start~^2026")


def test_many_runs_are_read_at_once_as_each_by_itself(store):
    found = store.find(sort="id")
    alone, together = [store.get(run.id) for run in found], store.get_all([*ids(found), found[0].id])
    assert together == alone
    store.prefetch(together, ["config", "summary", "metrics", "status", "start_time", "meta.sweep.id"])
    for one, other in zip(alone, together, strict=True):
        for name in ("config", "summary", "metrics", "status", "start_time"):
            assert repr(getattr(one, name)) == repr(getattr(other, name)), name  # with NaN among them
        assert one.get("meta.sweep.id") == other.get("meta.sweep.id")
    for metric in ("train/loss", "nowhere"):
        for one, (run, series) in zip(alone, store.each_series(together, metric), strict=True):
            assert run == one
            assert (series is not None) == (metric in one.metrics)
            if series is not None:
                expected = one.metric(metric)
                np.testing.assert_array_equal(series.steps, expected.steps)
                np.testing.assert_array_equal(series.values, expected.values)
                np.testing.assert_array_equal(series.times, expected.times)
    with pytest.raises(RunNotFoundError, match=r"there is no run 'my_runs/1/' in .*; did you mean 1\?"):
        store.get("my_runs/1/")
    with pytest.raises(RunNotFoundError, match="there is no run '99'"):
        store.get_all(["1", "99"])


def test_metrics_with_dots_are_called_by_their_names_in_every_store(tmp_path, database, mongo_url):
    ex = Experiment("dotted", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.observers += [FileObserver(tmp_path / "runs"), MongoObserver(mongo_url, database.name)]

    @ex.main
    def main(_run):
        for name in ("training.loss", "a,b", "$cost"):
            _run.log_scalar(name, len(name), 1)

    ex.run(options={"--capture": "no"})
    for url in (tmp_path / "runs", f"{mongo_url}/{database.name}"):
        with runs.open_store(str(url)) as store:
            run = store.get("1")
            assert sorted(run.summary) == sorted(run.metrics) == ["$cost", "a,b", "training.loss"]
            assert run["training.loss.min"] == 13
            assert ids(store.find("training.loss.min=13")) == ["1"]
            [row] = store.find(columns=["training.loss.min", "summary"])
            assert (row["training.loss.min"], sorted(row["summary"])) == (13, ["$cost", "a,b", "training.loss"])
            store.prefetch(found := store.find(), ["summary"])
            assert sorted(found[0]["summary"]) == ["$cost", "a,b", "training.loss"]
            assert {"summary.training.loss.min", "summary.$cost.last"} <= set(store.frame().columns)
            assert {"summary.training.loss.min", "summary.$cost.last"} <= set(store.fields())


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("lr", "3267145"),
        ("-lr", "5417623"),
        ("start_time", "1234567"),
        ("-start_time", "7654321"),
        ("-val/accuracy.max", "2367145"),
        ("val/accuracy.max", "4176325"),
        ("-result", "2367145"),
        ("model.name", "3124567"),
        ("id", "1234567"),
        ("-id", "7654321"),
    ],
)
def test_sort_gives_the_same_order_in_every_store(store, sort, expected):
    found = store.find(sort=sort)
    assert sorted(ids(found)) == list("1234567")
    if sort == "-result":  # neither the run that failed nor the one with a NaN has a result to sort by
        assert ids(found)[:5] == list("23671")
    elif "accuracy" in sort:
        assert ids(found)[-1] == "5"  # NaN
        assert ids(found)[:5] == list(expected)[:5]
    else:
        assert ids(found) == list(expected)
    assert ids(store.find(sort=sort, limit=3)) == ids(found)[:3]


def test_duration_filters_and_sorts_as_computed_from_the_times(store):
    durations = {run.id: run.duration_s for run in store.find(sort="id", columns=[])}
    assert all(seconds > 0 for seconds in durations.values())
    middle = sorted(durations.values())[3]
    for operator, compare in (("<", float.__lt__), ("<=", float.__le__), (">", float.__gt__), ("==", float.__eq__)):
        expected = [id for id, seconds in durations.items() if compare(seconds, middle)]
        assert ids(store.find([("duration", operator, middle)], sort="id")) == expected
    either = {"$or": [{"duration": {"$gt": middle}}, {"lr": 0.001}]}
    expected = [id for id, seconds in durations.items() if seconds > middle or id == "3"]
    assert ids(store.find(either, sort="id")) == expected
    both = [("duration", "<=", middle), ("val/accuracy.max", ">=", 0.7)]
    assert ids(store.find(both, sort="id")) == [id for id in "236" if durations[id] <= middle]
    for all_runs in ("duration!=None", "duration<1h", "duration<=0d1h0.5m"):
        assert ids(store.find(all_runs, sort="id")) == list("1234567")
    for nothing in ("duration=None", "duration=true", "duration~1", "duration>1d", "duration<nan", "duration<0"):
        assert store.find(nothing) == []
    found = store.find(sort="-duration", columns=["duration"])
    assert [run["duration"] for run in found] == sorted(durations.values(), reverse=True)
    shortest = [durations[id] for id in ids(store.find(sort="duration", limit=2))]
    assert shortest == sorted(durations.values())[:2]
    frame = store.frame([("duration", ">=", middle)], sort="duration", columns=["duration", "lr"])
    assert frame["duration"].tolist() == sorted(seconds for seconds in durations.values() if seconds >= middle)


def test_duration_of_runs_that_have_not_all_times_is_the_same_in_files_and_mongo(database, mongo_url, tmp_path):
    noon = datetime(2026, 1, 1, 12)
    runs_times = [
        {"start_time": noon, "stop_time": noon + timedelta(seconds=1.5), "heartbeat": noon + timedelta(seconds=9)},
        {"start_time": noon, "heartbeat": noon + timedelta(milliseconds=2500), "stop_time": None},
        {"queue_time": noon, "start_time": None, "stop_time": noon + timedelta(days=2)},
        {"start_time": noon},
        {"stop_time": noon},
        {},
    ]
    for number, times in enumerate(runs_times, 1):
        (tmp_path / str(number)).mkdir()
        texts = {name: None if time is None else time.isoformat() for name, time in times.items()}
        document = {"experiment": {"name": "odd"}, "status": "COMPLETED"}
        (tmp_path / str(number) / "run.json").write_text(json.dumps({**document, **texts, "duration": 7}))
        database.runs.insert_one({"_id": number, **document, **times})
    with runs.open_store(tmp_path) as files, runs.open_store(f"{mongo_url}/{database.name}") as mongo:
        for store in (files, mongo):
            found = store.find(sort="duration", columns=["duration"])
            assert [run["duration"] for run in found] == [1.5, 2.5, 172800.0, None, None, None]
            assert [run.duration_s for run in store.find(sort="id", columns=[])][:3] == [1.5, 2.5, 172800.0]
            for filter, expected in (
                ("duration=1.5", "1"),
                ("duration>1.5", "23"),
                ("duration=None", "456"),
                ("duration!=1.5", "23456"),
                ({"duration": {"$not": {"$lt": 2}}}, "23456"),
                ([("duration", "in", [2.5, 172800, None])], "23456"),
            ):
                assert ids(store.find(filter, sort="id")) == list(expected), (store.where, filter)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"filter": ["dration>1"]}, "no run has a field 'dration'; did you mean duration"),
        ({"filter": {"$or": [{"modl.name": "cnn"}]}}, "no run has a field 'modl.name'; did you mean model.name"),
        ({"filter": [("hidden", "in", [1])]}, "no run has a field 'hidden'; did you mean model.hidden"),
        ({"sort": "-val/acuracy.max"}, "no run has a field 'val/acuracy.max'; did you mean val/accuracy.max"),
        ({"columns": ["lr", "hst"]}, "no run has a field 'hst'; did you mean host"),
        ({"columns": ["xyzzyx"]}, "no run has a field 'xyzzyx'; see those of a run: .* show latest --json$"),
        ({"filter": "lr<abc"}, "lr<abc: no run has a text in lr; compare it with a number"),
        ({"filter": "status=failed"}, r"^status: got 'failed'; did you mean FAILED\?$"),
        (
            {"filter": "status in (COMPLETED, done) and lr=77"},
            "^status: got 'done'; expected one of COMPLETED, RUNNING",
        ),
        ({"filter": "staus!=COMPLETED"}, r"^no run has a field 'staus'; did you mean status\?$"),
        ({"filter": "staus=None"}, "no run has a field 'staus'"),
        ({"filter": "staus not in (FAILED, DEAD)"}, "no run has a field 'staus'"),
        ({"filter": {"staus": {"$ne": 1}}}, "no run has a field 'staus'"),
        ({"filter": {"staus": {"$exists": True}}}, "no run has a field 'staus'"),
        ({"filter": "lr=0.1 or los.max>3"}, "no run has a field 'los.max'"),
        (
            {"filter": "model.hidden.0=8"},
            "no run has a field 'model.hidden.0'; entries of a list have no names; ask for mod",
        ),
        ({"filter": "status!=completed"}, r"^status: got 'completed'; did you mean COMPLETED\?$"),
        ({"filter": "status not in (COMPLETED, faild)"}, r"^status: got 'faild'; did you mean FAILED\?$"),
        ({"filter": "lr=0.1 or status=done"}, "^status: got 'done'; expected one of COMPLETED"),
        ({"filter": "status!=3"}, "^status: got 3; expected one of COMPLETED"),
        (
            {"filter": {"status": {"$not": {"$regex": "fail"}}}},
            "^status~fail: no status matches; there are COMPLETED, RUN",
        ),
        ({"filter": "lr=0.1 or lr<abc"}, "lr<abc: no run has a text in lr"),
        ({"filter": "id!=77"}, "^id: got 77, but there is no such run; see which there are with: .*store .* ls$"),
        ({"filter": "id not in (1, latest)"}, "^id: got latest, but there is no such run"),
        ({"filter": "uid!=0"}, "^uid: got 0, but there is no such run"),
        ({"filter": "tags.kept!=True"}, "^no run has the tag 'kept'; there are no tags$"),
        ({"filter": "tags.kept=None"}, "^no run has the tag 'kept'; there are no tags$"),
        (
            {"filter": "tags.kept=yes"},
            "^tags.kept: got 'yes'; a run has a tag or lacks it: write tags.kept=True or tags",
        ),
        ({"filter": "lr<True"}, "lr <: got True, expected a number or a text to compare with"),
    ],
    ids=str,
)
def test_field_that_no_run_has_refused(store, question, message):
    with pytest.raises(FilterError, match=message):
        store.find(**question)
    with pytest.raises(FilterError, match=message):
        store.frame(**question)
    if "filter" in question:
        with pytest.raises(FilterError, match=message):
            store.count(question["filter"])
        with pytest.raises(FilterError, match=message):
            next(store.watch(question["filter"]))


@pytest.mark.parametrize("name", ["provenance.git.commit", "fail_trace", "meta.options.x", "lease.pid"])
def test_field_that_is_a_column_only_is_refused_elsewhere(store, name):
    for question in ({"filter": {name: 1}}, {"sort": f"-{name}"}):
        with pytest.raises(FilterError, match=f"^{name}: runs can neither be filtered nor sorted by it"):
            store.find(**question)
    [failed] = store.find("status=FAILED", columns=["fail_trace"])
    assert "no luck" in failed["fail_trace"][-1]


def test_watch_for_a_field_that_no_run_has_refused(store):
    with pytest.raises(FilterError, match="no run has a field 'dration'"):
        next(store.watch("dration>1"))


@pytest.mark.parametrize("limit", ["3", 1.5, True])
def test_limit_that_is_no_number_refused(store, limit):
    with pytest.raises(FilterError, match=f"limit: got {limit!r}, expected a maximum number of runs"):
        store.find(limit=limit)


def test_limit_below_nothing_refused(store):
    assert store.find(limit=0) == []
    with pytest.raises(FilterError, match="limit: got 0, expected a maximum number of runs to count"):
        store.count(limit=0)
    with pytest.raises(FilterError, match="limit: got -1, expected a maximum number of runs, or None for all"):
        store.find(limit=-1)


@pytest.mark.parametrize("offset", [-1, 1.5, "3", True])
def test_offset_that_passes_over_no_runs_refused(store, offset):
    with pytest.raises(FilterError, match=f"offset: got {offset!r}, expected the number of runs to skip, at least 0"):
        store.find(offset=offset)


def test_store_says_what_it_is(store):
    assert repr(store) == f"Store({store.where!r})"


def test_store_without_a_name_refused():
    with pytest.raises(StoreError, match="got the store '', expected a folder or a mongodb:// URL"):
        runs.open_store("", create=True)


def test_runs_stores_and_lists_survive_pickling_and_copying(store):
    found = store.find("lr<0.03")
    assert found[0].config.lr == 0.02  # what was read goes along
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (type(again), again) == (type(found), found)
        assert [run.config for run in again] == [run.config for run in found]
        assert again[0].metric("train/loss").values.tolist() == found[0].metric("train/loss").values.tolist()
        assert all(run.store is again[0].store for run in again)
        if again[0].store is not store:
            again[0].store.close()
    assert copy.deepcopy(store) is store
    with pickle.loads(pickle.dumps(store)) as again:
        assert (repr(again), ids(again.find())) == (repr(store), ids(store.find()))


def test_pickled_store_is_found_from_another_folder(store, tmp_path, monkeypatch):
    if store.where.startswith("mongodb"):
        return
    monkeypatch.chdir(Path(store.where).parent)
    with runs.open_store(Path(store.where).name) as relative:
        found = relative.find()
        pickled = pickle.dumps(found)
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickled)
    assert again == found
    assert [run.config.lr for run in again] == [run.config.lr for run in store.find()]
    again[0].store.close()


def test_columns_are_fetched_along(store):
    [run] = store.find("lr=0.01", columns=["lr", "val/accuracy.max", "name", "host", "status"])
    assert [run[name] for name in ("lr", "val/accuracy.max", "name")] == [0.01, 0.9, "contract"]
    assert run.status == "COMPLETED"
    assert run.host


def test_fields_are_those_of_the_runs(store):
    found = store.fields()
    wanted = {"config.lr", "config.model.name", "summary.train/loss.min", "info.test.accuracy", "status", "duration"}
    assert wanted <= set(found)
    assert found == sorted(found)


def test_mapping_as_a_column_is_read_whole(store):
    [run] = store.find("lr=0.001", columns=["model", "config.model.name", "duration", "info.test"])
    assert run["model"] == {"name": "cnn", "hidden": [8, 8], "dropout": None}
    assert run["info.test"] == {"accuracy": 0.8}
    assert run["duration"] == run.duration_s >= 0


def test_output_is_read_from_any_byte_on(store):
    run = store.get("2")
    whole, end = run.read_output()
    assert whole.decode() == run.output
    assert end == len(whole)
    assert run.read_output(5) == (whole[5:], end)
    assert run.read_output(end) == (b"", end)


def test_run_gives_all_of_its_record(store):
    run = store.get("2")
    assert run.config.lr == 0.01
    assert run.config.model.hidden == [8, 8]
    assert run.info.test.accuracy == 0.9
    assert (run.name, run.command, run.status, run.result) == ("contract", "main", "COMPLETED", 0.9)
    assert [name for name in run.metrics if not name.startswith("system/")] == ["train/loss", "val/accuracy"]
    series = run.metric("train/loss")
    np.testing.assert_array_equal(series.steps, np.arange(10))
    np.testing.assert_allclose(series.values, 0.01 * (10 - np.arange(10)))
    assert len(run.metric("train/loss", num_points=4)) == 4
    assert run.summary["train/loss"]["min_step"] == 9
    assert "é trained with 0.01" in run.output
    assert run.artifacts["weights.txt"].read() == b"weights 0.01"
    [resource] = run.resources.values()
    if store.where.endswith("contract_sacred_mongo"):  # Sacred notes it, and does not store it
        with pytest.raises(StoreError, match=r"data.csv' of run 2 is not in the database"):
            resource.read()
    else:
        assert resource.read() == b"1,2\n"
    assert any(name.endswith(".py") for name in run.sources) or run.sources == {}
    assert run.duration_s >= 0
    assert run.children() == []
    assert run.parent is None
    with pytest.raises(StoreError, match=r"has no metric 'accuracy'; did you mean val/accuracy\?$"):
        run.metric("accuracy")
    with pytest.raises(StoreError, match=r"has no metric 'nope'; there are: .*train/loss, val/accuracy"):
        run.metric("nope")


def test_store_is_counted_and_iterated_over(store):
    assert len(store) == 7
    assert bool(store)
    assert ids(store) == ids(store.find())


def test_curves_are_one_frame(store):
    import pandas

    frame = store.curves(["train/loss", "val/accuracy"], where="lr<0.03")
    assert sorted(set(frame["id"])) == ["2", "3", "6"]
    run = store.get("2")
    series = run.metric("train/loss")
    own = frame[(frame["id"] == "2") & (frame["metric"] == "train/loss")]
    # Times of stock Sacred count from a start that an index knows to the millisecond.
    np.testing.assert_allclose(own[["step", "value", "time"]], series.to_pandas(), rtol=0, atol=1e-3)
    assert str(frame["wall_time"].dtype).endswith("UTC]")
    started = own["wall_time"].iloc[0] - pandas.to_timedelta(own["time"].iloc[0], unit="s")
    assert abs(started - run.start_time) < timedelta(milliseconds=1)
    assert set(store.curves("train/loss", num_points=4).groupby("id").size()) == {4}
    with pytest.raises(StoreError, match=r"no run has the metric 'nope'; there are: train/loss, val/accuracy"):
        store.curves(["train/loss", "nope"])
    assert list(store.curves("train/loss", where="lr>9").columns) == list(frame.columns)


def test_get_takes_id_uid_prefix_and_latest(store):
    assert store.get(3).id == store.get("3").id == "3"
    assert store.get("latest").id == "7"
    assert ids(store.latest(2)) == ["7", "6"]
    run = store.get(1)
    if run.uid:
        assert store.get(run.uid).id == "1"
        assert store.get(run.uid[:-3]).id == "1"
        with pytest.raises(RunNotFoundError, match="the beginning of more than one uid: "):
            store.get(run.uid[:4])
    for nobody in ("99", "zzz", "", "../1", "/etc", "0_1", "٣", "+1"):
        with pytest.raises(RunNotFoundError, match="there is no run"):
            store.get(nobody)


def test_version_of_an_artifact_that_is_not_there_is_an_error_of_the_store(store, tmp_path):
    with pytest.raises(StoreError, match="nothing@0000") as caught:
        store.get("2").fetch_version({"name": "nothing", "digest": "0" * 64}, tmp_path)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, ArtifactError)


def test_too_few_points_refused(store):
    with pytest.raises(FilterError, match="num_points: got 3, expected at least 4"):
        store.get("2").metric("train/loss", num_points=3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lr=0.1 or lr=0.5", "14"),
        ("lr<0.03 and model.name~^m", "26"),
        ("lr<0.03 AND model.name~^m and val/accuracy.last in (0.7, 0.8)", "6"),
        ("lr=0.5 or lr<0.03 and model.name=cnn", "34"),
        ("model.name='cnn and lr=0.1'", ""),
        ("lr=0.1 or model.name=cnn or lr>0.9", "135"),
        ("lr in (0.1, 0.5, 7)", "14"),
        ("model.name in [cnn, rnn]", "3"),
        ("model.name in ('cnn',) or lr=1", "35"),
        ("lr not in (0.1, 0.5)", "23567"),
        ("lr NOT IN (0.1,\n 0.5)", "23567"),
        ("model.name='cnn or lr=0.1'", ""),
        ("model.name~^c or lr=0.1", "13"),
        ("note=this or that", ""),
    ],
)
def test_alternatives_are_written_with_or_and_in(store, words, expected):
    assert "".join(ids(store.find(words, sort="id"))) == expected


def test_frame_has_times_as_datetimes(store):
    frame = store.frame(sort="id", columns=["start", "stop_time", "lr"])
    assert [str(kind) for kind in frame.dtypes[:2]] == ["datetime64[us, UTC]"] * 2
    assert (frame["stop_time"] >= frame["start"]).all()
    run = store.get("1")
    # Fields have times to the millisecond, as MongoDB has.
    assert abs(frame.loc["1", "start"] - run.start_time) < timedelta(milliseconds=1)


def test_field_that_no_run_has_is_refused_by_a_run_too(store):
    run = store.get("1")
    for name, near in (("lrr", "lr"), ("train/los.min", "train/loss.min")):
        with pytest.raises(FilterError, match=f"no run has a field {name!r}; did you mean {near}"):
            run[name]
        assert run.get(name) is None
    assert run["host.nothing"] is None  # the machine's own, of which each has others


def test_frame_has_config_summary_and_host(store):
    frame = store.frame(sort="id")
    assert frame.index.tolist() == list("1234567")
    assert frame["config.lr"].tolist() == [0.1, 0.01, 0.001, 0.5, 1.0, 0.02, 0.03]
    assert frame["summary.train/loss.count"].tolist() == [10] * 7
    assert frame.loc["3", "config.model.name"] == "cnn"
    assert frame["host"].notna().all()
    small = store.frame("lr<0.03", sort="lr", columns=["lr", "val/accuracy.max"])
    assert small.to_dict("list") == {"lr": [0.001, 0.01, 0.02], "val/accuracy.max": [0.8, 0.9, 0.7]}


def test_watch_begins_with_what_there_is(store):
    seen = store.watch("lr<0.03")
    assert [next(seen).id for _ in range(3)] == ["2", "3", "6"]


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("lr", "got the condition 'lr', expected NAME"),
        ("lr<", "got the condition 'lr<', expected a value after the <"),
        ("lr~ or lr=1", "got the condition 'lr~', expected a value after the ~"),
        ([("lr", "=>", 1)], "lr: got the operator '=>', expected one of == != < <= > >= in ~"),
        ([3], "got the condition 3, expected"),
        ({"lr": {"$near": 1}}, r"lr: got the operator \$near, which is not known"),
        ({"$where": "1"}, r"got the operator \$where, which is not known"),
        ({"$or": 3}, r"\$or: got 3, expected a list"),
        ([("lr", "<", None)], "lr <: got None, expected a number or a text"),
        ([("lr", "in", "abc")], "lr in: got 'abc', expected a list"),
        ("model.name~(", "which is no regular expression"),
        ("start>yesterday", "got 'yesterday', expected a time such as 2026-01-31"),
        ("duration>an hour", "got 'an hour', expected seconds, or a text such as 90m, 2h15m or 1d12h"),
        ("lr=<0.1", "got the condition 'lr=<0.1', expected one of"),
        (
            "lr<1, model.name~^c",
            r"got 'lr<1, model.name~\^c', expected conditions joined by `and` or `or`; quote a text",
        ),
        ("lr<1 and lr<", "got the condition 'lr<', expected a value after the <"),
        ("model.name~(?=m)", r"which is no regular expression of RE2 \(invalid perl operator: \(\?=\)"),
        ([("model.name", "~", 3)], "it is no text"),
        ({"model.name": {"$regex": "m", "$options": "x"}}, r"got the \$options 'x', expected letters among i, m and s"),
        ("model={'name': 'cnn'}", "model: got a mapping, which nothing is compared with"),
        ([("lr", "in", [{1}])], r"lr: got \{1\}, expected a number, a text"),
    ],
)
def test_filter_that_makes_no_sense_refused(store, filter, message):
    with pytest.raises(FilterError, match=message):
        store.find(filter)


@pytest.mark.filterwarnings("ignore:GridOut property:DeprecationWarning")
def test_incense_reads_the_same_database(store):
    if not store.where.startswith("mongodb"):
        with pytest.raises(StoreError, match=r"incense reads MongoDB only: got '/.*', expected a mongodb:// URL"):
            runs.incense(store.where)
        return
    pytest.importorskip("incense", reason="incense 0.0.15 installs on Python 3.11 only")
    loader = runs.incense(store.where)
    experiment = loader.find_by_id(2)
    assert experiment.config.lr == 0.01
    assert experiment.metrics["train/loss"].tolist() == store.get(2).metric("train/loss").values.tolist()
    assert sorted(one.id for one in loader.find_by_config_key("model.name", "cnn")) == [3]
    assert experiment.artifacts["weights.txt"].file.read() == b"weights 0.01"
    loader._database.client.close()


def test_tags_and_note_are_kept_and_found(store):
    store.tag(store.get(2), add=["best", "paper-1"])
    store.tag(store.get(3), add=["best"])
    for columns in ((), ["lr"], ["tags"], ["tags.best", "lr"]):
        [first, *_] = store.find("tags.best=True", sort="id", columns=columns)
        assert first.tags == ["best", "paper-1"]
    run = store.write_note(store.get(2), "the one for table 2")
    assert (run.tags, run.note) == (["best", "paper-1"], "the one for table 2")
    assert ids(store.find("tags.best=True", sort="id")) == ["2", "3"]
    assert ids(store.find("note~table", sort="id")) == ["2"]
    run = store.tag(run, add=["best"], remove=["paper-1", "never"])
    assert (run.tags, run.note) == (["best"], "the one for table 2")
    with pytest.raises(FilterError, match=r"got the tag 'a.b', expected letters"):
        store.tag(run, add=["a.b"])
    store.tag(store.get(2), remove=["best"])
    store.tag(store.get(3), remove=["best"])
    assert store.find("tags.best=True") == []


def test_display_name_is_kept_found_and_shown_in_legends_beside_tags_and_note(store):
    store.tag(store.get(2), add=["best"])
    run = store.rename(store.get(2), "  wider\n\x1b[31mlonger\ud800 ")
    assert run.display_name == r"wider [31mlonger\ud800"
    assert (run.id, run.tags) == ("2", ["best"])
    assert ids(store.find("display_name~^wider", sort="id")) == ["2"]
    assert ids(store.find(Words("LONGER"), sort="id")) == ["2"]
    assert run_labels([run, store.get(1)])[run].startswith(f"{run.display_name} (run 2)")
    with pytest.raises(FilterError, match="got a name of 201 characters, expected at most 200"):
        store.rename(run, "x" * 201)
    store.note_reproduction(run, {"verdict": "IDENTICAL", "by_id": "7"})
    assert store.get(2).display_name == run.display_name
    run = store.tag(store.rename(store.get(2), ""), remove=["best"])
    assert (run.display_name, run.tags) == ("", [])
    assert store.find("display_name~wider") == []


def test_what_several_people_note_at_once_is_all_kept(store):
    def note(person):
        with runs.open_store(store.where) as own:
            for number in range(8):
                own.tag(own.get(3), [f"p{person}-{number}"])
                if person == 0:
                    own.note_reproduction(own.get(3), {"verdict": "IDENTICAL", "by_id": str(number)})

    with ThreadPoolExecutor(4) as people:
        list(people.map(note, range(4)))
    run = store.get(3)
    assert run.tags == sorted(f"p{person}-{number}" for person in range(4) for number in range(8))
    assert [entry["by_id"] for entry in run.reproductions][-8:] == list("01234567")
    store.tag(run, remove=run.tags)


def test_note_that_was_changed_meanwhile_is_not_replaced(store):
    was = store.get(2).note
    store.write_note(store.get(2), "first", was=was)
    with pytest.raises(ChangedError, match="note of run 2 has changed; read it, and combine"):
        store.write_note(store.get(2), "second", was=was)
    assert store.get(2).note == "first"
    store.write_note(store.get(2), was, was="first")


def test_reproductions_are_kept_beside_tags_and_note(store):
    assert store.get(1).reproductions == []
    before = store.get(2).reproductions  # which other tests have noted
    store.tag(store.get(2), add=["best"])
    store.note_reproduction(store.get(2), {"verdict": "IDENTICAL", "by_id": "7"})
    store.note_reproduction(store.get(2), {"verdict": "DIVERGED", "by_id": "8"})
    run = store.tag(store.get(2), remove=["best"])
    assert run.reproductions[: len(before)] == before
    assert [entry["by_id"] for entry in run.reproductions[len(before) :]] == ["7", "8"]
    run = store.write_note(run, "noted")
    assert [entry["verdict"] for entry in run.reproductions[len(before) :]] == ["IDENTICAL", "DIVERGED"]
    assert run.tags == []
    store.write_note(run, "")


def test_output_of_a_long_run_in_mongo_goes_on_where_it_was_left(mongo_url, database, tmp_path):
    """While a run goes on, its document has head and tail; see `sacristan.observers.mongo.documents`."""
    from sacristan.observers.mongo.documents import OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES, shortened_output

    total = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + 1000
    whole = b"".join(b"%07d\n" % number for number in range(total // 8))

    def deliver(folder, output):
        (folder / "cout.txt").write_bytes(output)
        document = {"status": "RUNNING", "captured_out": shortened_output(folder)}
        database["runs"].replace_one({"_id": 1}, document, upsert=True)

    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        deliver(tmp_path, whole[:1000])
        first, position = store.get(1).read_output()
        assert first == whole[:1000]
        deliver(tmp_path, whole)
        rest, end = store.get(1).read_output(position)
        assert end == len(whole)
        assert rest.startswith(whole[1000:OUTPUT_HEAD_BYTES])
        assert rest.endswith(whole[-OUTPUT_TAIL_BYTES:])
        assert store.get(1).read_output(len(whole) - 80) == (whole[-80:], end)
        missed, end = store.get(1).read_output(OUTPUT_HEAD_BYTES + 10)
        assert missed == b"\n... 990 bytes left out here ...\n" + whole[-OUTPUT_TAIL_BYTES:]


def test_media_come_back_with_their_contents(store):
    run = store.get(2)
    if "sacred" in store.where:  # Sacred has none
        assert run.media == []
        return
    picture, words, cases, sound, points, odd = run.media
    assert [(one.name, one.kind, one.step) for one in run.media] == [
        ("picture", "image", 3),
        ("words", "text", 3),
        ("cases", "table", 9),
        ("sound", "audio", 9),
        ("points", "point_cloud", 9),
        ("odd", "hologram", 9),
    ]
    assert (picture.meta["width"], picture.meta["height"]) == (3, 2)
    assert picture.content.read().startswith(b"\x89PNG")
    assert words.content.read().decode() == "é"
    columns, [[image, label, p]] = cases.table()
    assert (columns, label) == (["image", "label", "p"], "cat")
    assert image.read() == picture.content.read()
    assert math.isnan(p)
    with pytest.raises(StoreError, match="'words' at step 3, of kind text, is no JSON"):
        words.table()
    samples, rate = sound.audio()
    assert (samples.dtype, samples.tolist(), rate) == (np.int16, [[0, -32767], [32767, 16384]], 8000)
    places, colors = points.point_cloud()
    assert (places.dtype, places.tolist()) == (np.float32, [[1, 2, 3], [4, 5, 6.5]])
    assert (colors.dtype, colors.tolist()) == (np.uint8, [[255, 0, 0], [0, 255, 0]])
    with pytest.raises(
        StoreError, match="'picture' at step 3, of kind image, is no WAV file: file does not start with RIFF"
    ):
        picture.audio()
    with pytest.raises(
        StoreError, match="'words' at step 3, of kind text, is no point cloud: got data that begin with"
    ):
        words.point_cloud()
    assert (odd.content_type, odd.content.read()) == ("application/x-odd", b"\0odd")


KILLED = """
import os, signal, sys, sacred
from sacred.observers import FileStorageObserver, MongoObserver
ex = sacred.Experiment("killed", save_git_info=False)
url, name = (*sys.argv[1:], None)[:2]
ex.observers.append(MongoObserver(url=url, db_name=name) if name else FileStorageObserver(url))
@ex.main
def main():
    os.kill(os.getpid(), signal.SIGKILL)
ex.run(options={"--capture": "no"})
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sacred-files", "sacred-mongo"])
def test_stock_run_that_was_killed_is_dead_when_its_heartbeats_stay_away(tmp_path, database, mongo_url, kind):
    where = [str(tmp_path / "store")] if kind == "sacred-files" else [mongo_url, database.name]
    (tmp_path / "killed.py").write_text(KILLED)
    assert processes.run([sys.executable, "killed.py", *where], cwd=tmp_path).returncode == -9
    for age_s, interval, status in (
        (0, 10.0, "RUNNING"),
        (540, 10.0, "RUNNING"),
        (660, 10.0, "DEAD"),
        (660, 60.0, "RUNNING"),
        (3660, 60.0, "DEAD"),
    ):
        last = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=age_s)
        if kind == "sacred-files":
            path = tmp_path / "store" / "1" / "run.json"
            document = json.loads(path.read_bytes())
            document["meta"]["options"]["--beat-interval"] = interval
            path.write_text(json.dumps({**document, "start_time": last.isoformat(), "heartbeat": None}))
        else:
            change = {"meta.options.--beat-interval": interval, "start_time": last, "heartbeat": None}
            database.runs.update_one({}, {"$set": change})
        with runs.open_store(where[0] if kind == "sacred-files" else "/".join(where)) as store:
            [found] = store.find(["name=killed", f"status={status}"])
            assert (found.status, store.get("1").status) == (status, status)
            assert found.is_living == (status == "RUNNING")
            assert store.find(["name=killed", f"status!={status}"]) == []


@pytest.mark.parametrize("kind", ["our-files", "our-mongo"])
def test_duration_of_a_running_run_goes_on_and_of_a_dead_one_ends_with_its_last_sign(
    tmp_path, database, mongo_url, kind
):
    began, last = time.time() - 100, time.time() - 40
    document = {
        "experiment": {"name": "long"},
        "status": "RUNNING",
        "config": {"lr": 0.1},
        "info": {},
        "heartbeat": None,
    }
    leases = {
        1: lease(1.0),
        2: {**lease(1.0), "boot_id": "another", "host": "gone", "heartbeat": last, "run_time": last},
    }
    times = {number: datetime.fromtimestamp(began, UTC).replace(tzinfo=None) for number in leases}
    if kind == "our-files":
        for number, of_run in leases.items():
            folder = tmp_path / "store" / str(number)
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(json.dumps({**document, "start_time": times[number].isoformat()}))
            (folder / "lease.json").write_text(json.dumps(of_run))
    else:
        for number, of_run in leases.items():
            row = {"_id": number, **document, "uid": f"{number}", "start_time": times[number], "lease": of_run}
            database.runs.insert_one(row)
    where = str(tmp_path / "store") if kind == "our-files" else f"{mongo_url}/{database.name}"
    with runs.open_store(where) as store:
        alive, dead = store.find(sort="-duration", columns=["duration", "status"])
        assert (alive.id, alive.status, dead.status) == ("1", "RUNNING", "DEAD")
        assert 100 <= alive["duration"] < 160
        assert dead["duration"] == pytest.approx(60, abs=0.1)
        assert [run.id for run in store.find("duration>99")] == ["1"]
        assert [run.id for run in store.find(sort="status")] == ["2", "1"]
        assert [run.id for run in store.find("status~^D")] == ["2"]
        assert store.get("1").duration_s >= alive["duration"]
        assert store.get("2").duration_s == dead["duration"]


def test_one_stock_run_among_ours_is_found_in_its_place_and_the_others_by_a_query(database, mongo_url):
    losses = [0.5, 0.1, 0.4, 0.2]
    for number, loss in enumerate(losses, 1):
        summary = {"summary": {"loss": {"min": loss, "count": 1}}, "uid": f"{number:032x}"}
        row = {"_id": number, "status": "COMPLETED", "config": {"n": number}, "info": {}, "experiment": {"name": "x"}}
        database.runs.insert_one({**row, **summary})
    stock = {"_id": 5, "status": "COMPLETED", "config": {"n": 5}, "info": {}, "experiment": {"name": "x"}}
    database.runs.insert_one(stock)
    database.metrics.insert_one({"run_id": 5, "name": "loss", "steps": [0, 1], "values": [0.9, 0.3], "timestamps": []})
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        assert [run.id for run in store.find(sort="loss.min")] == ["2", "4", "5", "3", "1"]
        assert [run.id for run in store.find("loss.min<0.45", sort="-loss.min", limit=2)] == ["3", "5"]
        assert [run["loss.min"] for run in store.find(sort="loss.min", limit=3)] == [0.1, 0.2, 0.3]


def test_list_as_json_asks_for_all_runs_at_once(database, mongo_url, monkeypatch, capsys):
    row = {"status": "COMPLETED", "config": {"lr": 0.1}, "info": {}, "experiment": {"name": "x"}, "command": "main"}
    database.runs.insert_many([{"_id": number, "uid": f"{number:032x}", **row} for number in range(50)])
    listener = Listener()
    real = pymongo.MongoClient
    monkeypatch.setattr(pymongo, "MongoClient", lambda *args, **kw: real(*args, event_listeners=[listener], **kw))
    assert main(["ls", "--json", "--store", f"{mongo_url}/{database.name}"]) == 0
    assert len({row["uid"] for row in json.loads(capsys.readouterr().out)}) == 50
    assert len(listener.projections) < 10


def test_list_looks_at_the_folders_once(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "COMPLETED", "experiment": {"name": "x"}}')
    looks = []
    update = Index.update
    monkeypatch.setattr(Index, "update", lambda index, *age: (looks.append(index), update(index, *age))[1])
    assert main(["ls", "--store", str(tmp_path)]) == 0
    assert "COMPLETED" in capsys.readouterr().out
    assert len(looks) == 1


def test_prefix_of_the_collections_goes_behind_the_url(database, mongo_url):
    with pymongo.MongoClient(mongo_url) as client:
        ex = sacred.Experiment("prefixed", save_git_info=False)
        ex.observers.append(SacredMongoObserver(client=client, db_name=database.name, collection_prefix="lab"))
        ex.main(lambda _run: _run.log_scalar("x", 1.5))
        ex.run(options={"--capture": "no"})
    with runs.open_store(f"{mongo_url}/{database.name}#lab") as store:
        assert store.where.endswith("#lab")
        assert store.get(1).metric("x").values.tolist() == [1.5]
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        assert store.find() == []


def test_list_of_a_folder_opens_no_file_of_a_run(tmp_path):
    folder = record("our-files", tmp_path, "mongodb://127.0.0.1:9", "none")
    script = """
import sys, time
from sacristan import runs
store = runs.open_store(sys.argv[1])
deadline = time.monotonic() + 30
opened = ["as what changed just now is looked at twice"]
sys.addaudithook(lambda event, given: event == "open" and opened.append(str(given[0])))
while opened and time.monotonic() < deadline:
    opened.clear()
    assert len(store.find("lr<0.03", sort="-val/accuracy.max", columns=["lr", "status"])) == 3
    opened = [name for name in opened if not name.endswith("lease.json")]
    time.sleep(0.1 if opened else 0)
print(opened)
"""
    command = [sys.executable, "-c", script, folder]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(LAB)})
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


class Listener(pymongo.monitoring.CommandListener):
    """Keeps the projections of all queries for runs."""

    def __init__(self):
        self.projections = []

    def started(self, event):
        if event.command_name == "find" and event.command["find"] == "runs":
            self.projections.append(event.command.get("projection"))

    def succeeded(self, event):
        pass

    failed = succeeded


def test_id_of_digits_means_a_number_a_text_and_an_object_id(database, mongo_url):
    keys = [bson.ObjectId("1" * 24), "2" * 24, 3, "4"]
    database.runs.insert_many([{"_id": key, "status": "COMPLETED"} for key in keys])
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        for key in keys:
            assert [run.key for run in store.find(f"id={key}")] == [store.get(str(key)).key] == [key]


def test_unreadable_runs_of_a_database_may_be_those_of_a_while_ago(database, mongo_url):
    database.runs.insert_many([{"_id": 1, "status": "COMPLETED"}, {"_id": 2, "status": 7}])
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        assert store.unreadable(60) == [("2", "status: got int, expected text")]
        database.runs.delete_one({"_id": 2})
        assert len(store.unreadable(60)) == 1
        assert store.unreadable() == store.unreadable(60) == []


def test_list_of_a_database_fetches_what_it_shows_alone(database, mongo_url, monkeypatch):
    database.runs.insert_one({"_id": 1, "config": {"lr": 0.1, "x": 1}, "captured_out": "long", "status": "COMPLETED"})
    listener = Listener()
    real = pymongo.MongoClient
    monkeypatch.setattr(pymongo, "MongoClient", lambda *args, **kw: real(*args, event_listeners=[listener], **kw))
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        listener.projections.clear()
        store.find("lr=0.1", columns=["lr", "status"])
    assert listener.projections
    of_status = {"heartbeat", "lease", "meta.options", "start_time", "status", "uid"}
    assert set().union(*listener.projections) <= {"_id", "config.lr", *of_status}


def test_steps_that_become_fractions_late_come_back_from_chunks(database, mongo_url, tmp_path, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_DOCUMENT", 40)
    monkeypatch.setattr("sacristan.observers.mongo.series.POINTS_PER_CHUNK", 16)
    ex = Experiment("fractions", base_dir=tmp_path, system_metrics_s=None)
    ex.observers.append(MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"))
    steps = [*range(50), *(50 + number / 4 for number in range(1, 50)), *range(70, 90)]

    @ex.main
    def main(_run):
        for step in steps:
            _run.log_scalar("x", 1.0, step)
            _run.log_scalar("whole", 2.0, int(step))
            if step in (30, 49, 55.25):
                _run._emit_heartbeat()

    ex.run(options={"--capture": "no", "--beat-interval": "1000"})
    with runs.open_store(f"{mongo_url}/{database.name}") as store:
        run = store.get(1)
        assert run.metric("x").steps.tolist() == steps
        assert run.metric("whole").steps.tolist() == [int(step) for step in steps]
        assert run.metric("whole").steps.dtype == np.int64
