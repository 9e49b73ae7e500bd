"""Sweeps that are extended under their id: what was done is kept, each new point is tried once, failed points again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest

from sacristan.runs import SweepError, open_store
from sacristan.runs.sweeps.spec import read_spec, spec_of
from sacristan.runs.sweeps.study.continuing import retry_failed, take_up
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Watcher
from sacristan.runs.sweeps.views.study_view import make_study_view
from sacristan.runs.work.warm import WarmPython
from tests.integration.test_sweeps import FAST, GRID, TINY, Sweep, command, on
from tests.processes import PIPE, STDOUT, Process


@pytest.fixture(scope="session")
def mongo_url(journaled_mongo_url):
    return journaled_mongo_url


@pytest.fixture(scope="module")
def warm():
    with WarmPython(("sacred", "sacred.observers", "sacred.commandline_options", "numpy")) as started:
        yield started


@pytest.fixture
def sweep(tmp_path, warm):
    with contextlib.ExitStack() as stack:

        def make(spec, **entries):
            one = Sweep(tmp_path, warm, spec, **entries)
            stack.callback(one.home.close)
            return one

        yield make


NONE = "sweep s has no failed points to run again"
PLACES = ["folder", pytest.param("database", marks=pytest.mark.slow)]


def wanted(one, **changes):
    """The sweep as a command with another spec asks for it."""
    spec = read_spec({**one.spec.document, **changes.pop("spec", {})})
    return dataclasses.replace(one.definition, spec=spec.document, **changes)


def over(**lists):
    return {"parameters": {name: {"values": some} for name, some in lists.items()}}


def finish_all(agent, value=lambda point: (point.parameters["x"] - 2) ** 2):
    """Take what there is, as an agent does, and complete it; return the points."""
    points = []
    while (taken := agent.next()) is not None:
        agent.study.finish(taken[0].number, "COMPLETE", [value(taken[0])])
        points.append(taken[0].parameters)
    return points


@pytest.mark.parametrize("place", PLACES)
def test_extended_grid_tries_the_new_points_and_keeps_the_others(sweep, request, place):
    one = sweep({**GRID, **over(x=[0.0, 1.0])}, destination=on(place, request))
    running = one.agent()  # which was started before the extension
    finish_all(running)
    definition, notes = take_up(one.home, wanted(one, spec=over(x=[0.0, 1.0, 3.0], kind=["plain"])))
    assert notes == ["sweep s is extended to version 2 (kind x, 3 more points); what was done is kept"]
    assert [version["spec"] for version in definition.earlier] == [one.definition.spec]
    assert one.home.definition() == definition
    assert [point["x"] for point in finish_all(running)] == [0.0, 1.0, 3.0]
    points = Watcher(one.home).look().points
    assert [(point.version, point.parameters["x"], point.values) for point in points.values()] == [
        (1, 0.0, (4.0,)),
        (1, 1.0, (1.0,)),
        (2, 0.0, (4.0,)),
        (2, 1.0, (1.0,)),
        (2, 3.0, (1.0,)),
    ]
    # The command of before, and one with fewer values, continue with the present version.
    for spec, note in ((over(x=[0.0, 1.0]), "was extended since"), (over(x=[3.0], kind=["plain"]), "has all points")):
        again, notes = take_up(one.home, wanted(one, spec=spec))
        assert again == definition
        assert note in notes[0]
    assert finish_all(one.agent()) == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["random", "bayes", pytest.param("gp", marks=pytest.mark.slow), "cma-es", "qmc"])
def test_extended_search_continues_in_the_wider_space(sweep, request, method, place):
    before = {"x": {"min": 1.0, "max": 2.0}, "y": {"min": 1, "max": 4}, "n": {"values": ["a", "b"]}}
    after = {**before, "x": {"min": 0.0, "max": 5.0}, "n": {"values": ["a", "b", "c"]}}
    if method == "cma-es":
        before, after = ({name: law for name, law in one.items() if name != "n"} for one in (before, after))
    other = {**after, "y": {"distribution": "normal", "mu": 3.0}}
    one = sweep({**GRID, "method": method, "parameters": before, "run_cap": 14}, destination=on(place, request))
    agent = one.agent()
    finish_all(agent)
    done = Watcher(one.home).look().points
    for parameters, cap in ((after, 28), (other, 34), (before, 40)):  # and the first command again
        take_up(one.home, wanted(one, spec={"parameters": parameters, "run_cap": cap}))
        finish_all(agent)
    points = Watcher(one.home).look().points
    assert {number: points[number] for number in done} == done
    assert [point.version for point in points.values()] == [1] * 14 + [2] * 14 + [3] * 6
    assert all(1.0 <= points[number].parameters["x"] <= 2.0 for number in range(14))
    assert any(not 1.0 <= points[number].parameters["x"] <= 2.0 for number in range(14, 34))
    if method != "cma-es":
        assert {"a", "b", "c"} == {points[number].parameters["n"] for number in range(14, 34)}
    readable = make_study_view(Watcher(one.home).study.optuna, spec_of(one.home.definition()))
    assert set(readable.parameters) == set(before)
    assert len(readable.complete) == 34


def test_sampler_learns_from_the_points_of_earlier_versions(sweep):
    """With ten trials of a random search before it, TPE draws none at random in a second version."""
    law = {"x": {"min": 0.0, "max": 4.0}, "n": {"values": ["a", "b"]}}
    wider = {"x": {"min": 0.0, "max": 8.0}, "n": {"values": ["a", "b", "c"]}}
    drawn = {}
    for method in ("bayes", "random"):
        one = sweep({**GRID, "method": "random", "parameters": law, "run_cap": 12}, id=method)
        agent = one.agent()
        finish_all(agent)
        take_up(one.home, wanted(one, spec={"method": method, "parameters": wider, "run_cap": 20}))
        drawn[method] = [point["x"] for point in finish_all(agent)]
    assert len(drawn["bayes"]) == 8
    assert not set(drawn["bayes"]) & set(drawn["random"])


def test_several_objectives_are_extended_too(sweep):
    both = {
        "metric": None,
        "metrics": [{"name": "loss"}, {"name": "time"}],
        "method": {"name": "nsga2", "population_size": 4},
    }
    spec = {name: value for name, value in {**GRID, **both}.items() if value is not None}
    one = sweep({**spec, "parameters": {"x": {"min": 0.0, "max": 1.0}}, "run_cap": 14})
    agent = one.agent()
    for cap, high in ((14, 1.0), (28, 3.0), (40, 0.25)):
        take_up(one.home, wanted(one, spec={"parameters": {"x": {"min": 0.0, "max": high}}, "run_cap": cap}))
        while (taken := agent.next()) is not None:
            agent.study.finish(taken[0].number, "COMPLETE", [taken[0].parameters["x"], 1.0])
    points = Watcher(one.home).look().points
    assert len(points) == 40
    assert max(points[number].parameters["x"] for number in range(28, 40)) <= 0.25


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"spec": {"metric": {"name": "loss", "goal": "maximize"}}},
            "the objective 'minimize loss', not 'maximize loss'",
        ),
        ({"spec": {"metric": {"name": "acc"}}}, "the objective 'minimize loss', not 'minimize acc'"),
        ({"spec": {"seeds": 2}}, "the number of seeds 1, not 2"),
        ({"spec": {"constraints": ["loss < 3"]}}, "the constraints 'none', not 'loss < 3'"),
        ({"spec": {"method": "random"}}, "the method 'grid', not 'random'"),
        ({"spec": over(x=[1.0])}, "the parameters 'kind x', not 'x'"),
        ({"spec": over(x=[1.0], kind=["plain"])}, None),
        ({"spec": {"parameters": {"x": {"values": [1.0]}, "kind": {"value": "slow"}}}}, "the kind 'plain', not 'slow'"),
        ({"settings": ("seed=3",)}, "the settings for all runs 'none', not 'seed=3'"),
        ({"seed": 1}, "the sampler_seed 0, not 1"),
        ({"experiment": "other"}, "the experiment 'tiny', not 'other'"),
        ({"spec": over(x=[1.0, 9.0], kind=["plain"]), "script": "other.py"}, "the script 'tiny.py', not 'other.py'"),
        ({"count": 1}, "sweep.count: got 1, but 2 points of sweep s were tried; give 2 or more"),
        ({"spec": {"run_cap": 1}}, "run_cap: got 1, but 2 points of sweep s were tried; give 2 or more"),
        ({"count": 2}, None),
        ({"spec": {"metric": {"name": "loss", "target": 0.1}, "budget": "2h", "run_cap": 9}}, None),
    ],
)
def test_another_question_is_not_an_extension(sweep, changes, reason):
    one = sweep({**GRID, "parameters": {"x": {"values": [0.0, 1.0]}, "kind": {"value": "plain"}}})
    finish_all(one.agent())
    if reason is None:
        take_up(one.home, wanted(one, **changes))
        return
    with pytest.raises(SweepError) as caught:
        take_up(one.home, wanted(one, **changes))
    assert reason in str(caught.value)
    assert one.home.definition() == one.definition


@pytest.mark.parametrize("place", PLACES)
def test_of_two_extensions_at_once_one_wins_and_the_other_builds_on_it(sweep, request, place):
    one = sweep({**GRID, **over(x=[0.0])}, destination=on(place, request))
    specs = [over(x=[0.0, float(number)]) for number in range(1, 7)]

    def extend(spec):
        with contextlib.closing(one.place.home("s")) as home:
            take_up(home, wanted(one, spec=spec))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(extend, specs))
    definition = one.home.definition()
    assert len(definition.earlier) == 6
    assert sorted(point["x"] for point in finish_all(one.agent())) == [float(number) for number in range(7)]
    stale = dataclasses.replace(one.definition, count=9)
    assert not one.home.replace(stale, one.definition)
    assert one.home.definition() == definition


@pytest.mark.parametrize("place", PLACES)
def test_failed_points_run_again_once_their_bug_is_fixed(sweep, request, place):
    one, seen = (
        sweep({**GRID, **over(x=[0.0, 1.0], kind=["faulty", "plain"])}, destination=on(place, request)) for _ in "12"
    )
    (one.folder / "fault.py").write_text("raise ValueError('no such thing')")
    watcher, running = Watcher(seen.home), one.agent()
    one.agent().run()
    assert watcher.look().count("FAIL") == 2
    (one.folder / "fault.py").write_text("")
    definition, _ = take_up(one.home, one.definition)

    def retry(_):
        with contextlib.closing(one.place.home("s")) as home:
            return retry_failed(home, definition)

    with ThreadPoolExecutor(2) as pool:  # of two at once, one gives a point back
        notes = {note for (note,) in pool.map(retry, range(2))}
    assert notes <= {
        *(f"{num} of sweep s {verb} again" for num, verb in (("1 failed point", "runs"), ("2 failed points", "run"))),
        NONE,
    }
    assert notes != {NONE}
    status = watcher.look()
    assert (status.count("FAIL"), status.num_finished, status.is_done) == (0, 2, False)
    assert running.run() == 2
    status = watcher.look()
    assert {point.state for point in status.points.values()} == {"COMPLETE"}
    assert sorted(status.points) == [0, 1, 2, 3]
    assert sorted(one.runs()) == [
        *[("COMPLETED", number, attempt) for number, attempt in ((0, 2), (1, 2), (2, 0), (3, 0))],
        *[("FAILED", number, 0) for number in (0, 1)],
    ]
    assert retry_failed(one.home, one.home.definition()) == [NONE]
    take_up(one.home, wanted(one, spec=over(x=[0.0, 1.0, 3.0], kind=["faulty", "plain"])))
    assert one.agent().run() == 2
    assert len(Watcher(one.home).look().points) == 6


def test_point_that_was_killed_too_often_has_all_its_retries_again(sweep):
    one = sweep({**GRID, **over(kind=["faulty"])})
    (one.folder / "fault.py").write_text("os.kill(os.getpid(), signal.SIGKILL)")
    one.agent(retries=1).run()
    retry_failed(one.home, one.home.definition())
    one.agent(retries=1).run()
    assert [status for status, *_ in one.runs()] == ["DEAD"] * 4
    assert [point.state for point in Watcher(one.home).look().points.values()] == ["FAIL"]
    (one.folder / "fault.py").write_text("")
    retry_failed(one.home, one.home.definition())
    one.agent(retries=0).run()
    assert [point.state for point in Watcher(one.home).look().points.values()] == ["COMPLETE"]


@pytest.mark.parametrize("place", PLACES)
def test_failed_point_of_a_living_agent_runs_again_after_a_retry_that_was_killed(sweep, request, place):
    one = sweep({**GRID, **over(x=[0.0, 1.0])}, destination=on(place, request))
    agent = one.agent()
    point, _ = agent.next()
    agent.study.finish(point.number, "FAIL", reason="a bug")
    assert one.home.claims(point.number, "retry-killed").add(1)
    assert retry_failed(one.home, one.home.definition()) == ["1 failed point of sweep s runs again"]
    taken = {point.number: attempt for point, attempt in (agent.next(), agent.next())}
    assert taken == {0: 3, 1: 0}
    assert agent.study.point(0).num_kills(3) == 0
    assert agent.next() is None


@pytest.mark.slow
def test_seeds_that_have_completed_do_not_run_again_with_the_one_that_failed(sweep):
    one = sweep({**GRID, **over(kind=["faulty"]), "seeds": 3})
    (one.folder / "fault.py").write_text("if 'seed=2' in ' '.join(sys.argv):\n    raise ValueError('a bug')")
    one.agent().run()
    (one.folder / "fault.py").write_text("")
    retry_failed(one.home, one.home.definition())
    one.agent().run()
    (point,) = Watcher(one.home).look().points.values()
    assert point.state == "COMPLETE"
    assert [status for status, *_ in one.runs()].count("COMPLETED") == 3


@pytest.mark.slow
def test_studies_in_other_storages_are_extended_too(sweep, tmp_path):
    one = sweep({**GRID, "method": "bayes", **over(x=[0.0, 1.0]), "run_cap": 3}, storage=f"sqlite:///{tmp_path}/s.db")
    finish_all(one.agent())
    take_up(one.home, wanted(one, spec={**over(x=[0.0, 1.0, 2.0, 3.0]), "run_cap": 30}))
    agent = one.agent()
    agent.study.finish(agent.next()[0].number, "FAIL", reason="a bug")
    retry_failed(one.home, one.home.definition())
    finish_all(agent)
    points = Watcher(one.home).look().points
    assert len(points) == 30
    assert {point.state for point in points.values()} == {"COMPLETE"}
    assert {point.parameters["x"] for point in points.values()} == {0.0, 1.0, 2.0, 3.0}


def test_sweep_of_an_earlier_version_is_extended_and_one_never_extended_stays_readable_by_it(sweep):
    one = sweep({**GRID, **over(x=[0.0])})
    path = one.place.folder("s") / "sweep.json"
    document = json.loads(path.read_text())
    assert (document["format"], {"earlier", "has_retried"} & document.keys()) == ("sacristan-sweep-1", set())
    del document["format"]  # as the first versions wrote it
    path.write_text(json.dumps(document))
    finish_all(one.agent())
    take_up(one.home, wanted(one, spec=over(x=[0.0, 1.0])))
    assert json.loads(path.read_text())["format"] == "sacristan-sweep-2"
    assert finish_all(one.agent()) == [{"x": 1.0}]


def test_optuna_opens_an_extended_study(sweep):
    one = sweep({**GRID, "method": "random", **over(x=[0.0, 1.0]), "run_cap": 2})
    finish_all(one.agent())
    take_up(one.home, wanted(one, spec={**over(x=[0.0, 1.0, 2.0]), "run_cap": 4}))
    finish_all(one.agent())
    study = optuna.load_study(study_name="s", storage=one.home.storage())
    assert [set(trial.params) for trial in study.trials] == [{"x"}, {"x"}, {"x (2)"}, {"x (2)"}]


WAITING = """
if x == 1.0 and not os.path.exists("go"):
    open("waits", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_sweep_is_extended_by_two_commands_at_once_while_agents_run_and_one_is_killed(tmp_path, request, place):
    (tmp_path / "tiny.py").write_text(
        TINY.replace("    for step in", "    exec(open('wait.py').read())\n    for step in")
    )
    (tmp_path / "wait.py").write_text(WAITING)
    destination, options = on(place, request), []
    if destination is not None:
        options = ["-m", f"{destination.url.rstrip('/')}/{destination.db_name}"]
    words = ["sweep.run", "with", "sweep.metric=loss", "sweep.id=s", FAST]
    started = [sys.executable, "tiny.py", *words, "sweep.over={x: [0.0, 1.0, 2.0]}", "sweep.workers=2", *options]
    with Process(started, cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True, starts_python=True) as first:
        while not (tmp_path / "waits").exists():
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.02)
        with contextlib.ExitStack() as stack:
            place = Place(tmp_path / "my_runs", destination.address if destination else "")
            home = stack.enter_context(contextlib.closing(place.home("s")))
            others = [
                stack.enter_context(
                    Process(
                        [sys.executable, "tiny.py", *words, f"sweep.over={{x: {values}}}", *options],
                        cwd=tmp_path,
                        stdout=PIPE,
                        stderr=STDOUT,
                        text=True,
                        starts_python=True,
                    )
                )
                for values in ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 5.0])
            ]
            while len(home.definition().earlier) < 2:
                assert [other.poll() for other in others] == [None, None], [other.communicate()[0] for other in others]
                time.sleep(0.02)
            os.kill(min(lease["pid"] for lease in home.leases().values()), signal.SIGKILL)
            (tmp_path / "go").touch()
            for one in (*others, first):
                out, _ = one.communicate(120)
                assert one.returncode == 0, out
                assert "6 of 6 done" in out
    with open_store(tmp_path / "my_runs") as store:
        complete = [(run["config.x"], run.get("meta.sweep.version")) for run in store.find("status=COMPLETED")]
    assert sorted(x for x, _ in complete) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    versions = dict(complete)
    assert [versions[x] for x in (0.0, 1.0, 2.0)] == [None] * 3
    assert versions[3.0] == versions[4.0]
    assert {versions[3.0], versions[5.0]} == {2, 3}


def test_failed_points_are_retried_from_the_command_line(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "fault.py").write_text("raise ValueError('a bug')")
    words = ("sweep.run", "with", "sweep.over={kind: [plain, faulty]}", "sweep.metric=loss", "sweep.id=s", FAST)
    assert "1 failed" in command(*words, cwd=tmp_path).stdout
    (tmp_path / "fault.py").write_text("")
    assert "1 failed" in command(*words, cwd=tmp_path).stdout  # not without being asked
    done = command(*words, "sweep.retry_failed=True", cwd=tmp_path)
    assert "note: 1 failed point of sweep s runs again" in done.stdout
    assert "2 of 2 done" in done.stdout
