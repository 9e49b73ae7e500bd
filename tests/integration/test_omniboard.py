"""Omniboard 2.16.1 over a database of ours: the queries that it makes, and, marked `nightly`, the program itself.

Its front end asks its server for, and that asks MongoDB for:

    Runs?select=&query=&sort_by=&order_by=&limit=&skip=    an aggregate over `runs`, see `runs_pipeline`
    Runs?distinct=omniboard.tags, config, host, ...        distinct
    Runs/count, Runs/ID?select=captured_out,info,...       count, the same aggregate
    Metrics?query={"run_id": ID}, Metrics?distinct=name    find in `metrics`, distinct
    files/source/ID, files/artifacts/ID                    the run, then `fs.files` by the ids in it
    files/preview/FILE, files/download/FILE/NAME, files/downloadAll/ID/KIND      GridFS
    SourceFiles?query=, SourceFilesCount/ID                a join of `experiment.sources` with `fs.files`, a count
"""

import io
import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bson
import gridfs
import pytest

from sacristan.runs.work.mongod import _free_port

pytestmark = pytest.mark.slow

VERSION = "2.16.1"
FIRST_SELECT = (
    "_id,heartbeat,experiment,command,host,stop_time,config,duration,"
    "result,start_time,resources,format,status,omniboard,metrics,meta"
)
DETAILS_SELECT = "captured_out,info,meta,host,experiment,artifacts,config,fail_trace,status"
LABEL_COLUMNS = [
    {"name": "last loss", "metric_name": "train/loss", "extrema": "last"},
    {"name": "best loss", "metric_name": "train/loss", "extrema": "min"},
    {"name": "accuracy", "metric_name": "val.acc", "extrema": "max"},
]


def runs_pipeline(select, query=None, sort_by="_id", order_by=-1, limit=200, columns=(), run_id=None, now=None):
    """Return the aggregate of Omniboard's `server/runs.response.js` for the same arguments."""
    chosen = select.split(",")
    projection, added, removed = dict.fromkeys(chosen, 1), {}, {}
    wanted = [column for column in columns if column["name"] in chosen]
    if wanted and "info" not in chosen:
        projection["info.metrics"] = 1
    if {"duration", "status"} & set(chosen):
        for name in ("start_time", "heartbeat"):
            if name not in chosen:
                projection[name] = 1
                removed[name] = 0
    if "duration" in chosen:
        added["duration"] = {"$subtract": ["$heartbeat", "$start_time"]}
    if "status" in chosen:
        silent = {"$subtract": [now or datetime.now(UTC), {"$ifNull": ["$heartbeat", "$start_time"]}]}
        dead = {"$and": [{"$eq": ["$status", "RUNNING"]}, {"$gt": [silent, 120_000]}]}
        added["status"] = {"$cond": {"if": dead, "then": "PROBABLY_DEAD", "else": "$status"}}
    pipeline = [{"$match": {"_id": run_id}}] if run_id else []
    pipeline += [{"$project": projection}, *([{"$addFields": added}] if added else [])]
    pipeline += [{"$match": query}] if query else []
    by_column = sort_by in [column["name"] for column in columns]
    pipeline += [] if by_column else [{"$sort": {sort_by: order_by}}, {"$limit": limit}]
    if wanted:
        pipeline += _metric_columns(wanted, [column["metric_name"] for column in columns])
        removed["metrics"] = 0
    pipeline += [{"$project": removed}] if removed else []
    pipeline += [{"$sort": {sort_by: order_by}}] if wanted else []
    return pipeline + ([{"$limit": limit}] if by_column else [])


