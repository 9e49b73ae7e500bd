"""Storages of studies: one order for all who write at once, whoever is killed, in a file and in MongoDB."""

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
import pytest

from sacristan.observers.mongo import Destination
from sacristan.runs.stores.opening import open_backend
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.home import PatientDocuments, Place
from sacristan.runs.sweeps.study.optuna_extensions import file_storage
from sacristan.runs.sweeps.study.study_storage import StudyStorage

WRITERS, TRIALS = 8, 6
SPEC = read_spec(
    {
        "method": "random",
        "metric": {"name": "loss", "goal": "minimize"},
        "parameters": {"x": {"min": 0.0, "max": 1.0}, "kind": {"values": ["a", "b"]}},
    }
)


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


@contextlib.contextmanager
def opened(place):
    if not place.startswith("mongodb://"):
        yield file_storage(Path(place))
        return
    with contextlib.closing(PatientDocuments(lambda: open_backend(place))) as documents:
        yield StudyStorage(documents, "s")


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


@pytest.mark.parametrize("place", ["file", pytest.param("mongo", marks=pytest.mark.slow)], indirect=True)
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


KILLED = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from sacristan.observers.mongo import Destination
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.optuna_extensions import file_storage
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


class LosesAnswers(PatientDocuments):
    """Asks everything twice, as where the first answer was lost."""

    def ask(self, question):
        super().ask(question)
        return super().ask(question)


@pytest.fixture
def storage(database, mongo_url):
    """Return a function that opens the storage of a study in the database."""
    address = Destination(mongo_url, database.name).address
    with contextlib.ExitStack() as stack:

        def open_storage(name="s", documents=PatientDocuments):
            opened = documents(lambda: open_backend(address))
            stack.callback(opened.close)
            return StudyStorage(opened, name)

        yield open_storage


def objective(trial):
    kind = trial.suggest_categorical("kind", ["a", None, True, 2, 0.5])
    x = trial.suggest_float("a.b $x", 1e-6, 1.0, log=True)
    n = trial.suggest_int("n", -3, 10, step=1)
    for step, value in enumerate([x, float("nan"), n, float("-inf")]):
        trial.report(value, step)
        if step == 2 and trial.should_prune():
            raise optuna.TrialPruned
    trial.set_user_attr("odd", {"a.b": [1, 2**70, "é", None], "$set": True})
    if trial.number % 7 == 6:
        raise RuntimeError("each seventh")
    return x + n + (kind == "a")


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: optuna.samplers.TPESampler(seed=3, n_startup_trials=5),
        lambda: optuna.samplers.NSGAIISampler(seed=3, population_size=6),
    ],
)
def test_study_in_mongodb_is_the_one_in_memory(storage, sampler):
    studies = []
    for own in (None, storage()):
        pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
        study = optuna.create_study(storage=own, study_name="s", sampler=sampler(), pruner=pruner)
        study.optimize(objective, n_trials=25, catch=RuntimeError)
        study.set_user_attr("what", {"a.b": [1]})
        study.set_user_attr("what", {"a.b": ["$last"]})
        studies.append(study)
    again = optuna.load_study(storage=storage(), study_name="s")
    assert optuna.get_all_study_names(storage()) == ["s"]
    for study in (studies[1], again):
        assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED", "FAIL"}
        assert study.user_attrs == {"what": {"a.b": ["$last"]}}
        assert study.best_trial.number == studies[0].best_trial.number
        assert study.directions == studies[0].directions
        for trial, other in zip(study.trials, studies[0].trials, strict=True):
            names = ("number", "state", "params", "distributions", "values", "user_attrs", "system_attrs")
            assert [getattr(trial, name) for name in names] == [getattr(other, name) for name in names]
            assert repr(trial.intermediate_values) == repr(other.intermediate_values)
            assert trial.datetime_start <= trial.datetime_complete


def test_studies_of_one_collection_do_not_mix(storage):
    for name in ("a", "a-b", "ab"):
        study = optuna.create_study(storage=storage(name), study_name=name)
        study.tell(study.ask(), len(name))
    optuna.delete_study(storage=storage("a"), study_name="a")
    assert not storage("a").get_all_studies()
    for name in ("a-b", "ab"):
        study = optuna.load_study(storage=storage(name), study_name=name)
        assert [trial.value for trial in study.trials] == [len(name)]


def test_what_is_sent_twice_is_there_once(storage):
    study = optuna.create_study(storage=storage(), study_name="s")
    point = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs={"point": 4})
    writer = storage(documents=LosesAnswers)
    assert [writer.create_new_trial(0, point) for _ in range(2)] == [4, 4]
    writer.set_trial_user_attr(4, "runs", ["u"])
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        writer.set_trial_state_values(4, optuna.trial.TrialState.COMPLETE, [1.0])
    (trial,) = study.trials
    assert (trial.number, trial.value, trial.user_attrs) == (4, 1.0, {"point": 4, "runs": ["u"]})


def test_trials_are_read_once_they_are_there_in_whatever_order(storage):
    reader = optuna.create_study(storage=storage(), study_name="s")
    writer = storage()
    for number in (2, 0, 1):
        point = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs={"point": number})
        writer.create_new_trial(0, point)
        reader._storage.expire()
        reader.get_trials()
    writer.set_trial_state_values(0, optuna.trial.TrialState.FAIL)
    reader._storage.expire()
    assert [trial.state.name for trial in reader.trials] == ["FAIL", "RUNNING", "RUNNING"]


def test_journal_of_an_earlier_version_is_read_and_then_converted(database, tmp_path, mongo_url):
    definition = Definition("s", "tiny", SPEC.document, "tiny.py", "", "/", "/", (), (), 0, None, "", "")
    with contextlib.closing(Place(tmp_path, Destination(mongo_url, database.name).address).home("s")) as home:
        home.create(definition)
        path = tmp_path / "study.journal"
        old = Study(home, definition, SPEC, storage=file_storage(path))
        for number in range(3):
            old.take(number)
        old.finish(0, "COMPLETE", [2.0])
        lines = path.read_text().splitlines()
        database.sweep_journal.insert_many(
            [{"_id": "s", "next": len(lines)}, *({"_id": f"s/{n:09d}", "entry": line} for n, line in enumerate(lines))]
        )
        before = old.points()
        assert Study(home, definition, SPEC, is_read_only=True).points() == before
        assert database.sweep_trials.count_documents({}) == 0
        new = Study(home, definition, SPEC)
        assert new.points() == before
        new.finish(1, "COMPLETE", [1.0])
        assert Study(home, definition, SPEC, is_read_only=True).points()[1].values == (1.0,)
