"""Steps by several processes: the gradients of whole batches, and what cannot be trained so."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from sacristan.experiments import Task, fit
from sacristan.ingredients import ConfigError, Loss
from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.ingredients.ranks import World, group
from sacristan.ingredients.ranks.group import Ranks
from tests.optimizers import ScheduleFreeSGD
from tests.ranked_cases import CASES, OWN_SESSIONS, train, train_further, train_in_two_sessions
from tests.ranks import started_ranks, wait_for_all

LAB = Path(__file__).parents[4]
OPTIONS = {
    "backend": "gloo",
    "sync_batch_norm": False,
    "find_unused_parameters": False,
    "check_weights": True,
    "timeout_s": 60.0,
    "shard": False,
}


@pytest.fixture(scope="module")
def found_in(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def by_two(found_in):
    """Return what two ranks came to, by case."""
    return trained_by(2, found_in / "found.pt")


def trained_by(num, path, *words):
    """Train the cases by some ranks, and return what they came to."""
    environ = {"PYTHONPATH": str(LAB), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    words = [LAB / "tests" / "ranked_cases.py", path, *words]
    with started_ranks(words, LAB, num, environ=environ, own=[()] * num) as ranks:
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [0] * num, ended
    assert "Warning" not in "".join(errors for _, _, errors in ended)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case != "normalised")) for case in CASES]
)
def test_two_ranks_come_to_what_one_process_does(by_two, case):
    assert_alike(by_two[case], train(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_that_share_the_parameters_come_to_what_one_process_does(by_two, case):
    assert_alike(by_two["sharded"][case], train(case))


def assert_alike(theirs, mine):
    torch.testing.assert_close(theirs["weights"], mine["weights"], rtol=1e-4, atol=1e-6)
    for found, expected in zip(theirs["statistics"], mine["statistics"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert theirs["steps"] == mine["steps"]
    assert [point[::2] for point in theirs["logged"]] == [point[::2] for point in mine["logged"]]
    assert [point[1] for point in theirs["logged"]] == pytest.approx([point[1] for point in mine["logged"]], rel=1e-4)
    assert theirs["test"] == pytest.approx(mine["test"], rel=1e-4)
    if "predictions" in mine:
        torch.testing.assert_close(torch.tensor(theirs["predictions"]), torch.tensor(mine["predictions"]))


def test_parameters_that_a_loss_leaves_out_are_named_or_found(by_two):
    assert by_two["failed"]["unused"] == (
        "ConfigError: distributed: the loss of rank 0 does not depend on 3.weight, 3.bias, so this exchange of "
        "gradients has no end; set distributed.find_unused_parameters=True, or freeze what is never used"
    )
    torch.testing.assert_close(by_two["unused"], train("unused")["weights"], rtol=1e-4, atol=1e-6)


def test_experts_that_no_sample_of_a_rank_reaches_are_trained_as_by_one_process(by_two):
    torch.testing.assert_close(by_two["experts"], train("experts")["weights"], rtol=1e-4, atol=1e-6)


def test_parts_that_not_all_ranks_use_cannot_be_split(by_two):
    assert by_two["failed"]["own expert"] == (
        "ConfigError: distributed.shard: in step 1, ranks used different parts of the model (experts.0, experts.1), or "
        "in another order, which cannot be split; set distributed.shard=False and "
        "distributed.find_unused_parameters=True"
    )


def test_weights_that_differ_by_a_bit_end_the_training_with_the_first_parameter(by_two):
    assert by_two["failed"]["drifting"].startswith(
        "TrainingError: distributed: the weights of ranks 0 and 1 differ after step 1, first in 3.bias, so "
    )


def test_parameters_of_a_task_that_differ_end_the_training(by_two):
    assert "differ after step 1, first in module.weight, so they no longer" in by_two["failed"]["drifting module"]


def test_a_step_with_micro_batches_on_one_rank_alone_ends_the_training(by_two):
    assert by_two["failed"]["nothing"] == (
        "ConfigError: Nothing.step: minimises a loss over no micro-batch on 1 of 2 ranks; give each rank at least one, "
        "which may be without samples"
    )


def test_values_of_other_names_on_another_rank_end_the_training(by_two):
    assert by_two["failed"]["named apart"] == (
        "ConfigError: distributed: ranks 0 and 1 log different values (train/rank_0, train/rank_1); a task gives "
        "values of the same names on all ranks"
    )


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_exchanged_once_for_all_micro_batches(by_two, case):
    assert by_two[case]["exchanges"] == by_two[case]["steps"]


def test_ranks_that_share_the_parameters_hold_half_of_them_each(by_two):
    whole = by_two["mean"]["held"]
    assert whole == by_two["mean"]["weights"].numel()
    assert by_two["sharded"]["mean"]["held"] <= 0.6 * whole


@pytest.mark.parametrize("shard", [False, True])
def test_ranks_resume_with_the_same_bits(by_two, shard):
    unbroken = (by_two["sharded"] if shard else by_two)["normalised"]
    assert torch.equal(by_two[f"resumed {shard}"]["weights"], unbroken["weights"])


@pytest.mark.parametrize("case", OWN_SESSIONS)
def test_steps_of_several_optimizers_resume_with_the_same_bits(by_two, case):
    assert by_two[case].keys() == {"whole", "resumed"}
    assert torch.equal(by_two[case]["resumed"], by_two[case]["whole"])


@pytest.mark.parametrize("num", [pytest.param(num, marks=pytest.mark.slow) for num in (3, 4)])
def test_more_ranks_resume_with_the_same_bits(tmp_path, num):
    # From three on, the sum of a number depends on where it lies among those that are exchanged with it.
    found = trained_by(num, tmp_path / "found.pt", "sessions")
    assert torch.equal(found["resumed False"]["weights"], found["normalised"]["weights"])
    assert torch.equal(found["resumed True"]["weights"], found["sharded"]["normalised"]["weights"])
    for case in OWN_SESSIONS:
        assert torch.equal(found[case]["resumed"], found[case]["whole"])


@pytest.mark.parametrize("shard", [False, True])
def test_a_state_of_ranks_is_that_of_one_process(by_two, shard, found_in):
    train_in_two_sessions("normalised", found_in / "alone")
    mine, theirs = (
        load_checkpoint(folder / "last.pt") for folder in (found_in / "alone", found_in / f"checkpoints-{shard}")
    )
    assert theirs.keys() - {"ranks"} == mine.keys()
    assert len(theirs["ranks"]) == 2
    torch.testing.assert_close(theirs["model"], mine["model"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(theirs["optimizer"]["state"], mine["optimizer"]["state"], rtol=1e-4, atol=1e-6)


@pytest.fixture
def left_by_two(by_two, found_in, tmp_path):
    """Return a folder with copies of what two ranks have left: `checkpoints-False`, and `checkpoints-True` of FSDP."""
    for folder in found_in.glob("checkpoints-*"):
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


@pytest.mark.parametrize("shard", [False, True])
def test_one_process_resumes_what_two_have_left_and_says_so(left_by_two, shard, caplog):
    found = train_further("normalised", left_by_two / f"checkpoints-{shard}")
    torch.testing.assert_close(found["weights"], train("normalised", epochs=3)["weights"], rtol=1e-4, atol=1e-6)
    assert found["steps"] == 9
    assert "the state is of 2 processes, and this training has 1: random numbers" in caplog.text


@pytest.mark.slow
def test_three_ranks_resume_what_two_have_left(left_by_two):
    found, unbroken = trained_by(3, left_by_two / "found.pt", "further"), train("normalised", epochs=3)
    for shard in (False, True):
        mine = found[f"resumed {shard}"]
        torch.testing.assert_close(mine["weights"], unbroken["weights"], rtol=1e-4, atol=1e-6)
        assert mine["steps"] == 9
        assert len(load_checkpoint(left_by_two / f"checkpoints-{shard}" / "last.pt")["ranks"]) == 3


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


SHARDED = {**OPTIONS, "shard": True}
CANNOT = {
    "distributed.shard splits one optimizer, and Adversarial steps itself": {
        "loss": Adversarial(),
        "options": SHARDED,
    },
    "Remembering keeps a state": {"loss": Remembering()},
    "training.average=swa measures batches of one process": {"average": "swa"},
    "distributed.shard splits what training.average averages": {"options": SHARDED, "average": "ema"},
    "distributed.shard splits weights, and ScheduleFreeSGD evaluates others than it trains": {
        "options": SHARDED,
        "optimizer": ScheduleFreeSGD(nn.Linear(4, 3).parameters()),
    },
}


@pytest.mark.parametrize("reason", CANNOT)
def test_what_ranks_cannot_train_is_refused_in_one_sentence(tensor_data, monkeypatch, reason):
    remedy = "set distributed.shard=False" if "shard" in reason else "train in one process"
    with pytest.raises(ConfigError, match=f"^distributed: {reason}.*, which 2 processes cannot; {remedy}$"):
        refused(tensor_data, monkeypatch, **CANNOT[reason])


def test_data_parallel_is_refused_with_the_reason_in_one_process_too(tensor_data):
    part = (torch.randn(8, 4), torch.arange(8) % 3)
    model = nn.DataParallel(nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"got nn\.DataParallel, whose threads share .* torchrun --nproc"):
        fit(model, tensor_data(part), classes(), torch.optim.SGD(model.parameters()), log=print, epochs=1)


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))


def test_scalar_parameters_that_cannot_be_split_are_named(tensor_data, monkeypatch):
    message = r"^distributed.shard: got the scalar parameter scale, which cannot be split; give it the shape \(1,\), or"
    with pytest.raises(ConfigError, match=message):
        refused(tensor_data, monkeypatch, model=Scaled(), options=SHARDED)


def test_sharded_lbfgs_is_refused(tensor_data, monkeypatch):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ConfigError, match="an optimizer that recomputes its loss, which"):
        refused(tensor_data, monkeypatch, model=model, optimizer=optimizer, options=SHARDED)


def test_a_sharded_loss_with_parameters_is_refused(tensor_data, monkeypatch):
    model, loss = nn.Linear(4, 3), classes(Centres())
    optimizer = torch.optim.SGD([*model.parameters(), *loss.module.parameters()], lr=0.1)
    with pytest.raises(ConfigError, match="the loss has parameters or statistics of its own, which"):
        refused(tensor_data, monkeypatch, model=model, loss=loss, optimizer=optimizer, options=SHARDED)


def test_parameters_that_would_not_be_exchanged_are_refused(tensor_data, monkeypatch):
    model, beside = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *beside.parameters()], lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizer trains 2 parameters that are neither in .* to Task\.module$"):
        refused(tensor_data, monkeypatch, model=model, optimizer=optimizer)
    optimizers = {
        "rest": torch.optim.SGD(model.parameters()),
        "frozen": torch.optim.SGD(beside.requires_grad_(False).parameters()),
    }
    with pytest.raises(ConfigError, match="the optimizer frozen has no parameters to train, as all are frozen"):
        refused(tensor_data, monkeypatch, model=model, loss=Adversarial(), optimizer=optimizers)


class OfOneProcess:
    names = ()

    def update(self, model, batch, amp):
        pass

    def compute(self):
        return {}


class Metered(Adversarial):
    def meter(self):
        return OfOneProcess()


def test_a_meter_that_does_not_merge_is_refused_before_the_first_step(tensor_data, monkeypatch):
    with pytest.raises(ConfigError, match=r"OfOneProcess measures the batches of one .* its method merge\(ranks\)"):
        refused(tensor_data, monkeypatch, loss=Metered())


def test_data_that_are_not_shared_are_refused(tensor_data, monkeypatch):
    with pytest.raises(ConfigError, match="2 processes train together, but the data are for 1; make them by"):
        refused(tensor_data, monkeypatch, shared=False)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_come_to_what_one_does(tmp_path):
    found = trained_by(2, tmp_path / "found.pt", "cuda")
    for case in CASES:
        mine = train(case, "cuda")["weights"].cpu()
        torch.testing.assert_close(found[case]["weights"].cpu(), mine, rtol=1e-3, atol=1e-5)
