"""Stores that earlier releases recorded (`tests/data`): read, resumed, reproduced and continued by this one."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tarfile
import uuid
from copy import deepcopy
from pathlib import Path

import bson
import pymongo
import pytest
from sacred.utils import get_by_dotted_path, iterate_flattened
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.experiments import Experiment, supervised
from sacristan.ingredients.config.scope import completed
from sacristan.runs import copy, export_runs, import_runs, open_store
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import create_app
from tests.data.make_store import text_in
from tests.earlier_stores import ARCHIVES, load_database, unpack
from tests.processes import run

ROOT = Path(__file__).parents[2]
# The runs that every store has; a sweep's trials follow.
STATUSES = {
    "1": "COMPLETED",
    "2": "DEAD",
    "3": "INTERRUPTED",
    "4": "COMPLETED",
    "5": "COMPLETED",
    "6": "FAILED",
    "7": "QUEUED",
}
ENDED = [id for id, status in STATUSES.items() if status != "QUEUED"]


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


class Lab:
    """A folder with the store of a release: `my_runs`, also at `url`, and `run_1.zip`."""

    def __init__(self, archive: Path, folder: Path, url: str) -> None:
        self.folder, self.url, self.where = folder, url, str(folder / "my_runs")
        unpack(archive, folder, url)
        self.has_sweeps = (folder / "my_runs" / "sweeps").exists()

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess:
        """Run Python in the folder, and check how it ends."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = run([sys.executable, *words], cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def runs(self, *words: str, code: int = 0) -> subprocess.CompletedProcess:
        return self.run("-m", "sacristan", *words, code=code)


@pytest.fixture(
    scope="module",
    params=[ARCHIVES[0], *(pytest.param(path, marks=pytest.mark.slow) for path in ARCHIVES[1:])],
    ids=lambda path: path.name.removesuffix(".tar.xz"),
)
def archive(request):
    return request.param


@pytest.fixture
def new_lab(archive, mongo_url, tmp_path):
    """A store that the test may change."""
    yield from _unpacked(archive, mongo_url, tmp_path)


@pytest.fixture(scope="module")
def lab(archive, mongo_url, tmp_path_factory):
    """The same, for tests that leave its runs as they are."""
    yield from _unpacked(archive, mongo_url, tmp_path_factory.mktemp("earlier"))


def _unpacked(archive, mongo_url, folder):
    name = f"earlier_{uuid.uuid4().hex}"
    lab = Lab(archive, folder, f"{mongo_url}/{name}")
    with pymongo.MongoClient(mongo_url) as client:
        load_database(folder, client[name], lab.url)
        yield lab
        client.drop_database(name)


def content_of(run):
    """Return what a run holds, but for what a store adds to it, and samples of the machine."""

    def digests(contents):
        return {name: hashlib.sha256(content.read()).hexdigest() for name, content in contents.items()}

    return {
        "command": (run.name, run.command, run.uid, run.document["command_line"], run.document["meta"]),
        "end": (run.status, run.result, run.document.get("fail_trace")),
        # The first databases kept milliseconds.
        "times": [time and int(time.timestamp() * 1000) for time in (run.start_time, run.stop_time)],
        # Sacred's MongoObserver lists the metrics in info.
        "parts": (dict(run.config), {**run.info, "metrics": None}, run.summary, run.provenance),
        "notes": (run.tags, run.note),
        "points": points_of(run, system=True),
        "media": [(medium.name, medium.kind, medium.step, medium.content.sha256()) for medium in run.media],
        "files": [digests(files) for files in (run.sources, run.resources, run.artifacts)],
        "versions": run.get("artifacts_logged"),
        "output": run.output,
    }


def points_of(run, system=False):
    series = {name: run.metric(name) for name in run.metrics if system or not name.startswith("system/")}
    return {name: (found.steps.tolist(), found.values.tobytes()) for name, found in series.items()}


def contents(where, ids=ENDED):
    with open_store(where) as store:
        return {run.uid: content_of(run) for run in map(store.get, ids)}


@pytest.mark.slow
def test_store_is_read_alike_in_its_folder_and_its_database(lab):
    for where in (lab.where, lab.url):
        with open_store(where) as store:
            statuses = {run.id: run.status for run in store.find()}
            assert {id: statuses[id] for id in STATUSES} == STATUSES
            assert [run.id for run in store.find("tags.best=True")] == ["1"]
            assert (store.get(1).note, store.get(6).document["fail_trace"][-1][:10]) == ("the first one", "ValueError")
            own = store.get(5)
            assert {medium.kind for medium in own.media} == {"image", "histogram", "text", "table"}
            (table,) = (medium for medium in own.media if medium.kind == "table")
            assert [row[1] for row in table.table()[1]] == ["cat", "dog"]
            assert own.metric("own/value").values.tolist()[2:] == [float("inf"), -0.25]
            assert own.metric("own/half steps").steps.tolist() == [0.5, 1.5, 2.5, 3.5]
            assert (
                own.fetch_version(own.get("artifacts_logged")[0], lab.folder / "my_runs").files[0].path == "table.csv"
            )
            assert store.unreadable() == []
    assert contents(lab.where) == contents(lab.url)


