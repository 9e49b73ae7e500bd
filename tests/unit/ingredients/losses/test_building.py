from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from sacristan.ingredients import ConfigError, FocalLoss, LossError
from sacristan.ingredients.losses import build_loss, build_losses, check_loss
from sacristan.ingredients.losses.modules import LOSSES, BinaryFocalLoss, measured_averaging, normalizer

INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0], [1.0, 1.0, 1.0]])


class Own(nn.Module):
    """A loss of the user's."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, outputs, targets):
        return self.factor * functional.cross_entropy(outputs, targets)


class PerSample(nn.Module):
    """A loss that forgets to take the mean."""

    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none")


class Tuple(nn.Linear):
    """A model that returns more than its scores."""

    def forward(self, inputs):
        return super().forward(inputs), inputs


def make_number():
    return 3


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Let this file be imported as `own`, as a user's module is."""
    monkeypatch.setitem(sys.modules, "own", sys.modules[__name__])


@pytest.fixture
def three(tensor_data):
    return tensor_data((INPUTS, LABELS))


@pytest.fixture
def two(tensor_data):
    return tensor_data((INPUTS, LABELS.clamp(max=1)))


@pytest.fixture
def labelled(tensor_data):
    return tensor_data((INPUTS, LABELS.eq(torch.arange(3)[:, None]).T.float()), task="multilabel", classes="abc")


@pytest.fixture
def values(tensor_data):
    return tensor_data((INPUTS, INPUTS[:, :2] * 3 + 1))


def build(data, name=None, options={}, class_weights=None):
    return build_loss(name, options, class_weights, data, "cpu")


@pytest.mark.parametrize(
    ("task", "module", "kind", "num_outputs", "metric"),
    [
        ("three", nn.CrossEntropyLoss, "classes", 3, "accuracy"),
        ("labelled", nn.BCEWithLogitsLoss, "labels", 3, "accuracy"),
        ("values", nn.MSELoss, "values", 2, "r2"),
    ],
)
def test_loss_without_a_name_is_the_usual_of_the_task(request, task, module, kind, num_outputs, metric):
    loss = build(request.getfixturevalue(task))
    assert isinstance(loss.module, module)
    assert (loss.kind, loss.num_outputs, loss.metric) == (kind, num_outputs, metric)


FITS = {
    "three": {"cross_entropy", "focal", "nll"},
    "two": {"cross_entropy", "focal", "nll", "bce", "binary_focal"},
    "labelled": {"bce", "binary_focal"},
    "values": {"mse", "l1", "smooth_l1"},
}


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in FITS.items() for name in sorted(names)])
def test_loss_that_fits_the_task_trains_on_it(request, task, name):
    data = request.getfixturevalue(task)
    loss = build(data, name)
    inputs, targets = next(data.train.epoch())
    outputs = nn.Linear(4, loss.num_outputs)(inputs)
    value = loss(outputs.log_softmax(-1) if name == "nll" else outputs, targets)
    value.backward()
    assert value.ndim == 0
    assert value.isfinite()


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, names in FITS.items() for name in LOSSES if name not in names]
)
def test_loss_that_does_not_fit_the_task_raises_with_those_that_do(request, task, name):
    message = (
        f"loss.name: {name} needs two classes, but the data have 3; use cross_entropy"
        if task == "three" and name in ("bce", "binary_focal")
        else rf"loss.name: {name} is for .*, but the data are for .*; use .*{min(FITS[task])}"
    )
    with pytest.raises(LossError, match=message):
        build(request.getfixturevalue(task), name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cross_entropi", "did you mean cross_entropy?"), ("hinge", "there are: cross_entropy, focal, nll, bce")],
)
def test_loss_with_unknown_name_raises_with_what_there_is(three, name, hint):
    with pytest.raises(LossError, match=f"loss.name: got '{name}', which is unknown; {hint}".replace("?", r"\?")):
        build(three, name)


def test_loss_with_unknown_option_raises_with_the_nearest(three):
    with pytest.raises(ConfigError, match=r"loss.options.label_smoothin: .* did you mean 'label_smoothing'\?"):
        build(three, "cross_entropy", {"label_smoothin": 0.1})


