"""Steps by several processes: the gradients of whole batches, and what cannot be trained so."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.training.loop import fit
from experiments.training.tasks import Task
from ingredients.errors import ConfigError
from ingredients.losses.building import Loss
from ingredients.ranks import group
from ingredients.ranks.group import Ranks
from ingredients.ranks.world import World
from tests.ranked_cases import CASES, train
from tests.ranks import started_ranks, wait_for_all

LAB = Path(__file__).parents[4]
OPTIONS = {"backend": "gloo", "sync_batch_norm": False, "find_unused_parameters": False, "timeout_s": 60.0}


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Return what two ranks came to, by case."""
    path = tmp_path_factory.mktemp("ranks") / "found.pt"
    environ = {"PYTHONPATH": str(LAB), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with started_ranks([LAB / "tests" / "ranked_cases.py", path], LAB, environ=environ) as ranks:
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [0, 0], ended
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_come_to_what_one_process_does(by_two, case):
    mine, theirs = train(case), by_two[case]
    torch.testing.assert_close(theirs["weights"], mine["weights"], rtol=1e-4, atol=1e-6)
    assert theirs["steps"] == mine["steps"]
    assert [point[::2] for point in theirs["logged"]] == [point[::2] for point in mine["logged"]]
    assert [point[1] for point in theirs["logged"]] == pytest.approx([point[1] for point in mine["logged"]], rel=1e-4)
    assert theirs["test"] == pytest.approx(mine["test"], rel=1e-4)
    if "predictions" in mine:
        torch.testing.assert_close(torch.tensor(theirs["predictions"]), torch.tensor(mine["predictions"]))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_exchanged_once_for_all_micro_batches(by_two, case):
    assert by_two[case]["exchanges"] == by_two[case]["steps"]


class Adversarial(Task):
    def step(self, trainer, group):
        return None


class Remembering(Task):
    def state_dict(self):
        return {"hidden": 0}


def classes(module=None):
    return Loss(module or nn.CrossEntropyLoss(), "classes", 3)


def refused(
    tensor_data, monkeypatch, *, model=None, loss=None, optimizer=None, options=OPTIONS, shared=True, **settings
):
    """Train as rank 0 of 2."""
    ranks = Ranks(World(0, 2), None, options)
    monkeypatch.setattr(group, "_current", ranks)
    part = (torch.randn(8, 4), torch.arange(8) % 3)
    data = tensor_data(part, part, part)
    if shared:
        data.train.ranks = ranks
    model = model or nn.Linear(4, 3)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, data, loss or classes(), optimizer, log=print, epochs=4, **settings)


class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))

    def forward(self, outputs, targets):
        return (outputs - self.centres).square().mean()


CANNOT = {
    "Adversarial takes its own optimizer steps": {"loss": Adversarial()},
    "Remembering keeps a state": {"loss": Remembering()},
    "training.average=swa measures batches of one process": {"average": "swa"},
    r"SyncBatchNorm of torch needs GPUs \(distributed.sync_batch_norm\)": {
        "options": {**OPTIONS, "sync_batch_norm": True}
    },
    "nn.DataParallel has threads of one process share its GPUs, and is slower": {
        "model": nn.DataParallel(nn.Linear(4, 3))
    },
}


@pytest.mark.parametrize("reason", CANNOT)
def test_what_ranks_cannot_train_is_refused_in_one_sentence(tensor_data, monkeypatch, reason):
    with pytest.raises(ConfigError, match=f"^distributed: {reason}.*, which 2 processes cannot; train in one process$"):
        refused(tensor_data, monkeypatch, **CANNOT[reason])


def test_lbfgs_is_refused(tensor_data, monkeypatch):
    model = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="LBFGS recomputes its loss"):
        refused(tensor_data, monkeypatch, model=model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_a_loss_with_parameters_is_refused(tensor_data, monkeypatch):
    model, loss = nn.Linear(4, 3), classes(Centres())
    optimizer = torch.optim.SGD([*model.parameters(), *loss.module.parameters()], lr=0.1)
    with pytest.raises(ConfigError, match="the loss has parameters or statistics of its own"):
        refused(tensor_data, monkeypatch, model=model, loss=loss, optimizer=optimizer)


def test_data_that_are_not_shared_are_refused(tensor_data, monkeypatch):
    with pytest.raises(ConfigError, match="2 processes train together, but the data are for 1; make them by data"):
        refused(tensor_data, monkeypatch, shared=False)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_with_sync_batch_norm_come_to_what_one_does(tmp_path):
    path = tmp_path / "found.pt"
    with started_ranks(
        [LAB / "tests" / "ranked_cases.py", path, "cuda"], LAB, environ={"PYTHONPATH": str(LAB)}
    ) as ranks:
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [0, 0], ended
    mine, theirs = train("normalised", "cuda"), torch.load(path, weights_only=True)["normalised"]
    torch.testing.assert_close(theirs["weights"], mine["weights"].cpu(), rtol=1e-3, atol=1e-5)
