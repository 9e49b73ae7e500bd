"""Runs written to other trackers: every point arrives, exporting again adds nothing, a kill leaves no half of a run."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas
import pytest

from sacristan.__main__ import main
from sacristan.configs.packages import install_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, Image
from sacristan.runs import ForeignError, export_runs, export_to, import_foreign, import_runs, open_store
from sacristan.runs.transfer.trackers import wandb_files

WANDB = pytest.param(
    "wandb",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(find_spec("wandb") is None, reason="needs the extra wandb"),
    ],
)
KINDS = ["tensorboard", pytest.param("mlflow", marks=pytest.mark.slow), WANDB]
LOSSES = [1 / (step + 1) for step in range(2500)]


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """A folder with a whole run, one with odd names and values, and a failed one."""
    folder = tmp_path_factory.mktemp("runs")
    ex = Experiment("digits", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(folder))
    ex.add_config(lr=0.1, net={"width": 8, "name": None}, long="x" * 7000, what="")

    @ex.main
    def run(_run, what, lr):
        for step, loss in enumerate(LOSSES):
            _run.log_scalar("train/loss", loss, step)
        for step, value in enumerate([math.nan, math.inf, -math.inf, 1e300]):
            _run.log_scalar("odd", value, step * 0.5 if what == "odd" else step)
        if what == "odd":
            _run.log_scalar("../<b>loss*", 1.0, 0)
            _run.log_scalar("<b>loss?", 2.0, 0)
        _run.log_media("sample", Image(np.eye(8)), 3)
        Path(folder / "notes.txt").write_text("hello")
        _run.add_artifact(folder / "notes.txt", "notes/a.txt")
        print("said")
        if what == "fail":
            raise RuntimeError("failed")
        return 0.75

    ex.run()
    ex.run(config_updates={"what": "odd"})
    with pytest.raises(RuntimeError):
        ex.run(config_updates={"what": "fail"})
    with open_store(folder) as store:
        store.write_note(store.tag(store.get("1"), ["good"]), "a note")
    return folder


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database of MLflow without runs, which takes long to create."""
    folder = tmp_path_factory.mktemp("mlflow")
    list(export_to([], folder, "mlflow"))
    return folder / "mlflow.db"


@pytest.fixture
def out(tmp_path, request):
    """A folder to export to; where the test is about MLflow, with an empty database."""
    folder = tmp_path / "out"
    if "mlflow" in request.node.name:
        folder.mkdir()
        shutil.copy(request.getfixturevalue("empty_database"), folder)
    return folder


@pytest.fixture
def store(runs_folder):
    with open_store(runs_folder) as store:
        yield store


def imported(path, into):
    with open_store(into, create=True) as store:
        outcomes = list(import_foreign(path, store))
        assert {outcome.outcome for outcome in outcomes} == {"new"}
        return sorted(store, key=lambda run: run.start_time)


def num_points(run):
    return sum(len(run.metric(name)) for name in run.metrics)


def texts(values):
    return [repr(value) for value in np.asarray(values).tolist()]


def test_every_point_comes_back_from_tensorboard(store, tmp_path):
    done = list(export_to([store.get("1")], tmp_path / "logs", "tensorboard"))
    assert [(run.id, run.outcome, run.num_points, run.left_out) for run in done] == [
        ("1", "new", num_points(store.get("1")), ())
    ]
    [back] = imported(tmp_path / "logs" / "1", tmp_path / "back")
    run = store.get("1")
    for name in run.metrics:
        ours, theirs = run.metric(name), back.metric(name)
        with np.errstate(over="ignore"):
            assert texts(theirs.values) == texts(ours.values.astype(np.float32).astype(float))
        assert theirs.steps.tolist() == ours.steps.tolist()
        assert theirs.times + back.start_time.timestamp() == pytest.approx(
            ours.times + run.start_time.timestamp(), abs=0.03
        )
    assert back.config["lr"] == 0.1
    assert back.status == "COMPLETED"
    assert [medium.name for medium in back.media] == ["sample"]


