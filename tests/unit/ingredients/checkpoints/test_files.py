from __future__ import annotations

import os
import pickle
import re
import sys
import zipfile

import pytest
import torch
from torch import nn

from sacristan.ingredients import CheckpointError
from sacristan.ingredients.checkpoints.files import load_checkpoint, load_weights, other_data, save_checkpoint
from tests.processes import run

CONFIG = {"seed": 3, "model": {"name": "mlp", "options": {"hidden": [4]}}, "data": {"name": "digits"}}


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Stubborn:
    """Cannot be pickled."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


@pytest.fixture
def saved(tmp_path, model):
    path = tmp_path / "best.pt"
    save_checkpoint({"model": model.state_dict(), "epoch": 2, "config": CONFIG}, path)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_checkpoint_saved_and_loaded_is_the_same(saved, model):
    state = load_checkpoint(saved)
    assert same(state["model"], model.state_dict())
    assert (state["epoch"], state["config"], state["format"]) == (2, CONFIG, 2)


def test_checkpoint_saved_into_a_new_folder_makes_it(tmp_path, model):
    path = tmp_path / "a" / "b" / "best.pt"
    save_checkpoint({"model": model.state_dict()}, path)
    assert names(path.parent) == ["best.pt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [TypeError("no"), pickle.PicklingError("no"), AttributeError("no"), OSError("no")])
def test_checkpoint_that_cannot_be_written_leaves_the_old_one_and_nothing_else(saved, model, error):
    before = saved.read_bytes()
    message = rf"{re.escape(str(saved))}: cannot be written: no; the checkpoint before it stays"
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint({"model": model.state_dict(), "x": Stubborn(error)}, saved)
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["best.pt"]


def test_checkpoint_interrupted_while_written_leaves_the_old_one_and_nothing_else(saved, model):
    before = saved.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint({"model": model.state_dict(), "x": Stubborn(KeyboardInterrupt())}, saved)
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["best.pt"]


def test_checkpoint_into_a_folder_that_is_a_file_raises(tmp_path, model):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoints/best.pt: cannot be written: .*it is no folder"):
        save_checkpoint({"model": model.state_dict()}, tmp_path / "checkpoints" / "best.pt")


FULL_DISK = """
import resource, sys, torch
from pathlib import Path
from sacristan.ingredients.checkpoints.files import save_checkpoint
from sacristan.ingredients.errors import CheckpointError

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint({"model": {"weight": torch.zeros(100_000)}}, Path(sys.argv[1]))
except CheckpointError as error:
    sys.exit(f"refused: {error}")