def _metric_columns(wanted, names):
    same = {"$expr": {"$and": [{"$eq": ["$_id", "$$metric_id"]}, {"$in": ["$name", names]}]}}
    lookup = {"from": "metrics", "let": {"metric_id": {"$toObjectId": "$info.metrics.id"}}}
    joined = {"$cond": [{"$eq": ["$$value", ""]}, "", "_"]}
    name = {"$reduce": {"input": {"$split": ["$metrics.name", "."]}, "initialValue": ""}}
    name["$reduce"]["in"] = {"$concat": ["$$value", joined, "$$this"]}
    pair = [{"$gt": ["$metrics", None]}, {"k": "$$metric_name", "v": "$metrics"}, {"k": "empty", "v": ""}]
    pushed = {"$push": {"$let": {"vars": {"metric_name": name}, "in": {"$cond": pair}}}}
    stages = [
        {"$unwind": {"path": "$info.metrics", "preserveNullAndEmptyArrays": True}},
        {"$lookup": {**lookup, "pipeline": [{"$match": same}], "as": "metrics"}},
        {"$addFields": {"metrics": {"$arrayElemAt": ["$metrics", 0]}}},
        {"$group": {"_id": "$_id", "metrics": pushed, "runs": {"$first": "$$ROOT"}}},
        {"$addFields": {"runs.metrics": {"$arrayToObject": "$metrics"}}},
        {"$replaceRoot": {"newRoot": "$runs"}},
        {"$project": {"runs.metrics": 0}},
    ]
    for column in wanted:
        values = f"$metrics.{column['metric_name'].replace('.', '_')}.values"
        if column["extrema"] == "last":
            there = {"$and": [{"$isArray": values}, {"$size": values}]}
            last = {"$arrayElemAt": [values, {"$subtract": [{"$size": values}, 1]}]}
            value = {"$cond": {"if": there, "then": last, "else": None}}
        else:
            value = {f"${column['extrema']}": values}
        stages.append({"$addFields": {column["name"]: value}})
    return stages


@pytest.fixture
def listed(lab):
    """Return the rows of Omniboard's list of runs: `listed(select, **arguments)`."""

    def rows(select=FIRST_SELECT, **arguments):
        return list(lab.database.runs.aggregate(runs_pipeline(select, **arguments), allowDiskUse=True))

    return rows


def check_rows(lab, rows):
    """Check the rows of the list that Omniboard opens with."""
    by_id = {row["_id"]: row for row in rows}
    assert list(by_id) == sorted(lab.runs.values(), reverse=True)
    row = by_id[lab.runs["completed"]]
    assert row["config"]["data"] == {"batch_size": 8, "name": "digits"}
    assert row["experiment"]["name"] == "recorded"
    assert row["host"]["hostname"]
    assert row["result"] == {"accuracy": 0.5}
    assert row["meta"]["comment"] == "a good one"
    assert "captured_out" not in row
    statuses = {kind: by_id[number]["status"] for kind, number in lab.runs.items()}
    expected = {"completed": "COMPLETED", "again": "COMPLETED", "failed": "FAILED", "queued": "QUEUED"}
    assert statuses == {**expected, "dead": "DEAD", "running": "RUNNING"}
    assert by_id[lab.runs["queued"]].get("duration") is None


def test_list_of_runs_has_every_column(lab, listed):
    rows = listed()
    check_rows(lab, rows)
    assert 0 < next(row["duration"] for row in rows if row["_id"] == 1) < 600_000
    # The heartbeat of a run that goes on is fresh, and one that stopped reads as dead after two minutes.
    later = {row["_id"]: row["status"] for row in listed(now=datetime.now(UTC) + timedelta(minutes=10))}
    assert later[lab.runs["running"]] == "PROBABLY_DEAD"


def test_filters_and_sorting_of_the_list(lab, listed):
    status = {"$and": [{"$or": [{"status": {"$eq": "FAILED"}}, {"status": {"$eq": "QUEUED"}}]}]}
    assert [row["_id"] for row in listed(query=status)] == [lab.runs["queued"], lab.runs["failed"]]
    tags = {"$and": [{"$or": [{"config.tags": {"$in": ["first"]}}, {"omniboard.tags": {"$in": ["first"]}}]}]}
    assert len(listed(query=tags)) == len(lab.runs)
    rate = {"$and": [{"config.lr": {"$gt": 0.15}}, {"config.data.name": {"$regex": "^dig"}}]}
    assert [row["_id"] for row in listed(query=rate)] == [lab.runs["again"]]
    assert listed(sort_by="start_time", order_by=1)[-1]["_id"] == lab.runs["running"]
    assert listed(sort_by="config.lr", limit=1)[0]["_id"] == lab.runs["again"]


