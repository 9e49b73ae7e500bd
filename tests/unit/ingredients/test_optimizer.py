from __future__ import annotations

import inspect
import re
import sys

import pytest
import torch
from torch import nn

from sacristan.configs.packages import install_command
from sacristan.ingredients import ConfigError, Loss, MissingDependencyError, OptimizerError
from sacristan.ingredients.models.modules import Freezing
from sacristan.ingredients.optimizer import build_optimizer, config, parameter_groups

NAMES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
)
PLAIN = [name for name in NAMES if name not in ("LBFGS", "Muon", "SparseAdam")]


class Own(torch.optim.SGD):
    """An optimizer of the user's."""

    def __init__(self, params, lr, twist=0.0):
        super().__init__(params, lr)
        self.twist = twist


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Let this file be imported as `own`, as a user's module is."""
    monkeypatch.setitem(sys.modules, "own", sys.modules[__name__])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def loss_of(model):
    inputs = torch.arange(32.0).reshape(8, 4) / 32
    return (model(inputs) - inputs[:, :2]).square().mean()


def names_of(group):
    assert len(group["names"]) == len(group["params"])
    return group["names"]


@pytest.mark.parametrize("name", PLAIN)
def test_optimizer_of_any_class_takes_steps_that_lower_the_loss(model, name):
    optimizer = build_optimizer(model, name, lr=1e-2)
    before = loss_of(model).item()
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert type(optimizer).__name__ == name
    assert loss_of(model).item() < before


def test_optimizer_lbfgs_takes_steps_with_a_closure(model):
    optimizer = build_optimizer(model, "LBFGS", lr=0.5, options={"line_search_fn": "strong_wolfe"})
    before = loss_of(model).item()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert loss_of(model).item() < before


def test_optimizer_sparse_adam_takes_steps_with_sparse_gradients():
    model = nn.Embedding(5, 3, sparse=True)
    before = model.weight.detach().clone()
    optimizer = build_optimizer(model, "SparseAdam", lr=0.1)
    model(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    assert (model.weight != before).any(1).tolist() == [False, True, False, True, False]


def test_optimizer_muon_takes_steps_on_matrices():
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    optimizer = build_optimizer(model, "Muon", lr=1e-2)
    before = loss_of(model).item()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert loss_of(model).item() < before


def test_optimizer_muon_on_biases_raises(model):
    with pytest.raises(OptimizerError, match=r"Muon refuses its defaults: Muon only supports 2D parameters"):
        build_optimizer(model, "Muon", lr=1e-2)


def test_optimizer_gets_lr_weight_decay_and_options(model):
    optimizer = build_optimizer(model, "SGD", 0.5, 0.25, {"momentum": 0.9, "nesterov": True})
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["momentum"], group["nesterov"]) == (0.5, 0.25, 0.9, True)


@pytest.mark.parametrize(("name", "default"), [("AdamW", 0.01), ("SGD", 0), ("Muon", 0.1)])
def test_optimizer_without_weight_decay_has_that_of_its_class(name, default):
    optimizer = build_optimizer(nn.Linear(2, 2, bias=False), name, 0.1, None)
    assert optimizer.param_groups[0]["weight_decay"] == default


def test_optimizer_of_a_dotted_path_gets_its_options(model):
    optimizer = build_optimizer(model, "own:Own", 0.5, options={"twist": 2.0})
    assert (type(optimizer), optimizer.twist, optimizer.param_groups[0]["lr"]) == (Own, 2.0, 0.5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("adamw", "did you mean AdamW?"), ("Optimizer", "there are: ASGD, Ada"), ("Lion", "there are: ASGD, Ada")],
)
def test_optimizer_with_unknown_name_raises_with_what_there_is(model, name, hint):
    message = rf"optimizer.name: got '{name}', which torch.optim does not have; {hint}".replace("?", r"\?")
    with pytest.raises(OptimizerError, match=message):
        build_optimizer(model, name, 0.1)


def test_optimizer_with_unknown_option_raises_with_the_nearest(model):
    with pytest.raises(
        ConfigError, match=r"optimizer.options.momentun: SGD takes no option .*; did you mean 'momentum'\?"
    ):
        build_optimizer(model, "SGD", 0.1, options={"momentun": 0.9})