def test_loss_with_refused_option_raises_with_the_reason(three):
    with pytest.raises(LossError, match=r"loss.options: FocalLoss refuses gamma=-1: gamma is -1, expected at least 0"):
        build(three, "focal", {"gamma": -1})


def test_loss_that_joins_no_samples_raises(three):
    with pytest.raises(LossError, match=r"loss.options.reduction: got 'none', expected 'mean' or 'sum'"):
        build(three, "cross_entropy", {"reduction": "none"})


def test_cross_entropy_with_label_smoothing_uses_it(three):
    value = build(three, "cross_entropy", {"label_smoothing": 0.3})(SCORES, torch.tensor([0, 2, 1]))
    smooth = torch.full((3, 3), 0.1) + 0.7 * torch.eye(3)[[0, 2, 1]]
    assert value.item() == pytest.approx(-(smooth * SCORES.log_softmax(-1)).sum(-1).mean().item())


@pytest.mark.parametrize("name", ["cross_entropy", "focal", "nll"])
def test_class_weights_balanced_are_the_inverse_shares(three, name):
    weight = build(three, name, class_weights="balanced").module.weight
    assert weight.tolist() == pytest.approx([12 / (3 * 6), 12 / (3 * 4), 12 / (3 * 2)])


def test_class_weights_balanced_with_a_class_that_is_not_there_stay_finite(tensor_data):
    data = tensor_data((INPUTS, LABELS), classes="abcd")
    assert build(data, class_weights="balanced").module.weight.isfinite().all()


def test_class_weights_as_a_list_weigh_the_classes(three):
    loss = build(three, class_weights=[1.0, 2.0, 5.0])
    each = -SCORES.log_softmax(-1)[torch.arange(3), torch.tensor([0, 2, 1])]
    expected = (each * torch.tensor([1.0, 5.0, 2.0])).sum() / 8
    assert loss(SCORES, torch.tensor([0, 2, 1])).item() == pytest.approx(expected.item())


def test_class_weights_of_wrong_length_raise(three):
    with pytest.raises(LossError, match=r"loss: weight has 2 values, expected 3, one each of \['a', 'b', 'c'\]"):
        build(three, class_weights=[1.0, 2.0])


def test_class_weights_and_option_weight_together_raise(three):
    with pytest.raises(LossError, match=r"class_weights and options.weight set the same thing; give only one"):
        build(three, options={"weight": [1, 2, 3]}, class_weights="balanced")


@pytest.mark.parametrize(
    ("task", "name"), [("two", "bce"), ("labelled", "bce"), ("values", "mse"), ("three", "own:Own")]
)
def test_class_weights_where_there_are_none_raise(request, task, name):
    message = rf"loss.class_weights: {name} takes none|loss.options.weight: Own takes no option 'weight'"
    with pytest.raises((LossError, ConfigError), match=message):
        build(request.getfixturevalue(task), name, class_weights="balanced")


def test_bce_of_two_classes_reads_one_score(two):
    loss, outputs = build(two, "bce"), torch.tensor([[0.25], [-0.25]])
    p = outputs.sigmoid()[:, 0]
    assert loss(outputs, torch.tensor([1, 0])).item() == pytest.approx(-(p[0].log() + (1 - p[1]).log()).item() / 2)
    assert loss.predict(outputs).tolist() == [1, 0]
    assert torch.allclose(loss.probabilities(outputs), torch.stack([1 - p, p], -1))


