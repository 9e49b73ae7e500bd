"""Reports in a folder and in a database: versions, owners, and two who write at once."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from sacristan.runs import ChangedError, FilterError, StoreError, open_store
from sacristan.runs.stores.small_documents import Report


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def where(request, tmp_path):
    if request.param == "folder":
        (tmp_path / "store").mkdir()
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('mongo_url')}/reports_{tmp_path.name}"


def test_reports_are_private_or_shared_and_keep_their_versions(where):
    with open_store(where) as store:
        first = store.reports.save(Report("On  lr", "one", author="ann"))
        store.reports.save(Report("Mine", "x", owner="bob", author="bob"))
        assert (first.title, first.number, first.owner) == ("On lr", 1, "")
        assert [report.title for report in store.reports.visible("ann")] == ["On lr"]
        assert [report.title for report in store.reports.visible("bob")] == ["Mine", "On lr"]
        second = store.reports.save(dataclasses.replace(first, text="two", author="bob"), 1)
        third = store.reports.save(dataclasses.replace(second, title="On the lr", text="three"), 2)
    with open_store(where) as store:
        versions = store.reports.versions(first.id, "ann")
        assert [(one.number, one.title, one.text, one.author) for one in versions] == [
            (3, "On the lr", "three", "bob"),
            (2, "On lr", "two", "bob"),
            (1, "On lr", "one", "ann"),
        ]
        assert store.reports.get(first.id, "ann", 1).text == "one"
        assert len(store.find()) == 0  # a report is no run
        with pytest.raises(StoreError, match="keeps no version 9"):
            store.reports.get(first.id, "ann", 9)
        with pytest.raises(ChangedError, match="bob saved version 3 meanwhile"):
            store.reports.remove(second)
        store.reports.remove(third)
        assert store.reports.visible("ann") == []
        with pytest.raises(StoreError, match="there is no such report"):
            store.reports.get(first.id, "ann")
        with pytest.raises(ChangedError, match="has been removed; save your text as a new one"):
            store.reports.save(third, 3)
        assert store.views.visible("ann") == []


def test_private_report_is_not_there_for_others(where):
    with open_store(where) as store:
        mine = store.reports.save(Report("Mine", "x", owner="bob", author="bob"))
        with pytest.raises(StoreError, match="there is no such report, or it is private"):
            store.reports.get(mine.id, "ann")


def test_of_many_who_save_a_version_at_once_one_wins_and_the_others_are_told(where):
    with open_store(where) as store:
        first = store.reports.save(Report("t", "start"))

    def save(number):
        with open_store(where) as store:
            try:
                return store.reports.save(dataclasses.replace(first, text=f"of {number}", author=f"{number}"), 1).text
            except ChangedError as error:
                assert "saved version 2 while you were writing" in str(error)  # noqa: PT017
                return None

    with ThreadPoolExecutor(4) as pool:
        won = [text for text in pool.map(save, range(8)) if text]
    with open_store(where) as store:
        assert [one.text for one in store.reports.versions(first.id, "")] == [*won, "start"]


def test_oldest_versions_go(where, monkeypatch):
    monkeypatch.setattr("sacristan.runs.stores.small_documents._MOST_VERSIONS", 3)
    with open_store(where) as store:
        report = store.reports.save(Report("t", "1"))
        for number in range(1, 7):
            report = store.reports.save(dataclasses.replace(report, text=str(number + 1)), number)
        assert [one.text for one in store.reports.versions(report.id, "")] == ["7", "6", "5", "4"]


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (Report(" \n", "x"), "got a title of 0 characters, expected 1 to 120"),
        (Report("t" * 121, "x"), "got a title of 121 characters"),
        (Report("t", "ä" * 75_001), "got a report of 150,002 bytes, expected 150,000 at most"),
    ],
)
def test_invalid_report_is_rejected(where, report, problem):
    with open_store(where) as store, pytest.raises(FilterError, match=problem):
        store.reports.save(report)


def test_damaged_report_hides_no_other(tmp_path):
    with open_store(tmp_path) as store:
        good = store.reports.save(Report("good", "x"))
        (tmp_path / ".reports" / "0123456789abcdef.json").write_text('{"title": ')
        (tmp_path / ".reports" / "0123456789abcdee.json").write_text('{"title": 5}')
        assert store.reports.visible("") == [good]
