"""Transforms of images by config: repeatable by (seed, epoch, position), masks move along, targets are mixed."""

import sys
import types

import numpy as np
import pytest
import torch

from sacristan.configs import Map
from sacristan.ingredients import ConfigError, DataError, MissingDependencyError, Source
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.targets import VOID
from sacristan.ingredients.datasets.transforms import NAMES, Context, make_pipeline, parse, shape_after

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
OPTIONS = {
    "resize": {"size": 6},
    "center_crop": {"size": 4},
    "random_crop": {"size": 4, "padding": 1},
    "random_resized_crop": {"size": 5},
    "color_jitter": {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5},
}


def images(count=40, channels=3, size=8):
    values = np.random.default_rng(0).uniform(0.1, 0.9, (count, channels, size, size)).astype(np.float32)
    return Source(values, np.arange(count) % 2)


def masks(count=40):
    values = images(count).inputs
    return Source(values, (values[:, 0] > 0.5).astype(np.uint8))


def made(source, transforms, num_workers=0, **changes):
    config = {**DEFAULTS, "batch_size": 4, "num_workers": num_workers, "transforms": transforms, **changes}
    return make_batches(prepare(source, config, 0), config, 0, CPU)


def context(seed=0, **given):
    return Context(torch.Generator().manual_seed(seed), **given)


def named(name):
    return {"name": name, **OPTIONS.get(name, {})}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_transform_resumed_in_the_middle_is_the_same_with_workers(name):
    transforms = [named(name)]
    expected = list(made(images(), transforms).train.epoch(1))
    for num_workers, in_memory in ((0, None), (1, False)):
        found = list(made(images(), transforms, num_workers, in_memory=in_memory).train.epoch(1, 3))
        for pair, other in zip(found, expected[3:], strict=True):
            assert all(map(torch.equal, pair, other))
    if name not in ("resize", "center_crop"):
        other = list(made(images(), transforms).train.epoch(2))
        order = made(images(), transforms).train.order
        assert not torch.equal(order(1), order(2))
        assert not torch.equal(expected[0][0], other[0][0])


def test_transform_draws_anew_for_every_epoch_and_batch():
    ramp = np.broadcast_to(np.arange(8, dtype=np.float32), (40, 1, 8, 8)).copy()
    train = made(Source(ramp, np.arange(40) % 2), [{"name": "random_crop", "size": 3}], normalize="none").train
    batches = [tuple(inputs[:, 0, 0, 0].tolist()) for epoch in (1, 2) for inputs, _ in train.epoch(epoch)]
    assert len(set(batches)) > len(batches) - 3


def test_random_ones_are_for_training_and_sizes_for_all():
    data = made(images(), ["flip", named("resize"), "mixup"])
    plain = made(images(), [named("resize")])
    assert data.input_shape == (3, 6, 6)
    for part in ("val", "test"):
        for pair, other in zip(getattr(data, part).epoch(), getattr(plain, part).epoch(), strict=True):
            assert all(map(torch.equal, pair, other))
    assert not torch.equal(next(data.train.epoch(1))[0], next(plain.train.epoch(1))[0])
    assert data.test.inputs_at([0]).shape == (1, 3, 8, 8)
    everywhere = made(images(), [{"name": "random_crop", "size": 4, "val": True}])
    assert next(everywhere.val.epoch())[0].shape[1:] == everywhere.input_shape == (3, 4, 4)


def test_transforms_do_not_change_what_augment_draws():
    augment = {**DEFAULTS["augment"], "crop": 2}
    plain, resized = (
        made(images(), [], augment=augment),
        made(images(), [{"name": "center_crop", "size": 8}], augment=augment),
    )
    assert torch.equal(next(plain.train.epoch(1))[0], next(resized.train.epoch(1))[0])


def test_center_crop_cuts_the_middle():
    batch = torch.arange(36.0).reshape(1, 1, 6, 6), torch.zeros(1)
    assert NAMES["center_crop"](batch, context(), size=2)[0].tolist() == [[[[14, 15], [20, 21]]]]


def test_random_crop_cuts_windows_of_the_image_everywhere():
    pixels = torch.arange(36.0).reshape(1, 1, 6, 6).expand(200, 1, 6, 6)
    found, _ = NAMES["random_crop"]((pixels, torch.zeros(200)), context(), size=5)
    assert {tuple(crop.ravel().tolist()) for crop in found} == {
        tuple(pixels[0, 0, top : top + 5, left : left + 5].ravel().tolist()) for top in (0, 1) for left in (0, 1)
    }


def test_random_resized_crop_of_the_whole_is_resize():
    batch = torch.rand(3, 3, 8, 8), torch.zeros(3)
    found, _ = NAMES["random_resized_crop"](batch, context(), size=8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    torch.testing.assert_close(found, batch[0])
    small, _ = NAMES["random_resized_crop"](batch, context(), size=8, scale=(0.1, 0.2))
    assert small.std() < batch[0].std()


def test_color_jitter_keeps_pixels_from_0_to_1():
    mean, std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)
    pixels = torch.rand(8, 3, 4, 4)
    batch = (pixels - mean) / std, torch.zeros(8)
    found, _ = NAMES["color_jitter"](batch, context(mean=mean, std=std), brightness=0.9)
    ratio = ((found * std + mean) / pixels)[(found * std + mean) < 0.999]
    assert 0.05 < ratio.min() < ratio.max() < 2
    same, _ = NAMES["color_jitter"](batch, context(mean=mean, std=std))
    torch.testing.assert_close(same, batch[0])
    grey, _ = NAMES["color_jitter"]((pixels, batch[1]), context(3), saturation=1.0)
    assert (grey.std(1) / pixels.std(1)).min() < 0.7


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixed_targets_are_probabilities_that_cross_entropy_takes(name):
    _, targets = next(made(images(), [name]).train.epoch(1))
    assert targets.shape == (4, 2)
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    outputs = torch.zeros(4, 2, requires_grad=True)
    torch.nn.functional.cross_entropy(outputs, targets).backward()
    assert outputs.grad.abs().sum() > 0


