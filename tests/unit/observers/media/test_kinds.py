"""Media that can be logged: kept as they were in the call, and rejected at once if they cannot be shown."""

import io
import json
import math

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sacristan.observers import Figure, Histogram, Image, MediaError, Table, Text, read_table
from sacristan.observers.media.arrays import png_size
from sacristan.observers.media.kinds import count_values

RNG = np.random.default_rng(0)


def pixels(content):
    assert (content.suffix, content.content_type) == (".png", "image/png")
    return np.array(PIL.Image.open(io.BytesIO(content.data)))


# Images


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (64, 3)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_image_of_bytes_is_read_back_by_pillow_bit_for_bit(size, channels):
    array = RNG.integers(0, 256, (*size, channels), dtype=np.uint8)
    content = Image(array).encode()
    assert np.array_equal(pixels(content).reshape(array.shape), array)
    assert content.meta == {"width": size[1], "height": size[0], "channels": channels}
    assert png_size(content.data) == size[::-1]


def test_image_has_its_channels_where_numpy_and_torch_have_them():
    array = RNG.integers(0, 256, (3, 5, 4), dtype=np.uint8)
    assert np.array_equal(pixels(Image(array).encode()), array)
    assert np.array_equal(pixels(Image(torch.from_numpy(array)).encode()), np.moveaxis(array, 0, -1))
    first = RNG.integers(0, 256, (3, 5, 7), dtype=np.uint8)
    assert np.array_equal(pixels(Image(first).encode()), np.moveaxis(first, 0, -1))
    last = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(pixels(Image(torch.from_numpy(last)).encode()), last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_image_of_floats_is_rounded_to_bytes(dtype):
    tensor = torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype, requires_grad=True)
    assert pixels(Image(tensor).encode()).tolist() == [[0, 128, 255]]


def test_image_of_bools_palettes_and_lists_is_taken():
    assert pixels(Image(np.array([[True, False]])).encode()).tolist() == [[255, 0]]
    assert pixels(Image([[0.0, 1.0]], "caption").encode()).tolist() == [[0, 255]]
    palette = PIL.Image.new("RGB", (2, 2), (255, 0, 0)).convert("P")
    assert pixels(Image(palette).encode())[0, 0].tolist() == [255, 0, 0, 255]
    assert Image([[0.0]], "caption").encode().meta["caption"] == "caption"


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, [255, 255, 255, 255]),
        ("L", 7, 7),
        ("LA", (9, 128), [9, 9, 9, 128]),
        ("La", (64, 128), [127, 127, 127, 128]),
        ("RGB", (10, 20, 30), [10, 20, 30]),
        ("RGBA", (10, 20, 30, 40), [10, 20, 30, 40]),
        ("RGBX", (10, 20, 30, 40), [10, 20, 30, 255]),
        ("RGBa", (10, 20, 30, 128), [19, 39, 59, 128]),
        ("CMYK", (255, 0, 0, 0), [0, 255, 255, 255]),
        ("YCbCr", (255, 128, 128), [255, 255, 255, 255]),
        ("HSV", (85, 255, 255), [0, 255, 0, 255]),
        ("LAB", (255, 128, 128), [255, 255, 255, 255]),
        ("I;16", 65535, 255),
        ("I;16", 1000, 4),
        ("I;16L", 32896, 128),
        ("I;16B", 32896, 128),
        ("I;16N", 257, 1),
        ("F", 0.5, 128),
    ],
)
def test_image_of_pillow_shows_the_values_of_its_mode(mode, value, expected):
    image = PIL.Image.new(mode, (3, 2), value)
    shown = pixels(Image(image).encode())
    assert shown.shape[:2] == (2, 3)
    np.testing.assert_allclose(shown[1, 2].astype(int), expected, atol=3 if mode == "LAB" else 0)


@pytest.mark.parametrize(("mode", "message"), [("I", "type int32, expected uint8"), ("F", "floats from 1000 to 1000")])
def test_image_of_pillow_without_a_range_is_refused(mode, message):
    with pytest.raises(MediaError, match=message):
        Image(PIL.Image.new(mode, (3, 2), 1000))