def test_bce_of_labels_reads_each_score(labelled):
    loss, outputs = build(labelled), torch.tensor([[2.0, -0.25, 0.25]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    p = outputs.sigmoid()
    expected = -(p[0, 0].log() + (1 - p[0, 1]).log() + (1 - p[0, 2]).log()) / 3
    assert loss(outputs, targets).item() == pytest.approx(expected.item())
    assert loss.predict(outputs).tolist() == [[1, 0, 1]]
    assert torch.equal(loss.probabilities(outputs), p)


@pytest.mark.parametrize(
    ("task", "weight"), [("two", 3.0), ("two", [3.0]), ("labelled", [3.0, 1.0, 1.0]), ("labelled", 3)]
)
def test_bce_with_pos_weight_weighs_the_positive(request, task, weight):
    data = request.getfixturevalue(task)
    shape = (1, build(data, "bce").num_outputs)
    outputs, targets = torch.zeros(shape), torch.zeros(shape)
    targets[0, 0] = 1.0
    weighted = build(data, "bce", {"pos_weight": weight})(outputs, targets)
    factors = [3.0] + [1.0] * (shape[1] - 1)
    assert weighted.item() == pytest.approx(math.log(2) * sum(factors) / len(factors))


def test_bce_with_pos_weight_of_wrong_length_raises(labelled):
    with pytest.raises(LossError, match=r"loss: pos_weight has 2 values, expected 3, one each of"):
        build(labelled, "bce", {"pos_weight": [1.0, 2.0]})


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 5.0])])
def test_focal_with_gamma_zero_is_cross_entropy(weight):
    targets = torch.tensor([0, 2, 1])
    expected = functional.cross_entropy(SCORES, targets, weight)
    assert FocalLoss(0.0, weight)(SCORES, targets).item() == pytest.approx(expected.item())


def test_focal_has_the_value_of_a_hand_computation():
    log_odds = math.log(0.8 / 0.2)
    outputs = torch.tensor([[log_odds, 0.0], [log_odds, 0.0]])
    expected = -(0.2**2 * math.log(0.8) + 0.8**2 * math.log(0.2)) / 2
    assert FocalLoss(2.0)(outputs, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-5)


def test_focal_with_weights_divides_by_their_sum():
    log_odds = math.log(0.8 / 0.2)
    outputs = torch.tensor([[log_odds, 0.0], [log_odds, 0.0]])
    expected = -(1 * 0.2**2 * math.log(0.8) + 3 * 0.8**2 * math.log(0.2)) / 4
    loss = FocalLoss(2.0, torch.tensor([1.0, 3.0]))
    assert loss(outputs, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("mse", {}, (0.25 + 4) / 2), ("l1", {}, (0.5 + 2) / 2), ("smooth_l1", {"beta": 1.0}, (0.125 + 1.5) / 2)],
)
def test_loss_of_values_has_the_value_of_a_hand_computation(values, name, options, expected):
    loss = build(values, name, options)
    assert loss(torch.tensor([[0.5, 2.0]]), torch.zeros(1, 2)).item() == pytest.approx(expected)


def test_loss_of_a_dotted_path_gets_its_options(three):
    loss = build(three, "own:Own", {"factor": 2.0})
    targets = torch.tensor([0, 2, 1])
    assert loss(SCORES, targets).item() == pytest.approx(2 * functional.cross_entropy(SCORES, targets).item())
    assert (loss.kind, loss.num_outputs) == ("classes", 3)


def test_loss_of_a_dotted_path_with_weights_takes_class_weights(three):
    loss = build(three, "torch.nn:CrossEntropyLoss", class_weights="balanced")
    assert loss.module.weight.shape == (3,)


def test_loss_that_is_no_module_raises(three):
    with pytest.raises(LossError, match=r"loss.name: own:make_number made a int, expected a torch.nn.Module"):
        build(three, "own:make_number")


def test_normalizer_without_weights_is_the_number_of_samples(three, values):
    assert build(three).normalizer(LABELS) == 12
    assert build(values).normalizer(torch.zeros(5, 2)) == 5


def test_normalizer_with_weights_is_their_sum(three):
    assert build(three, class_weights=[1.0, 2.0, 5.0]).normalizer(LABELS).item() == 6 * 1 + 4 * 2 + 2 * 5


