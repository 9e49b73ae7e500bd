"""Journals of studies: one order for all who write at once, whoever is killed, in a file and in MongoDB."""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pymongo
import pytest
from optuna.storages import JournalStorage

from runs.sweeps.study.journals import MongoJournal, file_storage
from runs.sweeps.study.outages import Outages

WRITERS, TRIALS = 8, 6


@contextlib.contextmanager
def opened(place):
    if not place.startswith("mongodb://"):
        yield file_storage(Path(place))
        return
    with pymongo.MongoClient(place) as client:
        yield JournalStorage(MongoJournal(client.get_default_database().sweep_journal, "ab", Outages("db")))


def trials_in(place):
    with opened(place) as storage:
        return optuna.load_study(storage=storage, study_name="s").get_trials()


def write(place, writer):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with opened(place) as storage:
        study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
        for count in range(TRIALS):
            trial = study.ask()
            trial.set_user_attr("who", [writer, count])
            study.tell(trial, trial.suggest_float("x", 0, 1))


@pytest.fixture(params=["file", "mongo"])
def place(request, tmp_path):
    if request.param == "file":
        return str(tmp_path / "study.journal")
    database = request.getfixturevalue("database")
    return f"{request.getfixturevalue('mongo_url').rstrip('/')}/{database.name}"


def test_eight_writers_leave_one_order_without_gaps(place):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(place, writer)) for writer in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    trials = trials_in(place)
    assert [trial.number for trial in trials] == list(range(WRITERS * TRIALS))
    found = sorted(tuple(trial.user_attrs["who"]) for trial in trials)
    assert found == [(writer, count) for writer in range(WRITERS) for count in range(TRIALS)]
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    # Whoever reads it sees the same.
    again = trials_in(place)
    assert [trial.user_attrs for trial in again] == [trial.user_attrs for trial in trials]
    if place.startswith("mongodb://"):
        with pymongo.MongoClient(place) as client:
            entries = client.get_default_database().sweep_journal.find({"entry": {"$exists": True}}).sort("_id", 1)
            numbers = [int(entry["_id"].partition("/")[2]) for entry in entries]
        assert numbers == list(range(len(numbers)))


KILLED = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from runs.sweeps.study.journals import file_storage
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(storage=file_storage(Path({path!r})), study_name="s", load_if_exists=True)
print("ready", flush=True)
while True:
    study.tell(study.ask(), 0.5)
"""


def test_a_writer_that_is_killed_leaves_the_journal_to_others(tmp_path):
    path = tmp_path / "study.journal"
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", KILLED.format(root=root, path=str(path))], stdout=-1) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            size = path.stat().st_size
            while path.stat().st_size < size + 2000:
                pass
        finally:
            process.send_signal(signal.SIGKILL)
    study = optuna.load_study(storage=file_storage(path), study_name="s")
    before = len(study.get_trials())
    study.tell(study.ask(), 1.0)
    assert len(study.get_trials()) == before + 1
    assert all(line.startswith("{") for line in path.read_text().splitlines())


@pytest.mark.parametrize("torn", ['{"op_code":4,"wor', "x" * 10_000])
def test_a_torn_line_is_cut_off_by_the_next_writer(tmp_path, torn):
    path = tmp_path / "study.journal"
    study = optuna.create_study(storage=file_storage(path), study_name="s")
    study.tell(study.ask(), 1.0)
    with path.open("a") as stream:
        stream.write(torn)
    again = optuna.load_study(storage=file_storage(path), study_name="s")
    again.tell(again.ask(), 2.0)
    assert [trial.value for trial in optuna.load_study(storage=file_storage(path), study_name="s").trials] == [1.0, 2.0]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_full_disk_leaves_no_torn_line(tmp_path):
    path = tmp_path / "study.journal"
    study = optuna.create_study(storage=file_storage(path), study_name="s")
    before = path.read_bytes()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, len(before) + 20))
        try:
            study.ask()
        except OSError:
            os._exit(17)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    assert path.read_bytes() == before
    study.tell(study.ask(), 1.0)


def test_journals_of_one_collection_do_not_mix(database):
    first, second = (MongoJournal(database.sweep_journal, name, Outages("db")) for name in ("a", "ab"))
    first.append_logs([{"n": 1}, {"n": 2}])
    second.append_logs([{"n": 3, "value": float("nan"), "big": 2**70, "a.b": [1]}])
    assert [log["n"] for log in first.read_logs(0)] == [1, 2]
    assert [log["n"] for log in first.read_logs(1)] == [2]
    (found,) = second.read_logs(0)
    assert (found["big"], str(found["value"]), found["a.b"]) == (2**70, "nan", [1])


def test_a_writer_that_died_before_its_entry_holds_up_nobody_for_long(database, monkeypatch):
    monkeypatch.setattr("runs.sweeps.study.journals._PATIENCE_S", 0.05)
    study = optuna.create_study(
        storage=JournalStorage(MongoJournal(database.sweep_journal, "a", Outages("db"))), study_name="s"
    )
    killed, slow = (MongoJournal(database.sweep_journal, "a", Outages("db")) for _ in range(2))
    assert killed._next() == 1
    number = slow._next()
    study.tell(study.ask(), 1.0)  # behind the two numbers, which got empty entries
    assert not slow._insert(number, "late")
    slow.append_logs([{"op_code": 10, "worker_id": ""}])  # under a new number
    again = optuna.load_study(
        storage=JournalStorage(MongoJournal(database.sweep_journal, "a", Outages("db"))), study_name="s"
    )
    assert [trial.value for trial in again.trials] == [1.0]
    numbers = [entry["_id"] for entry in database.sweep_journal.find({"entry": {"$exists": True}}).sort("_id", 1)]
    assert numbers == [f"a/{number:09d}" for number in range(len(numbers))]
