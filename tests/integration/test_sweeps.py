"""Sweeps: every point once, whatever dies over it; the same points again; nothing run twice; refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import psutil
import pytest

from sacristan.__main__ import main
from sacristan.configs import Map
from sacristan.observers.mongo import Destination
from sacristan.runs import StoreError, SweepError, open_store
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.agent_process import Agent
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.continuing import take_up
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.study.study_storage import StudyStorage
from sacristan.runs.sweeps.views import Watcher
from sacristan.runs.work import Claim, Worker
from sacristan.runs.work.warm import WarmPython
from tests.processes import PIPE, STDOUT, Process, run

ROOT = Path(__file__).parents[2]
TINY = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from sacristan.experiments import Experiment
from sacristan.ingredients import sweep
ex = Experiment("tiny", ingredients=[sweep.ingredient], system_metrics_s=None)

@ex.config
def config():
    # where the loss is measured
    x = 0.0
    # another entry
    kind = "plain"
    seed = 0

@ex.automain
def main(x, kind, seed, _run):
    if kind != "plain":
        exec(open("fault.py").read(), globals())
    for step in range(4):
        _run.log_scalar("loss", (x - 2) ** 2 + 1 / (step + 1) + seed, step)
    return x
"""
GRID = {
    "method": "grid",
    "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {"x": {"values": [0.0, 1.0, 2.0, 3.0]}},
}

RANDOM = {**GRID, "method": "random", "parameters": {"x": {"min": 0.0, "max": 3.0}}}


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


@pytest.fixture(scope="module")
def warm():
    with WarmPython(("sacred", "sacred.observers", "sacred.commandline_options", "numpy")) as started:
        yield started


