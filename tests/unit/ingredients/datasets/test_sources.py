"""Bundled data and data in files; and what is refused."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from sacristan.configs.packages import install_command
from sacristan.ingredients import DataError, MissingDependencyError
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.preparation import prepare
from sacristan.ingredients.datasets.samples import as_floats
from sacristan.ingredients.datasets.sources import BUNDLED, load_source, read_digits
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL


def arrays(count=6, features=3):
    return np.arange(count * features, dtype=np.float64).reshape(count, features), np.arange(count) % 2


def write_csv(folder, *lines):
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_npz(folder, **contents):
    np.savez(folder / "data.npz", **contents)
    return str(folder / "data.npz")


def idx_bytes(values):
    """Return `values` in the IDX format, as http://yann.lecun.com/exdb/mnist describes it."""
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[values.dtype.str[1:]]
    header = bytes([0, 0, code, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write_idx(folder, prefix, count, *, packed=False, labels=True):
    images = (np.arange(count * 20) % 256).astype(np.uint8).reshape(count, 4, 5)
    files = {f"{prefix}-images-idx3-ubyte": images}
    if labels:
        files[f"{prefix}-labels-idx1-ubyte"] = (np.arange(count) % 3).astype(np.uint8)
    for name, values in files.items():
        content = idx_bytes(values)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return images


# bundled


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [("digits", (1797, 1, 8, 8), 10), ("breast_cancer", (569, 30), 2), ("wine", (178, 13), 3)],
)
def test_bundled_classification_has_samples_and_named_classes(name, shape, num_classes):
    source = load_source(name)
    assert source.inputs.shape == shape
    assert source.inputs.dtype == np.float32
    assert len(source.classes) == num_classes
    assert set(source.targets) == set(range(num_classes))


def test_bundled_digits_lie_between_0_and_1():
    digits = load_source("digits").inputs
    assert (digits.min(), digits.max()) == (0, 1)


def test_bundled_diabetes_has_numbers_as_targets():
    source = load_source("diabetes")
    assert source.inputs.shape == (442, 10)
    assert source.targets.dtype.kind == "f"
    assert source.classes is None
    assert source.features[:3] == ("age", "sex", "bmi")


def test_bundled_class_names_are_those_of_the_set():
    assert load_source("breast_cancer").classes == ("malignant", "benign")


@pytest.mark.parametrize("is_there", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_it_keeps_them(is_there, monkeypatch):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    if not is_there:
        monkeypatch.setattr(Path, "is_file", lambda path: False)
    images, labels = read_digits()
    assert (images.dtype, labels.dtype) == (bunch.images.dtype, bunch.target.dtype)
    assert np.array_equal(images, bunch.images)
    assert np.array_equal(labels, bunch.target)


def test_what_is_done_to_a_bundled_data_set_is_nobody_elses():
    first = load_source("digits")
    first.inputs[:] = first.targets[:] = 0
    assert load_source("digits").inputs.any()
    assert load_source("digits").targets.any()


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sources_leave_the_split_to_the_lab(name):
    assert load_source(name).part is None


# names and paths


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("digitz", "did you mean digits"),
        ("image_folders", "did you mean image_folder"),
        ("qqqq", "there are: digits, breast_cancer, wine, diabetes, npz, csv"),
        ("", "there are: digits"),
        (":factory", "did you mean package.module:factory"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name, hint):
    with pytest.raises(DataError, match=f"data.name: got '{name}', which is unknown; {hint}"):
        load_source(name)


@pytest.mark.parametrize("name", ["table.csv", "folder/table.csv", "arrays.npz"])
def test_file_as_name_is_refused_with_the_settings_to_write(name):
    with pytest.raises(DataError, match=rf"write data.path={name}"):
        load_source(name)


@pytest.mark.parametrize("name", ["npz", "csv", "idx", "image_folder"])
def test_file_without_path_is_refused(name):
    with pytest.raises(DataError, match=f"data.path: got None, but data.name={name} reads from a path"):
        load_source(name)


@pytest.mark.parametrize("name", ["npz", "csv", "idx", "image_folder"])
def test_missing_file_is_refused_by_its_path(name, tmp_path):
    with pytest.raises(DataError, match=r"data.path: there is no '.*gone' .*check the path"):
        load_source(name, str(tmp_path / "gone"))


def test_path_in_the_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_csv(tmp_path, "a,y", "1,0", "2,1")
    assert len(load_source("csv", "~/table.csv").targets) == 2


def test_torchvision_without_the_package_names_the_extra():
    with pytest.raises(
        MissingDependencyError, match=f"torchvision:MNIST needs .* {re.escape(install_command('torchvision'))}"
    ):
        load_source("torchvision:MNIST")


# npz


@pytest.mark.parametrize(
    "names", [("x", "y"), ("X", "y"), ("inputs", "targets"), ("data", "target"), ("images", "labels")]
)
def test_npz_is_read_by_usual_names(names, tmp_path):
    inputs, targets = arrays()
    source = load_source("npz", write_npz(tmp_path, **dict(zip(names, (inputs, targets), strict=True))))
    np.testing.assert_array_equal(source.inputs, inputs)
    np.testing.assert_array_equal(source.targets, targets)
    assert source.part is None


def test_npz_with_parts_keeps_them(tmp_path):
    (x, y), (x2, y2), (x3, y3) = arrays(5), arrays(3), arrays(2)
    path = write_npz(tmp_path, x_train=x, y_train=y, x_val=x2, y_val=y2, x_test=x3, y_test=y3)
    source = load_source("npz", path)
    assert source.part.tolist() == [TRAIN] * 5 + [VAL] * 3 + [TEST] * 2
    np.testing.assert_array_equal(source.inputs[source.part == TEST], x3)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((6, 4, 5), np.uint8, (6, 1, 4, 5)),
        ((6, 8, 9, 3), np.uint8, (6, 3, 8, 9)),
        ((6, 3, 8, 9), np.uint8, (6, 3, 8, 9)),
        ((6, 8, 9, 1), np.float32, (6, 1, 8, 9)),
        ((6, 4, 5), np.float64, (6, 4, 5)),
        ((6,), np.int64, (6, 1)),
    ],
)
def test_npz_inputs_become_float_samples_with_channels_first(shape, dtype, expected, tmp_path):
    source = load_source("npz", write_npz(tmp_path, x=np.ones(shape, dtype), y=np.arange(6)))
    assert source.inputs.shape == expected
    assert source.inputs.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    assert source.dtype == "float32"