def test_caption_is_the_text_when_it_was_given():
    words = ["one"]
    image = Image([[0.0]], words)
    words.append("two")
    assert image.caption == image.encode().meta["caption"] == "['one']"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 5, 7)), r"shape \(2, 5, 7\), expected \(H, W\)"),
        (np.zeros((8, 1, 5, 7)), "images of a batch one by one"),
        (np.zeros((0, 5)), r"shape \(0, 5\)"),
        (np.full((5, 7), 300), "type int64, expected uint8"),
        (np.zeros((5, 7), complex), "type complex128"),
        (np.linspace(-2, 3, 6).reshape(2, 3), "floats from -2 to 3, expected 0 to 1; undo the normalization"),
        (np.array([[0.5, math.nan]]), "floats from nan to nan"),
        (torch.full((2, 2), 255.0), "floats from 255 to 255"),
        ([[0.0], [0.0, 1.0]], "got a list that is no array"),
        ("cat.png", "cat.png cannot be read"),
        (np.ma.array([[0.5, 1e9]], mask=[[0, 1]]), r"some values are masked; fill them, such as by x.filled\(0\)"),
        ([np.ma.array([0, 7], np.uint8, mask=[0, 1])], "some values are masked"),
        (np.ma.array([[0.0, 7.0]]), "floats from 0 to 7"),
    ],
)
def test_image_that_cannot_be_shown_is_refused_at_once(array, message):
    with pytest.raises(MediaError, match=message):
        Image(array)


def test_media_are_those_of_the_moment_they_were_made():
    array, tensor = np.zeros((2, 2)), torch.zeros(2, 2)
    made = [Image(array), Image(tensor), Histogram(array), Table(["x"], [[Image(array)], [np.zeros(())]])]
    before = [media.encode() for media in made]
    array += 1
    tensor += 1
    assert [media.encode() for media in made] == before


# Figures


def test_figure_of_matplotlib_is_rendered_at_once():
    figure_module = pytest.importorskip("matplotlib.figure")
    figure = figure_module.Figure(figsize=(2, 1), dpi=50)
    figure.subplots().plot([1, 2])
    content = Figure(figure, "a line").encode()
    figure.clear()
    assert pixels(content).shape[:2] == (50, 100)
    assert content.meta == {"width": 100, "height": 50, "caption": "a line"}
    assert Figure(figure, dpi=100).encode().meta["width"] == 200


def test_figure_of_something_else_is_refused():
    with pytest.raises(MediaError, match="got a dict, expected a figure of matplotlib"):
        Figure({"data": []})

    class Odd:
        def savefig(self, stream, format):
            stream.write(b"%PDF-1.4 and more than 24 bytes of it")

    with pytest.raises(MediaError, match="savefig of Odd: got data that begin with b'%PDF"):
        Figure(Odd())


# Histograms


def test_histogram_counts_what_is_no_number_apart():
    content = Histogram(torch.tensor([[1.0, 2.0, math.nan], [math.inf, -math.inf, 4.0]]), bins=3).encode()
    made = json.loads(content.data)
    assert made["counts"] == [1, 1, 1]
    assert made["edges"] == [1, 2, 3, 4]
    assert {key: made[key] for key in ("num", "min", "max", "nan", "inf", "-inf")} == {
        "num": 3,
        "min": 1.0,
        "max": 4.0,
        "nan": 1,
        "inf": 1,
        "-inf": 1,
    }
    assert made["mean"] == pytest.approx(7 / 3)
    assert content.meta == {"num": 3, "bins": 3}


@settings(deadline=None)
@example([1.0, -5e-324], 1)
@example([-1.7976931348623157e308, 1.7976931348623157e308], 7)
@example([1.7976931348623157e308] * 3, 1)
@example([1.0000000000000002e300, -2.225073858507203e-309], 1)
@example([1e16, 1e16 + 2], 200)
@given(st.lists(st.floats(), max_size=30), st.integers(1, 200))
def test_histogram_of_any_floats_holds_each_between_rising_edges(values, bins):
    made = count_values(np.array(values, np.float64), bins)
    finite = [value for value in values if math.isfinite(value)]
    assert sum(made["counts"]) == made["num"] == len(finite)
    assert made["num"] + made["nan"] + made["inf"] + made["-inf"] == len(values)
    assert all(np.diff(np.array(made["edges"]) / 2) > 0)
    if finite:
        assert made["edges"][0] <= min(finite) == made["min"]
        assert made["edges"][-1] >= max(finite) == made["max"]
        assert math.isfinite(made["mean"])
    json.dumps(made, allow_nan=False)