@pytest.mark.slow
def test_every_point_comes_back_from_mlflow(store, out, tmp_path):
    done = list(export_to([store.get("1"), store.get("3")], out, "mlflow"))
    long = "setting 'long': 7000 characters, and 6000 are allowed"
    assert [(run.outcome, run.left_out) for run in done] == [("new", (long,))] * 2
    assert [run.num_points for run in done] == [num_points(store.get(id)) for id in "13"]
    whole, failed = imported(out / "mlflow.db", tmp_path / "back")
    run = store.get("1")
    for name in run.metrics:
        ours, theirs = run.metric(name), whole.metric(name)
        assert texts(theirs.values) == texts(ours.values)
        assert theirs.steps.tolist() == ours.steps.tolist()
    assert (whole.status, failed.status) == ("COMPLETED", "FAILED")
    assert whole.name == "digits"
    assert whole.note == run.note
    assert (whole.config["net.width"], whole.config["net.name"], whole.config["lr"]) == (8, None, 0.1)
    assert abs(whole.start_time.timestamp() - run.start_time.timestamp()) < 0.001
    assert abs(whole.stop_time.timestamp() - run.stop_time.timestamp()) < 0.001
    assert whole.artifacts["files/notes/a.txt"].read() == b"hello"
    assert b"said" in whole.artifacts["files/output.txt"].read()
    assert any(name.startswith("files/media/") for name in whole.artifacts)


@pytest.mark.parametrize("kind", KINDS)
def test_exporting_again_adds_nothing_and_a_changed_run_is_replaced(kind, runs_folder, out, tmp_path):
    with open_store(runs_folder) as store:
        run = store.get("1")
        outcomes = lambda: [done.outcome for done in export_to([run], out, kind)]  # noqa: E731
        assert [outcomes(), outcomes()] == [["new"], ["present"]]
        store.write_note(run, f"another note for {kind}")
        assert outcomes() == ["replaced"]
        assert outcomes() == ["present"]
        source = {"tensorboard": out / "1", "mlflow": out / "mlflow.db"}.get(kind, out)
        assert len(imported(source, tmp_path / "back")) == 1


@pytest.mark.parametrize("kind", ["tensorboard", pytest.param("mlflow", marks=pytest.mark.slow)])
def test_names_and_steps_that_a_tracker_cannot_hold_are_told(kind, store, out):
    [done] = export_to([store.get("2")], out, kind)
    told = " ".join(done.left_out)
    assert "metric 'odd': fractions of its steps" in told
    if kind == "mlflow":
        assert "the name of the metric '../<b>loss*', which is '_b_loss_' in MLflow" in told
        assert "the name of the metric '<b>loss?', which is '_b_loss__2' in MLflow" in told