def test_cutmix_shares_targets_by_area():
    inputs = torch.arange(4.0)[:, None, None, None].expand(4, 1, 10, 10)
    for seed in range(5):
        found, targets = NAMES["cutmix"]((inputs, torch.arange(4)), context(seed, num_classes=4))
        shares = torch.stack([(found == number).float().mean((1, 2, 3)) for number in range(4)], 1)
        torch.testing.assert_close(shares, targets)


def test_mixup_of_values_mixes_them():
    source = Source(images().inputs, np.linspace(0, 1, 40, dtype=np.float32))
    _, targets = next(made(source, [{"name": "mixup", "alpha": 5.0}]).train.epoch(1))
    assert (targets.shape, targets.dtype) == ((4, 1), torch.float32)


@pytest.mark.parametrize("name", ["resize", "center_crop", "random_crop", "random_resized_crop", "flip"])
def test_masks_move_with_their_images(name):
    pipeline_of = made(masks(), [named(name)], normalize="none").train
    for inputs, targets in pipeline_of.epoch(1):
        assert targets.dtype == torch.int64
        assert inputs.shape[2:] == targets.shape[1:]
        if name in ("center_crop", "random_crop", "flip"):
            inside = targets != VOID
            assert torch.equal((inputs[:, 0] > 0.5)[inside], targets.bool()[inside])
            assert torch.equal(inputs[:, 0] == 0, ~inside)


def test_shape_after_is_that_of_the_batches():
    assert shape_after(["flip", named("resize"), named("center_crop"), "mixup"], (3, 8, 9)) == (3, 4, 4)


def test_normalize_of_imagenet_takes_its_constants():
    data = made(images(), [], normalize="imagenet")
    assert data.input_mean.ravel().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert data.input_std.ravel().tolist() == pytest.approx([0.229, 0.224, 0.225])
    raw = next(data.val.epoch())[0] * data.input_std + data.input_mean
    assert raw.min() > 0.05
    with pytest.raises(
        DataError, match=r"data.normalize=imagenet: .* inputs of shape \(1, 8, 8\), expected colour images"
    ):
        made(images(channels=1), [], normalize="imagenet")


@pytest.mark.parametrize(
    ("transforms", "error", "message"),
    [
        (["flap"], DataError, r"data.transforms: got 'flap', which is unknown; did you mean flip\?"),
        ([{"size": 3}], DataError, "data.transforms: got None, which is unknown"),
        ([{"name": "resize", "sise": 3}], ConfigError, r"data.transforms.resize.sise: .* did you mean 'size'\?"),
        (["resize"], ConfigError, "data.transforms.resize: resize needs a value for 'size'"),
    ],
)
def test_transform_that_cannot_be_is_refused_before_there_is_data(transforms, error, message):
    with pytest.raises(error, match=message):
        ingredient.checks[0](Map({**DEFAULTS, "transforms": transforms}))


@pytest.mark.parametrize(
    ("source", "transforms", "message"),
    [
        (Source(np.ones((40, 3), np.float32), np.arange(40) % 2), ["flip"], r"got inputs of shape \(3,\) and the task"),
        (masks(), ["mixup"], "mixup mixes targets, but masks have a class for each pixel"),
        (images(), [{"name": "center_crop", "size": 9}], "data.transforms.center_crop.size: got 9, expected 1 to 8"),
    ],
)
def test_transform_that_does_not_fit_the_data_is_refused(source, transforms, message):
    with pytest.raises(DataError, match=message):
        made(source, transforms)


# torchvision


def test_transform_of_torchvision_without_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(MissingDependencyError, match=r"data.transforms=v2.Pad needs .*\[torchvision\]"):
        parse(["v2.Pad"])


class Noise:
    """A transform as torchvision's: called with an image, drawing from torch's global generator."""

    def __init__(self, sigma=1.0):
        self.sigma = sigma

    def __call__(self, image):
        return image + self.sigma * torch.randn(())


def test_transform_of_torchvision_draws_for_each_image_by_seed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", types.SimpleNamespace(Noise=Noise))
    before = torch.get_rng_state()
    data = made(images(), [{"name": "v2.Noise", "sigma": 2.0}])
    plain = next(made(images(), []).train.epoch(1))[0]
    found, again = (next(data.train.epoch(1))[0] - plain for _ in range(2))
    assert torch.equal(found, again)
    assert len(set(found.mean((1, 2, 3)).tolist())) == 4
    assert torch.equal(next(data.val.epoch())[0], next(made(images(), []).val.epoch())[0])
    assert torch.equal(torch.get_rng_state(), before)
    for name, message in (("v2.Nose", r"did you mean v2.Noise\?"), ("v2.MixUp", "use mixup")):
        with pytest.raises(DataError, match=message):
            parse([name])


def test_pipeline_without_steps_is_none():
    by = prepare(images(), DEFAULTS, 0).preparation
    assert make_pipeline(["flip"], by, CPU, training=False) is None
