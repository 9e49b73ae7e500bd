"""What tells runs apart, remembered for pages and panels of the same runs."""

from __future__ import annotations

import json

import pytest

from sacristan.runs import open_store
from sacristan.runs.board.visits import RunLabels


def write(folder, number, config):
    place = folder / str(number)
    place.mkdir(exist_ok=True)
    (place / "run.json").write_text(json.dumps({"status": "COMPLETED", "uid": f"{number}" * 32}))
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as opened:
        yield opened


def found(store):
    return [run.listed() for run in store.find(sort="id")]


def test_telling_settings_are_read_once_for_the_same_runs(store, tmp_path):
    labels = RunLabels()
    for number in (1, 2):
        write(tmp_path, number, {"lr": number, "seed": 1})
    assert labels.telling(found(store)) == ["lr"]
    assert list(labels.of(found(store)).values()) == ["run 1: lr=1", "run 2: lr=2"]
    (tmp_path / "1" / "config.json").unlink()
    assert labels.telling(found(store)) == ["lr"]
    write(tmp_path, 3, {"lr": 1, "seed": 3})
    assert labels.telling(found(store)) == ["lr", "seed"]


def test_telling_settings_are_read_again_while_a_config_is_missing(store, tmp_path):
    labels = RunLabels()
    write(tmp_path, 1, {"lr": 1})
    write(tmp_path, 2, None)
    assert labels.telling(found(store)) == []
    write(tmp_path, 2, {"lr": 2})
    assert labels.telling(found(store)) == ["lr"]
