"""Splits by group, by time and in folds, from every source that has columns or names."""

import datetime
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sacristan.ingredients import DataError
from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint
from sacristan.ingredients.data import check_config, ingredient
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.sources import load_source
from sacristan.ingredients.datasets.split_rules import SplitRule
from sacristan.ingredients.datasets.splitting import TEST, TRAIN, VAL, Split

DEFAULTS = ingredient.configurations[0]()
HERE = __name__


def drawn(values=None, labels=None, seed=0, part=None, **config):
    """Return the indices of each part of labelled samples with values to split by."""
    count = len(labels) if labels is not None else len(values)
    labels = np.arange(count) % 2 if labels is None else np.asarray(labels)
    config = DEFAULTS | config
    values = None if values is None else np.asarray(values)
    return Split.of(config, seed).indices(labels, part, "classification", values)


def refused(message, *args, **kwargs):
    with pytest.raises(DataError, match=message):
        drawn(*args, **kwargs)


def folds(count, **kwargs):
    share = 1 / (count + kwargs.get("split", "").startswith("time"))
    return [drawn(fold=f"{number}/{count}", test_fraction=share, **kwargs) for number in range(1, count + 1)]


def assert_whole(parts, count):
    """Check that every sample is in exactly one part."""
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(count))


# groups


