"""Texts: what they are read from, the words of their training part as codes, batches that are filled up."""

import json
import logging
import sys

import numpy as np
import pytest
import torch

from sacristan.configs import Map
from sacristan.ingredients import ConfigError, DataError
from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint
from sacristan.ingredients.data import ingredient, load
from sacristan.ingredients.datasets import texts
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.fitted import Vocabulary
from sacristan.ingredients.datasets.preparation import prepare_alike
from sacristan.ingredients.datasets.sources import describe, kind_of, load_source
from sacristan.ingredients.datasets.texts import Texts

DEFAULTS = ingredient.configurations[0]()
LINES = [f"{'well' if number % 2 else 'never'} {'so ' * (number % 5)}done w{number}" for number in range(24)]


def write(folder, lines=LINES, labels=None, name="texts.csv"):
    path = folder / name
    labels = [line.split()[0] for line in lines] if labels is None else labels
    path.write_text("text,label\n" + "".join(f"{line},{label}\n" for line, label in zip(lines, labels, strict=True)))
    return path


def config_of(path, **changes):
    return Map({**DEFAULTS, "name": "text", "path": str(path), **changes})


def read(path, **options):
    return load_source("text", str(path), **options)


def words_of(source):
    return [" ".join(words) for words in source.inputs.words]


# words


def test_words_and_marks_are_codes_in_the_order_of_their_number_and_rare_ones_unknown():
    vocabulary = Vocabulary(min_count=2)
    found = [vocabulary.split(text) for text in ("Well, well!", "well... is, it!", "")]
    fitted = vocabulary.fitted(found)
    assert fitted.words == (".", "well", "!", ",")
    assert [fitted.encode(text).tolist() for text in found] == [[3, 5, 3, 4], [3, 2, 2, 2, 1, 5, 1, 4], [1]]
    assert fitted.num_codes == 6