def test_optimizer_with_lr_among_the_options_raises(model):
    with pytest.raises(ConfigError, match=r"optimizer.options.lr: SGD gets 'lr' from the lab already; remove it"):
        build_optimizer(model, "SGD", 0.1, options={"lr": 0.9})


def test_optimizer_with_refused_option_raises_with_the_reason(model):
    with pytest.raises(OptimizerError, match=r"AdamW refuses betas=\[2.0, 0.9\]: Invalid beta parameter at index 0"):
        build_optimizer(model, "AdamW", 0.1, options={"betas": [2.0, 0.9]})


@pytest.mark.parametrize("lr", [0.0, -1.0])
def test_optimizer_with_lr_not_above_zero_raises(model, lr):
    with pytest.raises(OptimizerError, match=f"optimizer.lr: got {lr}, expected more than 0"):
        build_optimizer(model, "SGD", lr)


def test_optimizer_without_anything_to_train_raises(model):
    with pytest.raises(OptimizerError, match="the model has no parameters that require gradients"):
        build_optimizer(model.requires_grad_(False), "SGD", 0.1)


def test_optimizer_leaves_frozen_parameters_out(model):
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model, "SGD", 0.1)
    assert [p.shape for p in optimizer.param_groups[0]["params"]] == [p.shape for p in list(model.parameters())[2:]]


def test_optimizer_groups_have_their_own_settings_and_inherit_the_rest(model):
    groups = [{"match": "3.*", "lr": 0.5}, {"match": "*.bias", "weight_decay": 0.0, "momentum": 0.5}]
    optimizer = build_optimizer(model, "SGD", 0.1, 0.2, {"momentum": 0.9}, groups)
    found = [(g["names"], g["lr"], g["weight_decay"], g["momentum"]) for g in optimizer.param_groups]
    assert found == [
        (["0.weight", "1.weight"], 0.1, 0.2, 0.9),
        (["3.weight", "3.bias"], 0.5, 0.2, 0.9),
        (["0.bias", "1.bias"], 0.1, 0.0, 0.5),
    ]


def test_optimizer_groups_train_every_parameter_once(model):
    optimizer = build_optimizer(model, "SGD", 0.1, groups=[{"match": "*.bias"}, {"match": "0.*"}])
    trained = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(trained) == sorted(map(id, model.parameters()))


def test_optimizer_groups_that_match_everything_leave_no_empty_group(model):
    assert len(parameter_groups(model, [{"match": "*", "lr": 0.5}])) == 1


def test_optimizer_groups_in_which_the_first_match_wins(model):
    groups = parameter_groups(model, [{"match": "0.bias", "lr": 1.0}, {"match": "*.bias", "lr": 2.0}])
    assert [names_of(group) for group in groups[1:]] == [["0.bias"], ["1.bias", "3.bias"]]


def test_optimizer_group_that_matches_nothing_raises(model):
    with pytest.raises(OptimizerError, match=r"groups: 'encoder.\*' matches no parameter; there are 0.weight, 0.bias"):
        build_optimizer(model, "SGD", 0.1, groups=[{"match": "encoder.*"}])


def test_optimizer_group_that_earlier_ones_empty_raises(model):
    with pytest.raises(OptimizerError, match=r"optimizer.groups: '0.bias' matches no parameter"):
        build_optimizer(model, "SGD", 0.1, groups=[{"match": "*.bias"}, {"match": "0.bias"}])


@pytest.mark.parametrize("group", [{"lr": 0.1}, {"match": 3}, "*.bias"])
def test_optimizer_group_without_a_pattern_raises(model, group):
    with pytest.raises(OptimizerError, match=r"optimizer.groups: got .*, expected an entry like \{match: '\*.bias'"):
        build_optimizer(model, "SGD", 0.1, groups=[group])


def test_optimizer_group_with_unknown_option_raises_with_the_nearest(model):
    groups = [{"match": "*.bias", "weight_dcay": 0.0}]
    with pytest.raises(ConfigError, match=r"optimizer.groups.weight_dcay: .* did you mean 'weight_decay'\?"):
        build_optimizer(model, "SGD", 0.1, groups=groups)


