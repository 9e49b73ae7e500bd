"""From a source to data that can be trained on: task, statistics, limit, fingerprint, and what is refused."""

import dataclasses

import numpy as np
import pytest

from sacristan.ingredients import DataError, Source
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.preparation import fingerprint, prepare, prepare_alike
from sacristan.ingredients.datasets.sources import describe, load_source
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL
from sacristan.ingredients.datasets.targets import resolve_task

DEFAULTS = ingredient.configurations[0]()


def prepared(source, seed=0, strict=True, **changes):
    return prepare(source, {**DEFAULTS, **changes}, seed, strict=strict)


def table(count=40, features=3, targets=None, columns=None, **options):
    inputs = np.random.default_rng(0).normal(5, 3, (count, features)).astype(np.float32)
    targets = np.arange(count) % 2 if targets is None else np.asarray(targets)
    return Source(inputs, targets, features=columns, **options)


def with_input(source, where, value):
    inputs = source.inputs.copy()
    inputs[where] = value
    return dataclasses.replace(source, inputs=inputs)


class Items:
    """The samples of an array, read one by one."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source.targets)

    def __getitem__(self, index):
        return self.source.inputs[index], self.source.targets[index]


def item_by_item(source):
    missing = np.array([np.count_nonzero(~np.isfinite(values)) for values in source.inputs])
    return dataclasses.replace(source, inputs=Items(source), digest="digest", missing=missing)


# task


@pytest.mark.parametrize(
    ("targets", "task"),
    [
        (np.array([0, 1, 2]), "classification"),
        (np.array(["a", "b", "a"]), "classification"),
        (np.array(["a", "b", "a"], object), "classification"),
        (np.array([True, False, True]), "classification"),
        (np.array([[0], [1], [1]]), "classification"),
        (np.array([0.5, 1.0, 2.0]), "regression"),
        (np.array([[0.5, 1.0], [2.0, 3.0]]), "regression"),
        (np.array([[0, 1], [1, 1]]), "multilabel"),
        (np.array([[True, False], [True, True]]), "multilabel"),
    ],
)
def test_task_auto_is_read_off_the_targets(targets, task):
    assert resolve_task(Source(None, targets), "auto", None)[0] == task


def test_task_named_goes_before_the_targets():
    task, targets, classes = resolve_task(Source(None, np.array([3, 1, 2])), "regression", None)
    assert (task, classes, targets.dtype) == ("regression", (), np.float32)
    assert targets.tolist() == [[3], [1], [2]]


def test_labels_of_text_are_numbered_in_order_of_name():
    _, labels, classes = resolve_task(Source(None, np.array(["dog", "cat", "dog"])), "auto", None)
    assert labels.tolist() == [1, 0, 1]
    assert classes == ("cat", "dog")


def test_labels_of_ints_are_numbered_in_order_and_keep_their_names():
    _, labels, classes = resolve_task(Source(None, np.array([7, 3, 7, 5])), "auto", None)
    assert labels.tolist() == [2, 0, 2, 1]
    assert classes == ("3", "5", "7")


def test_labels_with_num_classes_are_taken_as_they_are():
    _, labels, classes = resolve_task(Source(None, np.array([2, 0, 2])), "auto", 4)
    assert labels.tolist() == [2, 0, 2]
    assert classes == ("0", "1", "2", "3")


def test_labels_as_floats_without_fractions_are_labels_if_asked_for():
    _, labels, _ = resolve_task(Source(None, np.array([1.0, 0.0, 1.0])), "classification", None)
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0, 1]


def test_num_classes_beyond_the_named_ones_are_numbered():
    assert resolve_task(Source(None, np.array([0, 1]), ("cat", "dog")), "auto", 4)[2] == ("cat", "dog", "2", "3")


@pytest.mark.parametrize(
    ("targets", "task", "num_classes", "message"),
    [
        ([0, 1, 10], "auto", 10, "data.num_classes: label out of range: sample 2 has label 10, expected 0 to 9 "),
        ([0, -1, -1], "auto", 2, r"sample 1 has label -1, expected 0 to 1 \(2 such samples\); correct them, or"),
        ([0, 1, 1], "auto", 1, "data.num_classes: got 1, expected at least 2, or None to count them"),
        (["a", "b", "c"], "auto", 2, "data.num_classes: got 2, but there are 3 classes: a, b, c; correct"),
        ([0.5, 1.5, 2.0], "classification", None, "data.task=classification: got targets with fractions, expected lab"),
        ([[0, 1], [1, 0]], "classification", None, r"got targets of shape \(2, 2\), expected one label per sample"),
        (
            ["a", "b"],
            "regression",
            None,
            "data.task=regression: got targets of text, expected numbers; use data.task=c",
        ),
        ([[0, 2], [1, 0]], "multilabel", None, "data.task=multilabel: got targets other than 0 and 1; use data.task=r"),
        ([0.5, np.nan, np.inf], "auto", None, "data.target: 2 of the 3 targets are NaN or infinite; remove those"),
        (np.array(["a", None, np.nan], object), "auto", None, "data.target: 2 of the 3 targets are missing; remove"),
        ([1j, 2j], "auto", None, "data.target: got targets of type complex128, expected numbers or text"),
        (np.arange(150), "auto", None, "data.task: got 150 labels in 150 samples; .*, use data.task=regression"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_refused(targets, task, num_classes, message):
    with pytest.raises(DataError, match=message):
        resolve_task(Source(None, np.asarray(targets)), task, num_classes)


# seed of the split


def test_split_seed_goes_before_the_experiments():
    one, other = (prepared(table(), seed, split_seed=5).indices["test"] for seed in (0, 1))
    assert one.tolist() == other.tolist() == prepared(table(), 5).indices["test"].tolist()


def test_split_of_regression_is_not_stratified():
    targets = np.random.default_rng(0).normal(size=40)
    assert len(prepared(table(targets=targets), stratify=True).indices["train"]) == 28


# statistics


def test_normalize_gives_training_inputs_mean_0_and_deviation_1():
    data = prepared(load_source("breast_cancer"))
    train = data.inputs[data.indices["train"]]
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0), 1, atol=1e-5)


def test_normalize_is_by_channel_of_images():
    images = np.random.default_rng(0).normal([[[1]], [[20]]], [[[2]], [[5]]], (30, 2, 4, 4)).astype(np.float32)
    data = prepared(Source(images, np.arange(30) % 2))
    train = images[data.indices["train"]]
    assert data.preparation.mean.shape == (2, 1, 1)
    np.testing.assert_allclose(data.preparation.mean.ravel(), train.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(data.preparation.std.ravel(), train.std((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("part", ["val", "test"])
def test_normalize_does_not_look_at_val_and_test(part):
    source = table()
    before = prepared(source)
    after = prepared(with_input(source, before.indices[part], 1e6))
    np.testing.assert_array_equal(after.preparation.mean, before.preparation.mean)
    np.testing.assert_array_equal(after.preparation.std, before.preparation.std)
    train = before.indices["train"]
    np.testing.assert_array_equal(after.inputs[train], before.inputs[train])
    assert (after.inputs[before.indices[part]] > 1e4).all()


def test_normalize_none_leaves_the_inputs():
    data = prepared(table(), normalize="none")
    np.testing.assert_array_equal(data.inputs, table().inputs)
    assert (data.preparation.mean, data.preparation.std) == (None, None)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e6 + 0.1, 1e-8])
@pytest.mark.parametrize("read", [lambda source: source, item_by_item])
def test_normalize_of_a_constant_feature_divides_by_1(value, read):
    source = with_input(table(1000), (slice(None), 1), value)
    data = prepared(read(source))
    assert data.preparation.std[1] == 1
    np.testing.assert_allclose(data.preparation.mean[1], np.float32(value), rtol=1e-6)


def test_normalize_keeps_what_varies_little():
    source = table()
    source = with_input(source, (slice(None), 1), 1000 + 1e-3 * source.inputs[:, 0])
    data = prepared(source)
    np.testing.assert_allclose(data.inputs[data.indices["train"], 1].std(), 1, rtol=1e-3)


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_normalize_of_items_is_that_of_arrays(name):
    source = load_source(name)
    arrays, items = prepared(source, limit=200), prepared(item_by_item(source), limit=200)
    np.testing.assert_allclose(items.preparation.mean, arrays.preparation.mean, rtol=1e-6)
    np.testing.assert_allclose(items.preparation.std, arrays.preparation.std, rtol=1e-6)
    assert items.preparation.input_shape == arrays.preparation.input_shape


def test_normalize_targets_gives_training_targets_mean_0_and_deviation_1():
    source = load_source("diabetes")
    data = prepared(source)
    train = data.targets[data.indices["train"]]
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-5)
    np.testing.assert_allclose(
        data.targets[:, 0] * data.preparation.target_std + data.preparation.target_mean, source.targets, rtol=1e-5
    )


def test_normalize_targets_is_by_output_and_of_the_training_part():
    targets = np.stack([np.linspace(0, 1, 40), np.linspace(100, 500, 40)], 1)
    data = prepared(table(targets=targets))
    train = targets[data.indices["train"]]
    np.testing.assert_allclose(data.preparation.target_mean, train.mean(0), rtol=1e-5)
    np.testing.assert_allclose(data.preparation.target_std, train.std(0), rtol=1e-5)


def test_normalize_targets_of_a_constant_divides_by_1():
    data = prepared(table(targets=np.full(40, 0.1)))
    assert data.preparation.target_std.tolist() == [1]


def test_normalize_targets_off_leaves_them():
    data = prepared(table(targets=np.linspace(3, 9, 40)), normalize_targets=False)
    assert (data.preparation.target_mean, data.preparation.target_std) == (None, None)
    np.testing.assert_allclose(data.targets[:, 0], np.linspace(3, 9, 40), rtol=1e-6)


# limit


def test_limit_keeps_so_many_samples_drawn_by_the_seed():
    one, again, other = (prepared(table(), seed, limit=20, normalize="none").inputs for seed in (0, 0, 1))
    assert len(one) == 20
    np.testing.assert_array_equal(one, again)
    assert one.tolist() != other.tolist()
    assert {tuple(row) for row in one.tolist()} <= {tuple(row) for row in table().inputs.tolist()}


def test_limit_above_the_count_keeps_all():
    assert len(prepared(table(), limit=41).targets) == 40


def test_limit_keeps_targets_and_parts_with_their_inputs():
    source = table(part=np.arange(40) % 3)
    source = with_input(source, (slice(None), 0), np.arange(40))
    data = prepared(source, limit=25, normalize="none")
    numbers = data.inputs[:, 0].astype(int)
    np.testing.assert_array_equal(data.targets, numbers % 2)
    for name, code in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        assert set(numbers[data.indices[name]] % 3) == {code}


def test_limit_of_items_is_that_of_arrays():
    arrays, items = prepared(table(), limit=15, normalize="none"), prepared(item_by_item(table()), limit=15)
    np.testing.assert_array_equal([items.inputs[index][0] for index in range(15)], arrays.inputs)
    np.testing.assert_array_equal(items.targets, arrays.targets)


def test_limit_keeps_the_classes_of_the_whole():
    assert prepared(table(targets=np.arange(40) % 20), limit=10).preparation.classes == tuple(
        sorted(map(str, range(20)), key=int)
    )


@pytest.mark.parametrize("limit", [0, -5])
def test_limit_below_1_is_refused(limit):
    with pytest.raises(DataError, match=rf"data.limit: got {limit}, expected at least 1, or None"):
        prepared(table(), limit=limit)


# data that a model is tested on


def alike(source, trained, seed=0, needs_targets=True, **changes):
    config = {**DEFAULTS, "path": "x.csv", **changes}
    return prepare_alike(source, trained.preparation, config, seed, needs_targets=needs_targets)


@pytest.mark.parametrize("changes", [{}, {"limit": 30}, {"split_seed": 4}, {"stratify": False}])
@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_test_part_of_the_data_of_the_training_is_the_one_that_was_kept_apart(name, changes):
    trained = prepared(load_source(name), seed=3, **changes)
    found = alike(load_source(name), trained, seed=8, val_fraction=0.4, test_fraction=0.4, normalize="none")
    assert found.indices["test"].tolist() == trained.indices["test"].tolist()
    assert not len(found.indices["train"])
    assert not len(found.indices["val"])
    np.testing.assert_array_equal(found.inputs, trained.inputs)
    np.testing.assert_array_equal(found.targets, trained.targets)
    assert found.preparation is trained.preparation
    assert found.names == trained.names


def test_other_data_are_tested_on_as_a_whole_and_prepared_as_those_of_the_training():
    trained, other = prepared(table()), with_input(table(30), slice(None), 100.0)
    found = alike(other, trained)
    assert found.indices["test"].tolist() == list(range(30))
    np.testing.assert_array_equal(found.inputs, (other.inputs - trained.preparation.mean) / trained.preparation.std)
    assert found.fingerprint == fingerprint(other)
    assert found.names == tuple(range(30))


def test_other_values_are_normalised_as_those_of_the_training():
    trained = prepared(table(targets=np.linspace(0, 1, 40)))
    found = alike(table(10, targets=np.linspace(5, 9, 10)), trained)
    back = found.targets * trained.preparation.target_std + trained.preparation.target_mean
    np.testing.assert_allclose(back[:, 0], np.linspace(5, 9, 10), rtol=1e-6)


def test_other_items_are_prepared_as_those_of_the_training():
    trained = prepared(item_by_item(table()))
    other = dataclasses.replace(item_by_item(with_input(table(30), 0, 1.0)), digest="other")
    assert alike(other, trained).preparation is trained.preparation
    assert alike(other, trained).indices["test"].tolist() == list(range(30))


def test_other_data_of_one_class_or_with_a_test_part_of_their_own_are_tested_on():
    trained = prepared(table())
    assert alike(table(30, targets=np.ones(30, int)), trained).targets.tolist() == [1] * 30
    parts = np.array([TRAIN] * 10 + [VAL] * 5 + [TEST] * 15)
    found = alike(table(30, part=parts), trained)
    assert found.indices["test"].tolist() == list(range(15, 30))
    assert found.names[15:] == tuple(range(15))


def test_other_data_are_limited_as_configured_and_keep_their_names():
    other = table(30, names=tuple(f"{number}.png" for number in range(30)))
    found = alike(other, prepared(table()), limit=5)
    assert len(found.names) == 5
    assert [other.names.index(name) for name in found.names] == sorted(other.names.index(name) for name in found.names)
    kept = [other.names.index(name) for name in found.names]
    assert found.targets.tolist() == other.targets[kept].tolist()


def test_columns_in_another_order_are_put_right():
    trained = prepared(table(columns=("a", "b", "c")))
    other = table(columns=("a", "b", "c"))
    mixed = dataclasses.replace(other, inputs=other.inputs[:, [2, 0, 1]], features=("c", "a", "b"))
    found = alike(mixed, trained)
    np.testing.assert_array_equal(found.inputs, trained.inputs)
    assert found.indices["test"].tolist() == trained.indices["test"].tolist()


def test_data_without_targets_are_prepared_where_none_are_needed():
    found = alike(dataclasses.replace(table(30), targets=None), prepared(table()), needs_targets=False)
    assert (found.has_targets, found.targets.tolist()) == (False, [-1] * 30)
    assert found.indices["test"].tolist() == list(range(30))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (table(30, 4), "data.path=x.csv: got inputs of shape 4, expected 3 as the checkpoint was trained on"),
        (with_input(table(30), 3, np.nan), "data.path=x.csv: 3 input values are NaN or infinite, in 1 of 30 samples"),
        (
            table(30, targets=np.arange(30) % 3),
            "data.path=x.csv: the checkpoint knows no class 2; its classes are 0, 1",
        ),
        (table(0), "data.path=x.csv: there are no samples in it"),
        (table(30, columns=("a", "b", "d")), "data.path=x.csv: the columns are not those .*: c; unknown: d; rename"),
    ],
)
def test_data_that_the_model_was_not_made_for_are_refused(other, message):
    with pytest.raises(DataError, match=message):
        alike(other, prepared(table(columns=("a", "b", "c"))))


def test_test_part_that_is_drawn_otherwise_than_for_the_training_is_refused():
    trained = prepared(table())
    split = dataclasses.replace(trained.preparation.split, digest="other")
    trained = dataclasses.replace(trained, preparation=dataclasses.replace(trained.preparation, split=split))
    with pytest.raises(
        DataError, match="the test part cannot be separated from the samples that the checkpoint was trained"
    ):
        alike(table(), trained)


# fingerprint


def test_fingerprint_of_the_same_content_is_the_same():
    assert fingerprint(table()) == fingerprint(table())
    assert len(fingerprint(table())) == 64


@pytest.mark.parametrize(
    "changed",
    [
        with_input(table(), (17, 2), 0.0),
        table(targets=(np.arange(40) + 1) % 2),
        table(features=2),
        dataclasses.replace(table(), inputs=table().inputs.reshape(40, 3, 1)),
        dataclasses.replace(table(), inputs=table().inputs.astype(np.int64)),
    ],
)
def test_fingerprint_of_other_content_is_another(changed):
    assert fingerprint(changed) != fingerprint(table())


def test_fingerprint_takes_text_in_any_script():
    one, other = (table(targets=[word, "Brot"] * 20) for word in ("Käse", "チーズ"))
    assert fingerprint(one) != fingerprint(other)


def test_fingerprint_does_not_depend_on_the_settings():
    changes = [{"seed": 1}, {"limit": 20}, {"normalize": "none"}, {"val_fraction": 0.3}, {"split_seed": 7}]
    assert {prepared(table(), **change).fingerprint for change in changes} == {fingerprint(table())}


def test_fingerprint_of_the_digits_stays_what_it_was():
    assert fingerprint(load_source("digits")).startswith("f8e50c238c4b26b3")


# what cannot be trained on


def test_empty_data_are_refused():
    with pytest.raises(DataError, match=r"data.name=digits: there are no samples in it; check data.path or the"):
        prepared(Source(np.zeros((0, 3), np.float32), np.zeros(0)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_missing_inputs_are_counted_and_their_columns_named(value):
    source = with_input(table(), ([3, 3, 9], [0, 2, 2]), value)
    source = dataclasses.replace(source, features=("age", "size", "price"))
    with pytest.raises(
        DataError, match=r"3 input values are NaN or infinite, in 2 of 40 samples in the columns age, pr"
    ):
        prepared(source)


def test_missing_inputs_of_images_are_counted():
    source = Source(np.ones((30, 1, 4, 4), np.float32), np.arange(30) % 2)
    with pytest.raises(DataError, match=r"2 input values are NaN or infinite, in 1 of 30 samples; fill them in or rem"):
        prepared(with_input(source, (3, 0, [0, 1], 2), np.nan))


@pytest.mark.parametrize("normalize", ["standard", "none"])
def test_missing_inputs_of_items_are_counted(normalize):
    source = item_by_item(with_input(table(), ([3, 3, 9], [0, 2, 2]), np.nan))
    with pytest.raises(DataError, match="3 input values are NaN or infinite, in 2 of 40 samples; fill them in"):
        prepared(source, normalize=normalize)


def test_one_class_only_is_refused():
    with pytest.raises(DataError, match=r"data.name=digits: all 40 samples have one class only, expected at least two"):
        prepared(table(targets=["same"] * 40))


def test_one_class_only_in_the_training_part_is_refused():
    source = table(targets=[0] * 30 + [1] * 10, part=np.array([TRAIN] * 30 + [TEST] * 10))
    with pytest.raises(
        DataError, match=r"the training part has one class only, expected at least two; change data.spl"
    ):
        prepared(source)


# description


def test_describe_counts_classes_and_values_of_every_split():
    stats = describe(prepared(load_source("wine")))
    assert (stats["task"], stats["input_shape"], stats["dtype"]) == ("classification", [13], "float32")
    assert stats["classes"] == ["class_0", "class_1", "class_2"]
    assert [row["count"] for row in stats["splits"].values()] == [124, 27, 27]
    assert [sum(row["classes"]) for row in stats["splits"].values()] == [124, 27, 27]
    np.testing.assert_allclose([stats["splits"]["train"][key] for key in ("mean", "std")], [0, 1], atol=1e-5)


def test_describe_gives_the_range_of_targets_in_their_own_unit():
    source = load_source("diabetes")
    data = prepared(source)
    for name, row in describe(data)["splits"].items():
        targets = source.targets[data.indices[name]]
        np.testing.assert_allclose(row["targets"], [targets.min(), targets.max()], rtol=1e-5)


def test_describe_counts_the_samples_of_every_label():
    targets = np.random.default_rng(0).integers(0, 2, (40, 3))
    rows = describe(prepared(table(targets=targets)))["splits"].values()
    assert np.sum([row["classes"] for row in rows], 0).tolist() == targets.sum(0).tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("read", [lambda source: source, item_by_item])
@pytest.mark.parametrize("normalize", ["standard", "none"])
def test_describe_counts_missing_values_and_no_others(value, read, normalize):
    source = with_input(table(), (slice(None), 1), np.nan)
    source = read(with_input(source, ([3, 9], [0, 0]), value))
    rows = describe(prepared(source, strict=False, normalize=normalize))["splits"].values()
    assert sum(row["missing"] for row in rows) == 42
    assert all(np.isfinite([row["mean"], row["std"]]).all() for row in rows)


def test_describe_of_an_empty_split_has_no_targets():
    row = describe(prepared(load_source("diabetes"), val_fraction=0.0))["splits"]["val"]
    assert (row["count"], row["missing"], "targets" in row) == (0, 0, False)


def test_describe_of_items_is_that_of_arrays():
    arrays, items = (describe(prepared(read(table())))["splits"] for read in (lambda source: source, item_by_item))
    for name in arrays:
        np.testing.assert_allclose(items[name]["std"], arrays[name]["std"], rtol=1e-5)
        assert items[name]["classes"] == arrays[name]["classes"]
