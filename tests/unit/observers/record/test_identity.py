import logging
import os

import pytest

from sacristan.observers.record import identity
from sacristan.observers.record.identity import is_alive, lease, parent_uid, user_name
from sacristan.runs import FilterError
from sacristan.runs.query.conditions import condition

# Not a new one: tests are named by it, and every worker has to name them alike.
UID = "0199f1c2a3b4c5d6e7f8091a2b3c4d5e"


def test_process_on_a_system_without_proc_is_alive_as_long_as_it_beats(monkeypatch):
    monkeypatch.setattr(identity, "_boot_id", lambda: "")
    monkeypatch.setattr(identity, "start_of", lambda pid: None)
    unknown = lease(1.0)
    assert is_alive(unknown)
    assert not is_alive(unknown, unknown["heartbeat"] + 31)


@pytest.fixture(autouse=True)
def no_parent(monkeypatch):
    monkeypatch.delenv("SACRISTAN_PARENT", raising=False)


def test_parent_uid_of_a_run_without_a_parent_is_none_and_notes_nothing():
    meta = {}
    assert parent_uid(meta) is None
    assert meta == {}


def test_parent_uid_is_that_of_the_environment_and_is_noted(monkeypatch):
    monkeypatch.setenv("SACRISTAN_PARENT", UID)
    meta = {}
    assert parent_uid(meta) == UID
    assert meta == {"parent": UID}


@pytest.mark.parametrize("given", ["0199f1c2a3b4c5d6e7f8091a2b3c4d5f", None])
def test_parent_uid_in_the_meta_entry_wins(monkeypatch, given):
    monkeypatch.setenv("SACRISTAN_PARENT", UID)
    assert parent_uid({"parent": given}) == given


@pytest.mark.parametrize("given", ["7", UID.upper() + "Z", f"{UID}\n", UID + "0", "../../etc"])
def test_parent_uid_that_is_none_is_warned_of_once_and_not_taken(monkeypatch, caplog, given):
    monkeypatch.setenv("SACRISTAN_PARENT", given)
    meta = {}
    with caplog.at_level(logging.WARNING):
        assert [parent_uid(meta), parent_uid(meta)] == [None, None]
    [message] = caplog.messages
    assert message.startswith(f"SACRISTAN_PARENT: got {given!r}, expected the uid")


def test_parent_uid_of_another_type_is_warned_of(caplog):
    assert parent_uid({"parent": 12}) is None
    assert 'meta_info["parent"]: got 12, expected the uid' in caplog.text


def test_user_is_the_account_whatever_its_shell_exports(monkeypatch):
    pwd = pytest.importorskip("pwd")
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setenv("SACRISTAN_USER", " ")
    assert user_name() == pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setenv("SACRISTAN_USER", " ada ")
    assert user_name() == "ada"


def test_user_of_an_account_without_a_name_is_the_shells_or_none(monkeypatch):
    pytest.importorskip("pwd")
    monkeypatch.delenv("SACRISTAN_USER", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    monkeypatch.setenv("LOGNAME", "ada")
    assert user_name() == "ada"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert user_name() is None
    with pytest.raises(FilterError, match="user: got me, but this user has no name; set SACRISTAN_USER"):
        condition("user", "=", "me")