def test_npz_bytes_of_images_become_0_to_1(tmp_path):
    images = np.arange(0, 256, 5, dtype=np.uint8)[:48].reshape(3, 4, 4)
    source = load_source("npz", write_npz(tmp_path, x=images, y=np.arange(3)))
    np.testing.assert_allclose(as_floats(source.inputs)[:, 0], images / 255, rtol=1e-6)


def test_npz_bytes_of_a_table_keep_their_values(tmp_path):
    source = load_source("npz", write_npz(tmp_path, x=np.full((3, 2), 200, np.uint8), y=np.arange(3)))
    assert source.inputs.max() == 200


def test_npz_channels_last_keeps_every_pixel(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 7, 3), dtype=np.uint8)
    source = load_source("npz", write_npz(tmp_path, x=images, y=np.arange(2)))
    np.testing.assert_allclose(as_floats(source.inputs)[1, 2, 4, 5], images[1, 4, 5, 2] / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a": [1], "b": [2]}, "holds a, b; expected x and y, or x_train"),
        ({}, "holds no arrays; expected x and y"),
        ({"x": [[1], [2], [3]], "y": [1, 2]}, "got 3 inputs and 2 targets, expected as many of each"),
        ({"x": 1.0, "y": 2}, "got a single number, expected arrays with one row per sample"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "got inputs of type <U1, expected numbers; encode text as numbers"),
        (
            {"x_train": np.ones((2, 3)), "y_train": [0, 1], "x_test": np.ones((2, 4)), "y_test": [0, 1]},
            r"the parts have inputs of different shapes \[\(3,\), \(4,\)\], expected one shape",
        ),
        ({"x": np.array([{}, {}], object), "y": [0, 1]}, "cannot be read as .npz: Object arrays cannot be loaded"),
    ],
)
def test_npz_that_does_not_fit_is_refused(contents, message, tmp_path):
    with pytest.raises(DataError, match=f"data.path: .*data.npz:? {message}"):
        load_source("npz", write_npz(tmp_path, **contents))


