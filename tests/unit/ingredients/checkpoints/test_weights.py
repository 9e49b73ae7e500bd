from __future__ import annotations

import os
import sys

import pytest
import torch
from torch import nn

from sacristan.ingredients import CheckpointError, MissingDependencyError
from sacristan.ingredients.checkpoints.files import find_weights, parse_run, read_weights, save_checkpoint


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def store(tmp_path, state):
    """Return a folder of runs, of which one has checkpoints."""
    for name in ("best", "last"):
        save_checkpoint({"model": state, "epoch": 1}, tmp_path / "17" / "checkpoints" / f"{name}.pt")
    (tmp_path / "18").mkdir()
    return tmp_path


@pytest.mark.parametrize("wrap", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("is_zip", [True, False])
def test_weights_that_torch_saved_are_read(tmp_path, state, wrap, is_zip):
    path = tmp_path / "net.pth"
    content = state if wrap is None else {wrap: state, "epoch": 3}
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    assert same(read_weights(path), state)


def test_weights_of_a_checkpoint_of_the_lab_are_read(store, state):
    assert same(read_weights(store / "17" / "checkpoints" / "last.pt"), state)


def test_weights_of_safetensors_are_read(tmp_path, state):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state, tmp_path / "net.safetensors")
    assert same(read_weights(tmp_path / "net.safetensors"), state)


def test_weights_of_safetensors_without_the_package_raise_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(
        MissingDependencyError, match=r"model.weights=.*needs the package 'safetensors'.*\[safetensors\]"
    ):
        read_weights(tmp_path / "net.safetensors")


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_that_are_missing_raise(tmp_path, ending):
    with pytest.raises(CheckpointError, match=rf"model.weights: there is no file .*none.{ending}; check the path"):
        read_weights(tmp_path / f"none.{ending}")


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_that_are_damaged_raise(tmp_path, ending):
    (tmp_path / f"net.{ending}").write_bytes(b"\x20\x00\x00\x00\x00\x00\x00\x00 no weights")
    with pytest.raises(CheckpointError, match=rf"net.{ending}: is damaged, or "):
        read_weights(tmp_path / f"net.{ending}")


def test_weights_of_a_checkpoint_with_a_flipped_bit_raise(store, state):
    path = store / "17" / "checkpoints" / "best.pt"
    content = bytearray(path.read_bytes())
    content[content.index(state["0.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best.pt: is damaged"):
        read_weights(path)


def test_weights_that_would_run_code_raise_and_do_not_run_it(tmp_path, state):
    torch.save({**state, "more": Evil(tmp_path / "made")}, tmp_path / "net.pt")
    with pytest.raises(CheckpointError, match=r"net.pt: is damaged, or holds more than tensors"):
        read_weights(tmp_path / "net.pt")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [({"epoch": 3}, "it holds: epoch"), ({}, "it holds: nothing"), (torch.ones(2), "it holds: Tensor")],
)
def test_weights_that_are_no_state_dict_raise_with_what_there_is(tmp_path, content, message):
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(CheckpointError, match=rf"net.pt: holds no state dict of a model.*{message}"):
        read_weights(tmp_path / "net.pt")


@pytest.mark.parametrize(("source", "name"), [("run:17", "best"), ("run:17@last", "last")])
def test_weights_of_a_run_are_found_in_its_store(store, source, name):
    assert find_weights(source, store) == store / "17" / "checkpoints" / f"{name}.pt"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("run:19", r"has no run 19"),
        ("run:18", r"there is no .*best.pt; it has no checkpoints"),
        ("run:17@first", r"there is no .*first.pt; it has run:17@best, run:17@last"),
        ("run:../17", r"got 'run:../17'; write run:ID"),
        ("run:17@../last", r"write run:ID"),
        ("run:", r"write run:ID"),
    ],
)
def test_weights_of_no_run_raise(store, source, message):
    with pytest.raises(CheckpointError, match=rf"model.weights: got '{source}'.*{message}|model.weights: .*{message}"):
        find_weights(source, store)


def test_weights_of_a_run_without_a_store_raise():
    with pytest.raises(CheckpointError, match=r"no folder of runs is known here; give the path"):
        find_weights("run:17", None)


def test_path_is_no_run():
    assert parse_run("run17.pt") is None
