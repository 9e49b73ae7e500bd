import pytest
import torch

from sacristan.ingredients import DataError
from sacristan.ingredients.datasets.corpus import characters_a_byte, make_corpus, read_text

CPU = torch.device("cpu")


def corpus(text, *, context=4, batch_size=2, val=0.25, test=0.25):
    return make_corpus(text, context, batch_size, val, test, seed=0, device=CPU)


def test_sequences_cover_each_part_in_order_with_the_bytes_that_follow():
    found = corpus(bytes(range(40)))
    assert found.val.inputs.tolist() == [[20, 21, 22, 23], [24, 25, 26, 27]]
    assert found.val.targets.tolist() == [[21, 22, 23, 24], [25, 26, 27, 28]]
    assert found.test.inputs.tolist() == [[30, 31, 32, 33], [34, 35, 36, 37]]
    assert sorted(found.train.inputs.flatten().tolist()) == list(range(16))
    (inputs, targets), _ = found.train.epoch(1)
    assert torch.equal(targets, inputs + 1)
    assert inputs.dtype == torch.int64


def test_order_of_sequences_is_another_one_in_each_epoch_and_the_same_again():
    train = corpus(bytes(range(200)), batch_size=100).train
    first, again, second = (next(iter(train.epoch(epoch)))[0] for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_part_that_is_not_wanted_is_empty():
    assert corpus(bytes(40), val=0.0).val.num_samples == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 0}, r"text\.context: got 0, expected at least 1"),
        ({"batch_size": 0}, r"text\.batch_size: got 0, expected at least 1"),
        ({"val": 1.0}, r"text\.val_fraction: got 1\.0, expected 0 or more, and less than 1"),
        ({"context": 10}, "text: its val part has 10 bytes, fewer than the 11 of one sequence"),
        ({"val": 0.6, "test": 0.4}, "text: its train part has 0 bytes"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        corpus(bytes(40), **arguments)


def test_folder_is_read_in_the_order_of_names(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("öne")
    (tmp_path / "c.md").write_text("no text file")
    assert read_text(str(tmp_path)).decode() == "öne\n\ntwo"
    assert read_text(str(tmp_path / "b.txt")) == b"two"
    assert characters_a_byte("öne".encode()) == 0.75


def test_text_that_comes_with_python_is_the_language_reference():
    found = read_text(None)
    assert len(found) > 300_000
    assert b'The "for" statement' in found


def test_what_is_no_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"text\.path=.*: has no files \*\.txt"):
        read_text(str(tmp_path))
    with pytest.raises(DataError, match=r"text\.path=.*nowhere\.txt: cannot be read \(No such file"):
        read_text(str(tmp_path / "nowhere.txt"))
    (tmp_path / "latin.txt").write_bytes("höre".encode("latin-1"))
    with pytest.raises(DataError, match=r"is not UTF-8 \(invalid .* at byte 1\)"):
        read_text(str(tmp_path))
