from __future__ import annotations

import pytest

from sacristan.runs import FilterError
from sacristan.runs.query import full_name, quoted, short_name, similar_names, split_names, unquoted
from sacristan.runs.query.filters import AllOf, Condition, Not, OneOf, parse_filter

ODD = ["a=b", "a<b", "p>=0.9", "x!", "~x", "a b", "a and b", "a, b", "-x", "a`b", "`x`", "``", "it's", '"a"', "a\tb"]


@pytest.mark.parametrize("name", [*ODD, "AP@IoU=0.5.max"])
def test_odd_name_is_the_same_after_quoting(name):
    assert (quoted(name)[0], unquoted(quoted(name))) == ("`", name)
    for full in (f"config.{name}.x", f"summary.{name}.max", f"tags.{name}"):
        assert full_name(short_name(full)) == full_name(full) == full
        assert split_names(f"{short_name(full)}, lr") == [short_name(full), "lr"]
        assert parse_filter(f"{short_name(full)}=1") == Condition(full, "==", 1)


@pytest.mark.parametrize("name", ["lr", "val/loss.min", "a-b", "a`b`c", "f(x)", "é", ""])
def test_plain_name_stays(name):
    assert unquoted(name) == name
    assert quoted(name) == name or "`" in name


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("`AP@IoU=0.5`.max>0.3", Condition("summary.AP@IoU=0.5.max", ">", 0.3)),
        ("`a and b`=1 and lr=2", AllOf((Condition("config.a and b", "==", 1), Condition("config.lr", "==", 2)))),
        (
            "lr=1 or `a or b=1` != x",
            OneOf((Condition("config.lr", "==", 1), Not(Condition("config.a or b=1", "==", "x")))),
        ),
        ("`a in (b)` not in [1]", Not(Condition("config.a in (b)", "in", [1]))),
        ("note=`a and lr=1", AllOf((Condition("note", "==", "`a"), Condition("config.lr", "==", 1)))),
        ("`a``=b` ~ ^c", Condition("config.a`=b", "~", "^c")),
    ],
)
def test_quoted_name_in_a_condition(text, tree):
    assert parse_filter(text) == tree


@pytest.mark.parametrize("text", ["`a=1", "`AP@IoU=0.5`", "precision and recall.max>0.5"])
def test_condition_without_a_whole_name_mentions_backticks(text):
    with pytest.raises(
        FilterError, match=r"expected NAME, .*; put a name with spaces, commas or operators between backt"
    ):
        parse_filter(text)


def test_names_are_split_at_their_commas():
    assert split_names("a, max(b, c) - d,, `e, f` ") == ["a", "max(b, c) - d", "`e, f`"]


@pytest.mark.parametrize(("typed", "name"), [("AP@IoU", "AP@IoU=0.5"), ("A", "A<B"), ("val/acc", "val/acc,top1")])
def test_name_that_was_cut_at_an_operator_is_suggested_quoted(typed, name):
    assert similar_names(typed, [f"summary.{name}.max", "config.lr"]) == [f"`{name}.max`"]
