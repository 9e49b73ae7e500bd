import pytest

from sacristan.observers.record.redaction import hide_passwords, is_hidden, redact, typed_command


def test_redact_takes_out_users_and_passwords_alone():
    text = "cannot reach mongodb://me:s3cret@h1:1,h2:2/db?tls=true&tlsCertificateKeyFilePassword=pw now"
    assert redact(text) == "cannot reach mongodb://h1:1,h2:2/db?tls=true now"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://ann:s3cret@db.lab:5432/lab", "postgresql://ann:***@db.lab:5432/lab"),
        ("mongodb+srv://ann:s3cret@h1,h2/db?w=1", "mongodb+srv://ann:***@h1,h2/db?w=1"),
        ("redis://:s3cret@cache", "redis://:***@cache"),
        ("https://ghp_s3cret@git.lab/x.git", "https://***@git.lab/x.git"),
        ("db=mongodb://ann:s3cr@t/w?rd@h/db", "db=mongodb://ann:***@h/db"),
        ("mysql://ann:s3c/ret@h/db", "mysql://ann:***@h/db"),
        ("jdbc:x://h/db?user=ann&password=s3cret&ssl=1", "jdbc:x://h/db?user=ann&password=***&ssl=1"),
        ("https://h/?dbPassword=s3cret#top", "https://h/?dbPassword=***#top"),
        (
            "cannot reach 'amqp://ann:s3cret@h' and ftp://bob:s3cret@h, again",
            "cannot reach 'amqp://ann:***@h' and ftp://bob:***@h, again",
        ),
        ({"a": ["ftp://b:s3cret@h", 1, None]}, {"a": ["ftp://b:***@h", 1, None]}),
    ],
)
def test_passwords_of_urls_are_hidden_and_nothing_else(text, expected):
    assert hide_passwords(text) == expected == hide_passwords(expected)
    if isinstance(text, str):
        assert is_hidden(expected)
        assert not is_hidden(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/@scope/package",
        "https://h/path?next=me@lab.org",
        "ssh://git@git.lab/x.git",
        "s3://bucket/a:b@c",
        "http://[::1]:80/a@b",
        "mail ann:s3cret@lab.org",
        "a ** b *** c",
        "https://h/?pwds",
    ],
)
def test_text_without_a_password_stays_as_it_is(text):
    assert hide_passwords(text) == text
    assert not is_hidden(text)


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
