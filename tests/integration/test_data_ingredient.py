"""The data ingredient in an experiment."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from sacristan.experiments import Experiment
from sacristan.ingredients import ConfigError, DataError, data, device

HERE = __name__


def drawn_arrays():
    return np.random.rand(40, 3), np.arange(40) % 2


def run(command="main", named_configs=(), **settings):
    """Return the data that `main` makes, None for another command; and the run."""
    ex = Experiment("data_test", ingredients=[data.ingredient, device.ingredient])
    made = []

    @ex.main
    def main(seed):
        made.append(data.make_data(seed, device.make_device(seed)))

    settings = {"data": {"batch_size": 8, **settings.pop("data", {})}, "device": {"name": "cpu"}, "seed": 0, **settings}
    done = ex.run(command, config_updates=settings, named_configs=named_configs)
    return made[0] if made else None, done


def first(batches, epoch=0):
    return next(batches.epoch(epoch))[0]


def test_make_data_notes_name_and_fingerprint_in_the_run():
    made, done = run(data={"name": "wine"})
    split = {"seed": 0, "digest": made.preparation.split.digest}
    parts = {"train": 124, "val": 27, "test": 27}
    noted = {"name": "wine", "fingerprint": made.fingerprint, "task": "classification", "parts": parts, "split": split}
    assert done.info["data"] == noted


def test_make_data_of_the_same_seed_is_the_same_and_of_another_is_not():
    one, again, other = (run(seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first(one.train, 3), first(again.train, 3))
    assert torch.equal(first(one.test), first(again.test))
    assert not torch.equal(first(one.train, 3), first(other.train, 3))
    assert not torch.equal(first(one.test), first(other.test))


def test_make_data_with_split_seed_keeps_the_split_and_not_the_order():
    one, other = (run(seed=seed, data={"split_seed": 5})[0] for seed in (1, 2))
    assert torch.equal(first(one.test), first(other.test))
    assert not torch.equal(first(one.train), first(other.train))


def test_fast_is_a_few_hundred_samples():
    made, done = run(named_configs=["data.fast"], data={"batch_size": 16})
    assert (made.train.num_samples, made.val.num_samples, made.test.num_samples) == (210, 45, 45)
    assert (done.config["data"]["limit"], done.config["data"]["batch_size"]) == (300, 16)


def test_stats_of_data_drawn_at_random_are_those_of_the_training(capsys):
    made, _ = run(data={"name": f"{HERE}:drawn_arrays"}, seed=3)
    run("data.stats", data={"name": f"{HERE}:drawn_arrays"}, seed=3)
    assert made.fingerprint in capsys.readouterr().out
    assert run(data={"name": f"{HERE}:drawn_arrays"}, seed=4)[0].fingerprint != made.fingerprint


def test_stats_of_an_empty_split_show_no_range(capsys):
    _, done = run("data.stats", data={"name": "diabetes", "val_fraction": 0.0})
    assert ["val", "0", "none", "nan", "nan", "0"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "data" not in done.info


def test_setting_of_no_choice_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"data.normalize: got 'standart' \(str\), expected one of standard, imagenet, none; did"
    ):
        run(data={"normalize": "standart"})


def test_setting_of_augment_misspelt_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data.augment.flipp: .* no such entry; did you mean data.augment.flip\?"):
        run(data={"augment": {"flipp": True}})


def test_data_that_cannot_be_trained_on_stop_the_run():
    with pytest.raises(DataError, match=r"data.batch_size: got 5000, but there are 1258 training samples"):
        run(data={"batch_size": 5000, "drop_last": True})


def test_data_other_than_those_of_the_reproduced_run_are_refused(monkeypatch, tmp_path):
    def write(value):
        lines = [f"{i},{i * value},{'ab'[i % 2]}" for i in range(40)]
        (tmp_path / "table.csv").write_text("\n".join(["x,y,class", *lines]))

    write(1)
    settings = {"name": "csv", "path": str(tmp_path / "table.csv")}
    fingerprint = run(data=settings)[0].fingerprint
    monkeypatch.setenv("SACRISTAN_EXPECT_DATA", fingerprint)
    assert run(data=settings)[0].fingerprint == fingerprint
    write(2)
    message = (
        rf"data\.path=.*table\.csv: got data with the fingerprint [0-9a-f]{{12}}, expected {fingerprint[:12]} as in"
    )
    with pytest.raises(DataError, match=message):
        run(data=settings)


# data.stats of what cannot be trained on

REFUSED = {
    "text": (
        "name,size,y\nAda,1,0\nBob,2,1\n",
        {},
        ["name text 2 0 2 Ada, Bob", "size integers 2 0 2 1 to 2"],
        "has text",
    ),
    "no target": ("a,b\n1.5,2\n2.5,3\n", {"target": "c"}, ["a numbers 2 0 2 1.5 to 2.5"], "has no column 'c'"),
    "gaps in the target": ("a,y\n1,0\n2,\n3,1\n", {}, ["y numbers 2 1 2 0 to 1"], "lacks 1 values of"),
    "empty": ("a,y\n", {}, ["a text 0 0 0", "y text 0 0 0"], "a header but no rows"),
    "labels out of range": ("a,y\n1,0\n2,7\n", {"num_classes": 2}, ["y integers 2 0 2 0 to 7"], "label out of range"),
    "all for the test": ("a,y\n1,0\n2,1\n", {"test_fraction": 0.9}, ["a integers 2 0 2 1 to 2"], "nothing is left"),
    "one column": ("a\nTrue\nFalse\n", {}, ["a bools 2 0 2 0 to 1"], "has 1 columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stats_of_a_csv_that_cannot_be_trained_on_show_its_columns_and_why(case, tmp_path, capsys):
    content, settings, rows, reason = REFUSED[case]
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(DataError, match=f"^data.*{reason}"):
        run("data.stats", data={"path": str(tmp_path / "table.csv"), **settings})
    assert set(rows) <= {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}


def test_stats_of_a_csv_with_missing_inputs_show_the_splits_and_why(tmp_path, capsys):
    (tmp_path / "table.csv").write_text("a,y\n" + "1,0\n,1\n" * 10)
    run("data.stats", data={"path": str(tmp_path / "table.csv")})
    text = capsys.readouterr().out
    assert text.startswith("csv: classification")
    assert "cannot train on these data: data.name=csv: 10 input values are NaN or infinite" in text.splitlines()[-1]


def test_stats_of_other_files_that_cannot_be_trained_on_show_what_they_hold(tmp_path, capsys):
    np.savez(tmp_path / "data.npz", first=np.array([[1.0, np.nan]]), words=np.array(["a", "b"]))
    with pytest.raises(DataError, match=r"holds first, words; expected x and y"):
        run("data.stats", data={"path": str(tmp_path / "data.npz")})
    text = capsys.readouterr().out
    assert re.search(r"first +float64 1x2 +2 +1 +2 +1 to 1\n", text)
    assert re.search(r"words +<U1 2 +2 +0 +2 *\n", text)
    for folder, size in (("cat", 4), ("cat", 5), ("dog", 5)):
        (tmp_path / "images" / folder).mkdir(parents=True, exist_ok=True)
        Image.new("L", (size, 3)).save(tmp_path / "images" / folder / f"{size}.png")
    (tmp_path / "images" / "dog" / "bad.png").write_text("none")
    with pytest.raises(DataError, match=r"bad.png cannot be read as an image"):
        run("data.stats", data={"path": str(tmp_path / "images")})
    text = capsys.readouterr().out
    assert re.search(r"cat +2 +4x3 \(1\), 5x3 \(1\) *\ndog +2 +5x3 \(1\), unreadable \(1\)\n", text)


@pytest.mark.parametrize("path", ["gone.csv", "other.npz"])
def test_stats_of_what_cannot_be_read_at_all_are_refused(path, tmp_path):
    (tmp_path / "other.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"there is no|cannot be read as .npz"):
        run("data.stats", data={"path": str(tmp_path / path)})
