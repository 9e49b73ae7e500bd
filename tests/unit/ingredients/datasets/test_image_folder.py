"""Images in folders, one folder per class."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from sacristan.ingredients import DataError
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.preparation import fingerprint, prepare
from sacristan.ingredients.datasets.samples import statistics
from sacristan.ingredients.datasets.sources import load_source, survey
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def grey(seed=0, height=6, width=8):
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def colour(seed=0, height=6, width=8):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def animals(tmp_path):
    """A folder with two classes of three grey images each."""
    for number, name in enumerate(["cat", "cat", "cat", "dog", "dog", "dog"]):
        write_image(tmp_path / "animals" / name / f"{number}.png", grey(number))
    return tmp_path / "animals"


def read(folder, image_size=None):
    return load_source("image_folder", str(folder), image_size=image_size)


def test_class_folders_become_labels_in_order_of_name(animals):
    source = read(animals)
    assert source.classes == ("cat", "dog")
    assert source.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.part is None


def test_grey_images_have_one_channel_in_0_to_1(animals):
    values, label = read(animals).inputs[4]
    assert values.shape == (1, 6, 8)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values[0], grey(4) / 255, rtol=1e-6)
    assert label == 1


def test_colour_images_have_channels_first(tmp_path):
    write_image(tmp_path / "a" / "0.png", colour())
    values, _ = read(tmp_path).inputs[0]
    np.testing.assert_allclose(values, np.moveaxis(colour(), -1, 0) / 255, rtol=1e-6)


def test_grey_among_colour_images_gets_three_channels(tmp_path):
    write_image(tmp_path / "a" / "0.png", colour())
    write_image(tmp_path / "b" / "0.png", grey())
    values, _ = read(tmp_path).inputs[1]
    np.testing.assert_allclose(values, np.stack([grey() / 255] * 3), rtol=1e-6)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_images_keep_their_depth(suffix, tmp_path):
    pixels = (np.arange(48).reshape(6, 8) * 1000).astype(np.uint16)
    write_image(tmp_path / "a" / f"0.{suffix}", pixels)
    values, _ = read(tmp_path).inputs[0]
    np.testing.assert_allclose(values[0], pixels / 65535, rtol=1e-6)


def test_16_bit_among_8_bit_images_is_as_bright(tmp_path):
    write_image(tmp_path / "a" / "0.png", np.full((6, 8), 128, np.uint8))
    write_image(tmp_path / "b" / "0.png", np.full((6, 8), 128 * 257, np.uint16))
    images = read(tmp_path).inputs
    np.testing.assert_allclose(images[1][0], images[0][0], rtol=1e-6)


def test_16_bit_among_colour_images_gets_three_channels(tmp_path):
    write_image(tmp_path / "a" / "0.png", colour())
    write_image(tmp_path / "b" / "0.png", np.full((6, 8), 1000, np.uint16))
    np.testing.assert_allclose(read(tmp_path).inputs[1][0], np.full((3, 6, 8), 1000 / 65535), rtol=1e-6)


def test_files_of_every_depth_below_a_class_belong_to_it(animals):
    write_image(animals / "dog" / "more" / "deeper" / "9.bmp", grey(9))
    assert read(animals).targets.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_files_that_are_no_images_by_name_and_hidden_folders_are_passed_over(animals):
    (animals / "cat" / "notes.txt").write_text("a note")
    write_image(animals / ".thumbnails" / "0.png", grey())
    assert len(read(animals).targets) == 6


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("train", "val", "test"), [TRAIN, VAL, TEST]),
        (("train", "valid"), [TRAIN, VAL]),
        (("train", "test"), [TRAIN, TEST]),
    ],
)
def test_part_folders_become_parts(words, parts, tmp_path):
    for word in words:
        for name in ("cat", "dog"):
            write_image(tmp_path / word / name / "0.png", grey())
    source = read(tmp_path)
    assert source.classes == ("cat", "dog")
    assert source.part.tolist() == [part for part in parts for _ in range(2)]


def test_different_sizes_are_refused_with_the_setting(animals):
    write_image(animals / "dog" / "9.png", grey(9, height=7))
    with pytest.raises(DataError, match=r"0.png is \(8, 6\) and .*9.png is \(8, 7\) pixels; .*data.image_size=N"):
        read(animals)


def test_different_sizes_are_resized_with_image_size(animals):
    write_image(animals / "dog" / "9.png", grey(9, height=7))
    images = read(animals, image_size=5).inputs
    assert {images[index][0].shape for index in range(len(images))} == {(1, 5, 5)}


def test_image_size_of_zero_is_refused(animals):
    with pytest.raises(DataError, match=r"data.image_size: got 0, expected at least 1"):
        read(animals, image_size=0)


def test_file_that_is_no_image_is_refused_by_name(animals):
    (animals / "cat" / "0.png").write_text("no image")
    with pytest.raises(DataError, match=r"data.path: .*cat/0.png cannot be read as an image"):
        read(animals)


def test_truncated_image_is_refused_by_name(animals):
    path = animals / "cat" / "0.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"data.path: .*cat/0.png cannot be read as an image"):
        read(animals).inputs[0]


def test_image_of_floats_is_refused(tmp_path):
    write_image(tmp_path / "a" / "0.tiff", np.ones((4, 4), np.float32))
    with pytest.raises(
        DataError, match=r"0.tiff holds floating-point pixels, expected 8 or 16 bits; use data.name=npz"
    ):
        read(tmp_path)


def test_folder_without_images_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"data.path: .* has no images in it; expected files like CLASS/name.png"):
        read(tmp_path)


def test_file_in_place_of_the_folder_is_refused(animals):
    with pytest.raises(DataError, match=r"data.path: .*0.png is a file, expected a folder"):
        read(animals / "cat" / "0.png")


def test_fingerprint_is_that_of_the_content(animals, tmp_path):
    one = fingerprint(read(animals))
    animals.rename(tmp_path / "moved")
    assert fingerprint(read(tmp_path / "moved")) == one
    pixels = grey(0)
    pixels[2, 3] ^= 1
    write_image(tmp_path / "moved" / "cat" / "0.png", pixels)
    assert fingerprint(read(tmp_path / "moved")) != one


def test_fingerprint_notices_an_image_in_another_class(animals):
    one = fingerprint(read(animals))
    (animals / "cat" / "2.png").rename(animals / "dog" / "2.png")
    assert fingerprint(read(animals)) != one


# images for a model that is trained


def trained_on(folder, **config):
    """Return what the images of a folder were prepared by."""
    config = ingredient.configurations[0]() | {"name": "image_folder"} | config
    return prepare(read(folder, config["image_size"]), config, 0).preparation


def unlabelled(folder, trained, image_size=None):
    return load_source("image_folder", str(folder), image_size=image_size, trained=trained, needs_targets=False)


def test_images_have_the_names_of_their_files(animals):
    assert read(animals).names[:2] == ("cat/0.png", "cat/1.png")


@pytest.mark.parametrize("names", [["1.png", "0.png"], ["a/1.png", "a/b/0.png"], ["cat/0.png", "2.png"]])
def test_images_without_classes_are_read_where_none_are_needed(animals, tmp_path, names):
    for number, name in enumerate(names):
        write_image(tmp_path / "new" / name, grey(number))
    source = unlabelled(tmp_path / "new", trained_on(animals))
    assert (source.targets, source.classes, source.names) == (None, None, tuple(sorted(names)))
    assert source.inputs[0][0].shape == (1, 6, 8)


def test_folders_that_are_called_like_classes_are_classes_though_none_are_needed(animals, tmp_path):
    for name in ("dog", "gnu"):
        write_image(tmp_path / "new" / name / "0.png", grey())
    source = unlabelled(tmp_path / "new", trained_on(animals))
    assert (source.classes, source.targets.tolist()) == (("dog", "gnu"), [0, 1])


def test_images_without_classes_are_refused_where_they_are_needed(animals, tmp_path):
    write_image(tmp_path / "new" / "0.png", grey())
    with pytest.raises(DataError, match=r"has no images in it; expected files like CLASS/name\.png"):
        load_source("image_folder", str(tmp_path / "new"), trained=trained_on(animals))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no images in it; expected some, such as name\.png"):
        unlabelled(tmp_path / "empty", trained_on(animals))


def test_images_have_the_size_and_channels_of_the_training(animals, tmp_path, caplog):
    trained = trained_on(animals, image_size=5)
    write_image(tmp_path / "new" / "0.png", colour(height=9))
    assert unlabelled(tmp_path / "new", trained).inputs[0][0].shape == (1, 5, 5)
    assert "0.png is in colour, but is read in grey, as the checkpoint was trained" in caplog.text
    for number, name in enumerate(["a", "b"] * 5):
        write_image(tmp_path / "coloured" / name / f"{number}.png", colour(number))
    trained = trained_on(tmp_path / "coloured")
    write_image(tmp_path / "new" / "0.png", grey())
    values, _ = unlabelled(tmp_path / "new", trained).inputs[0]
    np.testing.assert_allclose(values, np.stack([grey() / 255] * 3), rtol=1e-6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photo_is_turned_as_the_camera_was_held(orientation, tmp_path):
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(grey()).save(tmp_path / "a" / "0.png", exif=exif)
    upright = np.array(ImageOps.exif_transpose(Image.open(tmp_path / "a" / "0.png")))
    assert upright.shape == ((8, 6) if orientation >= 5 else (6, 8))
    source = read(tmp_path)
    np.testing.assert_allclose(source.inputs[0][0][0], upright / 255, rtol=1e-6)
    write_image(tmp_path / "a" / "1.png", upright)
    assert read(tmp_path).inputs[1][0].shape == read(tmp_path).inputs[0][0].shape


def test_image_that_is_too_large_to_decode_is_refused_by_name(animals, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(DataError, match=r"cat/0.png cannot be read as an image: Image size \(48 pixels\) exceeds"):
        read(animals)


def test_survey_lists_the_folders(animals):
    head, *rows = survey("image_folder", str(animals))
    assert head == ["folder", "images", "sizes"]
    assert [row[:2] for row in rows] == [["cat", 3], ["dog", 3]]


def test_statistics_are_float32_unless_exact_ones_are_wanted():
    inputs = np.array([[1.0], [3.0]])
    assert [value.dtype for value in statistics(inputs, np.arange(2))] == [np.float32] * 2
    assert [value.dtype for value in statistics(inputs, np.arange(2), exact=True)] == [np.float64] * 2
