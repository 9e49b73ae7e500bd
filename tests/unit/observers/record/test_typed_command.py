import pytest

from sacristan.observers.record.typed_command import typed_command


@pytest.mark.parametrize(
    ("usual", "where", "named"),
    [
        ("", "my_runs", ""),
        ("other", "", ""),
        ("", "other runs", "--store 'other runs' "),
        ("other", "other", ""),
        ("other/", "other", ""),
        ("other", "my_runs", "--store my_runs "),
        ("mongodb://ann:secret@host/lab", "mongodb://host/lab", ""),
        ("", "mongodb://ann:secret@host/lab", "--store mongodb://host/lab "),
    ],
)
def test_store_is_named_unless_commands_take_it_without(monkeypatch, usual, where, named):
    monkeypatch.setenv("SACRISTAN_STORE", usual)
    assert typed_command(where, "note", "run 1") == f"sacristan {named}note 'run 1'"
