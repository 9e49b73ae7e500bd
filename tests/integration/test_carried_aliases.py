"""Aliases of artifacts that archives, copies and deliveries carry into another store."""

import json
import zipfile
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.observers.artifacts.aliases import Move, carried
from sacristan.observers.record.redaction import typed_command
from sacristan.runs import copy, export_runs, import_runs, open_store
from tests.folders import write_files

pytestmark = pytest.mark.usefixtures("third_store")


def record(main, *observers):
    ex = Experiment("recorded", base_dir=Path(__file__).parent, save_git_info=False, system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys"})


def log(folder, home, *contents):
    """Record a run that logs contents of the model `net`."""

    def log_versions(_run):
        for content in contents:
            _run.log_artifact("net", write_files(home / "in", {"net.pt": content}), "model")

    record(log_versions, FileObserver(folder))


@pytest.fixture(
    params=["folder", pytest.param("database", marks=pytest.mark.slow), pytest.param("third", marks=pytest.mark.slow)]
)
def target(request, tmp_path):
    """The place of an empty store."""
    if request.param == "folder":
        return str(tmp_path / "target")
    if request.param == "third":
        return f"sqlite://{tmp_path}/runs.sqlite"
    return f"{request.getfixturevalue('mongo_url')}/{request.getfixturevalue('database').name}"


@pytest.fixture
def origin(tmp_path, monkeypatch):
    """A folder with two runs, which made v1 and v2, and v3, of `net`; `champion` moved from v1 to v3, by ada."""
    log(tmp_path / "runs", tmp_path, b"1", b"2")
    log(tmp_path / "runs", tmp_path, b"3")
    monkeypatch.setenv("SACRISTAN_USER", "ada")
    with open_store(tmp_path / "runs") as store:
        store.aliases.move("net", "champion", 1)
        store.aliases.move("net", "stable", 1)
        store.aliases.move("net", "champion", 3)
        yield store


def moves_of(store, alias="champion"):
    return [(move.was, move.version, move.by) for move in store.aliases.moves("net") if move.alias == alias]


def test_copy_carries_aliases_with_their_moves_once_their_version_is_there(origin, target):
    first, second = origin.find(sort="id")
    with open_store(target, create=True) as there:
        assert copy(first, there).left_out == ()
        assert (moves_of(there), moves_of(there, "stable")) == ([], [(None, 1, "ada")])
        for _ in range(2):
            assert copy(second, there).left_out == ()
            assert moves_of(there) == [(None, 1, "ada"), (1, 3, "ada")]
            assert [move.time for move in there.aliases.moves("net")] == [m.time for m in origin.aliases.moves("net")]
        origin.aliases.move("net", "champion", 2)
        origin.aliases.move("net", "stable", None)
        copy(first, there)
        assert there.aliases.resolve("net:champion").version == 2
        assert moves_of(there, "stable")[-1][:2] == (1, None)


def test_copy_gives_versions_the_numbers_that_they_have_there(origin, target):
    with open_store(target, create=True) as there:
        copy(origin.get("2"), there)
        assert moves_of(there) == [(None, None, "ada"), (None, 1, "ada")]
        assert there.aliases.resolve("net:champion").digest == origin.aliases.resolve("net:v3").digest
        assert main(["artifacts", "alias", "net", "--history", "--store", target]) == 0


def test_alias_that_both_stores_have_moved_stays_and_is_named(origin, target):
    with open_store(target, create=True) as there:
        for run in origin.find(sort="id"):
            copy(run, there)
        there.aliases.move("net", "champion", 2)
        assert copy(origin.get("1"), there).left_out == ()  # that store is ahead
        origin.aliases.move("net", "champion", 1)
        [text] = copy(origin.get("1"), there).left_out
        assert text.startswith("alias net:champion stays v2 since ")
        command = typed_command(there.where, "artifacts", "alias", "net", "VERSION", "champion")
        assert text.endswith(f"have both moved it; to move it here: {command}")
        assert there.aliases.resolve("net:champion").version == 2
        there.aliases.move("net", "champion", 1)
        assert copy(origin.get("1"), there).left_out == ()  # they agree


def test_archive_carries_aliases(origin, target, tmp_path):
    export_runs(origin.find(sort="id"), tmp_path / "runs.zip")
    with zipfile.ZipFile(tmp_path / "runs.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
        assert json.loads(archive.read("manifest.json"))["format"] == "sacristan-archive-2"
        assert not [name for name in archive.namelist() if "sqlite" in name]
    with open_store(tmp_path / "unpacked") as unpacked:
        assert unpacked.aliases.resolve("net:champion").version == 3
    with open_store(target, create=True) as there:
        for _ in range(2):
            assert [copied.left_out for copied in import_runs(tmp_path / "runs.zip", there)] == [(), ()]
            assert moves_of(there) == [(None, 1, "ada"), (1, 3, "ada")]


def test_archive_without_aliases_is_one_that_earlier_versions_read(tmp_path):
    log(tmp_path / "runs", tmp_path, b"1")
    with open_store(tmp_path / "runs") as store:
        export_runs(store.find(), tmp_path / "runs.zip")
    with zipfile.ZipFile(tmp_path / "runs.zip") as archive:
        assert json.loads(archive.read("manifest.json"))["format"] == "sacristan-archive-1"


def test_sync_lets_the_aliases_of_a_database_follow_those_of_the_folder(tmp_path, database, mongo_url, caplog):
    where, url = tmp_path / "runs", f"{mongo_url}/{database.name}"

    def logs(_run):
        versions = [
            _run.log_artifact("net", write_files(tmp_path / "in", {"net.pt": content}), "model")
            for content in (b"1", b"2")
        ]
        versions[0].alias("champion")

    record(logs, FileObserver(where), MongoObserver(mongo_url, db_name=database.name))
    with open_store(where) as here, open_store(url) as there:
        here.aliases.move("net", "champion", 2)
        here.aliases.move("net", "stable", 1)
        for _ in range(2):
            assert main(["sync", "--store", str(where)]) == 0
            assert [version for _, version, _ in moves_of(there)] == [1, 2]
            assert there.aliases.resolve("net:stable").version == 1
        there.aliases.move("net", "champion", 1)
        here.aliases.move("net", "stable", 2)
        assert main(["sync", "--store", str(where)]) == 0
        assert there.aliases.resolve("net:champion").version == 1
        assert there.aliases.resolve("net:stable").version == 2
        assert caplog.text == ""
        here.aliases.move("net", "champion", 1)
        here.aliases.move("net", "champion", 2)
        assert main(["sync", "--store", str(where)]) == 0
        assert "alias net:champion stays v1 since" in caplog.text
    with open_store(url) as there, open_store(tmp_path / "back", create=True) as back:
        copy(there.find()[0], back)
        assert moves_of(back) == moves_of(there)


def test_moves_of_an_archive_are_checked():
    move = Move("champion", 1, 1, "ab", None, "ada", "", None, "2026-11-28T01:00:00.000000")
    assert Move.of(move.document()) == move
    wrong = {"alias": "../x", "number": 0, "time": "today", "by": "x" * 201, "digest": "x" * 201, "version": "1"}
    for name, value in wrong.items():
        assert Move.of({**move.document(), name: value}) is None
    assert carried([], [], {}) == []
