import pymongo
import pytest
from pymongo.collection import Collection

from sacristan.observers import DestinationError
from sacristan.observers.mongo.layout import Collections, check_collection, may_name_files


@pytest.fixture
def database():
    """A database that nobody is asked for."""
    with pymongo.MongoClient(connect=False) as client:
        yield client.lab


@pytest.mark.parametrize(("prefix", "start"), [("", ""), ("mine", "mine_")])
def test_collections_are_called_by_their_prefix(database, prefix, start):
    collections = Collections(database, prefix)
    named = {name: value for name, value in vars(collections).items() if isinstance(value, Collection)}
    found = {name: value.name for name, value in named.items()}
    assert found == {
        "runs": f"{start}runs",
        "metrics": f"{start}metrics",
        "chunks": f"{start}metrics_chunks",
        "media": f"{start}media",
        "artifacts": f"{start}artifacts",
        "artifact_aliases": f"{start}artifact_aliases",
        "removed_versions": f"{start}removed_versions",
        "removed": f"{start}removed",
        "sweeps": f"{start}sweeps",
        "sweep_claims": f"{start}sweep_claims",
        "sweep_agents": f"{start}sweep_agents",
        "sweep_trials": f"{start}sweep_trials",
        "sweep_journal": f"{start}sweep_journal",
        "views": f"{start}views",
        "reports": f"{start}reports",
        "report_versions": f"{start}report_versions",
        "files": "fs.files",
        "file_chunks": "fs.chunks",
    }


def test_collection_of_its_own_name_is_that_of_runs_alone(database):
    collections = Collections(database, collection="mine")
    assert (collections.runs.name, collections.metrics.name) == ("mine", "metrics")


@pytest.mark.parametrize("name", ["metrics", "media", "fs.files", "search_space"])
def test_collection_of_runs_that_holds_something_else_is_refused(name):
    with pytest.raises(DestinationError, match=f"got '{name}', which holds something else"):
        check_collection(name)


@pytest.mark.parametrize("prefix", ["", "mine", "metrics"])
def test_collections_whose_documents_name_files_are_told_from_others(database, prefix):
    collections = Collections(database, prefix)
    named = {name for name in ("runs", "media", "artifacts") if may_name_files(getattr(collections, name).name)}
    others = ("metrics", "chunks", "removed", "sweeps", "sweep_claims", "sweep_trials", "views", "files", "file_chunks")
    assert named == {"runs", "media", "artifacts"}
    assert not any(may_name_files(getattr(collections, name).name) for name in others)
    assert may_name_files("somebody_elses")