def test_words_are_limited_in_number_and_texts_in_length():
    vocabulary = Vocabulary(max_words=1, min_count=1, max_length=2, lowercase=False)
    assert vocabulary.split("Well well well") == ["Well", "well"]
    assert vocabulary.fitted([["a", "b"], ["b"]]).words == ("b",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_words": 0}, DataError, r"data\.options\.max_words: got 0, expected at least 1"),
        ({"max_lenght": 9}, ConfigError, r"data\.options\.max_lenght: .* did you mean 'max_length'\?"),
        ({"words": ["a"]}, DataError, r"data\.options\.words: the words come from the training part"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        read(write(tmp_path), options=options)


def test_vocabulary_is_that_of_the_training_part_and_lies_in_the_checkpoint(tmp_path):
    prepared = load(config_of(write(tmp_path), options={"min_count": 1}), 0)
    trained = [LINES[index] for index in prepared.indices["train"].tolist()]
    assert set(prepared.preparation.vocabulary.words) == {word for line in trained for word in line.split()}
    assert not {f"w{index}" for index in prepared.indices["test"].tolist()} & {*prepared.preparation.vocabulary.words}
    save_checkpoint({"model": {}, "preparation": prepared.preparation.state_dict()}, tmp_path / "last.pt")
    kept = preparation_of(load_checkpoint(tmp_path / "last.pt"), tmp_path / "last.pt")
    assert kept.vocabulary == prepared.preparation.vocabulary


# batches


def test_batches_are_filled_up_to_their_longest_text_and_hold_like_lengths(tmp_path):
    config = config_of(write(tmp_path), sampler="by_length", batch_size=4, options={"min_count": 1})
    data = make_batches(load(config, 0), config, 0, torch.device("cpu"))
    assert (data.task, data.classes, data.input_shape, data.input_dtype) == (
        "classification",
        ("never", "well"),
        (256,),
        torch.int64,
    )
    spreads, lengths = [], set()
    for words, _ in data.train.epoch(1):
        counts = (words != 0).sum(1)
        assert words.shape[1] == counts.max()
        assert all((row[:count] != 0).all() for row, count in zip(words, counts.tolist(), strict=True))
        spreads.append(int(counts.max() - counts.min()))
        lengths.add(words.shape[1])
    assert max(spreads) <= 2
    assert len(lengths) > 1


def test_texts_are_described_without_moments(tmp_path):
    found = describe(load(config_of(write(tmp_path)), 0))
    assert found["splits"]["train"]["classes"] == [8, 8]
    assert np.isnan(found["splits"]["train"]["mean"])


def test_some_of_the_texts_keep_their_words():
    few = Texts([["a"], ["b"], ["c"]], Vocabulary(("c", "b")))
    assert few.rows_at(np.array([2, 1])).batch_of(np.array([0, 1])).tolist() == [[2], [3]]


# files


def test_json_lines_and_csv_have_the_same_texts(tmp_path):
    lines = tmp_path / "texts.jsonl"
    rows = ({"text": line, "label": line.split()[0]} for line in LINES)
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, other = read(lines), read(write(tmp_path))
    assert (words_of(one), one.targets.tolist(), one.digest) == (words_of(other), other.targets.tolist(), other.digest)
    assert kind_of("a.jsonl") == "text"


def test_folder_has_a_folder_for_each_class(tmp_path):
    for name in ("good/1.txt", "bad/a.txt", "bad/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text {name[-5]}", encoding="utf-8")
    source = read(tmp_path)
    assert (words_of(source), source.targets.tolist()) == (["text a", "text b", "text 1"], ["bad", "bad", "good"])
    assert source.names == ("bad/a.txt", "bad/b.txt", "good/1.txt")


@pytest.mark.parametrize(
    ("header", "options", "found", "targets"),
    [
        ("text,label", {}, ["a"], ["b"]),
        ("label,text", {}, ["b"], ["a"]),
        ("one,two", {}, ["a"], ["b"]),
        ("one,two", {"columns": "two"}, ["b"], ["a"]),
        ("one,two", {"target": "one"}, ["b"], ["a"]),
    ],
)
def test_columns_of_texts_and_targets_are_found_or_named(header, options, found, targets, tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text(f"{header}\na,b\n")
    source = read(path, **options)
    assert (words_of(source), source.targets.tolist()) == (found, targets)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "text,label\na,b\n", {"columns": "txt"}, r"data\.columns: .* no column 'txt'; did you mean 'text'\?"),
        ("a.csv", "text,label\na,b\n", {"target": "lable"}, r"data\.target: .* did you mean 'label'\?"),
        ("a.csv", "text,label\na,b\n,b\n", {}, r"1 texts are missing in the column text, the first in row 2"),
        ("a.csv", "text\na\n", {}, r"a\.csv: its texts have no targets; give a csv"),
        ("a.txt", "a\n", {}, r"a\.txt: its texts have no targets; give a csv"),
        ("a.jsonl", "{", {}, r"a\.jsonl cannot be read as JSON lines"),
        ("a.txt", b"\xff", {}, r"a\.txt cannot be read as text in UTF-8"),
        ("b/a.md", "a", {}, r"has no files \*\.txt; give a folder with some"),
    ],
)
def test_files_that_do_not_fit_are_refused(name, content, options, message, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        read(path.parent if name.startswith("b/") else path, **options)


def test_other_texts_are_encoded_by_the_words_of_the_training_and_need_no_targets(tmp_path, caplog):
    config = config_of(write(tmp_path), options={"max_length": 3})
    trained = load(config, 0).preparation
    other = tmp_path / "new.txt"
    other.write_text("well done brand new\n\nnever\n")
    source = read(other, trained=trained, needs_targets=False)
    known = trained.vocabulary.words
    expected = [[known.index("well") + 2, known.index("done") + 2, 1], [known.index("never") + 2, 0, 0]]
    with caplog.at_level(logging.INFO):
        alike = prepare_alike(source, trained, config, 0, needs_targets=False)
    assert alike.inputs.batch_of(np.array([0, 1])).tolist() == expected
    csv = tmp_path / "new.csv"
    csv.write_text("extra,text\nx,well\n")
    assert words_of(read(csv, trained=trained, needs_targets=False)) == ["well"]


def test_same_texts_are_known_as_those_that_were_trained_on(tmp_path):
    config = config_of(write(tmp_path))
    prepared = load(config, 0)
    again = prepare_alike(read(config.path, trained=prepared.preparation), prepared.preparation, config, 3)
    assert again.fingerprint == prepared.fingerprint
    assert again.indices["test"].tolist() == prepared.indices["test"].tolist()


def test_docstrings_that_come_with_python_are_texts(monkeypatch):
    assert {*texts._PACKAGES} <= sys.stdlib_module_names
    monkeypatch.setattr(texts, "_PACKAGES", ("http", "json"))
    source = load_source("text")
    assert set(source.targets.tolist()) == {"http", "json"}
    where = next(place for place, words in enumerate(words_of(source)) if words.startswith("deserialize"))
    assert source.targets[where] == "json"
    assert len(source.inputs) > 50