@pytest.mark.parametrize(
    "options",
    [{"groups": [{"match": "*.bias", "weight_decay": 0.0}]}, {"decay_bias_and_norm": False}, {"weight_decay": 0.1}],
)
@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_optimizer_of_a_class_without_weight_decay_raises_where_some_is_wanted(model, name, options):
    with pytest.raises(OptimizerError, match=f"optimizer: {name} has no weight decay to set; choose another class"):
        build_optimizer(model, name, 0.1, **options)


@pytest.mark.parametrize("lr", [0.0, -0.1, "fast", None])
def test_optimizer_group_with_a_wrong_lr_raises(model, lr):
    with pytest.raises(OptimizerError, match=rf"optimizer.groups: got lr={lr!r} for '\*.bias', expected more than 0"):
        build_optimizer(model, "SGD", 0.1, groups=[{"match": "*.bias", "lr": lr}])


def test_optimizer_lbfgs_with_groups_raises(model):
    with pytest.raises(OptimizerError, match=r"LBFGS doesn't support per-parameter options"):
        build_optimizer(model, "LBFGS", 0.1, groups=[{"match": "*.bias", "lr": 0.5}])


def test_optimizer_without_decay_of_biases_and_norms_decays_the_rest(model):
    optimizer = build_optimizer(model, "AdamW", 0.1, 0.2, decay_bias_and_norm=False)
    assert [(group["names"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (["0.weight", "3.weight"], 0.2),
        (["0.bias", "1.weight", "1.bias", "3.bias"], 0.0),
    ]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.RMSNorm(4)]
)
def test_optimizer_without_decay_of_norms_knows_the_norms_of_torch(norm):
    made = parameter_groups(nn.Sequential(norm, nn.Linear(2, 2, bias=False)), decay_bias_and_norm=False)
    assert [name.partition(".")[0] for name in names_of(made[1])] == ["0"] * len(list(norm.parameters()))


def test_optimizer_without_decay_of_biases_knows_those_of_attention():
    made = parameter_groups(nn.MultiheadAttention(4, 2), decay_bias_and_norm=False)
    assert [names_of(group) for group in made] == [
        ["in_proj_weight", "out_proj.weight"],
        ["in_proj_bias", "out_proj.bias"],
    ]


def test_config_has_the_arguments_of_build_optimizer():
    assert ["model", *config(), "loss"] == [*inspect.signature(build_optimizer).parameters]


def added(optimizer, *parameters, **special):
    optimizer.add_param_group({"params": list(parameters), **special})
    return optimizer


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
@pytest.mark.parametrize("groups", [(), [{"match": "*.bias", "lr": 0.5}]])
def test_optimizer_takes_a_group_that_is_added_and_resumes_with_it(model, name, groups):
    extra = nn.Parameter(torch.ones(3))
    optimizer = added(build_optimizer(model, name, 0.1, groups=groups), extra, lr=0.25)
    (loss_of(model) + extra.sum()).backward()
    optimizer.step()
    assert (extra < 1).all()
    again = added(build_optimizer(model, name, 0.1, groups=groups), extra)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[-1]["lr"] == 0.25
    assert again.param_groups[-1].keys() == optimizer.param_groups[-1].keys()


def test_optimizer_of_a_compiled_model_has_plain_names(model):
    optimizer = build_optimizer(torch.compile(model, backend="eager"), "SGD", 0.1, groups=[{"match": "0.*", "lr": 0.5}])
    assert [names_of(group)[0] for group in optimizer.param_groups] == ["1.weight", "0.weight"]


def test_optimizer_has_what_is_trained_of_the_loss(model):
    loss = Loss(nn.Linear(2, 1), "values", 2)
    loss.module.bias.requires_grad_(False)
    optimizer = build_optimizer(model, "SGD", 0.1, groups=[{"match": "loss.*", "lr": 0.5}], loss=loss)
    assert names_of(optimizer.param_groups[1]) == ["loss.weight"]
    assert optimizer.param_groups[1]["params"] == [loss.module.weight]


def rates_of(optimizer):
    return {name: group["lr"] for group in optimizer.param_groups for name in names_of(group)}


