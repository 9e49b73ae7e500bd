import math
from pathlib import Path

import pytest

from sacristan.experiments.language_model import ex
from sacristan.ingredients import ConfigError, DataError, ModelError
from sacristan.observers import read_media, read_metrics

RECIPE = str(Path(__file__).parents[2] / "configs" / "language_model.yaml")
TEXT = "to be, or not to be, that is the question: whether it is nobler in the mind to suffer\n"


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train in a folder of its own on a small text, with further settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 4)

    def run(command=None, named=(), **settings):
        given = {"text.path": "text.txt", "text.val_fraction": 0.2, "text.test_fraction": 0.2, **settings}
        return ex.run(command, config_updates=given, named_configs=named)

    return run


TINY = {
    "text.context": 8,
    "text.batch_size": 13,
    "gpt": {"width": 8, "depth": 1, "heads": 2},
    "training": {"epochs": 1, "log_interval": 1},
    "sample.length": 8,
}


def test_two_steps_have_the_pinned_losses(train, tmp_path):
    run = train(**TINY)
    found = read_metrics("my_runs/1")
    assert found["train/loss"].values.tolist() == pytest.approx([5.53987, 5.51657], rel=1e-3)
    assert found["val/loss"].values.tolist() == pytest.approx([5.51048], rel=1e-3)
    assert found["val/bits_per_character"].values[0] == pytest.approx(found["val/loss"].values[0] / 0.6931472)
    assert found["val/perplexity"].values[0] == pytest.approx(math.exp(found["val/loss"].values[0]))
    assert run.result == run.info["test"]["bits_per_character"] == pytest.approx(7.94104, rel=1e-3)


def test_default_split_trains_a_model_that_generates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 40)
    settings = {**TINY, "text.path": "text.txt", "text.batch_size": 200}
    ex.run(config_updates=settings)
    assert {"train/loss", "val/loss"} <= read_metrics("my_runs/1").keys()
    ex.run("generate", config_updates={**settings, "checkpoint.path": "my_runs/1/checkpoints/last.pt"})
    (sample,) = read_media("my_runs/2")
    assert sample.path.read_text().startswith("The ")


@pytest.mark.slow
def test_recipe_and_fast_train_to_the_same_result_and_generate_the_same_text(train, tmp_path):
    whole = train(named=[RECIPE, "fast"], **{"text.context": 16, "epochs": 2})
    train("generate", named=["fast"], **{"text.context": 16, "checkpoint.path": "my_runs/1/checkpoints/best.pt"})
    again, texts = train(named=[RECIPE, "fast"], **{"text.context": 16, "epochs": 2}), []
    assert again.result == whole.result
    for number in (1, 2, 3):
        (sample,) = read_media(f"my_runs/{number}")
        texts.append(sample.path.read_text())
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].startswith("The ")
    assert len(texts[0].encode()) >= 84


def test_characters_of_several_bytes_count_once(train, tmp_path):
    (tmp_path / "greek.txt").write_text("αβγδε" * 70)
    run = train(**TINY, **{"text.path": "greek.txt"})
    assert run.info["test"]["bits_per_character"] == pytest.approx(2 * run.info["test"]["loss"] / 0.6931472)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gpt.heads": 3}, ModelError, "3 heads do not divide a width of 8"),
        ({"sample.prompt": ""}, ConfigError, r"sample\.prompt: got no text"),
        ({"sample.temperature": -1.0}, ConfigError, r"sample: got length=8 and temperature=-1\.0"),
        ({"text.path": "other.txt"}, DataError, r"text\.path=other\.txt: cannot be read"),
        ({"text.contxt": 8}, ConfigError, r"text\.contxt: .* did you mean text\.context"),
    ],
)
def test_what_does_not_fit_is_refused_and_settings_before_the_run(train, tmp_path, settings, error, message):
    given = {**TINY, **settings}
    if "gpt.heads" in settings:
        given["gpt"] = {"width": 8, "depth": 1, "heads": given.pop("gpt.heads")}
    with pytest.raises(error, match=message):
        train(**given)
    assert error is DataError or not (tmp_path / "my_runs").exists()


OTHER_PARTS = [
    (
        {"text.test_fraction": 0.05},
        r"text: the state that .* with text\.test_fraction=0\.2, so another split could test",
    ),
    ({"text.val_fraction": 0.3}, r"with text\.val_fraction=0\.2, so .* or accept a new split: text\.new_split=True"),
    (
        {"text.path": "pieces.txt"},
        r"trained on data with the fingerprint \w{12}, and pieces\.txt has \w{12}, .* same data",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [OTHER_PARTS[0], *(pytest.param(*part, marks=pytest.mark.slow) for part in OTHER_PARTS[1:])],
    ids=["test", "val", "pieces"],
)
def test_fork_that_would_test_on_what_its_parent_was_trained_on_is_refused(train, tmp_path, caplog, changed, message):
    (tmp_path / "pieces.txt").write_text(TEXT * 2 + TEXT[::-1] * 2)
    train(**TINY)
    fork = {**TINY, "training": {"epochs": 2}, "checkpoint.resume": "my_runs/1/checkpoints/last.pt"}
    assert train(**{**fork, "text.batch_size": 7}).info["data"]["split"]["differs_from_start"] == []
    with pytest.raises(DataError, match=message):
        train(**fork, **changed)
    again = train(**fork, **changed, **{"text.new_split": True})
    assert len(again.info["data"]["split"]["differs_from_start"]) == 1
    assert "text.new_split=True: the samples are split differently than for the state" in caplog.text