@pytest.mark.parametrize("place", ["where", pytest.param("url", marks=pytest.mark.slow)])
def test_commands_show_the_runs(lab, place, capsys):
    for command in (
        "ls --json",
        *(f"show {id} --json" for id in STATUSES),
        "config 1",
        "log 2",
        "metrics 5",
        "diff 1 2",
        "compare --by epochs --over seed --where command=main --metric val/loss.min",
        "plot 1 2 --metric val/loss",
        "sources ls 1",
        "artifacts ls 4",
        "card 1",
    ):
        assert main(["--store", getattr(lab, place), *command.split()]) == 0, command
        out, err = capsys.readouterr()
        assert (bool(out), err) == (True, ""), command


@pytest.mark.slow
def test_board_shows_the_runs(lab):
    for where in (lab.where, lab.url):
        app = create_app(lambda where=where: open_store(where), Policy())
        with TestClient(app, base_url="http://127.0.0.1", headers={"origin": "http://127.0.0.1"}) as client:
            page = client.get("/runs").text
            assert page.lower().count("completed") >= 3, page
            assert "paper-1" in page
            for id in STATUSES:
                answer = client.get(f"/runs/{id}")
                assert (answer.status_code, "cannot be read" in answer.text) == (200, False), answer.text


@pytest.mark.slow
def test_runs_are_copied_exported_and_imported_whole(lab, database, mongo_url, tmp_path):
    recorded = contents(lab.where)
    with open_store(lab.where) as store, open_store(f"{mongo_url}/{database.name}", create=True) as other:
        runs = [store.get(id) for id in ENDED]
        assert [copy(run, other).left_out for run in runs] == [()] * len(runs)
        export_runs(runs, tmp_path / "all.zip")
        assert {run.uid: content_of(run) for run in other.find()} == recorded
    with open_store(tmp_path / "imported", create=True) as store:
        assert all(found.is_new for found in import_runs(tmp_path / "all.zip", store))
        assert {run.uid: content_of(run) for run in store.find()} == recorded
    with open_store(tmp_path / "from_release", create=True) as store:
        import_runs(lab.folder / "run_1.zip", store)
        (run,) = store.find()
        (uid,) = contents(lab.where, ["1"])
        assert (run.uid, run.tags, points_of(run, system=True)) == (uid, ["best", "paper-1"], recorded[uid]["points"])


@pytest.mark.slow
def test_run_is_reproduced_and_the_cut_off_ones_end_with_its_bits(new_lab):
    """Old code gives the recorded bits on this processor, or else all comparisons are within a tolerance."""
    verdict, _, _ = new_lab.runs("reproduce", "1").stdout.splitlines()[0].partition(" (")
    assert verdict in ("IDENTICAL", "WITHIN TOLERANCE")
    for id in ("2", "3"):
        new_lab.runs("resume", id)
    assert new_lab.runs("reproduce", "1", "--in-place").stdout.startswith(verdict)
    for where in (new_lab.where, new_lab.url):
        with open_store(where) as store:
            whole, killed, stopped = (store.get(id) for id in ("1", "2", "3"))
            assert {killed.status, stopped.status} == {"COMPLETED"}
            assert [session["status"] for session in killed.sessions] == ["DEAD", "COMPLETED"]
            for resumed in (killed, stopped):
                if verdict == "IDENTICAL":
                    assert (points_of(resumed), resumed.result) == (points_of(whole), whole.result)
                assert points_of(resumed).keys() == points_of(whole).keys()


@pytest.mark.parametrize(
    "archive",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name[0] == "0")) for path in ARCHIVES],
    indirect=True,
)
def test_fork_inside_an_epoch_and_an_unfinished_run_end_as_the_uncut_training(new_lab):
    state = "resume=my_runs/3/checkpoints/last.pt"
    forked = new_lab.run(str(ROOT / "exp.py"), "-F", "forked", "with", "my_runs/3/config.json", state)
    assert "differ" not in forked.stdout + forked.stderr
    resumed = new_lab.run(str(ROOT / "exp.py"), "with", "my_runs/3/config.json", "resume=auto")
    assert "resuming my_runs/3" in resumed.stdout + resumed.stderr
    with open_store(new_lab.where) as store, open_store(new_lab.folder / "forked") as forks:
        whole, *others = store.get(1), store.get(3), forks.get(1)
        for run in others:
            assert (run.status, run.result) == ("COMPLETED", pytest.approx(whole.result, rel=1e-4))
            losses, expected = run.metric("val/loss"), whole.metric("val/loss")
            assert losses.values.tolist() == pytest.approx(expected.values[-len(losses) :].tolist(), rel=1e-4)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_settings_and_ingredients_that_came_later_differ_in_no_recorded_config(archive):
    ex = composed()
    with tarfile.open(archive) as stream:
        for id in ("1", "2", "3", "7"):
            recorded = json.load(stream.extractfile(f"my_runs/{id}/config.json"))
            run = ex.run("print_config", config_updates=recorded)
            found = completed(recorded, run.config, run.legacy_defaults)
            assert {name: found[name] for name in run.config} == run.config