def test_npz_that_is_none_is_refused(tmp_path):
    (tmp_path / "data.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"data.npz cannot be read as .npz"):
        load_source("npz", str(tmp_path / "data.npz"))


# csv


def test_csv_last_column_is_the_target(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a,b,y", "1,2,0", "3,4,1"))
    assert source.inputs.tolist() == [[1, 2], [3, 4]]
    assert source.targets.tolist() == [0, 1]
    assert source.features == ("a", "b")


def test_csv_target_by_name_leaves_the_other_columns(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a,b,y", "1,2,0", "3,4,1"), "a")
    assert source.features == ("b", "y")
    assert source.targets.tolist() == [1, 3]


def test_csv_several_targets_become_a_matrix(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a,u,v", "1,2,0.5", "3,4,1.5"), ["v", "u"])
    assert source.targets.tolist() == [[0.5, 2], [1.5, 4]]
    assert source.features == ("a",)


def test_csv_targets_of_bools_and_ints_become_numbers(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a,u,v", "1,True,0", "3,False,1"), ["u", "v"])
    assert source.targets.tolist() == [[1, 0], [0, 1]]


def test_csv_text_labels_stay_text(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a, y", "1, Käse", "2, Brot"))
    assert source.targets.tolist() == ["Käse", "Brot"]


def test_csv_missing_inputs_are_read_as_nan(tmp_path):
    source = load_source("csv", write_csv(tmp_path, "a,b,y", "1,,0", "3,4,1"))
    assert np.isnan(source.inputs).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("lines", "target", "message"),
    [
        (
            ["a,name,town,y", "1,Ada,Rom,0", "2,Bob,Bern,1"],
            None,
            "data.path=.*: has text in the columns name, town; read",
        ),
        (["a,y", "1,0", "2,", "3,"], None, r"data.target: .* lacks 2 values of \['y'\]; remove those rows"),
        (["a,price,y", "1,2,3"], "prize", "data.target: .* has no column 'prize'; did you mean 'price'"),
        (["a,price,y", "1,2,3"], "zz", "data.target: .* has no column 'zz'; there are: a, price, y"),
        (["a,price,y", "1,2,3"], ["y", "prices"], "no column 'prices'; did you mean 'price'"),
        (["a;y", "1;2"], None, r"data.path: .* has one column, 'a;y'; write 'data\.csv\.sep=;'"),
        (["a", "1"], None, "data.path: .* has 1 columns, expected inputs and a target, separated by commas or by"),
        (["a,b,y"], None, "data.path: .* has a header but no rows; expected one row per sample"),
        ([""], None, "data.path: .* cannot be read as CSV: No columns"),
        (["a,y", "1,2", "1,2,3,4"], None, "data.path: .* cannot be read as CSV: .*line 3"),
    ],
)
def test_csv_that_does_not_fit_is_refused(lines, target, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_source("csv", write_csv(tmp_path, *lines), target)


# idx


@pytest.mark.parametrize("packed", [False, True])
def test_idx_reads_both_parts(packed, tmp_path):
    images = write_idx(tmp_path, "train", 7, packed=packed)
    write_idx(tmp_path, "t10k", 4, packed=packed)
    source = load_source("idx", str(tmp_path))
    assert source.inputs.shape == (11, 1, 4, 5)
    np.testing.assert_allclose(as_floats(source.inputs)[source.part == TRAIN, 0], images / 255, rtol=1e-6)
    assert source.part.tolist().count(TEST) == 4
    assert source.targets[source.part == TRAIN].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_idx_takes_a_file_for_its_folder(tmp_path):
    write_idx(tmp_path, "train", 7)
    assert len(load_source("idx", str(tmp_path / "train-images-idx3-ubyte")).targets) == 7


def test_idx_unpacked_beside_packed_is_read_once(tmp_path):
    write_idx(tmp_path, "train", 7)
    write_idx(tmp_path, "train", 7, packed=True)
    assert len(load_source("idx", str(tmp_path)).targets) == 7


@pytest.mark.parametrize("packed", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_idx_mixes_packed_and_plain_files(packed, tmp_path):
    write_idx(tmp_path, "train", 7)
    (tmp_path / f"{packed}.gz").write_bytes(gzip.compress((tmp_path / packed).read_bytes()))
    (tmp_path / packed).unlink()
    source = load_source("idx", str(tmp_path))
    assert (source.inputs.shape, source.targets.tolist()) == ((7, 1, 4, 5), [0, 1, 2, 0, 1, 2, 0])


def test_idx_parts_of_emnist_are_told_apart(tmp_path):
    write_idx(tmp_path, "emnist-digits-train", 7)
    write_idx(tmp_path, "emnist-digits-test", 4)
    assert sorted(load_source("idx", str(tmp_path)).part.tolist()) == [TRAIN] * 7 + [TEST] * 4


def test_idx_of_no_known_part_leaves_the_split_to_the_lab(tmp_path):
    write_idx(tmp_path, "all", 7)
    assert load_source("idx", str(tmp_path)).part is None


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_idx_types_of_the_format_are_read(dtype, tmp_path):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(values))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 1], dtype)))
    source = load_source("idx", str(tmp_path))
    assert source.targets.dtype == dtype
    assert as_floats(source.inputs).ravel()[-1] == (np.float32(23) / np.float32(255) if dtype == "u1" else 23)


def test_idx_without_labels_is_refused(tmp_path):
    write_idx(tmp_path, "train", 7, labels=False)
    with pytest.raises(DataError, match="has no labels beside it; expected train-labels-idx1-ubyte"):
        load_source("idx", str(tmp_path))


def test_idx_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data.path: .* has no files like train-images-idx3-ubyte\(.gz\)"):
        load_source("idx", str(tmp_path))


@pytest.mark.parametrize("size", [5, 15, 60, -1])
def test_idx_truncated_file_is_refused_with_its_size(size, tmp_path):
    write_idx(tmp_path, "train", 7)
    path = tmp_path / "train-images-idx3-ubyte"
    content = path.read_bytes()[:size]
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"has {len(content)} bytes, expected .* by its header; download it again"):
        load_source("idx", str(tmp_path))


@pytest.mark.parametrize("start", [b"", b"\x89PNG", b"\0\0\x07\x03", b"\0\x01\x08\x03"])
def test_idx_wrong_magic_is_refused(start, tmp_path):
    write_idx(tmp_path, "train", 7)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(start + path.read_bytes()[4:] if start else b"")
    with pytest.raises(DataError, match="is not in the IDX format; expected two zero bytes"):
        load_source("idx", str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "header", "stream"])
