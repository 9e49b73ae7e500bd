"""Protocols by which a run asks observers, and the observers that implement them."""

import inspect

import pytest
from sacred.observers import FileStorageObserver, RunObserver

from sacristan.observers import FileObserver, MongoObserver, TensorBoardObserver
from sacristan.observers.record import interface

OFFERED = {
    "ArtifactObserver": {"FileObserver", "MongoObserver"},
    "ArtifactSource": {"MongoObserver"},
    "BufferedObserver": {"FileObserver", "MongoObserver"},
    "ConfigObserver": {"FileObserver", "MongoObserver"},
    "GraphObserver": {"TensorBoardObserver"},
    "HasFolder": {"FileObserver", "TensorBoardObserver", "FileStorageObserver"},
    "HasLoss": {"FileObserver", "MongoObserver"},
    "LeasedObserver": {"FileObserver", "MongoObserver"},
    "MediaObserver": {"FileObserver", "MongoObserver", "TensorBoardObserver"},
    "OutputObserver": {"FileObserver", "MongoObserver", "TensorBoardObserver"},
    "HasPlace": {"FileObserver", "MongoObserver"},
    "PointObserver": {"FileObserver", "MongoObserver"},
    "RewindableObserver": {"FileObserver", "MongoObserver", "TensorBoardObserver"},
}


@pytest.fixture
def observers(tmp_path):
    return {
        "FileObserver": FileObserver(tmp_path),
        "FileStorageObserver": FileStorageObserver(tmp_path),
        "MongoObserver": MongoObserver(),
        "RunObserver": RunObserver(),
        "TensorBoardObserver": TensorBoardObserver(tmp_path),
    }


def test_every_protocol_is_looked_at():
    assert OFFERED.keys() == {
        name for name, kind in vars(interface).items() if getattr(kind, "_is_protocol", False) and name != "Protocol"
    }


@pytest.mark.parametrize("name", OFFERED)
def test_observers_offer_what_a_run_asks_for(name, observers):
    offered = {each for each, observer in observers.items() if isinstance(observer, getattr(interface, name))}
    assert offered == OFFERED[name]


@pytest.mark.parametrize("name", OFFERED)
def test_observers_take_the_arguments_that_a_run_gives(name, observers):
    protocol = getattr(interface, name)
    for each in OFFERED[name]:
        for method, function in inspect.getmembers(protocol, inspect.isfunction):
            if not method.startswith("_"):
                wanted = list(inspect.signature(function).parameters)[1:]
                assert list(inspect.signature(getattr(observers[each], method)).parameters) == wanted, (each, method)
