"""The known name nearest to a mistyped one, and the question that suggests it."""

import pytest

from sacristan.configs.nearest import misspelt, nearest, suggestion, word_suggestion

KNOWN = [
    "lr",
    "epochs",
    "optimizer",
    "optimizer.lr",
    "optimizer.name",
    "model",
    "model.name",
    "data.batch_size",
    "data.encoding",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("epcohs", "epochs"),
        ("optimizer.nmae", "optimizer.name"),
        ("optimiser.name", "optimizer.name"),
        ("opt.name", "optimizer.name"),
        ("batch_size", "data.batch_size"),
        ("model.batch_size", "data.batch_size"),
        ("bacth_size", "data.batch_size"),
        ("Epochs", "epochs"),
        ("modle", "model"),
        ("optimizer.rl", "optimizer.lr"),
        ("optimizer_name", "optimizer.name"),
        ("batch", "data.batch_size"),
        ("zzzzzz", None),
        ("nothing", None),
        ("o", None),
        ("optimizer.zzzzzz", None),
        ("optimizer.momentum", None),
        ("", None),
    ],
)
def test_nearest_misspelt_name_finds_what_was_meant(name, expected):
    assert nearest(name, KNOWN) == expected


def test_nearest_takes_letters_that_changed_places_for_the_commonest_slip():
    assert nearest("Adma", ["Adam", "AdamW", "Adamax"]) == "Adam"


def test_nearest_of_nothing_is_none():
    assert nearest("lr", []) is None


def test_suggestion_without_a_near_name_lists_the_known_ones():
    assert suggestion("Adma", ["Adam", "SGD"], form="optimizer.name={}".format) == "did you mean optimizer.name=Adam?"
    assert suggestion("zzz", ["Adam", "SGD"]) == word_suggestion("zzz", ["Adam", "SGD"]) == "there are: Adam, SGD"
    assert suggestion("zzz", []) == word_suggestion("zzz", []) == "there are: none"
    assert suggestion("zzz", ["Adam"], "") == word_suggestion("zzz", ["Adam"], "") == ""


def test_word_suggestion_keeps_a_comma_in_a_name_and_offers_several():
    assert word_suggestion("COMPLETE", ["completed"]) == "did you mean completed?"
    assert word_suggestion("acc, top", ["acc, top1"]) == "did you mean acc, top1?"
    assert word_suggestion("loss", ["loss1", "loss2", "loss3"], most=3) == "did you mean loss3, loss2 or loss1?"


def test_misspelt_is_a_slip_in_a_known_name_alone():
    known = ["val/accuracy", "val/loss"]
    assert [misspelt(name, known) for name in ("val/acuracy", "val/loss", "val/dice")] == ["val/accuracy", None, None]
