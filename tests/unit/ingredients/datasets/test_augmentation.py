"""Seeded augmentation of image batches."""

import pytest
import torch

from sacristan.ingredients.datasets.transforms import _rotate, augment

NONE = {"flip": False, "crop": 0, "rotate": 0.0}
EACH = [{"flip": True}, {"crop": 3}, {"rotate": 25.0}, {"flip": True, "crop": 2, "rotate": 10.0}]


def images(count=8, channels=3, height=10, width=14, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(count, channels, height, width, generator=generator) + 0.5).to(dtype)


def augmented(batch, seed=0, **changes):
    return augment(batch, torch.Generator().manual_seed(seed), **{**NONE, **changes})


@pytest.mark.parametrize("changes", EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_augment_keeps_shape_and_type(changes, dtype):
    found = augmented(images(dtype=dtype), **changes)
    assert (found.shape, found.dtype) == (images().shape, dtype)


@pytest.mark.parametrize("changes", EACH)
def test_augment_depends_on_the_generator_alone(changes):
    one = augmented(images(), seed=3, **changes)
    torch.rand(5)
    assert torch.equal(augmented(images(), seed=3, **changes), one)
    assert not torch.equal(augmented(images(), seed=4, **changes), one)


@pytest.mark.parametrize("changes", EACH)
def test_augment_leaves_the_batch_it_was_given(changes):
    batch = images()
    augmented(batch, **changes)
    assert torch.equal(batch, images())


@pytest.mark.parametrize("changes", EACH)
def test_augment_changes_each_image_on_its_own(changes):
    batch = images(count=1).repeat(16, 1, 1, 1)
    found = augmented(batch, **changes)
    assert any(not torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("changes", EACH)
def test_augment_draws_the_same_for_every_type(changes):
    states = []
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        augment(images(dtype=dtype), generator, **{**NONE, **changes})
        states.append(generator.get_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("changes", EACH)
def test_augment_of_half_types_is_that_of_float32_rounded(changes):
    batch = images(dtype=torch.bfloat16)
    found, expected = augmented(batch, **changes), augmented(batch.float(), **changes)
    assert torch.equal(found, expected.bfloat16())


def test_augment_of_nothing_is_the_batch():
    batch = images()
    assert augmented(batch) is batch


def test_flip_mirrors_about_half_of_the_images_exactly():
    batch = images(count=200)
    found = augmented(batch, flip=True)
    mirrored = [torch.equal(after, before.flip(-1)) for before, after in zip(batch, found, strict=True)]
    kept = [torch.equal(after, before) for before, after in zip(batch, found, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 70 < sum(mirrored) < 130


def shifted(image, down, right):
    """Return (C, H, W) moved by whole pixels, with zeros where nothing was."""
    moved = torch.zeros_like(image)
    height, width = image.shape[1:]
    for row in range(max(0, down), min(height, height + down)):
        for column in range(max(0, right), min(width, width + right)):
            moved[:, row, column] = image[:, row - down, column - right]
    return moved


def test_crop_shifts_by_whole_pixels_with_zeros_outside():
    batch = images(count=40, height=6, width=9)
    places = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    seen = set()
    for before, after in zip(batch, augmented(batch, crop=2), strict=True):
        seen |= {place for place in places if torch.equal(after, shifted(before, *place))}
    assert len(seen) > 12
    assert {down for down, _ in seen} == {right for _, right in seen} == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("size", [(7, 7), (8, 8)])
@pytest.mark.parametrize("turns", [1, 2, 3, -1])
def test_rotate_by_quarter_turns_moves_whole_pixels(size, turns):
    batch = images(2, 3, *size)
    found = _rotate(batch, torch.full((2,), turns * torch.pi / 2))
    torch.testing.assert_close(found, torch.rot90(batch, turns, (-2, -1)), atol=1e-4, rtol=0)


def test_rotate_by_half_a_turn_of_images_that_are_not_square():
    batch = images()
    torch.testing.assert_close(_rotate(batch, torch.full((8,), torch.pi)), batch.flip(-1, -2), atol=1e-4, rtol=0)


def test_rotate_of_images_that_are_not_square_keeps_the_shape_of_things():
    batch = torch.zeros(1, 1, 21, 41)
    batch[0, 0, 10, 14:27] = 1  # a bar of 13 pixels through the centre
    found = _rotate(batch, torch.tensor([torch.pi / 2]))
    expected = torch.zeros_like(batch)
    expected[0, 0, 4:17, 20] = 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_rotate_by_nothing_is_the_image():
    torch.testing.assert_close(_rotate(images(), torch.zeros(8)), images(), atol=1e-5, rtol=0)


def test_rotate_stays_within_its_range():
    batch = torch.zeros(200, 1, 41, 41)
    batch[:, 0, 20, 36] = 1  # a dot 16 pixels to the right of the centre
    found = augmented(batch, rotate=30.0)[:, 0]
    rows = torch.arange(41.0) - 20
    down = (found.sum(2) * rows).sum(1) / found.sum((1, 2))
    right = (found.sum(1) * rows).sum(1) / found.sum((1, 2))
    angles = torch.rad2deg(torch.atan2(down, right))
    assert angles.abs().max() < 31
    assert angles.min() < -20
    assert angles.max() > 20


@pytest.mark.parametrize("changes", EACH)
def test_augment_of_one_pixel_and_one_image_works(changes):
    assert augmented(images(1, 1, 1, 1), **changes).shape == (1, 1, 1, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("changes", EACH)
def test_augment_on_cuda_is_that_on_the_cpu(changes):
    torch.testing.assert_close(augmented(images().cuda(), **changes).cpu(), augmented(images(), **changes))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("changes", EACH)
def test_augment_on_cuda_waits_for_nothing(changes):
    batch = images().cuda()
    augmented(batch, **changes)  # page-locked memory is taken once
    torch.cuda.set_sync_debug_mode("error")
    try:
        augmented(batch, **changes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
