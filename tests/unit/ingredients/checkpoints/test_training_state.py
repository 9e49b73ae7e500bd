from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.experiments import Monitor
from sacristan.ingredients import CheckpointError, MixedPrecision, Place, seed_globals
from sacristan.ingredients.checkpoints.files import load_checkpoint, load_weights, save_checkpoint
from sacristan.ingredients.checkpoints.training_state import (
    branch,
    capture,
    check_whole,
    of_all_ranks,
    of_rank,
    resume,
    snapshot,
)
from sacristan.ingredients.optimizer import build_optimizer
from sacristan.ingredients.ranks import World
from sacristan.ingredients.ranks.group import Ranks
from sacristan.ingredients.scheduler import build_schedule

CPU = torch.device("cpu")
CONFIG = {
    "seed": 0,
    "data": {"batch_size": 8},
    "model": {"name": "mlp"},
    "loss": {"name": None},
    "optimizer": {"name": "AdamW", "lr": 0.1},
    "scheduler": {"name": "ExponentialLR"},
    "training": {"epochs": 5, "monitor": "val/loss", "mode": "auto"},
    "amp": {"dtype": "float16", "accumulate": 1},
}


def make_parts(config=CONFIG, gamma=0.5, seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(2, 1)
    optimizer = build_optimizer(model, config["optimizer"]["name"], config["optimizer"]["lr"])
    schedule = build_schedule(optimizer, config["training"]["epochs"], 4, "ExponentialLR", {"gamma": gamma})
    amp = MixedPrecision(CPU, "float16", init_scale=8.0)
    monitor = Monitor("val/loss")
    return {"model": model, "optimizer": optimizer, "scheduler": schedule, "amp": amp, "monitor": monitor}


@pytest.fixture
def state(tmp_path):
    """The state of a training after two epochs of four steps, and one step."""
    parts = make_parts(seed=1)
    seed_globals(5)
    for step in range(9):
        parts["model"](torch.ones(3, 2)).sum().backward()
        parts["optimizer"].step()
        if step in (3, 7):
            parts["scheduler"].after_epoch({"val/loss": 1.0})
            parts["monitor"].update({"val/loss": 0.5}, step)
    parts["amp"].num_skipped = 3
    return {**capture(Place(2, 1, 9, [0.25]), parts), "config": CONFIG}


def branched(state, tmp_path, gamma=0.5, **changes):
    config = {**CONFIG, **changes}
    config |= {name: {**CONFIG[name], **value} for name, value in changes.items() if isinstance(value, dict)}
    parts = make_parts(config, gamma)
    return parts, branch(parts, state, tmp_path / "last.pt", config)


def lr(parts):
    return parts["optimizer"].param_groups[0]["lr"]


def momenta(parts):
    return parts["optimizer"].state[parts["model"].weight].get("exp_avg")


@pytest.mark.parametrize("changes", [{}, {"data": {"num_workers": 3}}])
def test_branch_without_a_change_has_the_whole_state(state, tmp_path, changes):
    parts, place = branched(state, tmp_path, **changes)
    assert vars(place) == {"epoch": 2, "batch": 1, "step": 9, "losses": [0.25], "scalars": {}, "stopped": False}
    assert torch.equal(parts["model"].weight, state["model"]["weight"])
    assert lr(parts) == 0.025
    assert momenta(parts) is not None
    assert (parts["amp"].num_skipped, parts["monitor"].value) == (3, 0.5)
    assert torch.equal(torch.get_rng_state(), state["streams"]["torch"])


def test_branch_with_another_lr_keeps_momenta_and_follows_the_schedule_from_it(state, tmp_path):
    parts, _ = branched(state, tmp_path, optimizer={"lr": 0.8})
    assert lr(parts) == 0.2
    assert torch.equal(momenta(parts), state["optimizer"]["state"][0]["exp_avg"])


def test_branch_with_another_schedule_is_where_that_would_be(state, tmp_path):
    parts, _ = branched(state, tmp_path, gamma=0.1, scheduler={"options": {"gamma": 0.1}})
    assert lr(parts) == pytest.approx(0.001)
    parts["scheduler"].after_epoch({})
    assert lr(parts) == pytest.approx(0.0001)


def test_branch_with_other_groups_keeps_the_momenta_of_each_parameter(tmp_path):
    def make(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
        return {"model": model, "optimizer": build_optimizer(model, "AdamW", 0.1, **options)}

    def momenta(parts):
        return {name: parts["optimizer"].state[one]["exp_avg"] for name, one in parts["model"].named_parameters()}

    first = make()
    first["model"](torch.ones(2, 3)).square().sum().backward()
    first["optimizer"].step()
    state = {**capture(Place(1, 0, 1), first), "config": CONFIG}
    parts = make(decay_bias_and_norm=False)
    assert len(parts["optimizer"].param_groups) == 2
    branch(parts, state, tmp_path / "last.pt", {**CONFIG, "optimizer": {"name": "AdamW"}})
    assert momenta(parts).keys() == momenta(first).keys()
    assert all(torch.equal(momenta(parts)[name], one) for name, one in momenta(first).items())


def test_branch_with_more_epochs_keeps_the_rate_that_a_plateau_led_to(tmp_path):
    def make(epochs):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = build_optimizer(model, "SGD", 0.5)
        schedule = build_schedule(optimizer, epochs, 4, "ReduceLROnPlateau", {"patience": 0})
        return {"model": model, "optimizer": optimizer, "scheduler": schedule}

    first = make(5)
    for _ in range(3):
        first["scheduler"].after_epoch({"val/loss": 1.0})
    state = {**capture(Place(3, 0, 12), first), "config": CONFIG}
    parts = make(9)
    branch(parts, state, tmp_path / "last.pt", {**CONFIG, "training": {**CONFIG["training"], "epochs": 9}})
    assert lr(parts) == lr(first) == pytest.approx(0.005)


def test_branch_with_another_optimizer_has_no_momenta_and_says_so(state, tmp_path, caplog):
    parts, _ = branched(state, tmp_path, optimizer={"name": "SGD"})
    assert momenta(parts) is None
    assert "optimizer.name differs from that in" in caplog.text


@pytest.mark.parametrize("changes", [{"data": {"batch_size": 4}}, {"seed": 1}, {"amp": {"accumulate": 2}}])
def test_branch_with_another_order_starts_the_epoch_anew_and_says_so(state, tmp_path, caplog, changes):
    _, place = branched(state, tmp_path, **changes)
    assert (place.epoch, place.batch, place.step, place.losses) == (2, 0, 9, [])
    assert "epoch 3 starts again" in caplog.text


def test_branch_with_another_seed_has_streams_of_its_own(state, tmp_path):
    branched(state, tmp_path, seed=1)
    assert not torch.equal(torch.get_rng_state(), state["streams"]["torch"])


def test_branch_with_another_metric_to_follow_starts_the_best_anew(state, tmp_path):
    parts, _ = branched(state, tmp_path, training={"monitor": "val/accuracy"})
    assert parts["monitor"].epoch == 0


def test_branch_with_another_scale_of_the_loss_starts_with_that(state, tmp_path):
    parts, _ = branched(state, tmp_path, amp={"init_scale": 8.0})
    assert parts["amp"].num_skipped == 0


def test_branch_of_a_loop_of_ones_own_has_all_its_parts(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        model, critic = nn.Linear(2, 1), nn.Linear(2, 3)
        return {"model": model, "critic": critic, "critic_optimizer": build_optimizer(critic, "SGD", 0.1 * (seed + 1))}

    state = {**capture(Place(1, 0, 4), make(0)), "config": CONFIG}
    parts = make(1)
    branch(parts, state, tmp_path / "last.pt", CONFIG)
    assert torch.equal(parts["critic"].weight, state["critic"]["weight"])
    assert parts["critic_optimizer"].param_groups[0]["lr"] == 0.1


def test_branch_whose_weights_do_not_fit_raises(state, tmp_path):
    parts = {**make_parts(), "model": nn.Linear(3, 1)}
    with pytest.raises(
        CheckpointError, match=r"last.pt: does not fit this model: weight is \[1, 2\] there and \[1, 3\]"
    ):
        branch(parts, state, tmp_path / "last.pt", CONFIG)


def test_branch_whose_optimizer_does_not_fit_raises(state, tmp_path):
    state["optimizer"]["param_groups"][0]["params"] = [0]
    with pytest.raises(CheckpointError, match=r"last.pt: its optimizer does not fit this training \(ValueError: "):
        branched(state, tmp_path)


def test_state_of_weights_alone_is_not_whole(state, tmp_path):
    check_whole(state, make_parts(), tmp_path)
    message = "best.pt: holds no amp, batch, losses, .*, so it is no state of this training; expected one saved as"
    with pytest.raises(CheckpointError, match=message):
        check_whole({"model": {}, "epoch": 1}, make_parts(), tmp_path / "best.pt")


def test_snapshot_of_a_number_of_numpy_can_be_loaded_again(tmp_path):
    save_checkpoint({"model": {}, **snapshot({"value": np.float64(0.5), "count": [np.int64(3)]})}, tmp_path / "last.pt")
    state = load_checkpoint(tmp_path / "last.pt")
    assert (state["value"], state["count"]) == (0.5, [3])


def test_snapshot_is_not_reached_by_later_changes():
    counter = collections.Counter({3: 1})
    original = {"t": torch.zeros(2), "l": [torch.zeros(1), (torch.zeros(1), 4)], "c": counter}
    copied = snapshot(original)
    original["t"] += 1
    original["l"][0] += 1
    original["l"][1][0].add_(1)
    counter[3] = 7
    assert copied["t"].tolist() == [0, 0]
    assert copied["l"][0].tolist() == copied["l"][1][0].tolist() == [0]
    assert copied["c"] == collections.Counter({3: 1})


def test_state_of_an_earlier_version_resumes_with_names_where_the_lab_keeps_them(state, tmp_path):
    for group in state["optimizer"]["param_groups"]:
        group["param_names"] = group.pop("names")
    parts = make_parts()
    resume(parts, state, tmp_path / "last.pt")
    assert parts["optimizer"].param_groups[0]["names"] == ["weight", "bias"]
    parts["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("key", ["names", "param_names"])
def test_branch_of_another_optimizer_config_finds_momenta_by_name_and_those_without_by_turn(state, tmp_path, key):
    parts, extra = make_parts(), [nn.Parameter(torch.ones(2)) for _ in range(2)]
    for kept in state["optimizer"]["param_groups"]:
        kept[key] = kept.pop("names")
    state["optimizer"]["param_groups"].append({**kept, "params": [2, 3]})
    del state["optimizer"]["param_groups"][1][key]
    for number in (2, 3):
        state["optimizer"]["state"][number] = {
            "step": torch.tensor(9.0),
            "exp_avg": torch.full((2,), float(number)),
            "exp_avg_sq": torch.zeros(2),
        }
    parts["optimizer"].add_param_group({"params": extra})
    branch(parts, state, tmp_path / "last.pt", {**CONFIG, "optimizer": {**CONFIG["optimizer"], "lr": 0.5}})
    assert [parts["optimizer"].state[one]["exp_avg"][0].item() for one in extra] == [2.0, 3.0]
    assert parts["optimizer"].param_groups[0]["lr"] != 0.1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compiled", [(True, False), (False, True), (True, True)])
def test_state_of_a_compiled_model_has_plain_names_and_fits_both(tmp_path, compiled):
    models = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)) for _ in range(2)]
    one, other = (
        torch.compile(model, backend="eager") if wrap else model for model, wrap in zip(models, compiled, strict=True)
    )
    if compiled[0]:
        models[0][1] = torch.compile(models[0][1], backend="eager")
    state = capture(Place(), {"model": one})
    assert list(state["model"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    save_checkpoint(state, tmp_path / "last.pt")
    resume({"model": other}, load_checkpoint(tmp_path / "last.pt"), tmp_path)
    assert torch.equal(models[0][0].weight, models[1][0].weight)
    load_weights(one, tmp_path / "last.pt", {})


def test_checkpoint_of_an_earlier_version_with_the_names_of_a_compiled_model_fits(tmp_path):
    model, kept = nn.Linear(2, 1), nn.Linear(2, 1)
    save_checkpoint({"model": torch.compile(kept, backend="eager").state_dict()}, tmp_path / "best.pt")
    load_weights(model, tmp_path / "best.pt", {})
    assert torch.equal(model.weight, kept.weight)


class Two(Ranks):
    """Rank 0 of two, which hears of the other one's state."""

    def __init__(self, other):
        super().__init__(World(0, 2))
        self.other = other

    def gather(self, value):
        return [value, self.other]


def test_scalars_that_one_rank_alone_has_measured_are_means_of_its_own():
    mine = {"streams": {}, "losses": [1.0], "scalars": {"both": [1.0], "mine": [4.0]}}
    other = {"streams": {}, "losses": [3.0], "scalars": {"other": [6.0], "both": [3.0]}}
    state = of_all_ranks(mine, Two(other))
    assert state["losses"] == [2.0]
    assert state["scalars"] == {"both": [2.0], "mine": [4.0], "other": [6.0]}
    assert of_rank(state, Ranks(World(1, 2)))["scalars"] == other["scalars"]