@settings(deadline=None, max_examples=25)
@given(
    groups=st.lists(st.integers(0, 30), min_size=40, max_size=200),
    val=st.floats(0, 0.4),
    test=st.floats(0, 0.4),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_no_group_is_in_two_parts_and_every_part_has_one(groups, val, test, seed, data):
    labels = data.draw(st.lists(st.integers(0, 3), min_size=len(groups), max_size=len(groups)))
    if len(set(groups)) < 3:
        return
    parts = drawn(groups, labels, seed, split="group:g", val_fraction=val, test_fraction=test)
    assert_whole(parts, len(groups))
    of_parts = [{groups[index] for index in indices} for indices in parts.values()]
    assert sum(map(len, of_parts)) == len(set(groups))
    assert [bool(names) for names in of_parts] == [True, val > 0, test > 0]
    again = drawn(groups, labels, seed, split="group:g", val_fraction=val, test_fraction=test)
    assert all((parts[name] == again[name]).all() for name in parts)


def patients(seed=0, count=60, rare=0.1):
    """Return groups of 1 to 20 samples and labels, of which few are 1, and all in some of the groups."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 21, count)
    groups = np.repeat([f"p{number}" for number in range(count)], sizes)
    is_ill = np.repeat(rng.random(count) < 3 * rare, sizes)
    return groups, (is_ill & (rng.random(len(groups)) < 0.4)).astype(int)


@pytest.mark.parametrize("seed", range(3))
def test_groups_give_parts_their_share_of_the_samples_and_of_a_rare_class(seed):
    groups, labels = patients(seed)
    parts = drawn(groups, labels, seed, split="group:patient", val_fraction=0.2, test_fraction=0.3)
    for name, share in (("train", 0.5), ("val", 0.2), ("test", 0.3)):
        assert len(parts[name]) / len(labels) == pytest.approx(share, abs=0.03)
        assert labels[parts[name]].sum() / labels.sum() == pytest.approx(share, abs=0.06)


@pytest.mark.slow
def test_folds_by_group_are_balanced_like_those_of_scikit_learn():
    from sklearn.model_selection import StratifiedGroupKFold

    def spread(tests, labels):
        shares = [[len(test) / len(labels), labels[test].sum() / labels.sum()] for test in tests]
        return np.std(shares, axis=0).max()

    mine, theirs = [], []
    for seed in range(3):
        groups, labels = patients(seed)
        found = folds(5, values=groups, labels=labels, split="group:patient")
        mine.append(spread([parts["test"] for parts in found], labels))
        peer = StratifiedGroupKFold(5, shuffle=True, random_state=seed).split(groups, labels, groups)
        theirs.append(spread([test for _, test in peer], labels))
    assert np.mean(mine) < 1.1 * np.mean(theirs)


def test_groups_of_another_seed_are_drawn_otherwise():
    groups, labels = patients()
    one, other = (drawn(groups, labels, seed, split="group:p")["test"].tolist() for seed in (0, 1))
    assert one != other


def test_groups_of_a_seed_stay_what_they_were():
    parts = drawn(np.arange(24) // 3, np.arange(24) % 3 % 2, split="group:g", val_fraction=0.25, test_fraction=0.25)
    assert {name: sorted({int(index) // 3 for index in indices}) for name, indices in parts.items()} == {
        "train": [0, 5, 6, 7],
        "val": [1, 3],
        "test": [2, 4],
    }


def test_many_classes_in_many_groups_are_balanced_by_their_number_of_samples(monkeypatch):
    monkeypatch.setattr("sacristan.ingredients.datasets.split_rules._MAX_COUNTS", 10)
    parts = drawn(np.arange(100) // 4, np.arange(100) % 10, split="group:g")
    assert_whole(parts, 100)
    assert len(parts["test"]) in (12, 16)


@pytest.mark.parametrize("values", [["a", "b ", "b", "a"] * 9 + ["c"], [1, 2.0, 2, 1] * 9 + [3], [True, False] * 9])
def test_group_is_the_text_of_a_value_without_spaces_at_its_ends(values):
    parts = drawn(values, split="group:g", val_fraction=0.0, test_fraction=0.4)
    names = [{str(values[index]).strip() for index in indices} for indices in parts.values()]
    assert not names[0] & names[2]


# times


@settings(deadline=None, max_examples=50)
@given(
    times=st.lists(st.integers(0, 40), min_size=3, max_size=120),
    val=st.floats(0, 0.4),
    test=st.floats(0, 0.4),
)
def test_later_parts_begin_after_earlier_ones_and_ties_stay_together(times, val, test):
    if len(set(times)) < 3:
        return
    parts = drawn(times, split="time:t", val_fraction=val, test_fraction=test)
    assert_whole(parts, len(times))
    ranges = [sorted(times[index] for index in indices) for indices in parts.values() if len(indices)]
    assert len(ranges) == 1 + (val > 0) + (test > 0)
    assert all(one[-1] < other[0] for one, other in itertools.pairwise(ranges))


def test_times_without_ties_are_cut_at_the_exact_share():
    times = np.random.default_rng(0).permutation(100)
    parts = drawn(times, split="time:t", val_fraction=0.2, test_fraction=0.1)
    assert [len(indices) for indices in parts.values()] == [70, 20, 10]
    assert sorted(times[parts["test"]]) == list(range(90, 100))


@pytest.mark.parametrize(
    ("times", "newest"),
    [
        (["9", "10", "8.5", "7"], 1),
        (["2024-03-31", "2024-04-01T00:00", "2023-12-31", "2024-03-31T23:59:59.5"], 1),
        (["2024-03-31T08:00+02:00", "2024-03-31T07:00Z", "2024-03-31T08:30+0200", "2024-03-31T01:00-04"], 1),
        (np.array(["2024-03-31", "2024-04-01", "2023-12-31", "2020-01-01"], "M8[D]"), 1),
        (
            [
                datetime.date(2024, 3, 31),
                datetime.date(2024, 4, 1),
                datetime.date(2023, 1, 1),
                datetime.date(2022, 1, 1),
            ],
            1,
        ),
        ([2**62, 2**62 + 1, 0, -5], 1),
        ([0.5, np.inf, -np.inf, 0.0], 1),
    ],
)
def test_times_are_numbers_or_instants(times, newest):
    parts = drawn(times, split="time:t", val_fraction=0.0, test_fraction=0.25)
    assert parts["test"].tolist() == [newest]


@pytest.mark.parametrize(
    ("split", "times"),
    [
        ("time:t:%d.%m.%Y", ["31.03.2024", "01.04.2024", "30.04.2023"]),
        ("time:a:b:%Y%m%d", [20240331, 20240401, 20230430]),
        ("time:t:%d/%m/%y %H:%M %z", ["31/03/24 23:30 +0000", "01/04/24 00:00 +0000", "01/04/24 00:30 +0200"]),
    ],
)
def test_times_in_another_format_are_read_by_it(split, times):
    assert drawn(times, split=split, val_fraction=0.0, test_fraction=0.3)["test"].tolist() == [1]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["2024-01-01T08:00", "2024-01-02T08:00Z"], "2024-01-02T08:00Z has a time zone and 2024-01-01T08:00 has none"),
        (["2024-01-01", ""], r"1 of 2 samples lack a value of 't', the first is sample 1 \(from 0\); fill"),
        ([None, 3], r"1 of 2 samples lack a value of 't', the first is sample 0"),
        ([np.nan, 3.0], "1 of 2 samples lack"),
        (
            ["2024-01-01", "03/04/2024"],
            r"got '03/04/2024', expected a number or a time of ISO 8601; write the format .*",
        ),
        (["2024-01-01", "soon"], r"data.split=time:t: got 'soon', expected"),
        ([datetime.time(8), datetime.time(9)], r"got datetime.time\(8, 0\), expected a number or a time"),
        (["a", "b"], "got 'a', expected a number"),
    ],
)
def test_times_that_have_no_order_are_refused(times, message):
    refused(f"^data.split=time:t: .*{message}" if not message.startswith("data") else message, times, split="time:t")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("time:t:%d.%m.%Y", "got '2024-01-01', expected a time written as %d.%m.%Y"),
        ("time:t:%Q", "cannot be read as a time"),
    ],
)
def test_format_that_does_not_fit_is_refused(split, message):
    refused(message, ["2024-01-01", "2024-01-02", "2024-01-03"], split=split)


# folds


@pytest.mark.parametrize("split", ["random", "group:g"])
@pytest.mark.parametrize("stratify", [True, False])
def test_folds_are_disjoint_cover_all_and_balance_classes(split, stratify):
    groups, labels = patients(count=90)
    found = folds(5, values=groups, labels=labels, split=split, stratify=stratify)
    tests = [set(parts["test"].tolist()) for parts in found]
    assert sum(map(len, tests)) == len(set.union(*tests)) == len(labels)
    for parts in found:
        assert_whole(parts, len(labels))
        assert len(parts["test"]) / len(labels) == pytest.approx(0.2, abs=0.01 if split == "random" else 0.03)
        assert len(parts["val"]) / len(labels) == pytest.approx(0.15, abs=0.01 if split == "random" else 0.03)
        if stratify and split == "random":
            assert abs(labels[parts["test"]].sum() - labels.sum() / 5) < 1
        if split == "group:g":
            assert not set(groups[parts["test"]]) & set(groups[parts["train"]])


def test_folds_do_not_depend_on_the_seed_of_the_run_but_on_that_of_the_split():
    labels = np.arange(50) % 2
    one, other = (drawn(labels=labels, seed=seed, fold="2/5", test_fraction=0.2) for seed in (1, 2))
    assert all((one[name] == other[name]).all() for name in one)
    third = drawn(labels=labels, seed=1, split_seed=9, fold="2/5", test_fraction=0.2)
    assert third["test"].tolist() != one["test"].tolist()
    assert Split.of(DEFAULTS | {"fold": "2/5"}, 7).limit_seed == 0


@settings(deadline=None, max_examples=50)
@given(times=st.lists(st.integers(0, 60), min_size=6, max_size=150), count=st.integers(2, 4))
def test_fold_by_time_is_trained_on_what_comes_before(times, count):
    if len(set(times)) < count + 1:
        return
    found = folds(count, values=times, split="time:t", val_fraction=0.0)
    tests = [[times[index] for index in parts["test"]] for parts in found]
    assert all(len(parts["train"]) and len(parts["test"]) for parts in found)
    assert all(
        max(times[index] for index in parts["train"]) < min(test) for parts, test in zip(found, tests, strict=True)
    )
    assert all(max(one) < min(other) for one, other in itertools.pairwise(tests))
    # The first block is trained on only; each later one is tested on once, and trained on in the folds after it.
    rest = set(range(len(times))) - set(found[0]["train"].tolist())
    assert sorted(rest) == sorted(np.concatenate([parts["test"] for parts in found]).tolist())
    assert set(found[-1]["train"].tolist()) | set(found[-1]["test"].tolist()) == set(range(len(times)))


def test_folds_by_time_are_those_of_scikit_learn():
    from sklearn.model_selection import TimeSeriesSplit

    times = np.arange(60)
    found = folds(5, values=times, split="time:t", val_fraction=0.0)
    for parts, (train, test) in zip(found, TimeSeriesSplit(5).split(times), strict=True):
        assert (parts["train"].tolist(), parts["test"].tolist()) == (train.tolist(), test.tolist())


def test_fold_of_data_with_a_test_part_is_validated_on():
    part = np.array([TRAIN] * 30 + [TEST] * 10)
    found = [drawn(labels=np.arange(40) % 2, part=part, fold=f"{k}/3") for k in (1, 2, 3)]
    assert sorted(np.concatenate([parts["val"] for parts in found]).tolist()) == list(range(30))
    assert all(parts["test"].tolist() == list(range(30, 40)) for parts in found)
    with_val = np.array([TRAIN] * 30 + [VAL] * 10)
    parts = drawn(labels=np.arange(40) % 2, part=with_val, fold="1/3")
    assert (len(parts["test"]), parts["val"].tolist()) == (10, list(range(30, 40)))


# what is rejected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "grop:patient"}, "data.split: got 'grop:patient', expected random, .*; did you mean group"),
        ({"split": "patient"}, "data.split: got 'patient', expected random, group:COLUMN or time:COLUMN; write one"),
        ({"split": "group:"}, "data.split: got 'group:', expected"),
        ({"split": "random:x"}, "data.split: got 'random:x', expected"),
        ({"fold": "2"}, "data.fold: got '2', expected the number of a fold and how many there are, from 1/5 to 5/5"),
        ({"fold": "6/5"}, "data.fold: got '6/5', expected"),
        ({"fold": "0/5"}, "data.fold: got '0/5', expected"),
        ({"fold": "1/1"}, "data.fold: got '1/1', expected"),
        ({"fold": "2/5"}, r"data.test_fraction: got 0.15, but data.fold=2/5 tests on 0.2 of the samples; leave it out"),
    ],
)
def test_settings_of_a_split_that_make_no_sense_are_refused(changes, message):
    from sacristan.configs import Map

    with pytest.raises(DataError, match=message):
        check_config(Map(DEFAULTS | changes))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"values": [1, 1, 2, 2], "split": "group:g"},
            "data.split=group:g: there are 2 groups to split, expected at least 3",
        ),
        ({"values": [1, 1, 2, 2], "split": "time:t"}, "there are 2 different times to split, expected at least 3"),
        ({"values": [1, 2, 3], "split": "group:g", "fold": "1/4"}, "there are 3 groups to split, expected at least 4"),
        ({"values": [1, 2, 3], "split": "time:t", "fold": "1/3"}, "there are 3 different times .* at least 4"),
        ({"labels": [0, 1], "fold": "1/3"}, "data.split=random: there are 2 samples to split, expected at least 3"),
        (
            {"labels": [0, 1], "split": "group:g"},
            "the data have no such values, expected 'g' with one value per sample",
        ),
        ({"values": [[1], [2]], "split": "group:g"}, r"have values of shape \(2, 1\), expected 'g'"),
        (
            {"values": np.array([[1, 2], [3]], object), "split": "group:g"},
            r"got \[1, 2\] in 'g', expected single values",
        ),
        ({"values": ["a", None], "split": "group:g"}, "1 of 2 samples lack a value of 'g'"),
        (
            {
                "values": [1, 2, 1, 3],
                "split": "group:g",
                "part": np.array([TRAIN, TRAIN, TEST, TEST]),
                "val_fraction": 0.0,
            },
            "data.split=group:g: '1' is in the train and in the test part of the data, which are split already; move",
        ),
        (
            {
                "values": [1, 9, 5, 7],
                "split": "time:t",
                "part": np.array([TRAIN, TRAIN, TEST, TEST]),
                "val_fraction": 0.0,
            },
            "the train part ends at 9, and the test part begins at 5; expected train before val before test",
        ),
        (
            {"labels": [0, 1, 0], "part": np.array([TRAIN, VAL, TEST]), "fold": "1/2"},
            "data.fold: the data have a val and",
        ),
    ],
)
def test_data_that_cannot_be_split_so_are_refused(kwargs, message):
    refused(message, **kwargs)


# sources

GROUPS = [f"p{number // 5}" for number in range(60)]
NUMBERS = np.random.default_rng(3).normal(size=(60, 2)).astype(np.float32)


def write_table(folder):
    rows = (f"{GROUPS[k]},{a:.4f},{b:.4f},{k % 2}" for k, (a, b) in enumerate(NUMBERS))
    (folder / "table.csv").write_text("\n".join(["patient,a,b,label", *rows]))
    return {"name": "csv", "path": str(folder / "table.csv")}


def write_texts(folder):
    rows = (f"{GROUPS[k]},word {k} and {'more' * (k % 3)},{k % 2}" for k in range(60))
    (folder / "texts.csv").write_text("\n".join(["patient,text,label", *rows]))
    return {"name": "text", "path": str(folder / "texts.csv")}


def write_npz(folder):
    np.savez(folder / "arrays.npz", x=NUMBERS, y=np.arange(60) % 2, patient=np.array(GROUPS))
    return {"name": "npz", "path": str(folder / "arrays.npz")}


def write_parquet(folder):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"patient": GROUPS, "a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "label": np.arange(60) % 2}
    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    return {"name": "parquet", "path": str(folder / "table.parquet")}


def write_images(folder):
    for number, group in enumerate(GROUPS):
        file = folder / "images" / ["cat", "dog"][number % 2] / f"{group}_{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(file)
    return {"name": "image_folder", "path": str(folder / "images"), "split": r"group:(p\d+)_"}


def write_text_files(folder):
    for number, group in enumerate(GROUPS):
        file = folder / "texts" / ["good", "bad"][number % 2] / f"{group}_{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"word {number}")
    return {"name": "text", "path": str(folder / "texts"), "split": r"group:p\d+"}


class Attribute:
    patient = GROUPS

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return NUMBERS[index], index % 2


def dicts():
    return [{"x": NUMBERS[k], "label": k % 2, "patient": GROUPS[k]} for k in range(60)]


def from_attribute(folder):
    return {"name": f"{HERE}:Attribute", "path": None}


def from_dicts(folder):
    return {"name": f"{HERE}:dicts", "path": None}


SOURCES = [
    write_table,
    write_texts,
    write_npz,
    write_parquet,
    write_images,
    write_text_files,
    from_attribute,
    from_dicts,
]
READ = ("name", "path", "split", "csv", "columns", "target")


@pytest.mark.parametrize("write", SOURCES)
def test_every_source_with_columns_is_split_by_group_and_again_from_the_checkpoint(write, tmp_path):
    config = DEFAULTS | {"split": "group:patient"} | write(tmp_path) | {"fold": "2/4", "test_fraction": 0.25}
    made = prepare(load_source(**{name: config[name] for name in READ}), config, 0)
    groups = np.array(GROUPS)
    if write in (write_images, write_text_files):
        groups = np.array([name.rpartition("/")[2].partition("_")[0] for name in made.names])
    of_parts = [set(groups[indices].tolist()) for indices in made.indices.values()]
    assert sum(map(len, of_parts)) == len(set.union(*of_parts)) == 12
    assert [len(names) for names in of_parts] == [7, 2, 3]
    if made.preparation.features and write is not write_texts:
        assert made.preparation.features == ("a", "b")
    path = tmp_path / "last.pt"
    save_checkpoint({"model": {}, "preparation": made.preparation.state_dict()}, path)
    kept = preparation_of(load_checkpoint(path), path)
    assert (kept.split.split, kept.split.fold) == (config["split"], "2/4")
    plain = DEFAULTS | {"name": config["name"], "path": config["path"]}
    source = load_source(**{name: plain[name] for name in READ}, trained=kept)
    assert prepare_alike(source, kept, plain, 5).indices["test"].tolist() == made.indices["test"].tolist()


@pytest.mark.parametrize("write", [write_table, write_npz, write_images])
def test_other_data_need_no_column_of_groups(write, tmp_path):
    config = DEFAULTS | {"split": "group:patient"} | write(tmp_path)
    made = prepare(load_source(**{name: config[name] for name in READ}), config, 0)
    (tmp_path / "other").mkdir()
    if write is write_table:
        (tmp_path / "table.csv").write_text("b,a\n1,2\n3,4\n")
    elif write is write_npz:
        np.savez(tmp_path / "arrays.npz", x=NUMBERS[:2])
    else:
        Image.new("L", (4, 4)).save(tmp_path / "other" / "new.png")
        config["path"] = str(tmp_path / "other")
    source = load_source(name=config["name"], path=config["path"], trained=made.preparation, needs_targets=False)
    assert len(prepare_alike(source, made.preparation, config, 0, needs_targets=False).indices["test"]) in (1, 2)


def test_data_of_the_training_without_the_groups_are_not_split_again(tmp_path):
    config = DEFAULTS | {"split": "group:patient"} | write_table(tmp_path)
    made = prepare(load_source(**{name: config[name] for name in READ}), config, 0)
    rows = [line.partition(",")[2] for line in (tmp_path / "table.csv").read_text().splitlines()]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    source = load_source("csv", config["path"], trained=made.preparation)
    with pytest.raises(DataError, match=r"data\.split=group:patient: the data have no such values, expected 'patient'"):
        prepare_alike(source, made.preparation, config, 0)


def test_column_to_split_by_is_an_input_if_it_is_chosen(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["year,a,y", *(f"{2000 + k // 3},{k}.5,{k % 2}" for k in range(30))]))
    read = {"name": "csv", "path": str(tmp_path / "t.csv"), "split": "time:year"}
    assert load_source(**read).features == ("a",)
    source = load_source(**read, columns=["year", "a"])
    assert source.features == ("year", "a")
    made = prepare(source, DEFAULTS | read, 0)
    years = source.inputs[:, 0]
    assert years[made.indices["train"]].max() < years[made.indices["val"]].min()
    again = load_source("csv", read["path"], trained=made.preparation)
    assert (
        prepare_alike(again, made.preparation, DEFAULTS | read, 0).indices["test"].tolist()
        == made.indices["test"].tolist()
    )


def test_npz_with_parts_has_groups_for_each(tmp_path):
    arrays = {
        "x_train": NUMBERS[:40],
        "y_train": np.arange(40) % 2,
        "x_test": NUMBERS[40:],
        "y_test": np.arange(20) % 2,
    }
    groups = {"patient_train": np.arange(40) // 4, "patient_test": 50 + np.arange(20) // 4}
    np.savez(tmp_path / "a.npz", **arrays, **groups)
    source = load_source("npz", str(tmp_path / "a.npz"), split="group:patient")
    made = prepare(source, DEFAULTS | {"name": "npz", "split": "group:patient"}, 0)
    assert [len(indices) for indices in made.indices.values()] == [36, 4, 20]
    np.savez(tmp_path / "a.npz", **arrays, patient_train=np.arange(40))
    assert load_source("npz", str(tmp_path / "a.npz"), split="group:patient").split_values is None


@pytest.mark.parametrize(
    ("write", "split", "message"),
    [
        (write_table, "group:patent", "data.split: .*table.csv has no column 'patent'; did you mean 'patient'"),
        (write_texts, "group:patent", "data.split: .*texts.csv has no column 'patent'; did you mean 'patient'"),
        (write_parquet, "time:patent", "data.split: .*table.parquet has no column 'patent'; did you mean 'patient'"),
        (write_images, r"group:q\d", r"cat/p0_0.png does not match 'q\\\\d'; write a regular expression"),
        (write_images, "group:(", r"'\(' is no regular expression"),
    ],
)
def test_column_or_pattern_that_is_not_there_is_refused(write, split, message, tmp_path):
    config = DEFAULTS | write(tmp_path) | {"split": split}
    with pytest.raises(DataError, match=message):
        load_source(**{name: config[name] for name in READ})


def test_limit_of_folds_keeps_groups_whole_for_every_seed(tmp_path):
    config = DEFAULTS | write_table(tmp_path) | {"split": "group:patient", "limit": 40, "test_fraction": 0.25}
    source = load_source(**{name: config[name] for name in READ})
    made = [prepare(source, config | {"fold": f"{k}/4"}, seed=k) for k in (1, 2, 3, 4)]
    tested = [set(np.array(each.names)[each.indices["test"]].tolist()) for each in made]
    assert sum(map(len, tested)) == len(set.union(*tested)) == 40


def test_state_of_an_earlier_version_was_split_at_random():
    earlier = {name: value for name, value in DEFAULTS.items() if name not in ("split", "fold")}
    split = Split.of(earlier, 3)
    assert (split.split, split.fold, split.split_seed) == ("random", None, 3)
    assert split.differing(DEFAULTS | {"fold": "1/5"}) == ["data.fold=None"]
    assert SplitRule.parse("time:a:b").column == "a:b"