def test_idx_damaged_gz_is_refused(damage, tmp_path):
    write_idx(tmp_path, "train", 7, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-9], "header": b"xx" + content, "stream": content[:10] + b"\xff" * 40}[damage])
    with pytest.raises(DataError, match=r"data.path: .*idx3-ubyte.gz cannot be read: .*; download it again"):
        load_source("idx", str(tmp_path))


# files for a model that is trained


def trained_on(path, target=None):
    """Return what the data of a table were prepared by."""
    return prepare(load_source("csv", path, target), ingredient.configurations[0](), 0).preparation


@pytest.fixture
def trained(tmp_path):
    rows = [f"{n},{n % 3},{n * n},{'no' if n % 2 else 'yes'}" for n in range(20)]
    return trained_on(write_csv(tmp_path, "a,b,c,healthy", *rows))


def test_csv_without_targets_is_read_where_none_are_needed(tmp_path, trained):
    path = write_csv(tmp_path, "c,a,b", "1,2,3", "4,5,6")
    source = load_source("csv", path, trained=trained, needs_targets=False)
    assert source.targets is None
    assert source.features == ("a", "b", "c")
    assert source.inputs.tolist() == [[2, 3, 1], [5, 6, 4]]


@pytest.mark.parametrize("target", [None, "healthy"])
def test_csv_has_the_target_of_the_training_wherever_its_column_is(tmp_path, trained, target):
    path = write_csv(tmp_path, "healthy,b,c,a", "yes,1,2,3", "no,4,5,6")
    for needed in (True, False):
        source = load_source("csv", path, target, trained=trained, needs_targets=needed)
        assert source.targets.tolist() == ["yes", "no"]
        assert source.inputs.tolist() == [[3, 1, 2], [6, 4, 5]]