def test_optimizer_with_layer_decay_lowers_the_rate_from_layer_to_layer(caplog):
    caplog.set_level("INFO", "sacristan.ingredients.optimizer")
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = build_optimizer(model, "SGD", 0.1, layer_decay=0.5)
    assert rates_of(optimizer) == {
        **dict.fromkeys(["0.weight", "0.bias", "1.weight", "1.bias"], 0.025),
        **dict.fromkeys(["3.weight", "3.bias"], 0.05),
        **dict.fromkeys(["4.weight", "4.bias"], 0.1),
    }
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05, 0.025]
    assert "lr by layer: 0 0.025, 3 0.05, 4 0.1" in caplog.text


def test_optimizer_with_layer_decay_keeps_rates_and_decay_of_groups(model):
    groups = [{"match": "0.weight", "lr": 0.7}, {"match": "3.*", "weight_decay": 0.2}]
    optimizer = build_optimizer(model, "SGD", 0.1, 0.3, groups=groups, decay_bias_and_norm=False, layer_decay=0.5)
    assert rates_of(optimizer) == {
        "0.weight": 0.7,
        **dict.fromkeys(["0.bias", "1.weight", "1.bias"], 0.05),
        **dict.fromkeys(["3.weight", "3.bias"], 0.1),
    }
    decays = {name: group["weight_decay"] for group in optimizer.param_groups for name in names_of(group)}
    assert decays == {
        **dict.fromkeys(["0.bias", "1.weight", "1.bias", "3.bias"], 0.0),
        "0.weight": 0.3,
        "3.weight": 0.2,
    }


@pytest.mark.parametrize("layer_decay", [0.0, -0.5, 1.5, float("nan")])
def test_optimizer_with_a_wrong_layer_decay_raises(model, layer_decay):
    with pytest.raises(OptimizerError, match=rf"optimizer.layer_decay: got {layer_decay}, expected more than 0"):
        build_optimizer(model, "SGD", 0.1, layer_decay=layer_decay)


def test_optimizer_has_what_is_unfrozen_later_and_leaves_it_as_it_is_until_then(model):
    freezing = Freezing(model, ["0"], [{"epoch": 2, "match": "3"}])
    optimizer = build_optimizer(model, "AdamW", 0.1, weight_decay=0.5)
    assert names_of(optimizer.param_groups[0]) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    before = model[3].weight.clone()
    for epoch, is_same in ((1, True), (2, False)):
        freezing.begin_epoch(epoch)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        assert torch.equal(model[3].weight, before) == is_same


@pytest.mark.parametrize(
    ("name", "implementation", "flags"),
    [
        ("AdamW", "fused", {"fused": True, "foreach": False}),
        ("AdamW", "foreach", {"fused": False, "foreach": True}),
        ("SGD", "for_loop", {"fused": False, "foreach": False}),
        ("Adadelta", "foreach", {"foreach": True}),
        ("Adafactor", None, {"foreach": None}),
    ],
)
def test_implementation_is_that_of_every_group(model, name, implementation, flags):
    optimizer = build_optimizer(model, name, 0.1, implementation=implementation)
    for group in optimizer.param_groups:
        assert {flag: group[flag] for flag in flags} == flags


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "Adadelta",
            {"implementation": "fused"},
            "optimizer.implementation: Adadelta has no fused implementation; it has for_loop, foreach",
        ),
        (
            "LBFGS",
            {"implementation": "foreach"},
            "optimizer.implementation: LBFGS has no foreach implementation; it has for_loop",
        ),
        (
            "SGD",
            {"implementation": "foreach", "options": {"fused": True}},
            "optimizer: implementation and options.fused set the same thing",
        ),
    ],
)
def test_implementation_that_there_is_not_is_refused(model, name, settings, message):
    with pytest.raises(OptimizerError, match=message):
        build_optimizer(model, name, 0.1, **settings)


def test_optimizer_of_bitsandbytes_names_the_extra_where_that_is_not_installed(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    install = re.escape(install_command("bitsandbytes"))
    message = f"optimizer.name=bitsandbytes.optim.AdamW8bit needs the package 'bitsandbytes', .* {install}"
    with pytest.raises(MissingDependencyError, match=message):
        build_optimizer(model, "bitsandbytes.optim.AdamW8bit", 0.1)
