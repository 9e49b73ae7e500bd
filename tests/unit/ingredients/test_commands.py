"""Tables for the terminal."""

from sacristan.ingredients.commands import print_table


def printed(capsys, *args):
    print_table(*args)
    return capsys.readouterr().out


def test_table_puts_numbers_to_the_right_and_words_to_the_left(capsys):
    lines = printed(capsys, ["name", "count"], [["a", 5], ["long word", 12]]).splitlines()
    assert [line.rstrip() for line in lines] == ["name       count", "a              5", "long word     12"]


def test_table_takes_formatted_numbers_for_numbers(capsys):
    lines = printed(capsys, ["value"], [["0.5"], ["-12.25"], ["nan"]]).splitlines()
    assert [line.rstrip() for line in lines] == [" value", "   0.5", "-12.25", "   nan"]


def test_table_groups_thousands_of_counts_only(capsys):
    assert printed(capsys, ["a", "b"], [[1234567, "1234567"]]).split() == ["a", "b", "1,234,567", "1234567"]


def test_table_shows_bools_as_words(capsys):
    assert printed(capsys, ["a"], [[True], [False]]).split() == ["a", "True", "False"]


def test_table_shows_brackets_as_they_are(capsys):
    assert "[red]x[/red]" in printed(capsys, ["a"], [["[red]x[/red]"]])


def test_table_without_rows_shows_its_columns(capsys):
    assert printed(capsys, ["one", "two"], []).split() == ["one", "two"]


def test_table_without_a_terminal_has_no_colours_and_loses_nothing(capsys):
    text = printed(capsys, ["word", "other"], [["x" * 190, "short"], ["y" * 500, "short"]])
    assert "\033" not in text
    assert "x" * 190 in text
    assert text.count("y") == 500