def test_metric_columns_of_the_list(lab, listed):
    select = "_id,status," + ",".join(column["name"] for column in LABEL_COLUMNS)
    rows = {row["_id"]: row for row in listed(select, columns=LABEL_COLUMNS)}
    assert rows.keys() == set(lab.runs.values())
    assert rows[lab.runs["again"]]["accuracy"] == 0.2
    assert rows[lab.runs["completed"]]["last loss"] == rows[1]["best loss"] == 1 / 20_000
    assert rows[lab.runs["queued"]]["accuracy"] is None
    best = listed(select, columns=LABEL_COLUMNS, sort_by="accuracy", limit=1)
    assert [row["_id"] for row in best] == [lab.runs["again"]]


def test_one_run_its_metrics_and_its_files(lab):
    found = {}
    for kind, number in lab.runs.items():
        [found[kind]] = lab.database.runs.aggregate(runs_pipeline(DETAILS_SELECT, run_id=number))
    assert "begin" in found["completed"]["captured_out"]
    assert len(found["completed"]["captured_out"]) < 300_000
    assert "it went badly" in "".join(found["failed"]["fail_trace"])
    metrics = {metric["name"]: metric for metric in lab.database.metrics.find({"run_id": 1})}
    assert len(metrics["train/loss"]["values"]) == len(metrics["train/loss"]["timestamps"]) == 20_000
    named = {metric["name"]: bson.ObjectId(metric["id"]) for metric in found["completed"]["info"]["metrics"]}
    assert named == {name: metric["_id"] for name, metric in metrics.items()}
    assert {"train/loss", "val.acc"} <= set(lab.database.metrics.distinct("name"))
    files = gridfs.GridFS(lab.database)
    for kind in ("completed", "again"):
        for artifact in found[kind]["artifacts"]:
            local = lab.folder / "runs" / str(lab.runs[kind]) / artifact["name"]
            assert files.get(artifact["file_id"]).read() == local.read_bytes()
    for document in found.values():
        ids = [file_id for _, file_id in document["experiment"]["sources"]]
        assert lab.database.fs.files.count_documents({"_id": {"$in": ids}}) == len(set(ids)) > 0


def test_choices_of_columns_are_within_one_answer(lab):
    for name in ("config", "host", "experiment"):
        assert len(lab.database.runs.distinct(name)) >= 1
    assert lab.database.runs.distinct("omniboard.tags") == []


def test_sources_are_joined_and_counted_over_runs(lab):
    source = {"$arrayElemAt": ["$experiment.sources", 1]}
    joined = lab.database.runs.aggregate(
        [
            {"$project": {"_id": 1, "experiment": 1}},
            {"$match": {"_id": {"$in": [1, 2]}}},
            {"$unwind": {"path": "$experiment.sources", "preserveNullAndEmptyArrays": True}},
            {
                "$lookup": {
                    "from": "fs.files",
                    "let": {"source_file_id": {"$toObjectId": source}},
                    "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$source_file_id"]}}}],
                    "as": "files",
                }
            },
            {"$group": {"_id": "$_id", "files": {"$push": {"$arrayElemAt": ["$files", 0]}}}},
        ]
    )
    names = {row["_id"]: {Path(file["filename"]).name for file in row["files"]} for row in joined}
    assert "recorded.py" in names[1]
    assert names[1] == names[2]
    counted = lab.database.runs.aggregate(
        [
            {"$unwind": {"path": "$experiment.sources"}},
            {"$group": {"_id": source, "count": {"$sum": 1}}},
        ]
    )
    assert {row["count"] for row in counted} == {len(lab.runs)}


# ---------------------------------------------------------------------- the program itself


class Omniboard:
    """The program, asked as its front end asks it."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def fetch(self, path, method="GET", body=None, **parameters):
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}{query}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def get(self, path, **parameters):
        return json.loads(self.fetch(f"/sacred/api/v1/{path}", **parameters))


@pytest.fixture(scope="module")
def omniboard_folder(tmp_path_factory):
    """A folder that npm has put Omniboard into, or the one that SACRISTAN_TEST_OMNIBOARD names."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    given = os.environ.get("SACRISTAN_TEST_OMNIBOARD")
    folder = Path(given) if given else tmp_path_factory.mktemp("omniboard")
    if not given:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"omniboard@{VERSION}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"npm could not install Omniboard: {done.stderr[-300:]}")
    return folder / "node_modules" / "omniboard"


