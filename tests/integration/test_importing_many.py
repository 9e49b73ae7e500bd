"""Imports and copies of many runs: each costs as much as the first, and sees what others do to the store meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import pytest

from sacristan.__main__ import main
from sacristan.runs import import_foreign, open_store
from sacristan.runs.query.index import scanning


@pytest.fixture
def tables(tmp_path):
    """Return a function that writes so many tables of one point into a folder."""

    def write(num_runs):
        folder = tmp_path / "from"
        folder.mkdir()
        for number in range(num_runs):
            (folder / f"{number:05}.csv").write_text(f"step,loss\n0,{number}\n")
        return folder

    return write


@pytest.fixture
def stores(tmp_path):
    """Two stores that are open on one folder."""
    with open_store(tmp_path / "store", create=True) as first, open_store(tmp_path / "store") as second:
        yield first, second


def calls_of_each(runs):
    """Return the outcome of each run, and how many functions its import calls, C's among them."""
    count, counts, outcomes = 0, [], []

    def note(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    while True:
        count = 0
        sys.setprofile(note)
        try:
            run = next(runs, None)
        finally:
            sys.setprofile(before)
        if run is None:
            return outcomes, counts
        outcomes.append(run.outcome)
        counts.append(count)


@pytest.mark.slow
def test_import_calls_as_many_functions_for_a_run_in_a_large_store_as_in_an_empty_one(tables, stores):
    path = tables(300)
    outcomes, counts = calls_of_each(import_foreign(path, stores[0]))
    assert set(outcomes) == {"new"}
    assert median(counts[-30:]) < 1.1 * median(counts[:30])
    os.utime(stores[0].where, (0, 0))  # nobody has changed it for long
    outcomes, present = calls_of_each(import_foreign(path, stores[1]))
    assert set(outcomes) == {"present"}
    assert median(present[-30:]) < 1.1 * median(present[:30]) < median(counts)


def test_run_that_another_process_has_just_imported_is_present(tables, stores):
    path = tables(60)
    first, second = (import_foreign(path, store) for store in stores)
    for number in range(60):
        imports = (first, second) if number // 5 % 2 else (second, first)
        new, present = (next(each) for each in imports)
        assert (new.outcome, present.outcome, new.id) == ("new", "present", present.id)
    assert sorted(int(run.id) for run in stores[0]) == [*range(1, 61)]


def test_run_added_between_reading_and_adding_the_same_one_is_kept_and_present(tables, stores, monkeypatch):
    path = tables(2)
    ours = import_foreign(path, stores[0])
    next(ours)
    theirs = import_foreign(path, stores[1])
    next(theirs)
    add, found = stores[0].add, []
    monkeypatch.setattr(stores[0], "add", lambda staged: found.append(next(theirs)) or add(staged))
    assert (next(ours).outcome, found[0].outcome) == ("present", "new")
    assert len(stores[0]) == 2


def test_what_others_remove_and_bring_back_during_an_import_is_seen(tables, stores):
    path = tables(5)
    ours, other = stores
    [*before] = import_foreign(path, ours)
    again = import_foreign(path, ours)
    next(again)
    other.remove([other.get(before[1].id), other.get(before[4].id)])
    other.discard([other.get(before[2].id)])
    other.restore(before[2].id)
    (path / "new.csv").write_text("step,loss\n0,1\n")
    [new] = import_foreign(path / "new.csv", other)
    assert new.id == before[4].id  # which was removed
    assert [run.outcome for run in again] == ["new", "present", "present", "new"]
    assert len({run.uid for run in ours}) == len(ours) == 6


def test_copies_do_not_list_the_store_for_each_run(tables, stores, tmp_path, monkeypatch):
    [*_] = import_foreign(tables(30), stores[0])
    scan, listed = scanning.scan, []
    monkeypatch.setattr(scanning, "scan", lambda store, known: listed.append(store) or scan(store, known))
    target = tmp_path / "copies"
    assert main(["--store", stores[0].where, "copy", *map(str, range(1, 31)), "--to", str(target)]) == 0
    assert len([*target.glob("*/run.json")]) == 30
    assert not (target / ".taking").exists()
    assert listed.count(target) < 10


@pytest.mark.parametrize("where", ["folder", "database"])
def test_prepared_runs_do_not_pile_up_during_an_import(where, tables, tmp_path, monkeypatch, request):
    path, home = tables(4), tmp_path / "prepared"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    place = str(tmp_path / "store")
    if where == "database":
        place = f"{request.getfixturevalue('mongo_url')}/{request.getfixturevalue('database').name}"
    with open_store(place, create=True) as store:
        home = home if where == "database" else Path(place, ".taking")
        for _ in import_foreign(path, store):
            assert [*home.glob("*/*")] == []
        assert [*home.glob("*")] == []


@pytest.mark.slow
def test_two_processes_that_import_the_same_at_once_add_each_run_once(tables, tmp_path):
    path = tables(300)
    command = [sys.executable, "-m", "sacristan", "--store", str(tmp_path / "store"), "import", str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = [process.communicate()[0].splitlines()[-1] for process in processes]
    new = [re.search(r"(\d+) new", text) for text in sums]
    assert sum(int(match[1]) for match in new if match) == 300
    with open_store(tmp_path / "store") as store:
        assert len({run.uid for run in store}) == len(store) == 300
