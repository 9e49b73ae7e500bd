"""Versions of artifacts that killed processes have begun to remove from a database."""

import os
import sys

import pytest

from sacristan.observers import MongoObserver
from sacristan.observers.mongo.layout import Collections
from sacristan.runs import Removed, StoreError, open_store
from tests.folders import read_files, write_files
from tests.integration.test_aliases import log_versions, record
from tests.processes import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]

# For each command to the server, one process that is killed before it sends that command.
KILLED = """
import os, signal, sys, traceback
sys.path.insert(0, {root!r})
import pymongo
from pymongo import monitoring
from sacristan.runs import open_store
from sacristan.runs.stores import aliases
aliases.GRACE_S = -1

class Kill(monitoring.CommandListener):
    left = None
    def started(self, event):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    def succeeded(self, event): pass
    def failed(self, event): pass

kill = Kill()
monitoring.register(kill)
at = 0
while True:
    at += 1
    child = os.fork()
    if child == 0:
        sys.excepthook = lambda *error: (traceback.print_exception(*error), os._exit(1))
        with pymongo.MongoClient({url!r}) as client:
            source, target = client[{name!r}], client[{name!r} + f"_{{at}}"]
            for collection in source.list_collection_names():
                if documents := list(source[collection].find()):
                    target[collection].insert_many(documents)
            target.fs.chunks.create_index([("files_id", 1), ("n", 1)], unique=True)
        with open_store({url!r} + "/" + {name!r} + f"_{{at}}") as store:
            versions = store.artifact_versions("net")[:1]
            kill.left = at
            store.aliases.remove_versions(versions)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        break
print(at)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def read_all(store):
    return {
        each.version: [content.read() for content in each.files.values()] for each in store.artifact_versions("net")
    }


def test_removal_that_is_killed_at_any_command_is_whole_or_not_begun_and_can_be_repeated(
    tmp_path, database, mongo_url, request
):
    contents = {1: [b"1" * 300_000], 2: [b"2"], 3: [b"3"]}
    record(
        lambda _run: log_versions(_run, tmp_path / "in", [content for [content] in contents.values()]) and None,
        MongoObserver(mongo_url, db_name=database.name),
    )
    script = KILLED.format(root=str(request.config.rootpath), url=mongo_url, name=database.name)
    done = run([sys.executable, "-c", script], capture_output=True, text=True, cold=True)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 10
    seen = []
    try:
        for at in range(1, steps + 1):
            with open_store(f"{mongo_url}/{database.name}_{at}") as store:
                there = read_all(store)
                seen.append(1 in there)
                assert there == {number: contents[number] for number in there}
                assert set(there) in ({1, 2, 3}, {2, 3})
                if 1 in there:
                    assert store.aliases.removed_versions("net") == {}
                    store.aliases.remove_versions([store.aliases.resolve("net:v1")])
                for _ in range(2):
                    store.backend.reclaim(Removed(), -1)
                assert read_all(store) == {number: contents[number] for number in (2, 3)}
                assert list(store.aliases.removed_versions("net")) == [1]
                there = Collections(database.client[f"{database.name}_{at}"])
                ids = {file["_id"] for file in there.files.find()}
                assert {chunk["files_id"] for chunk in there.file_chunks.find()} == ids
                assert there.files.count_documents({"length": 300_000}) == 0
                assert there.removed.count_documents({}) == 0
    finally:
        for at in range(1, steps + 1):
            database.client.drop_database(f"{database.name}_{at}")
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {True, False}
    with open_store(f"{mongo_url}/{database.name}") as store, pytest.raises(StoreError, match="is the newest version"):
        store.aliases.remove_versions([store.aliases.resolve("net:v3")])


def test_contents_that_only_the_manifest_lists_stay(tmp_path, database, mongo_url, monkeypatch):
    monkeypatch.setattr("sacristan.observers.mongo.contents.MAX_FILES_BYTES", 200)
    files = {f"{number}.pt": b"%d" % number for number in range(3)}
    record(
        lambda _run: _run.log_artifact("net", write_files(tmp_path / "in", files), "model") and None,
        MongoObserver(mongo_url, db_name=database.name),
    )
    [found] = database.artifacts.find()
    assert (len(found["files"]), found["num_files"]) == (1, 3)
    with open_store(f"{mongo_url}/{database.name}") as store:
        removed = Removed()
        store.backend.reclaim(removed, -1)
        assert (removed.num_contents, removed.unreadable) == (0, [])
        entry = store.find()[0].document["artifacts_logged"][0]
        assert read_files(store.backend.fetch_version(entry, tmp_path / "into").copy_to(tmp_path / "out")) == files
        database.fs.files.delete_one({"_id": found["manifest_id"]})
        store.backend.reclaim(removed, -1)
        assert (removed.num_contents, removed.unreadable) == (0, [str(found["_id"])])