@pytest.fixture(scope="module")
def omniboard(lab, omniboard_folder, tmp_path_factory, wait_for):
    port = _free_port()
    log = tmp_path_factory.mktemp("log") / "omniboard.txt"
    preload = Path(__file__).with_name("omniboard.js")
    command = ["node", "-r", str(preload), str(omniboard_folder / "dist" / "start.js")]
    command += ["--mu", f"{lab.url}/{lab.database.name}"]
    with log.open("w") as stream:
        environment = {**os.environ, "PORT": str(port)}
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
    try:
        wait_for(lambda: "established successfully" in log.read_text() or process.poll() is not None, "Omniboard")
        assert process.poll() is None, log.read_text()
        yield Omniboard(port)
        assert process.poll() is None, f"Omniboard ended: {log.read_text()[-2000:]}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_omniboard_lists_all_runs(lab, omniboard):
    assert omniboard.get("database")["name"] == lab.database.name
    rows = omniboard.get("Runs", select=FIRST_SELECT, sort_by="_id", order_by="-1", query="{}", limit=100)
    check_rows(lab, rows)
    assert omniboard.get("Runs/count", query="{}")["count"] == len(lab.runs)
    query = json.dumps({"$and": [{"$or": [{"status": {"$eq": "FAILED"}}]}]})
    assert [row["_id"] for row in omniboard.get("Runs", select="_id,status", query=query)] == [lab.runs["failed"]]
    assert omniboard.get("Runs/count", query=query)["count"] == 1
    query = json.dumps({"$and": [{"config.lr": {"$gt": 0.15}}]})
    assert [row["_id"] for row in omniboard.get("Runs", select="_id", query=query)] == [lab.runs["again"]]
    rows = omniboard.get("Runs", select="_id,start_time", sort_by="start_time", order_by="1", limit=100)
    assert [row["_id"] for row in rows][-1] == lab.runs["running"]
    assert omniboard.get("Runs", distinct="omniboard.tags") == []
    for name in ("config", "host", "experiment"):
        assert omniboard.get("Runs", distinct=name)


@pytest.mark.nightly
def test_omniboard_shows_one_run_of_each_kind(lab, omniboard):
    for kind, number in lab.runs.items():
        run = omniboard.get(f"Runs/{number}", select=DETAILS_SELECT)
        stored = lab.database.runs.find_one({"_id": number})
        assert run["captured_out"] == stored["captured_out"]
        assert run["experiment"]["name"] == "recorded"
        if kind != "running":
            assert len(run["info"].get("metrics", [])) == lab.database.metrics.count_documents({"run_id": number})
    assert "it went badly" in "".join(omniboard.get(f"Runs/{lab.runs['failed']}", select=DETAILS_SELECT)["fail_trace"])


@pytest.mark.nightly
def test_omniboard_plots_metrics(lab, omniboard):
    metrics = {metric["name"]: metric for metric in omniboard.get("Metrics", query='{"run_id":"1"}')}
    assert metrics["train/loss"]["steps"] == list(range(20_000))
    assert metrics["train/loss"]["values"][9] == 0.1
    assert metrics["train/loss"]["timestamps"][0] <= metrics["train/loss"]["timestamps"][-1]
    assert metrics["val.acc"]["values"] == [0.1]
    assert set(omniboard.get("Metrics", distinct="name")) >= {"train/loss", "val.acc"}
    hidden = ["captured_out", "meta", "heartbeat", "result", "start_time", "stop_time", "resources", "artifacts"]
    hidden += ["format", "command", "info.metrics", "experiment.sources"]
    populate = {"populate[path]": "run"} | {f"populate[select][{n}]": f"-{name}" for n, name in enumerate(hidden)}
    compared = omniboard.get("Metrics", query='{"run_id":{"$in":[1,2]}}', **populate)
    assert {metric["run"][0]["config"]["lr"] for metric in compared} == {0.1, 0.2}