class Sweep:
    """A sweep of the tiny experiment, with agents in this process."""

    def __init__(self, folder, warm, spec, destination=None, **entries):
        (folder / "tiny.py").write_text(TINY)
        self.folder, self.warm = folder, warm
        self.place = Place(folder / "my_runs", destination.address if destination else "")
        self.spec = read_spec(spec)
        defaults = {"settings": (), "options": (), "seed": 0, "count": None, "storage": ""}
        self.definition = Definition(
            id=entries.pop("id", "s"),
            experiment="tiny",
            spec=self.spec.document,
            script="tiny.py",
            module="",
            base=str(folder),
            cwd=str(folder),
            created="",
            **{**defaults, **entries},
        )
        self.home = self.place.home(self.definition.id)
        self.home.create(self.definition)

    def agent(self, **means):
        log = os.open(self.folder / "output.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        return Agent(self.home, AgentOptions(self.place.base, output=log, **means), self.warm)

    def points(self):
        return Study(self.home, self.definition, self.spec).points()

    def runs(self):
        with open_store(self.place.base) as store:
            return [
                (run.status, run["meta.sweep.trial"], run["meta.sweep.attempt"]) for run in store.find(sort="start")
            ]


@pytest.fixture
def sweep(tmp_path, warm):
    made = []

    def make(spec=GRID, **entries):
        made.append(Sweep(tmp_path, warm, spec, **entries))
        return made[-1]

    yield make
    for one in made:
        one.home.close()


# ---------------------------------------------------------------------- what is tried


@pytest.mark.slow
def test_a_grid_is_tried_point_by_point_and_judged(sweep):
    grid = sweep()
    assert grid.agent().run() == 4
    points = grid.points()
    assert [(point.state, point.parameters["x"], point.values) for point in points.values()] == [
        ("COMPLETE", x, ((x - 2) ** 2 + 0.25,)) for x in (0.0, 1.0, 2.0, 3.0)
    ]
    assert grid.runs() == [("COMPLETED", number, 0) for number in range(4)]
    assert Watcher(grid.home).look().best == (points[2],)
    assert grid.home.leases() == {}  # the agent has left
    assert grid.agent().run() == 0


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_the_same_seed_suggests_the_same_points_after_an_interruption_too(sweep, method):
    spec = {**GRID, "method": method, "parameters": {"x": {"min": 0.0, "max": 4.0}, "n": {"values": ["a", "b"]}}}
    whole, broken, other = (sweep(spec, id=id, seed=seed) for id, seed in (("a", 3), ("b", 3), ("c", 4)))
    found = {}
    for one, parts in ((whole, [15]), (broken, [4, 11]), (other, [15])):
        for part in parts:
            study = Study(one.home, one.definition, one.spec)
            for number in range(study.progress().num_taken, study.progress().num_taken + part):
                point = study.take(number)
                study.finish(number, "COMPLETE", [(point.parameters["x"] - 2) ** 2])
        found[one.definition.id] = [point.parameters for point in one.points().values()]
    assert found["a"] == found["b"]
    assert found["a"] != found["c"]
    if method == "bayes":  # which draws ten points at random first, and learns from them
        random = sweep({**spec, "method": "random"}, id="d", seed=3)
        study = Study(random.home, random.definition, random.spec)
        drawn = [study.take(number).parameters["x"] for number in range(15)]
        assert [number for number in range(15) if found["a"][number]["x"] != drawn[number]] == list(range(10, 15))


@pytest.mark.slow
def test_parameters_that_have_finished_are_not_run_again_unless_asked(sweep):
    spec = {**GRID, "method": "random", "parameters": {"x": {"values": [1.0, 2.0]}}}
    twice = sweep(spec, count=6)
    twice.agent().run()
    assert len(twice.runs()) == 2
    points = twice.points()
    assert {point.values for point in points.values() if point.parameters["x"] == 1.0} == {(1.25,)}
    assert sum("same_as" in point.notes for point in points.values()) == 4
    again = sweep(spec, id="again", count=3)
    again.agent(repeat=True).run()
    assert len(again.runs()) == 5


def test_a_point_with_several_seeds_is_judged_by_their_mean(sweep):
    seeds = sweep({**GRID, "parameters": {"x": {"values": [2.0]}}, "seeds": 3}, seed=5)
    seeds.agent().run()
    (point,) = seeds.points().values()
    assert point.values == (0.25 + 6,)
    assert len(point.notes["runs"]) == 3
    with open_store(seeds.place.base) as store:
        assert sorted(run["config.seed"] for run in store.find()) == [5, 6, 7]


def test_a_target_ends_the_sweep_and_so_does_the_budget(sweep):
    aimed = sweep({**GRID, "metric": {"name": "loss", "goal": "minimize", "target": 1.5}})
    aimed.agent().run()
    assert list(aimed.points()) == [0, 1]
    assert aimed.home.is_stopped
    late = sweep(id="late")
    assert late.agent(deadline=1.0).run() == 0


def test_agents_go_on_when_the_count_is_raised_while_they_run(sweep):
    grid = sweep(count=1)
    agent = grid.agent()
    point, _ = agent.next()
    assert grid.home.replace(dataclasses.replace(grid.definition, count=2), grid.home.definition())
    watcher = Watcher(grid.home)
    agent.study.finish(point.number, "COMPLETE", [1.0])
    second, _ = agent.next()
    agent.study.finish(second.number, "COMPLETE", [1.0])
    assert (second.number, agent.next()) == (1, None)
    assert watcher.look().limit == 2
    assert grid.home.replace(dataclasses.replace(grid.definition, count=3), grid.home.definition())
    assert watcher.look().limit == 3
    capped = read_spec({**GRID, "run_cap": 2}).document
    assert grid.home.replace(dataclasses.replace(grid.definition, count=3, spec=capped), grid.home.definition())
    assert watcher.look().limit == 2


def test_pruned_points_keep_their_records(sweep):
    values = {"x": {"values": [0.0, 1.0]}}
    pruned = sweep({**GRID, "parameters": values, "early_terminate": {"type": "threshold", "upper": 3.0}})
    pruned.agent().run()
    assert [point.state for point in pruned.points().values()] == ["PRUNED", "COMPLETE"]
    assert pruned.points()[0].reports == {0: 5.0}
    with open_store(pruned.place.base) as store:
        (run,) = store.find("status=PRUNED")
        assert run.metric("loss").values.tolist() == [5.0]


# In short sleeps: a signal that comes just ahead of one is acted on behind it.
WAITING = """
open("waits", "w").close()
while True:
    time.sleep(0.05)
"""

# ---------------------------------------------------------------------- what goes wrong


def test_what_is_killed_is_tried_again_so_often_and_no_more(sweep):
    (faulty := sweep({**GRID, "parameters": {"kind": {"values": ["faulty"]}}}))
    (faulty.folder / "fault.py").write_text("os.kill(os.getpid(), signal.SIGKILL)")
    faulty.agent(retries=2).run()
    (point,) = faulty.points().values()
    assert point.state == "FAIL"
    assert "is DEAD: was killed by SIGKILL, as by the kernel when memory runs out" in point.notes["reason"]
    assert faulty.runs() == [("DEAD", 0, 0), ("DEAD", 0, 1), ("DEAD", 0, 2)]


def test_a_trial_that_fails_is_not_tried_again_and_says_why(sweep):
    spec = {**GRID, "parameters": {"kind": {"values": ["faulty", "plain"]}}}
    failing = sweep(spec)
    (failing.folder / "fault.py").write_text("raise ValueError('no such thing')")
    failing.agent().run()
    first, second = failing.points().values()
    assert (first.state, second.state) == ("FAIL", "COMPLETE")
    assert "ValueError: no such thing" in first.notes["reason"]


@pytest.mark.slow
def test_a_sweep_whose_first_trials_all_fail_is_given_up(sweep, caplog):
    wrong = sweep({**GRID, "metric": {"name": "los", "goal": "minimize"}})
    wrong.agent().run()
    assert [point.state for point in wrong.points().values()] == ["FAIL"] * 3
    assert "logged no los, which the sweep optimizes; it logged: loss" in caplog.text
    assert wrong.home.is_stopped


@pytest.mark.slow
def test_a_trial_that_takes_too_long_is_ended_and_has_failed(sweep):
    slow = sweep({**GRID, "parameters": {"kind": {"values": ["slow"]}}})
    (slow.folder / "fault.py").write_text(WAITING)
    slow.agent(timeout_s=2.0).run()
    (point,) = slow.points().values()
    assert point.state == "FAIL"
    assert "took longer than sweep.trial_timeout_s=2.0, and was ended" in point.notes["reason"]
    assert [status for status, *_ in slow.runs()] in (["INTERRUPTED"], [])  # none where importing took so long


@pytest.mark.slow
def test_a_storage_can_be_corrected_until_points_are_in_it(sweep, tmp_path):
    one = sweep(storage="sqlite:////nowhere/study.db")
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    right, other = (dataclasses.replace(one.definition, storage=url) for url in urls)
    assert take_up(one.home, right)[0].storage == right.storage
    assert one.home.claims(0, "gone").add(0)
    with pytest.raises(SweepError, match=r"but the study of sweep s is in .*a.db; leave it out, copy the study there"):
        take_up(one.home, other)
    assert take_up(one.home, dataclasses.replace(right, storage=""))[0].storage == right.storage
    Study(one.home, other, one.spec)
    assert take_up(one.home, other)[0].storage == other.storage


@pytest.mark.slow
def test_what_a_dead_agent_left_is_seen_through_by_another(sweep):
    grid = sweep()
    for number, claimed in ((0, True), (1, False)):  # claimed, and in the second case not even taken
        assert grid.home.claims(number, "gone").add(0)
        if claimed:
            Study(grid.home, grid.definition, grid.spec).take(number)
    assert grid.agent().run() == 4
    assert {point.state for point in grid.points().values()} == {"COMPLETE"}
    assert grid.runs()[0] == ("COMPLETED", 0, 1) or ("COMPLETED", 0, 1) in grid.runs()


def test_an_agent_that_died_behind_its_run_leaves_nothing_to_run_again(sweep):
    grid = sweep({**GRID, "parameters": {"x": {"values": [1.0]}}})
    grid.agent().run()
    late = sweep({**GRID, "parameters": {"x": {"values": [1.0]}}}, storage="")
    # As if the agent had been killed before it told the study.
    (late.place.base / "sweeps" / "s" / "study.journal").unlink()
    assert late.agent().run() == 1
    (point,) = late.points().values()
    assert (point.state, point.values) == ("COMPLETE", (1.25,))
    assert len(late.runs()) == 1


@pytest.mark.slow
def test_seeds_that_have_run_to_their_end_are_not_run_again(sweep):
    spec = {**GRID, "parameters": {"x": {"values": [2.0]}}, "seeds": 3}
    sweep(spec, seed=5).agent().run()
    late = sweep(spec, seed=5)
    # As if the agent had been killed while it ran the last seed.
    (late.place.base / "sweeps" / "s" / "study.journal").unlink()
    with open_store(late.place.base) as store:
        (last,) = store.find("seed=7")
        store.remove([last])
    assert late.agent().run() == 1
    (point,) = late.points().values()
    assert point.values == (0.25 + 6,)
    with open_store(late.place.base) as store:
        attempts = {run["config.seed"]: run["meta.sweep.attempt"] for run in store.find()}
    assert attempts == {5: 0, 6: 0, 7: 1}


def test_only_one_agent_has_an_attempt(sweep, database, mongo_url):
    destination = Destination(mongo_url, database.name)
    for home in (sweep().home, sweep(destination=destination).home):
        assert [home.claims(7, name).add(0) for name in ("a", "b")] == [True, False]
        assert home.claims(7, "b").add(1)
        assert home.last_claims([6, 7]) == {7: Claim(1, "b")}
        assert home.claims(7).listed() == [Claim(0, "a"), Claim(1, "b")]


# ---------------------------------------------------------------------- as a user types it


def command(*words, **options):
    options = {"stdout": PIPE, "stderr": STDOUT, "text": True, "timeout": 120, "starts_python": True, **options}
    return run([sys.executable, "tiny.py", *words], **options)


FAST = "sweep.packages=['sacred','sacred.observers','sacred.commandline_options']"
OVER = "sweep.over={x: [0.0, 1.0, 2.0]}"


def test_a_sweep_from_the_command_line_goes_on_and_tells(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    words = ("sweep.run", "with", OVER, "sweep.metric=loss", FAST, "sweep.workers=2")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3 of 3 done" in done.stdout
    assert "best: trial 2, loss 0.25: x=2.0" in done.stdout
    (id,) = [path.name for path in (tmp_path / "my_runs" / "sweeps").iterdir()]
    assert f"sweep {id} in my_runs/sweeps/{id}; its runs: sacristan ls --sweep {id}" in done.stdout
    assert (tmp_path / "my_runs" / "sweeps" / id / "output.log").exists()
    again = command(*words, cwd=tmp_path)
    assert "3 of 3 done" in again.stdout
    with open_store(tmp_path / "my_runs") as store:
        assert len(store.find()) == 3
    best = command("sweep.best", "with", f"sweep.id={id}", cwd=tmp_path)
    assert "python tiny.py with x=2.0" in best.stdout
    assert "trial 2: loss 0.25" in best.stdout


@pytest.mark.slow
def test_an_experiment_that_records_in_a_database_alone_is_swept(tmp_path, database, mongo_url):
    observer = f"MongoObserver({mongo_url!r}, {database.name!r})"
    attached = f"from sacristan.observers import MongoObserver\nex.observers.append({observer})"
    script = TINY.replace("system_metrics_s=None", "system_metrics_s=None, record_to=None")
    (tmp_path / "tiny.py").write_text(script.replace("@ex.config", f"{attached}\n\n@ex.config"))
    done = command("sweep.run", "with", "sweep.over={x: [1.0]}", "sweep.metric=loss", FAST, cwd=tmp_path)
    assert "best: trial 0, loss 1.25" in done.stdout
    with open_store(f"{mongo_url.rstrip('/')}/{database.name}") as store:
        assert [run.status for run in store.find("meta.sweep.trial>=0")] == ["COMPLETED"]


REFUSED = [
    ("sweep.over={xx: [1, 2]}", "xx: got 1, but there is no such entry; the experiment has: kind, seed, sweep, x"),
    ("sweep.over={x: [1.0, abc]}", "x: got 'abc' (str), expected a number"),
    ("sweep.spec=nowhere.yaml", "nowhere.yaml"),
    ("sweep.count=0", "sweep.count: got 0, expected at least 1"),
    ("sweep.workers=0", "sweep.workers: got 0, expected at least 1"),
    ("sweep.storage=postgresql://ann:s3cret@db/lab", "sweep.storage: got a URL with a password"),
    ("x=1.0", "sweep.run: got neither of sweep.spec and sweep.over"),
    ("sweep.over={x: [1.0", "sweep.over: got '{x: [1.0', which is not valid YAML (while parsing a flow sequence"),
    ("sweep.over=x", "sweep.over: got 'x', expected a mapping such as {lr: [1e-3, 1e-2]}"),
    ("sweep.over={sweep.count: [1, 2]}", "sweep.count: is a setting of the sweep itself, expected settings of its"),
    ("x=1.0|sweep.over={x: [1.0, 2.0]}", "x: is searched, but x=1.0 is fixed for all runs; leave one of them out"),
    ("sweep.trial_timeout_s=0", "sweep.trial_timeout_s: got 0.0, expected more than 0, or None"),
    ("sweep.engine=slurm|sweep.slurm=gpu", "sweep.slurm: got 'gpu', expected a mapping such as {partition: gpu}"),
    (
        "sweep.over={x: [1.0]}|sweep.storage=study.db",
        "sweep.storage: got 'study.db', which cannot be opened (Could not parse",
    ),
    (
        "sweep.over={x: [1.0]}|sweep.storage=sqlite:///nowhere/study.db",
        "sweep.storage: got 'sqlite:///nowhere/study.db', which cannot be opened (unable to open database file); "
        "expected the URL of an Optuna storage, such as sqlite:///study.db",
    ),
]

# Tells of each command line how it ends, and what it says.
MANY = """
import contextlib, io, json, sys
import tiny
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            tiny.ex.run_commandline(["tiny.py", *words])
        except SystemExit as end:
            print(json.dumps([end.code, said.getvalue()]))
"""


def test_settings_that_the_experiment_does_not_have_are_refused_before_the_first_trial(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "many.py").write_text(MANY)
    names = ("best", "status", "stop", "agent")
    lines = [["sweep.run", "with", *words.split("|")] for words, _ in REFUSED]
    lines += [[f"sweep.{name}", "with", "sweep.id=nowhere"] for name in names]
    done = run([sys.executable, "many.py", json.dumps(lines)], cwd=tmp_path, capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in said] == [1] * len(lines), done.stderr
    for (word, message), (_, text) in zip(REFUSED, said[: len(REFUSED)], strict=True):
        assert message in text.splitlines()[-1], word
        assert text.startswith("error: "), word
    for _, text in said[len(REFUSED) :]:
        assert "there is no sweep nowhere in my_runs/sweeps; there are: none" in text
    assert not (tmp_path / "my_runs").exists()


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "fault.py").write_text(WAITING)
    words = ["sweep.run", "with", "sweep.over={kind: [plain, waiting]}", "sweep.metric=loss", FAST]
    with Process([sys.executable, "tiny.py", *words], cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True) as process:
        while not (tmp_path / "waits").exists():
            assert process.poll() is None, process.communicate()[0]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(60)
        assert process.returncode == 130
        assert "whose runs save their states; once more kills them" in out
        assert "give the same command again" in out
    with open_store(tmp_path / "my_runs") as store:
        assert sorted(run.status for run in store.find()) == ["COMPLETED", "INTERRUPTED"]
    (tmp_path / "fault.py").write_text("pass")
    done = command(*words, cwd=tmp_path)
    assert "2 of 2 done" in done.stdout
    with open_store(tmp_path / "my_runs") as store:
        assert len(store.find("status=COMPLETED")) == 2


KILLER = """
import json, pathlib
if not pathlib.Path("died").exists():
    pathlib.Path("died").touch()
    (lease,) = [json.loads(path.read_text()) for path in pathlib.Path("my_runs/sweeps").glob("*/agents/*.json")]
    os.kill(lease["pid"], signal.SIGKILL)
    while True:
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_an_agent_that_is_killed_is_followed_by_another(tmp_path, database, mongo_url):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "fault.py").write_text(KILLER)
    done = command("sweep.run", "with", "sweep.over={kind: [plain, kills]}", "sweep.metric=loss", FAST, cwd=tmp_path)
    assert "2 of 2 done" in done.stdout
    with open_store(tmp_path / "my_runs") as store:
        found = sorted((run["config.kind"], run.status) for run in store.find())
    assert found == [("kills", "COMPLETED"), ("kills", "INTERRUPTED"), ("plain", "COMPLETED")]


@pytest.mark.slow
def test_agents_share_a_sweep_in_a_database(tmp_path, database, mongo_url):
    (tmp_path / "tiny.py").write_text(TINY)
    url = f"{mongo_url.rstrip('/')}/{database.name}"
    words = ("with", OVER, "sweep.metric=loss", FAST, "-m", url)
    done = command("sweep.run", *words, "sweep.id=shared", cwd=tmp_path)
    assert "3 of 3 done" in done.stdout, done.stdout
    assert [run["status"] for run in database.runs.find()] == ["COMPLETED"] * 3
    assert {run["meta"]["sweep"]["id"] for run in database.runs.find()} == {"shared"}
    assert database.sweep_agents.count_documents({}) == 0
    joined = command("sweep.agent", "with", "sweep.id=shared", FAST, "-m", url, cwd=tmp_path)
    assert joined.returncode == 0, joined.stdout
    best = command("sweep.best", "with", "sweep.id=shared", "-m", url, cwd=tmp_path)
    assert "trial 2: loss 0.25" in best.stdout


def test_a_definition_of_another_kind_is_refused(tmp_path):
    (tmp_path / "sweeps" / "x").mkdir(parents=True)
    (tmp_path / "sweeps" / "x" / "sweep.json").write_text(json.dumps({"id": "x"}))
    with pytest.raises(SweepError, match="got a sweep without 'experiment'"):
        Place(tmp_path).home("x").definition()
    with pytest.raises(SweepError, match="expected letters, digits"):
        Place(tmp_path).home("../x")


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_agents_killed_at_any_time_lose_no_point(tmp_path, where, request):
    (tmp_path / "tiny.py").write_text(TINY)
    values = [round(0.1 * index, 1) for index in range(60)]
    words = [
        "sweep.run",
        "with",
        f"sweep.over={{x: {values}}}",
        "sweep.metric=loss",
        FAST,
        "sweep.workers=4",
        "sweep.id=k",
    ]
    words += ["sweep.retries=20"]
    if where == "database":
        database, url = (request.getfixturevalue(name) for name in ("database", "mongo_url"))
        words += ["-m", f"{url.rstrip('/')}/{database.name}"]
    place = Place(tmp_path / "my_runs", Destination(url, database.name).address if where == "database" else "")
    chance = random.Random(where)
    # Cold, so that agents are the processes that they are for everybody.
    options = {"cwd": tmp_path, "stdout": PIPE, "stderr": STDOUT, "text": True, "cold": True}
    with Process([sys.executable, "tiny.py", *words], **options) as process:
        killed: set[int] = set()
        # Ten of them, each at another time of its life, but none before it has taken a point.
        while len(killed) < 10 and process.poll() is None:
            time.sleep(chance.uniform(0.0, 0.7))
            agents = [
                child
                for child in descendants(process)
                if "sacristan.runs.sweeps.agents.agent_process" in cmdline(child)
            ]
            if agents and (victim := chance.choice(agents)).pid not in killed:
                killed.add(victim.pid)
                victim.kill()
        out, _ = process.communicate(300)
    assert len(killed) == 10, out
    assert process.returncode == 0, out
    with contextlib.closing(place.home("k")) as home:
        points = Study(home, home.definition(), read_spec(home.definition().spec)).points()
    assert sorted(point.parameters["x"] for point in points.values()) == values
    assert {point.state for point in points.values()} == {"COMPLETE"}
    assert all(point.values == ((point.parameters["x"] - 2) ** 2 + 0.25,) for point in points.values())
    with open_store(tmp_path / "my_runs") as store:
        runs = store.find()
        completed = [run["meta.sweep.trial"] for run in runs if run.status == "COMPLETED"]
    assert sorted(completed) == list(range(60))
    assert "RUNNING" not in {run.status for run in runs}


def descendants(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def cmdline(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.mark.slow
def test_the_best_are_judged_on_fresh_seeds(sweep, monkeypatch, capfd):
    # The loss of the tiny experiment is the seed and something of x: two points whose order no seed changes.
    grid = sweep({**GRID, "parameters": {"x": {"values": [0.0, 2.0]}}})
    grid.agent().run()
    monkeypatch.chdir(grid.folder)
    done = command("sweep.best", "with", "sweep.id=s", "sweep.reseed=3", FAST, cwd=grid.folder)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line[:8] for line in lines if re.match(r"trial \d: mean", line)] == ["trial 1:", "trial 0:"]
    assert "python tiny.py with x=2.0" in done.stdout
    with open_store(grid.place.base) as store:
        finals = store.find("meta.sweep.id~^s-final-")
    assert len(finals) == 6
    seeds = {one["config.x"]: set() for one in finals}
    for one in finals:
        seeds[one["config.x"]].add(one["config.seed"])
    assert seeds[0.0] == seeds[2.0]
    assert len(seeds[0.0] - {0}) == 3
    # Again: nothing is left to run.
    command("sweep.best", "with", "sweep.id=s", "sweep.reseed=3", FAST, cwd=grid.folder)
    with open_store(grid.place.base) as store:
        assert len(store.find()) == 8
    # On another number of seeds, those that lack.
    for num in (4, 2):
        assert command("sweep.best", "with", "sweep.id=s", f"sweep.reseed={num}", FAST, cwd=grid.folder).returncode == 0
    with open_store(grid.place.base) as store:
        assert len(store.find()) == 10


def test_optuna_opens_the_study_as_it_is(sweep):
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    grid = sweep({**GRID, "parameters": {"x": {"values": [1.0, 2.0]}}})
    grid.agent().run()
    path = grid.place.base / "sweeps" / "s" / "study.journal"
    study = optuna.load_study(storage=JournalStorage(JournalFileBackend(str(path))), study_name="s")
    assert study.best_params == {"x": 2.0}
    assert study.best_value == 0.25


@pytest.mark.slow
def test_a_study_may_be_kept_in_any_storage_of_optunas(sweep, tmp_path):
    grid = sweep({**GRID, "parameters": {"x": {"values": [1.0]}}}, storage=f"sqlite:///{tmp_path}/study.db")
    grid.agent().run()
    assert {point.state for point in grid.points().values()} == {"COMPLETE"}
    assert not (grid.place.base / "sweeps" / "s" / "study.journal").exists()


@pytest.mark.slow
def test_the_same_sweep_again_tries_the_same_and_comes_to_the_same(sweep):
    spec = {**GRID, "method": "bayes", "parameters": {"x": {"min": 0.0, "max": 4.0}}}
    found = []
    for id in ("one", "two"):
        one = sweep(spec, id=id, count=2, seed=7)
        one.agent().run()
        found.append([(point.parameters, point.values) for point in one.points().values()])
    assert found[0] == found[1]


def test_all_sweeps_are_shown_where_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def status(*words):
        assert main(["sweep", "status", *words]) == 0
        return capsys.readouterr().out

    (tmp_path / "my_runs").mkdir()
    assert "there is no sweep yet" in status()
    for id in ("one", "two"):
        where = (str(tmp_path), str(tmp_path))
        definition = Definition(id, "tiny", read_spec(GRID).document, "tiny.py", "", *where, (), (), 0, None, "", "")
        Place(tmp_path / "my_runs").home(id).create(definition)
    lines = status().splitlines()
    assert [line for line in lines if line.startswith("sweep ")] == ["sweep one: 0 of 4 done", "sweep two: 0 of 4 done"]
    (tmp_path / "my_runs" / "sweeps" / "one" / "sweep.json").write_text("{")
    lines = status().splitlines()
    assert [line[:22] for line in lines if line.startswith("sweep ")] == [
        "sweep one: my_runs/swe",
        "sweep two: 0 of 4 done",
    ]
    (tmp_path / "other").mkdir()
    assert "my_runs" not in status("--store", "other")
    assert main(["sweep", "plot", "--id", "two"]) == 1
    assert "there is nothing to plot" in capsys.readouterr().err
    assert main(["sweep", "best", "--id", "two"]) == 0
    assert "no trial has finished yet" in capsys.readouterr().out


@pytest.mark.slow
def test_several_objectives_under_a_constraint_have_a_front(sweep):
    spec = {
        "method": "nsga2",
        "metrics": [{"name": "loss", "goal": "minimize"}, {"name": "result", "goal": "maximize"}],
        "constraints": ["loss.max < 1.5"],
        "parameters": {"x": {"values": [0.0, 1.0, 2.0, 3.0]}},
    }
    two = sweep(spec, count=12)
    two.agent().run()
    points = two.points()
    assert {(point.parameters["x"], point.is_feasible) for point in points.values()} == {
        (0.0, False),
        (1.0, False),
        (2.0, True),
        (3.0, False),
    }
    assert {point.parameters["x"] for point in Watcher(two.home).look().best} == {2.0}
    assert json.loads((two.folder / "my_runs" / "1" / "info.json").read_text())["better"] == {
        "loss": "min",
        "result": "max",
    }


def test_gpus_are_divided_among_the_workers(monkeypatch):
    from sacristan.ingredients.sweep import _workers

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    for given, expected in (((3, 1), ["3", "5", "3"]), ((4, 2), ["3", "3", "5", "5"])):
        found = _workers(Map({"workers": given[0], "workers_per_gpu": given[1]}))
        assert [worker["CUDA_VISIBLE_DEVICES"] for worker in found] == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _workers(Map({"workers": 2, "workers_per_gpu": 1})) == [{}, {}]


def test_parameters_with_a_condition_are_set_only_where_it_holds(sweep):
    spec = {
        **GRID,
        "parameters": {"kind": {"values": ["plain", "faulty"]}, "x": {"values": [1.0, 2.0], "when": {"kind": "plain"}}},
    }
    conditional = sweep(spec)
    (conditional.folder / "fault.py").write_text("pass")
    conditional.agent().run()
    assert [point.parameters for point in conditional.points().values()] == [
        {"kind": "plain", "x": 1.0},
        {"kind": "plain", "x": 2.0},
        {"kind": "faulty"},
    ]


@pytest.mark.slow
def test_a_sweep_that_judges_nothing_runs_its_points_and_has_no_best(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    done = command("sweep.run", "with", OVER, FAST, "sweep.id=s", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "[3/3] trial 2 done:   x=2.0" in done.stdout
    best = command("sweep.best", "with", "sweep.id=s", cwd=tmp_path)
    assert "sweep s: it judges nothing, so no trial is the best; give it a metric" in best.stdout


@pytest.mark.slow
def test_an_outage_of_the_database_is_waited_out(sweep, mongod, caplog):
    mongod.start()
    grid = sweep(destination=Destination(f"{mongod.url}/?serverSelectionTimeoutMS=100&connectTimeoutMS=100", "lab"))
    study = Study(grid.home, grid.definition, grid.spec)
    mongod.kill()
    with contextlib.closing(grid.place.home("s")) as other, pytest.raises(StoreError, match="MongoDB at mongodb"):
        other.definition()  # one that has never answered is not waited for
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(study.take, 0)
        while "waiting for it" not in caplog.text:
            assert not taken.done(), taken.result()
        mongod.start()
        taken.result(60)
    assert [point.parameters for point in study.points().values()] == [{"x": 0.0}]
    mongod.kill()
    grid.home.hurry()  # as at a Ctrl-C
    with pytest.raises(StoreError, match="MongoDB at mongodb"):
        study.finish(0, "COMPLETE", [1.0])


@pytest.mark.slow
def test_a_server_that_is_slow_to_answer_at_first_is_waited_for(sweep, mongod, caplog):
    mongod.start()
    grid = sweep(destination=Destination(f"{mongod.url}/?serverSelectionTimeoutMS=100&connectTimeoutMS=100", "lab"))
    os.kill(mongod.pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool, contextlib.closing(grid.place.home("s")) as other:
        asked = pool.submit(other.definition)
        try:
            while "waiting for it" not in caplog.text:
                assert not asked.done(), asked.result()
        finally:
            os.kill(mongod.pid, signal.SIGCONT)
        assert asked.result(60) == grid.definition


def on(kind, request):
    if kind == "folder":
        return None
    return Destination(request.getfixturevalue("mongo_url"), request.getfixturevalue("database").name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_points_of_agents_that_died_before_they_claimed_or_took_them_are_tried(request, sweep, kind):
    one = sweep({**RANDOM, "run_cap": 4}, destination=on(kind, request))
    assert one.home.next_number(0, 4) == 0  # and is killed
    assert one.home.next_number(0, 4) == 1
    assert one.home.claims(1, "dead").add(0)
    assert one.agent().run() == 4
    points = one.points()
    assert [point.state for point in points.values()] == ["COMPLETE"] * 4
    again = sweep({**RANDOM, "run_cap": 4}, id="again")
    study = Study(again.home, again.definition, again.spec)
    assert [study.take(number).parameters for number in range(4)] == [points[n].parameters for n in range(4)]


def test_an_agent_that_draws_alone_reads_no_trial_of_others(request, sweep, monkeypatch):
    one = sweep({**RANDOM, "run_cap": 50}, destination=on("database", request))
    first, second = one.agent(), one.agent()
    for _ in range(20):
        point, _ = first.next()
        first.study.finish(point.number, "COMPLETE", [1.0])
    monkeypatch.setattr(StudyStorage, "_read", lambda _: pytest.fail("it reads all trials"))
    point, attempt = second.next()
    assert (point.number, attempt, len(second.study._storage._trials)) == (20, 0, 1)


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_a_sweep_without_a_counter_goes_on_behind_its_last_point(request, sweep, kind):
    """As one of an earlier version, or after a power cut."""
    one = sweep({**RANDOM, "run_cap": 6}, destination=on(kind, request))
    agent = one.agent()
    for _ in range(4):
        agent.study.finish(agent.next()[0].number, "COMPLETE", [1.0])
    if kind == "folder":
        (one.place.folder("s") / "next").write_bytes(b"")
    else:
        request.getfixturevalue("database").sweeps.update_one({}, {"$unset": {"next": 1}})
    assert one.agent().next()[0].number == 4


def test_points_whose_agents_are_interrupted_are_not_given_up(sweep, monkeypatch):
    one = sweep({**GRID, "parameters": {"x": {"values": [1.0]}}})

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_start", interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                one.agent(retries=1).run()
    assert one.agent(retries=1).run() == 1
    assert [point.state for point in one.points().values()] == ["COMPLETE"]
    assert one.runs() == [("COMPLETED", 0, 3)]


def test_the_same_sweep_with_more_points_is_gone_on_with(sweep):
    capped = sweep({**GRID, "run_cap": 1})

    def asking(**changes):
        return dataclasses.replace(capped.definition, spec=read_spec({**GRID, **changes}).document)

    assert take_up(capped.home, asking(run_cap=2))[0].spec["run_cap"] == 2
    assert Watcher(capped.home).look().limit == 2
    with pytest.raises(SweepError, match="got 's', a sweep with the method 'grid', not 'random'; keep that"):
        take_up(capped.home, asking(method="random"))
    with pytest.raises(SweepError, match="the settings for all runs 'none', not 'epochs=9'; keep that"):
        take_up(capped.home, dataclasses.replace(capped.definition, settings=["epochs=9"]))


@pytest.mark.nightly
def test_a_sweep_is_drawn(sweep):
    grid = sweep()
    grid.agent().run()
    drawn = command("sweep.plot", "with", "sweep.id=s", cwd=grid.folder)
    assert "my_runs/sweeps/s/plots/sweep.html" in drawn.stdout
    assert (grid.folder / "my_runs/sweeps/s/plots/history.png").stat().st_size > 5000


@pytest.mark.slow
def test_without_optuna_nothing_is_left(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "optuna.py").write_text("raise ImportError('away', name='optuna')")
    done = command("sweep.run", "with", OVER, "sweep.metric=loss", cwd=tmp_path, cold=True)
    assert "a sweep needs the package 'optuna', which is not installed" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "my_runs").exists()