def test_csv_may_call_its_target_otherwise_than_the_training(tmp_path, trained):
    path = write_csv(tmp_path, "a,b,c,well", "1,2,3,yes", "4,5,6,no")
    source = load_source("csv", path, "well", trained=trained)
    assert (source.targets.tolist(), source.target_names) == (["yes", "no"], ("well",))


def test_csv_with_gaps_in_its_targets_is_read_where_none_are_needed(tmp_path, trained):
    path = write_csv(tmp_path, "a,b,c,healthy", "1,2,3,yes", "4,5,6,")
    targets = load_source("csv", path, trained=trained, needs_targets=False).targets
    assert targets[0] == "yes"
    assert targets[1] != targets[1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b,healthy", "1,2,yes"], "the columns are not those .*; missing: c; rename, add or remove them"),
        (["name,a,b,c,healthy", "Jo,1,2,3,yes"], "the columns are not those .*; unknown: name; rename, add or rem"),
        (["a,b,c,helthy", "1,2,3,yes"], "data.target: .* has no column 'healthy'; did you mean 'helthy'"),
    ],
)
def test_csv_of_other_columns_is_refused(tmp_path, trained, lines, message):
    with pytest.raises(DataError, match=message):
        load_source("csv", write_csv(tmp_path, *lines), trained=trained)


def test_csv_of_several_targets_has_them_in_the_order_of_the_training(tmp_path):
    rows = [f"{n},{n / 2},{n / 3}" for n in range(20)]
    trained = trained_on(write_csv(tmp_path, "a,u,v", *rows), ["v", "u"])
    path = write_csv(tmp_path, "u,a,v", "0.5,1,1.5")
    assert load_source("csv", path, ["u", "v"], trained=trained).targets.tolist() == [[1.5, 0.5]]
    alone = load_source("csv", write_csv(tmp_path, "u,a", "0.5,1"), trained=trained, needs_targets=False)
    assert (alone.targets, alone.inputs.tolist()) == (None, [[1]])


@pytest.mark.parametrize(("header", "has_targets"), [("x,y,z", False), ("x,y,z,w", True)])
def test_csv_for_a_model_whose_columns_have_no_names_has_a_target_if_it_has_a_column_more(
    tmp_path, header, has_targets
):
    arrays = {"x": np.random.rand(20, 3), "y": np.arange(20) % 2}
    trained = prepare(load_source("npz", write_npz(tmp_path, **arrays)), ingredient.configurations[0](), 0).preparation
    path = write_csv(tmp_path, header, ",".join("1234"[: len(header.split(","))]))
    source = load_source("csv", path, trained=trained, needs_targets=False)
    assert (source.inputs.shape, source.targets is not None) == ((1, 3), has_targets)


def test_npz_without_targets_is_read_where_none_are_needed(tmp_path):
    x, y = np.ones((4, 2)), np.arange(4)
    path = write_npz(tmp_path, x=x)
    assert load_source("npz", path, needs_targets=False).targets is None
    with pytest.raises(DataError, match="holds x; expected x and y, or x_train, y_train, x_test, y_test"):
        load_source("npz", path)
    source = load_source("npz", write_npz(tmp_path, x_train=x, y_train=y, x_test=x[:3]), needs_targets=False)
    assert (source.targets, source.part.tolist()) == (None, [TEST] * 3)
    assert load_source("npz", write_npz(tmp_path, x=x, y=y), needs_targets=False).targets.tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="holds z; expected x, or x_test"):
        load_source("npz", write_npz(tmp_path, z=x), needs_targets=False)


def test_idx_without_labels_is_read_where_none_are_needed(tmp_path):
    write_idx(tmp_path, "t10k", 3, labels=False)
    assert load_source("idx", str(tmp_path), needs_targets=False).targets is None