def test_normalizer_with_weights_leaves_out_targets_that_are_no_class(three):
    labels = torch.where(LABELS == 1, -100, LABELS)
    assert build(three, class_weights=[1.0, 2.0, 5.0]).normalizer(labels).item() == 6 * 1 + 2 * 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_normalizer_with_weights_on_cuda_waits_for_nothing(three):
    module = nn.CrossEntropyLoss(weight=torch.ones(3)).cuda()
    labels = LABELS.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = normalizer(module, "weights", labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.item() == 12


@pytest.mark.parametrize(("weights", "expected"), [(None, 8), ([1.0, 2.0, 5.0], 16)])
def test_normalizer_with_ignored_targets_leaves_them_out(three, weights, expected):
    assert build(three, "cross_entropy", {"ignore_index": 1}, weights).normalizer(LABELS).item() == expected


def test_predict_and_probabilities_of_classes(three):
    loss = build(three)
    assert loss.predict(SCORES).tolist() == [0, 2, 0]
    assert torch.equal(loss.probabilities(SCORES), SCORES.softmax(-1))


def test_probabilities_of_log_probabilities_are_those(three):
    scores = SCORES.log_softmax(-1)
    assert torch.allclose(build(three, "nll").probabilities(scores), SCORES.softmax(-1))


def test_predict_of_values_is_in_their_own_unit(tensor_data):
    mean, std = torch.tensor([10.0, -1.0]), torch.tensor([2.0, 4.0])
    loss = build(tensor_data((INPUTS, INPUTS[:, :2]), target_mean=mean, target_std=std))
    assert loss.predict(torch.tensor([[0.0, 1.0]])).tolist() == [[10.0, 3.0]]
    assert loss.own_unit(torch.tensor([[1.0, 0.0]])).tolist() == [[12.0, -1.0]]
    assert loss.probabilities(torch.zeros(1, 2)) is None


def test_predict_of_values_that_were_not_normalized_leaves_them(values):
    assert build(values).predict(torch.tensor([[0.5, 1.0]])).tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize("name", sorted(FITS["three"] - {"nll"}))
def test_check_loss_of_what_fits_passes_and_leaves_the_model(three, name):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = torch.random.get_rng_state()
    check_loss(build(three, name), model, three)
    assert model.training
    assert model[1].num_batches_tracked == 0
    assert torch.equal(before, torch.random.get_rng_state())


def test_check_loss_of_nll_on_raw_scores_raises(three):
    with pytest.raises(LossError, match=r"loss.name: nll needs log-probabilities, .* use cross_entropy"):
        check_loss(build(three, "nll"), nn.Linear(4, 3), three)


def test_check_loss_of_nll_on_log_probabilities_passes(three):
    check_loss(build(three, "nll"), nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), three)


def test_check_loss_with_too_few_scores_raises(three):
    model = nn.Linear(4, 2)
    message = r"loss: CrossEntropyLoss does not fit the model's outputs and the data's targets of shape \(8,\): Target"
    data = three.train
    data.targets = data.targets.flip(0)
    with pytest.raises(LossError, match=message):
        check_loss(build(three), model, three)
    assert model.training


def test_check_loss_that_is_no_scalar_raises(three):
    with pytest.raises(LossError, match=r"loss: PerSample returned shape \(8,\), expected a scalar; return the mean"):
        check_loss(build(three, "own:PerSample"), nn.Linear(4, 3), three)


def test_check_loss_of_values_that_would_broadcast_raises(tensor_data):
    data = tensor_data((INPUTS, INPUTS[:, :1]))
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(LossError, match=r"the model returns shape \(8,\), expected that of the targets, \(8, 1\)"):
        check_loss(build(data), model, data)


def test_check_loss_of_a_model_that_returns_a_tuple_raises(three):
    with pytest.raises(LossError, match=r"loss: the model returns a tuple, expected a tensor \(batch, outputs\)"):
        check_loss(build(three), Tuple(4, 3), three)


def test_check_loss_that_is_not_finite_raises(three):
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("inf"))
    with pytest.raises(LossError, match=r"loss: is nan before the first step; check inputs, targets"):
        check_loss(build(three), model, three)


def test_check_loss_where_the_first_targets_are_all_ignored_passes(three):
    three.train.targets = torch.zeros(12, dtype=torch.long)
    check_loss(build(three, "cross_entropy", {"ignore_index": 0}), nn.Linear(4, 3), three)


def test_check_loss_without_a_whole_batch_raises(three):
    three.train.drop_last, three.train.batch_size = True, 13
    with pytest.raises(LossError, match=r"the training part has no whole batch; lower data.batch_size"):
        check_loss(build(three), nn.Linear(4, 3), three)


