import pymongo
import pytest

from observers.mongo.layout import Collections, may_name_files, prefix_of


@pytest.fixture
def database():
    """A database that nobody is asked for."""
    with pymongo.MongoClient(connect=False) as client:
        yield client.lab


@pytest.mark.parametrize(("prefix", "start"), [("", ""), ("mine", "mine_")])
def test_collections_are_called_by_their_prefix(database, prefix, start):
    collections = Collections(database, prefix)
    found = {name: value.name for name, value in vars(collections).items() if name not in ("database", "prefix")}
    assert found == {
        "runs": f"{start}runs",
        "metrics": f"{start}metrics",
        "chunks": f"{start}metrics_chunks",
        "media": f"{start}media",
        "artifacts": f"{start}artifacts",
        "removed": f"{start}removed",
        "files": "fs.files",
        "file_chunks": "fs.chunks",
    }
    assert prefix_of(collections.runs.name) == prefix


def test_prefix_of_what_sacred_calls_a_collection_is_itself():
    assert prefix_of("mine") == "mine"


@pytest.mark.parametrize("prefix", ["", "mine", "metrics"])
def test_collections_whose_documents_name_files_are_told_from_others(database, prefix):
    collections = Collections(database, prefix)
    named = {name for name in ("runs", "media", "artifacts") if may_name_files(getattr(collections, name).name)}
    others = ("metrics", "chunks", "removed", "files", "file_chunks")
    assert named == {"runs", "media", "artifacts"}
    assert not any(may_name_files(getattr(collections, name).name) for name in others)
    assert may_name_files("somebody_elses")
