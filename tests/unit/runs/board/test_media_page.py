"""Tables of media, as the server finds, groups, sorts and pages their rows."""

import pytest

from sacristan.runs import StoreError
from sacristan.runs.board.media_page import SIZE, TableView, _histogram, table_page

ROWS = [
    ["cat", 0.5, {"$image": "a.png"}],
    ["dog", {"$number": "nan"}, None],
    ["Cat <b>", 2, None],
    ["dog", {"$number": "inf"}, None],
    [None, "text", None],
    ["dog", -1.0, None],
]
TABLE = {"columns": ["label", "p", "image"], "rows": ROWS}


def firsts(column=0, **view):
    return [row[column] for row in table_page(TABLE, TableView(**view)).rows]


@pytest.mark.parametrize(
    ("find", "found"),
    [
        ("cat", ["cat", "Cat <b>"]),
        ("dog inf", ["dog"]),
        ("p<1", ["cat", "dog"]),
        ("p >= 2, dog", ["dog"]),
        ("label=dog,p!=-1", ["dog", "dog"]),
        ("p=text", [None]),
        ("nothing<1", []),
        (" , ", ["cat", "dog", "Cat <b>", "dog", None, "dog"]),
    ],
)
def test_words_and_conditions_choose_rows(find, found):
    assert firsts(find=find) == found


def test_numbers_come_before_texts_and_rows_without_last_in_either_order():
    infinity, nan = ROWS[3][1], ROWS[1][1]
    assert firsts(1, sort="p") == [-1.0, 0.5, 2, infinity, "text", nan]
    assert firsts(1, sort="-p") == [infinity, 2, 0.5, -1.0, "text", nan]
    assert firsts(1, sort="unknown") == [row[1] for row in ROWS]


def test_groups_have_counts_and_means():
    page = table_page(TABLE, TableView(group="label", sort="-rows"))
    assert page.columns == ["label", "rows", "mean p"]
    assert [list(row) for row in page.rows] == [["dog", 3, -1.0], ["cat", 1, 0.5], ["Cat <b>", 1, 2.0], [None, 1, None]]
    assert (page.num_found, page.num_rows, page.all_columns) == (4, 6, ["label", "p", "image"])


def test_pages_hold_a_part_of_many_rows():
    table = {"columns": ["n"], "rows": [[number] for number in range(100_000)]}
    page = table_page(table, TableView(sort="-n", page=3, find="n>=1000"))
    assert [row[0] for row in page.rows] == list(range(99_999 - 2 * SIZE, 99_999 - 3 * SIZE, -1))
    assert (page.num_found, page.num_pages, page.page) == (99_000, 990, 3)
    assert table_page(table, TableView(page=10**6)).page == 1000


@pytest.mark.parametrize("document", [None, [], {}, {"rows": [1], "columns": []}, {"rows": [], "columns": "ab"}])
def test_what_is_no_table_is_refused(document):
    with pytest.raises(StoreError, match="this is not a table"):
        table_page(document, TableView())


def test_hostile_cells_change_nothing():
    rows = [[{"$number": [1]}], [], [{"$image": 1}], [[[]]], [10**400], [True], [{"$number": "x"}]]
    table = {"columns": ["a", "a"], "rows": rows}
    for view in (TableView(sort="a"), TableView(group="a", sort="-rows"), TableView(find="a<5, x")):
        assert table_page(table, view).num_rows == 7


def test_histogram_has_ticks_on_both_axes():
    axes = _histogram({"edges": [0, 1, 2], "counts": [10, 20]})["axes"]
    assert axes["across"] == [
        ("0.0000", "0"),
        ("25.0000", "0.5"),
        ("50.0000", "1"),
        ("75.0000", "1.5"),
        ("100.0000", "2"),
    ]
    assert axes["down"] == [("100.0000", "0"), ("75.0000", "5"), ("50.0000", "10"), ("25.0000", "15"), ("0.0000", "20")]
    wide = _histogram({"edges": [-1.7e308, 0, 1.7e308], "counts": [0, 0]})["axes"]
    assert wide["across"] == []