"""


def test_checkpoint_on_a_full_disk_leaves_the_old_one_and_nothing_else(saved):
    before = saved.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FULL_DISK, str(saved)]
    done = run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    assert f"refused: {saved}: cannot be written" in done.stderr
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["best.pt"]


def test_checkpoint_that_would_run_code_raises_and_does_not_run_it(tmp_path):
    save_checkpoint({"model": {}, "x": Evil(tmp_path / "ran")}, tmp_path / "evil.pt")
    message = r"evil.pt: is damaged, or holds more than tensors and plain values; it is not loaded, as that could run"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "evil.pt")
    assert names(tmp_path) == ["evil.pt"]


def test_checkpoint_that_is_a_plain_pickle_raises_and_does_not_run_it(tmp_path):
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match=r"evil.pt: is damaged, or no checkpoint: it has no SHA-256"):
        load_checkpoint(tmp_path / "evil.pt")
    assert names(tmp_path) == ["evil.pt"]


def test_checkpoint_that_is_missing_raises_with_those_beside_it(saved):
    with pytest.raises(CheckpointError, match=r"checkpoint.path: there is no file .*/bset.pt; there are: .*/best.pt"):
        load_checkpoint(saved.with_name("bset.pt"))


@pytest.mark.parametrize("name", ["nowhere/best.pt", "."])
def test_checkpoint_that_is_missing_in_an_empty_folder_raises(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"checkpoint.path: there is no file .*; check the path"):
        load_checkpoint(tmp_path / name)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_checkpoint_cut_short_raises(saved, share):
    raw = saved.read_bytes()
    saved.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(CheckpointError, match=r"best.pt: is damaged, or no checkpoint"):
        load_checkpoint(saved)


def test_checkpoint_with_one_flipped_bit_in_its_weights_raises(saved, model):
    raw = bytearray(saved.read_bytes())
    raw[bytes(raw).index(model[0].weight.detach().numpy().tobytes()) + 5] ^= 1
    saved.write_bytes(raw)
    with pytest.raises(
        CheckpointError,
        match=r"best.pt: is damaged, .*: its bytes are not those that were saved: its SHA-256 is another",
    ):
        load_checkpoint(saved)


@pytest.mark.parametrize("seed", range(20))
def test_checkpoint_with_garbage_in_it_raises_nothing_but_its_own_error(saved, seed):
    raw = bytearray(saved.read_bytes())
    generator = torch.Generator().manual_seed(seed)
    for position in torch.randint(len(raw), (300,), generator=generator).tolist():
        raw[position] ^= 0xFF
    saved.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"best.pt: is damaged"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}}, "is no checkpoint of this lab; expected one of my_runs/ID/checkpoints"),
        ({"model": {}, "format": 1}, "has format 1, this version reads 2"),
        ({"model": {}, "format": 3}, "has format 3, this version reads 2"),
    ],
)
def test_checkpoint_of_another_kind_raises(tmp_path, content, message):
    save_checkpoint(content, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=f"other.pt: {message}"):
        load_checkpoint(tmp_path / "other.pt")


def test_checkpoint_that_torch_saved_without_the_lab_raises(tmp_path):
    torch.save({"model": {}, "format": 2}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"other.pt: is damaged, or no checkpoint: it has no SHA-256 at its end"):
        load_checkpoint(tmp_path / "other.pt")


def test_checkpoint_is_read_by_torch_and_by_zip_tools(saved, model):
    assert same(torch.load(saved, weights_only=True)["model"], model.state_dict())
    with zipfile.ZipFile(saved) as archive:
        assert archive.testzip() is None


def test_weights_loaded_are_those_saved(saved, model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    other = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert load_weights(other, saved, CONFIG)["epoch"] == 2
    assert same(other.state_dict(), state)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)],
            r"does not fit this model: 0.weight is \[3, 4\] there and \[3, 5\] here$",
        ),
        (
            [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Linear(2, 2)],
            r"does not fit this model: 3.bias is only here; 3.weight is only here$",
        ),
        (
            [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False)],
            r"does not fit this model: 2.bias is only there$",
        ),
    ],
)
def test_weights_that_do_not_fit_raise_with_what_differs_and_leave_the_model(saved, layers, message):
    model = nn.Sequential(*layers)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_weights(model, saved, CONFIG)
    assert same(model.state_dict(), before)


def test_weights_that_do_not_fit_raise_with_the_settings_that_differ(saved):
    config = {"seed": 4, "model": {"name": "mlp", "options": {"hidden": [5]}}, "data": {"name": "wine"}}
    message = r"; it was saved with data.name='digits', model.options=\{'hidden': \[4\]\}$"
    with pytest.raises(CheckpointError, match=message):
        load_weights(nn.Linear(1, 1), saved, config)


def test_weights_that_do_not_fit_raise_with_the_config_of_their_run(tmp_path, model):
    path = tmp_path / "7" / "checkpoints" / "best.pt"
    save_checkpoint({"model": model.state_dict(), "config": CONFIG}, path)
    (tmp_path / "7" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"; take the settings of its run: with .*/7/config.json$"):
        load_weights(nn.Linear(1, 1), path, CONFIG)


def config_of(seed=0, **data):
    return {"seed": seed, "data": {"name": "digits", "split_seed": None, "batch_size": 64, **data}}


@pytest.mark.parametrize(
    ("saved", "mine", "expected"),
    [
        (config_of(), config_of(), []),
        (config_of(), config_of(batch_size=1), []),
        (config_of(seed=1), config_of(), ["seed=1"]),
        (config_of(seed=1, split_seed=3), config_of(split_seed=3), []),
        (config_of(split_seed=3), config_of(), ["data.split_seed=3"]),
        (config_of(name="wine"), config_of(), ["data.name='wine'"]),
    ],
)
def test_other_data_are_those_of_another_name_or_split(saved, mine, expected):
    assert other_data(saved, mine) == expected
