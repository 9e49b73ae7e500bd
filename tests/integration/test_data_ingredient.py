"""The data ingredient in an experiment."""

import numpy as np
import pytest
import torch

from experiments import Experiment
from ingredients import data, device
from ingredients.errors import ConfigError, DataError

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
    assert done.info["data"] == {"name": "wine", "fingerprint": made.fingerprint, "split": split}


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
        ConfigError, match=r"data.normalize: got 'standart' \(str\), expected one of standard, none; did"
    ):
        run(data={"normalize": "standart"})


def test_setting_of_augment_misspelt_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data.augment.flipp: .* no such entry; did you mean data.augment.flip\?"):
        run(data={"augment": {"flipp": True}})


def test_data_that_cannot_be_trained_on_stop_the_run():
    with pytest.raises(DataError, match=r"data.batch_size: got 5000, expected 1 to 1258"):
        run(data={"batch_size": 5000})


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