@pytest.mark.nightly
def test_omniboard_adds_metric_columns(lab, omniboard):
    for column in LABEL_COLUMNS:
        omniboard.fetch("/sacred/api/v1/Omniboard.Metric.Columns", "POST", column)
    try:
        select = "_id,status," + ",".join(column["name"] for column in LABEL_COLUMNS)
        rows = {row["_id"]: row for row in omniboard.get("Runs", select=select, limit=100, sort_by="_id")}
        assert rows.keys() == set(lab.runs.values())
        assert rows[1]["last loss"] == rows[1]["best loss"] == 1 / 20_000
        best = omniboard.get("Runs", select=select, sort_by="accuracy", order_by="-1", limit=1)
        assert [row["_id"] for row in best] == [lab.runs["again"]]
    finally:
        lab.database["omniboard.metric.columns"].drop()


@pytest.mark.nightly
def test_omniboard_serves_files(lab, omniboard):
    run = omniboard.get("Runs/1", select=DETAILS_SELECT)
    listed = {file["_id"]: file for file in omniboard.get("files/artifacts/1")}
    for artifact in run["artifacts"]:
        content = (lab.folder / "runs" / "1" / artifact["name"]).read_bytes()
        assert listed[artifact["file_id"]]["length"] == len(content)
        assert omniboard.fetch(f"/sacred/api/v1/files/preview/{artifact['file_id']}") == content
        name = urllib.parse.quote(Path(artifact["name"]).name)
        assert omniboard.fetch(f"/sacred/api/v1/files/download/{artifact['file_id']}/{name}") == content
    sources = dict(run["experiment"]["sources"])
    assert {file["_id"] for file in omniboard.get("files/source/1")} == set(sources.values())
    for kind, count in (("source_files", len(sources)), ("artifacts", 2)):
        archive = zipfile.ZipFile(io.BytesIO(omniboard.fetch(f"/sacred/api/v1/files/downloadAll/1/{kind}")))
        assert len(archive.namelist()) == count
        assert archive.testzip() is None
    query = '{"_id":{"$in":[1,2]}}'
    joined = {row["_id"]: row["files"] for row in omniboard.get("SourceFiles", query=query)}
    assert {file["_id"] for file in joined[1]} == set(sources.values())
    assert {row["count"] for row in omniboard.get("SourceFilesCount/1")} == {len(lab.runs)}


@pytest.mark.nightly
def test_omniboard_writes_tags_and_notes_that_delivery_keeps(lab, omniboard, wait_for):
    number = lab.runs["running"]
    change = {"omniboard": {"tags": ["mine"], "notes": "look again"}}
    omniboard.fetch(f"/sacred/api/v1/Runs/{number}", "PUT", change)
    before = lab.database.runs.find_one({"_id": number})["heartbeat"]
    wait_for(lambda: lab.database.runs.find_one({"_id": number})["heartbeat"] > before, "another beat")
    assert lab.database.runs.find_one({"_id": number})["omniboard"]["tags"] == ["mine"]
    assert omniboard.get("Runs", distinct="omniboard.tags") == ["mine"]


@pytest.mark.nightly
def test_omniboard_deletes_a_run_and_leaves_its_twin_whole(lab, omniboard):
    # What its front end sends, one after the other; the last of these tests, because the run is gone.
    run = omniboard.get("Runs/1", select="artifacts,experiment.sources")
    counts = omniboard.get("SourceFilesCount/1")
    owned = [file["file_id"] for file in run["artifacts"]] + [row["_id"] for row in counts if row["count"] == 1]
    for kind, key in (("Fs.chunks", "files_id"), ("Fs.files", "_id")):
        query = json.dumps({"$or": [{key: file_id} for file_id in owned]})
        omniboard.fetch(f"/sacred/api/v1/{kind}/", "DELETE", query=query)
    omniboard.fetch("/sacred/api/v1/Metrics/", "DELETE", query='{"run_id":1}')
    omniboard.fetch("/sacred/api/v1/Runs/1", "DELETE")
    assert lab.database.runs.find_one({"_id": 1}) is None
    twin = omniboard.get("Runs/2", select=DETAILS_SELECT)
    files = gridfs.GridFS(lab.database)
    for artifact in twin["artifacts"]:
        content = (lab.folder / "runs" / "2" / artifact["name"]).read_bytes()
        assert files.get(bson.ObjectId(artifact["file_id"])).read() == content
    for _, file_id in twin["experiment"]["sources"]:
        assert files.get(bson.ObjectId(file_id)).read()
