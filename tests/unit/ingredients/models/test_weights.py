from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients import ModelError
from sacristan.ingredients.models.building import load_weights_into, rename


def make(num_classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))


def copy_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_exact_weights_are_bit_equal_to_the_file():
    state, model = make(seed=1).state_dict(), make()
    report = load_weights_into(model, state, strict=True, source="net.pt")
    assert report.is_exact
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)


def test_exact_weights_that_differ_raise_with_all_kinds_and_leave_the_model():
    state, model = make(10, seed=1).state_dict(), make()
    state["extra"] = state.pop("0.bias")
    before = copy_of(model)
    message = r"net.pt does not fit.*of another shape: 2.weight \[10, 8\] there, \[3, 8\] here.*missing there: 0.bias.*"
    with pytest.raises(ModelError, match=message + r"unexpected: extra.*model.strict=False"):
        load_weights_into(model, state, strict=True, source="net.pt")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_partial_weights_are_bit_equal_to_the_file_and_the_new_head_stays_as_initialised():
    state, model = make(10, seed=1).state_dict(), make()
    state["extra"] = state.pop("0.bias")
    before = copy_of(model)
    report = load_weights_into(model, state, strict=False, source="net.pt")
    names = ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert report.as_dict() == {
        "loaded": ["0.weight", *names],
        "missing": ["0.bias"],
        "unexpected": ["extra"],
        "reshaped": [
            {"name": "2.weight", "there": [10, 8], "here": [3, 8]},
            {"name": "2.bias", "there": [10], "here": [3]},
        ],
    }
    found = model.state_dict()
    assert all(torch.equal(found[name], state[name]) for name in report.loaded)
    assert all(torch.equal(found[name], before[name]) for name in ("0.bias", "2.weight", "2.bias"))


def test_report_is_one_short_block():
    state = make(10).state_dict() | {f"old.{number}": torch.ones(1) for number in range(9)}
    del state["0.bias"]
    text = load_weights_into(make(), state, strict=False, source="run:17").describe("run:17")
    assert text.splitlines() == [
        "weights of run:17: loaded 6 of the model's 9 tensors, the others stay as initialised",
        "  of another shape: 2.weight [10, 8] there, [3, 8] here, 2.bias [10] there, [3] here",
        "  missing there: 0.bias",
        "  unexpected: old.0, old.1, old.2, old.3, old.4, old.5, and 3 more",
    ]


def test_partial_weights_of_which_none_fits_raise_with_names_of_both():
    state = {f"backbone.{name}": value for name, value in make().state_dict().items()}
    with pytest.raises(
        ModelError, match=r"nothing in net.pt fits.*backbone.0.weight.*the model 0.weight.*model.rename"
    ):
        load_weights_into(make(), state, strict=False, source="net.pt")


def test_weights_of_a_compiled_model_fit_one_that_is_not():
    state, model = torch.compile(make(seed=1), backend="eager").state_dict(), make()
    load_weights_into(model, state, strict=True, source="net.pt")
    assert torch.equal(model[0].weight, state["_orig_mod.0.weight"])


def test_rename_replaces_in_turn():
    rules = [{"match": r"^backbone\.", "to": ""}, {"match": r"^fc(\d)", "to": r"head.\1"}]
    assert rename({"backbone.fc1.bias": 1, "other": 2}, rules) == {"head.1.bias": 1, "other": 2}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"match": "^bakcbone", "to": ""}, r"'\^bakcbone' matches no name in the file; it has: backbone.a, b"),
        ({"match": "(", "to": ""}, r"not a valid regular expression"),
        ({"match": "b", "to": r"\1"}, r"not a valid regular expression: invalid group reference"),
        ({"match": "b"}, r"expected an entry like \{match"),
        ({"match": "b", "to": 1}, r"expected an entry like \{match"),
        ("b", r"expected an entry like \{match"),
        ({"match": ".+", "to": "x"}, r"both 'backbone.a' and 'b' become 'x'"),
    ],
)
def test_rename_that_cannot_be_raises(rule, message):
    with pytest.raises(ModelError, match=rf"model.rename: .*{message}"):
        rename({"backbone.a": 1, "b": 2}, [rule])