@pytest.mark.parametrize("kind", KINDS)
def test_export_killed_at_some_moment_is_completed_by_the_next_one(kind, store, out, tmp_path):
    words = ["--store", store.where, "export", "1", "2", "3", "--format", kind, "-o", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "sacristan", *words], stderr=subprocess.DEVNULL)
    signs = {"tensorboard": ".*/*tfevents*", "mlflow": "artifacts/*/*/*/output.txt", "wandb": ".*/*.wandb"}
    deadline = time.monotonic() + 120
    while process.poll() is None and not any(out.glob(signs[kind])) and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.wait()
    marks = [path.parent.name for path in out.glob("*/sacristan.json")]
    assert [path.name for path in out.glob("[!.]*") if kind != "mlflow"] == marks  # only whole ones have a name
    if parts := list(out.glob(".*.incomplete")):
        with open_store(tmp_path / "cut", create=True) as cut:
            skipped = [run for run in import_foreign(out, cut) if run.outcome == "failed"]
        assert [run.place for run in skipped] == list(map(str, parts))
        assert "its export was interrupted" in skipped[0].left_out[0]
        list(export_to([], out, kind))  # of no run, it still takes away what was left
        assert not list(out.glob(".*.incomplete"))
    outcomes = {run.id: run.outcome for run in export_to(list(store), out, kind)}
    assert outcomes.keys() == {"1", "2", "3"}
    assert set(outcomes.values()) <= {"new", "present", "replaced"}
    assert {run.outcome for run in export_to(list(store), out, kind)} == {"present"}
    assert not list(out.glob(".*.incomplete"))
    if kind != "tensorboard":
        assert len(imported(out / "mlflow.db" if kind == "mlflow" else out, tmp_path / "back")) == 3
    else:
        assert sorted(path.name for path in out.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("tensorboard", "make room on its disk"),
        pytest.param("wandb", "File too large", marks=WANDB.marks),
    ],
)
def test_a_disk_that_is_full_fails_the_run_and_leaves_no_folder_in_its_place(kind, reason, store, tmp_path):
    script = (
        "import resource, sys\n"
        "from sacristan.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["--store", store.where, "export", "1", "--format", kind, "-o", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: run 1: " in done.stderr
    assert reason in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "out").glob("[!.]*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "mlflow"], "got no place for mlflow, expected -o FOLDER, or for mlflow the address of a server"),
        (["--format", "tensorboard", "-o", "http://h"], "got the address http://h, expected a file"),
        pytest.param(
            ["--format", "mlflow", "-o", "{store}/1/run.json"],
            "is no folder that MLflow still writes to",
            marks=pytest.mark.slow,  # imports MLflow
        ),
        (["--format", "mlflow", "-o", "x", "--metrics", "a"], "add --format csv"),
        (["--format", "rocrate"], "got no file, expected -o FILE.zip"),
        (["--format", "parquet"], "got no file, expected -o FILE.parquet"),
        (["-o", "x.csv", "--hide", "ann"], "got --hide without --anonymous, expected both"),
    ],
)
def test_places_that_make_no_sense_are_refused(words, message, store, capsys):
    words = [word.replace("{store}", store.where) for word in words]
    assert main(["--store", store.where, "export", "1", *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named_without_its_password(store):
    with pytest.raises(ForeignError, match=r"http://ann:\*\*\*@127\.0\.0\.1:9") as raised:
        list(export_to([store.get("1")], "http://ann:s3cret@127.0.0.1:9", "mlflow"))
    assert "s3cret" not in str(raised.value)


def test_missing_extra_is_named_before_anything_else_is_said(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sacristan.runs.transfer.targets.importlib.util.find_spec", lambda name: None)
    for kind in ("mlflow", "wandb", "tensorboard"):
        assert main(["--store", store.where, "export", "1", "--format", kind, "-o", str(tmp_path / "out")]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert f"export to {kind} needs the package" in line
        assert install_command(kind) in line
    assert not (tmp_path / "out").exists()


def test_every_point_comes_back_from_wandb(store, out, tmp_path):
    pytest.importorskip("wandb")
    done = list(export_to(list(store), out, "wandb"))
    assert {(run.outcome, run.left_out) for run in done} == {("new", ())}
    whole, odd, failed = imported(out, tmp_path / "back")
    for back, id in ((whole, "1"), (odd, "2"), (failed, "3")):
        run = store.get(id)
        assert back.metrics == run.metrics
        for name in run.metrics:
            ours, theirs = run.metric(name), back.metric(name)
            assert texts(theirs.values) == texts(ours.values)
            assert theirs.steps.tolist() == ours.steps.tolist()
            assert theirs.times + back.start_time.timestamp() == pytest.approx(
                ours.times + run.start_time.timestamp(), abs=0.001
            )
        assert dict(back.config) == dict(run.config)
        assert [medium.name for medium in back.media] == ["sample"]
        assert back.artifacts["files/artifacts/notes/a.txt"].read() == b"hello"
        assert b"said" in back.read_output()[0]
    assert (whole.status, failed.status) == ("COMPLETED", "FAILED")
    assert (whole.name, whole.note, whole.tags) == ("digits", store.get("1").note, ["good"])
    assert whole.info["summary"]["result"] == whole.result == 0.75
    for file in out.rglob("*.wandb"):
        head, *others = map(wandb_files._message().FromString, wandb_files.records(file.read_bytes(), []))
        id = file.stem.removeprefix("run-")
        assert not head._info.stream_id
        assert {record._info.stream_id for record in others} == {id}  # `wandb sync` tells runs apart by it


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_every_point_comes_back_from_a_table(suffix, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--store", store.where, "export", "1", "2", "--metrics", "--force", "-o", f"points.{suffix}"]
    written = []
    for _ in range(2):
        assert main(words) == 0
        written.append(Path(f"points.{suffix}").read_bytes())
    assert written[0] == written[1]
    if suffix == "csv":
        table = pandas.read_csv("points.csv", dtype=str, keep_default_na=False)
    else:
        table = pandas.read_parquet("points.parquet")
    groups = dict(list(table.groupby(["id", "name"])))
    assert groups.keys() == {(id, name) for id in "12" for name in store.get(id).metrics}
    for (id, name), points in groups.items():
        series = store.get(id).metric(name)
        assert texts(points["value"].astype(float)) == texts(series.values)
        assert points["step"].astype(float).tolist() == series.steps.tolist()
        assert points["time_s"].astype(float).tolist() == series.times.tolist()


class QuietServer(ThreadingHTTPServer):
    """A server for a client that closes connections without a word."""

    def handle_error(self, *_):
        pass


class WandbServer(BaseHTTPRequestHandler):
    """Accepts what `wandb sync` sends, and keeps it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_PUT(self):
        self._answer({}, self._body())

    def do_POST(self):
        if not self.path.endswith(("graphql", "file_stream")):
            return self._answer({}, self._body())  # telemetry
        body = json.loads(self._body())
        if "graphql" not in self.path:
            self.server.posts.append((self.path, body))
            return self._answer({})
        variables, query = body.get("variables") or {}, body["query"]
        if "createRunFiles" in query:
            urls = [{"name": name, "uploadUrl": f"http://{self.headers['Host']}/{name}"} for name in variables["files"]]
            return self._answer({"data": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": urls}}})
        if "upsertBucket" not in query:
            return self._answer({"data": {}})
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "ann"}}
        num_lines = len(history_of(self.server.posts))
        bucket = {"id": "x", "name": variables["name"], "historyLineCount": num_lines, "project": project}
        return self._answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": not num_lines}}})

    def _body(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, document, upload=None):
        if upload is not None:
            self.server.uploads[self.path.lstrip("/")] = upload
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def history_of(posts):
    """Return the rows that a server holds after these posts, each of which writes lines from an offset on."""
    lines = {}
    for _, body in posts:
        history = (body.get("files") or {}).get("wandb-history.jsonl", {"content": [], "offset": 0})
        lines |= {history["offset"] + number: json.loads(line) for number, line in enumerate(history["content"])}
    return [line for _, line in sorted(lines.items())]


@pytest.fixture
def sync(tmp_path):
    """Return a function that runs `wandb sync`, and the server that records what it receives."""
    pytest.importorskip("wandb")
    server = QuietServer(("127.0.0.1", 0), WandbServer)
    server.posts, server.uploads = [], {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "HOME")
    environment = os.environ | {name: str(tmp_path) for name in names}
    environment |= {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "0" * 40}

    def run(*words):
        words = [sys.executable, "-m", "wandb", "sync", *map(str, words)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stderr

    yield run, server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_wandb_sync_sends_every_point_under_the_uid_and_a_second_one_adds_nothing(store, out, sync):
    list(export_to([store.get("2")], out, "wandb"))
    wandb_sync, server = sync
    assert "Finished syncing" in wandb_sync(out)
    run = store.get("2")
    history = history_of(server.posts)
    for name in run.metrics:
        rows = [line for line in history if name in line]
        series = run.metric(name)
        assert [row["sacristan/step"] for row in rows] == series.steps.tolist()
        assert texts([float(row[name]) for row in rows]) == texts(series.values)
    assert server.uploads["artifacts/notes/a.txt"] == b"hello"
    assert b"said" in server.uploads["output.log"]
    sent = len(server.posts), dict(server.uploads)
    # What the client leaves in the folder is nothing for us, and a second export leaves it there.
    assert [each.outcome for each in export_to([run], out, "wandb")] == ["present"]
    assert "Skipped 1 synced run(s)" in wandb_sync(out)
    assert (len(server.posts), server.uploads) == sent
    assert {path for path, _ in server.posts} == {f"/files/ann/digits/{run.uid}/file_stream"}


def test_crate_describes_each_run_and_is_an_archive(store, tmp_path, capsys):
    pytest.importorskip("rocrate")
    output = tmp_path / "runs.zip"
    words = ["--store", store.where, "export", "1", "3", "--format", "rocrate", "-o", str(output)]
    assert main(words) == 0
    assert "no run states a license" in capsys.readouterr().err
    first = output.read_bytes()
    assert main([*words, "--force"]) == 0
    assert output.read_bytes() == first
    with zipfile.ZipFile(output) as archive:
        entities = {e["@id"]: e for e in json.loads(archive.read("ro-crate-metadata.json"))["@graph"]}
        for name in set(archive.namelist()) - {"manifest.json", "ro-crate-metadata.json"}:
            entity = entities[quote(name)]
            assert (entity["@type"], int(entity["contentSize"])) == ("File", archive.getinfo(name).file_size)
            assert {"@id": quote(name)} in entities["./"]["hasPart"]
    whole, failed = (entities[f"#run-{store.get(id).uid}"] for id in "13")
    assert entities["./"]["conformsTo"] == {"@id": "https://w3id.org/ro/wfrun/process/0.5"}
    assert entities["./"]["mentions"] == [{"@id": whole["@id"]}, {"@id": failed["@id"]}]
    assert whole["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert failed["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert "RuntimeError: failed" in failed["error"]
    assert whole["instrument"] == {"@id": "#experiment-digits"}
    assert entities["#experiment-digits"]["@type"] == "SoftwareApplication"
    assert {"@id": "1/config.json"} in whole["object"]
    assert {"@id": "1/notes/a.txt"} in whole["result"]
    assert datetime.fromisoformat(whole["endTime"]) == store.get("1").stop_time.replace(microsecond=0)
    with open_store(tmp_path / "back", create=True) as back:
        assert [copied.run.uid for copied in import_runs(output, back)] == [store.get(id).uid for id in "13"]


@pytest.mark.slow
def test_validator_of_crates_accepts_them(store, tmp_path):
    """In an environment of its own, as it needs other versions; with terms at hand, not from their address."""
    rocrate = pytest.importorskip("rocrate")
    uv = shutil.which("uv") or pytest.skip("needs uv")
    python = tmp_path / "validator" / "bin" / "python"
    for words in (
        ["venv", "--no-project", tmp_path / "validator"],
        ["pip", "install", "-p", python, "roc-validator==0.13.0"],
    ):
        done = subprocess.run([uv, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            pytest.skip(f"roc-validator cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    export_runs([store.get("1"), store.get("3")], tmp_path / "runs.zip", is_crate=True)
    with zipfile.ZipFile(tmp_path / "runs.zip") as archive:
        archive.extractall(tmp_path / "crate")
    metadata = tmp_path / "crate" / "ro-crate-metadata.json"
    document = json.loads(metadata.read_text())
    assert document["@context"] == [
        "https://w3id.org/ro/crate/1.1/context",
        "https://w3id.org/ro/terms/workflow-run/context",
    ]
    terms = json.loads((Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_text())["@context"]
    metadata.write_text(json.dumps({**document, "@context": terms}))
    words = ["--no-interactive", "validate", "--offline", "-p", "process-run-crate-0.5", "-l", "required"]
    validator = python.with_name("rocrate-validator")
    done = subprocess.run([validator, *words, tmp_path / "crate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "is a valid process-run-crate-0.5" in done.stdout


@pytest.mark.slow
def test_artifacts_lie_beside_a_database_of_mlflow(store, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    list(export_to([store.get("1")], f"sqlite:///{out}/mlflow.db", "mlflow"))
    assert list((out / "artifacts").glob("*/artifacts/notes/a.txt"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