def test_binary_focal_with_gamma_zero_is_binary_cross_entropy():
    outputs, targets = SCORES, (SCORES > 0.7).long()
    expected = functional.binary_cross_entropy_with_logits(outputs, targets.float())
    assert BinaryFocalLoss(gamma=0.0)(outputs, targets).item() == pytest.approx(expected.item())


def test_binary_focal_has_the_value_of_a_hand_computation():
    loss = BinaryFocalLoss(gamma=2.0, alpha=0.25)
    p = 1 / (1 + math.exp(-1.0))
    expected = (0.25 * (1 - p) ** 2 * -math.log(p) + 0.75 * p**2 * -math.log(1 - p)) / 2
    assert loss(torch.tensor([[1.0], [1.0]]), torch.tensor([1, 0])).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("options", [{"gamma": -1.0}, {"alpha": 1.5}])
def test_binary_focal_with_numbers_that_cannot_be_raises(two, options):
    with pytest.raises((LossError, ConfigError), match="expected"):
        build(two, "binary_focal", options)


@pytest.mark.parametrize(("task", "num_outputs"), [("two", 1), ("labelled", 3)])
def test_binary_focal_is_of_two_classes_or_of_labels(request, task, num_outputs):
    assert build(request.getfixturevalue(task), "binary_focal").num_outputs == num_outputs


def test_several_losses_are_one_weighted_sum(three):
    loss = build_losses({"ce": {"name": "cross_entropy"}, "focal": {"name": "focal", "weight": 0.5}}, three, "cpu")
    targets = torch.tensor([0, 2, 1])
    ce, focal = functional.cross_entropy(SCORES, targets), FocalLoss()(SCORES, targets)
    assert loss(SCORES, targets).item() == pytest.approx((ce + 0.5 * focal).item())
    terms = loss.module.terms(SCORES, targets)
    assert (terms["ce"].item(), terms["focal"].item()) == (ce.item(), focal.item())
    assert (loss.kind, loss.num_outputs, loss.averaging) == ("classes", 3, "mean")


def test_several_losses_are_a_mean_over_the_places_that_any_of_them_counts(three):
    loss = build_losses({"focal": {"name": "focal"}, "ce": {"name": "cross_entropy"}}, three, "cpu")
    assert loss.normalizer(torch.tensor([[[0, -100], [2, 1]]])).item() == 3


def test_own_loss_over_data_of_any_structure_joins_samples_as_it_says():
    # There is no number of classes to make up targets with.
    assert measured_averaging(nn.CrossEntropyLoss(), "classes", 1, 0) == "mean"
    assert measured_averaging(nn.CrossEntropyLoss(reduction="sum"), "classes", 1, 0) == "sum"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 3}, "loss.parts: got 3; expected a mapping"),
        ({"a": {"nmae": "focal"}}, "loss.parts: got nmae; expected"),
        ({"loss": {}}, "the name 'loss'"),
        ({"a": {}, "b": {"class_weights": "balanced"}}, "reduce a batch in different ways"),
        ({"a": {}, "b": {"options": {"reduction": "sum"}}}, "reduce a batch in different ways"),
        ({"a": {}, "b": {"options": {"ignore_index": 1}}}, r"the losses ignore different targets \(None and 1\)"),
        ({"a": {"options": {"ignore_index": 1}}, "b": {"name": "focal"}}, r"ignore different targets \(1 and None\)"),
    ],
)
def test_several_losses_that_do_not_go_together_raise(three, parts, message):
    with pytest.raises(LossError, match=message):
        build_losses(parts, three, "cpu")


def test_losses_of_classes_take_a_class_for_each_pixel(three):
    outputs = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(40).reshape(2, 4, 5) % 3
    flat = outputs.permute(0, 2, 3, 1).reshape(-1, 3), targets.flatten()
    for name in ("cross_entropy", "focal"):
        loss = build(three, name)
        assert loss(outputs, targets).item() == pytest.approx(loss(*flat).item(), rel=1e-6)
        assert torch.equal(loss.predict(outputs).flatten(), loss.predict(flat[0]))
        assert loss.probabilities(outputs).shape == outputs.shape
        assert loss.normalizer(targets) == 40