def test_histogram_leaves_out_masked_values():
    counted = json.loads(Histogram(np.ma.array([1, 2, 10**9], mask=[0, 0, 1])).encode().data)
    assert (counted["num"], counted["max"]) == (2, 2.0)


def test_table_shows_missing_cells_as_none(tmp_path):
    import pandas

    row = [np.ma.masked, np.ma.array(3.0, mask=True), pandas.NA, pandas.NaT, np.ma.array(2)]
    assert json.loads(Table("abcde", [row]).encode().data)["rows"] == [[None, None, None, None, 2]]


def test_histogram_from_counts_is_kept():
    made = json.loads(Histogram.from_counts([0, 3, 1], [0, 1, 2, 4]).encode().data)
    assert (made["counts"], made["edges"], made["num"]) == ([0, 3, 1], [0, 1, 2, 4], 4)
    assert (made["min"], made["max"], made["mean"]) == (1, 4, 1.875)
    assert json.loads(Histogram.from_counts([0], [0, 1]).encode().data)["mean"] is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Histogram(["a"]), "type str"),
        (lambda: Histogram(np.zeros(3, complex)), "type complex128"),
        (lambda: Histogram([1], bins=0), "got bins=0"),
        (lambda: Histogram([1], bins=[0, 1]), r"got bins=\[0, 1\]"),
        (lambda: Histogram.from_counts([1], [1, 0]), r"counts of shape \(1,\) and edges of shape \(2,\)"),
        (lambda: Histogram.from_counts([1], [0, 1, 2]), r"expected n counts"),
        (lambda: Histogram.from_counts([-1], [0, 1]), "negative, NaN or infinite"),
    ],
)
def test_histogram_of_no_numbers_is_refused(make, message):
    with pytest.raises(MediaError, match=message):
        make()


# Texts and tables


def test_text_is_kept_as_utf8():
    content = Text("grüße\n").encode()
    assert content.data.decode() == "grüße\n"
    assert content.suffix == ".txt"
    assert Text("\ud800").encode().data == b"?"
    with pytest.raises(MediaError, match="got a int, expected a str"):
        Text(5)


def test_table_reads_back_the_same(tmp_path):
    image = Image(np.zeros((2, 2)), "black")
    rows = [
        [1, 2.5, "text", None, image],
        [2**70, math.inf, "nan", True, image],
        [np.float32(0.5), -math.inf, "", False, None],
        [torch.tensor(3), np.int64(7), "ü", torch.tensor(0.25, dtype=torch.bfloat16), None],
    ]
    content = Table(["a", "b", "c", "d", "e"], rows).encode()
    (tmp_path / "media").mkdir()
    path = tmp_path / "media" / content.file
    path.write_bytes(content.data)
    json.loads(content.data, parse_constant=pytest.fail)
    columns, found = read_table(path)
    assert columns == ["a", "b", "c", "d", "e"]
    stored = tmp_path / "media" / content.images[0].file
    assert len(content.images) == 1
    assert found == [
        [1, 2.5, "text", None, stored],
        [2**70, math.inf, "nan", True, stored],
        [0.5, -math.inf, "", False, None],
        [3, 7, "ü", 0.25, None],
    ]
    nan = Table(["x"], [[math.nan]]).encode()
    path.write_bytes(nan.data)
    assert math.isnan(read_table(path)[1][0][0])
    assert content.meta == {"columns": ["a", "b", "c", "d", "e"], "num_rows": 4}


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ([], [], "expected at least one"),
        (["a", "a"], [], "each name once"),
        (["a", "b"], [[1, 2], [1]], "row 1 has 1 cells, expected 2, one for each of a, b"),
        (["a"], [[1, 2]], "row 0 has 2 cells"),
        (["a"], [[object()]], "row 0, column 'a': got a object, expected a number"),
        (["a"], [[np.zeros((2, 2))]], r"got a ndarray, .*; write Image\(array\)"),
        (["a"], [[1j]], "got a complex"),
    ],
)
def test_table_that_does_not_fit_is_refused(columns, rows, message):
    with pytest.raises(MediaError, match=message):
        Table(columns, rows)


@pytest.mark.parametrize("name", ["../../etc/passwd", "media/../run.json", "x.png", 5])
def test_image_of_a_table_that_leads_elsewhere_is_refused(tmp_path, name):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"columns": ["x"], "rows": [[{"$image": name}]]}))
    with pytest.raises(ValueError, match=r"expected media/SHA256\.SUFFIX"):
        read_table(path)