def composed():
    ex = Experiment("exp", ingredients=supervised.ingredients())
    supervised.compose(ex)
    return ex


# An experiment that lacks one of these ingredients does something else; their further settings mean their defaults.
ESSENTIAL = {
    "checkpoint": "last",
    "data": "name",
    "device": "name",
    "loss": "name",
    "model": "name",
    "optimizer": "name",
}
ESSENTIAL |= {"training": "epochs"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["exp", "finetune", "gan", "language_model", "segment", "tabular", "text"])
def test_state_without_a_setting_or_ingredient_means_its_default(name):
    ex = composed() if name == "exp" else importlib.import_module(f"sacristan.experiments.{name}").ex
    run = ex.run("print_config")
    changed = {entry for group in run.meta_info["origins"] for entry in group["entries"]}
    entries = {entry for entry, _ in iterate_flattened(run.config)} - changed
    exempt = {f"{path}.{entry}" for path, entry in ESSENTIAL.items()}
    lacking = {entry for entry in entries | (run.ingredients.keys() & run.config) if is_lacking(run, entry)}
    assert lacking <= exempt | ESSENTIAL.keys() | changed_groups(changed)
    assert lacking >= (exempt & entries) | (ESSENTIAL.keys() & run.ingredients)


def is_lacking(run, entry):
    """Return whether a config without an entry or group is another one."""
    config = deepcopy(run.config)
    group, _, leaf = entry.rpartition(".")
    del (get_by_dotted_path(config, group) if group else config)[leaf]
    found = completed(config, run.config, run.legacy_defaults)
    return {name: found.get(name) for name in run.config} != run.config


def changed_groups(entries):
    return {entry.partition(".")[0] for entry in entries}


@pytest.mark.slow
def test_run_is_forked_evaluated_and_its_queue_and_sweep_go_on(new_lab):
    new_lab.runs("fork", "1", "with", "epochs=11")
    weights = "checkpoint.path=my_runs/1/checkpoints/best.pt"
    new_lab.run(str(ROOT / "exp.py"), "evaluate", "with", "my_runs/1/config.json", weights)
    new_lab.runs("work", "--until-empty", "--any-sources")
    with open_store(new_lab.where) as store:
        evaluated, forked = store.latest(3)[1:]
        assert (forked.document["parent"], forked.status) == (store.get(1).uid, "COMPLETED")
        assert evaluated.result == pytest.approx(store.get(1).result)
    for where in (new_lab.where, new_lab.url):
        with open_store(where) as store:
            assert (store.get(7).status, len(store.get(7).metric("val/loss"))) == ("COMPLETED", 2)


@pytest.mark.slow
def test_sweeps_go_on(new_lab):
    if not new_lab.has_sweeps:
        pytest.skip("this release had no sweeps")
    settings = (
        "epochs=10",
        "data.limit=300",
        "data.batch_size=16",
        "model.options.hidden=[4]",
        "training.log_interval=10",
    )
    sweep = ("sweep.over={lr: [1e-2, 3e-2]}", "sweep.metric=val/loss.min", "sweep.count=2")
    for id, options in (("lr", ["-m", new_lab.url]), ("lr_folder", [])):
        command = ("sweep.run", *options, "with", *settings, "epochs=2", *sweep, f"sweep.id={id}")
        done = new_lab.run(str(ROOT / "exp.py"), *command)
        assert f"sweep {id}: 2 of 2 done" in done.stdout


def test_names_of_the_machine_are_looked_for_in_text_but_not_in_random_numbers():
    numbers = b"\xff\x00vm\x80" * 9
    state = b"PK\x03\x04" + numbers + b"/home/vm/lab/checkpoints" + numbers
    assert text_in(".pt", state) == b"/home/vm/lab/checkpoints"
    assert b"vm" not in text_in(".bin", numbers)
    document = {"host": "vm", "points": numbers, "value": 0.5}
    assert b"'vm'" in text_in(".bson", bson.encode(document))
    assert text_in(".json", '{"host": "vm", "ü": 1}'.encode()) == '{"host": "vm", "ü": 1}'.encode()
