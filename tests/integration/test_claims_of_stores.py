"""Claims of runs and of points of sweeps in every store, under attack: many at once, kill -9, clocks, a full disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.observers.record.identity import lease
from sacristan.runs import StoreError, copy, open_store
from sacristan.runs.stores.opening import open_backend
from sacristan.runs.stores.run import HELD
from sacristan.runs.work import is_pending, last_claims, point_claims, run_claims
from sacristan.runs.work.run_queue import QueueEntry
from tests.processes import PIPE, Process

pytestmark = pytest.mark.usefixtures("third_store")

ROOT = Path(__file__).parents[2]
SWEEP = "s"
CLAIMING = """
import itertools, json, sys
from sacristan.runs.stores.opening import open_backend
from sacristan.runs.work import point_claims

where, agent, num = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_backend(where, create=True)
print("ready", flush=True)
sys.stdin.readline()
for point in itertools.count() if num < 0 else range(num):
    number = store.documents.count("sweeps", "s", 0, float("inf")) if num < 0 else point
    if point_claims(store.documents, "s", number, agent).add(0):
        print(number, flush=True)
"""


@pytest.fixture
def store(where):
    """The store, with a sweep."""
    with contextlib.closing(open_backend(where, create=True)) as opened:
        assert opened.documents.change("sweeps", SWEEP, lambda _: {"id": SWEEP})
        yield opened


@pytest.fixture
def claiming(where, third_store, tmp_path):
    """Start a process that claims points of the sweep, once it is told to."""
    (tmp_path / "claiming.py").write_text(CLAIMING)
    with contextlib.ExitStack() as stack:

        def start(agent: str, num: int = -1) -> Process:
            command = [sys.executable, str(tmp_path / "claiming.py"), where, agent, str(num)]
            env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{third_store}"}
            process = stack.enter_context(Process(command, stdin=PIPE, stdout=PIPE, text=True, env=env))
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


@pytest.fixture
def queued(where, store, tmp_path):
    """A run that waits in the store: the documents and the key of it."""
    ex = Experiment("queued", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "origin"))
    ex.main(lambda: None)
    ex.run(options={"--queue": True})
    with open_store(tmp_path / "origin") as origin, open_store(where) as target:
        run = copy(origin.get("1"), target).run
        assert run.status == HELD
        QueueEntry(((store.documents, run.key),)).enqueue()
        assert target.get("1").status == "QUEUED"
        yield store.documents, run.key


# ---------------------------------------------------------------------- many at once


def test_point_is_claimed_by_one_of_many_processes_at_once(store, claiming):
    processes = [claiming(f"agent-{number}", 40) for number in range(3)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.communicate()[0].split() for process in processes]
    assert sorted(map(int, itertools.chain(*won))) == list(range(40))
    owners = {number: claim.owner for number, claim in last_claims(store.documents, SWEEP, range(50)).items()}
    assert owners == {int(point): f"agent-{number}" for number, points in enumerate(won) for point in points}


def test_number_is_given_to_one_of_many_processes_at_once(store, where):
    numbers = [store.documents.count("sweeps", SWEEP, 3, 6) for _ in range(4)]
    assert numbers == [3, 4, 5, None]
    assert store.documents.count("sweeps", SWEEP, 0, 6) is None
    assert store.documents.count("sweeps", SWEEP, 9, float("inf")) == 9
    assert store.documents.read("sweeps")[SWEEP] == {"id": SWEEP}


def test_claims_on_a_run_follow_each_other_and_are_made_once(where, queued):
    claims = run_claims(*queued)
    with contextlib.closing(open_backend(where)) as other:
        others = run_claims(other.documents, queued[1])
        assert claims.listed() == others.listed() == []
        assert claims.add(1)
        assert not others.add(1)
        assert claims.begin(1, lease(5.0))
        assert others.add(2)
        assert not claims.begin(1, lease(5.0))
        assert [process["pid"] for process in others.earlier_processes(2)] == [os.getpid()]
        others.release(2)
        assert claims.is_last(1)
        claims.renew(1)
        assert [claim.attempt for claim in claims.listed()] == [1]
        assert claims.listed()[0].process is not None
        assert others.add(2)


def test_claims_on_a_point_follow_each_other_and_are_read_together(store):
    first, second = (point_claims(store.documents, SWEEP, 12, agent) for agent in ("a", "b"))
    assert (first.add(0), second.add(0), second.add(1)) == (True, False, True)
    assert not first.begin(0, lease(5.0))
    assert second.earlier_processes(1)[0]["pid"] == os.getpid()
    assert point_claims(store.documents, SWEEP, 2, "a").add(0)
    found = last_claims(store.documents, SWEEP, [1, 2, 12])
    assert {number: (claim.attempt, claim.owner) for number, claim in found.items()} == {2: (0, "a"), 12: (1, "b")}


def test_run_that_was_removed_has_no_claims_and_takes_none(where, queued):
    claims = run_claims(*queued)
    assert claims.add(1)
    with open_store(where) as opened:
        opened.remove([opened.get("1")])
    with pytest.raises(StoreError):
        claims.begin(1, lease(5.0))


# ---------------------------------------------------------------------- kill -9


def test_process_killed_inside_a_claim_leaves_a_whole_claim_or_none(store, claiming):
    printed = 0
    for round in range(3):
        process = claiming(f"killed-{round}")
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(5 + 3 * round):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        printed += 5 + 3 * round + len(rest.split())
    # The next number is free, whoever was killed between a number and its claim.
    number = store.documents.count("sweeps", SWEEP, 0, float("inf"))
    assert point_claims(store.documents, SWEEP, number, "last").add(0)
    found = last_claims(store.documents, SWEEP, range(number + 1))
    assert {claim.owner for claim in found.values()} == {"killed-0", "killed-1", "killed-2", "last"}
    # Of each round, one claim may have been made and not printed, and one number may have been lost.
    assert printed + 1 <= len(found) <= printed + 1 + 3
    assert number + 1 - len(found) <= 3
    for each in sorted(set(range(number + 1)) - found.keys()):
        assert point_claims(store.documents, SWEEP, each, "last").add(0)
    assert all(point_claims(store.documents, SWEEP, each, "heir").add(1) for each in (0, number))


# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("shift_s", [-7_200.0, 7_200.0])
def test_clock_that_was_set_changes_no_order_and_kills_no_process_of_this_machine(store, queued, monkeypatch, shift_s):
    claims, real = run_claims(*queued), time.time
    assert claims.add(1)
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    assert claims.add(2)
    assert claims.begin(2, lease(5.0))
    assert [claim.attempt for claim in claims.listed()] == [1, 2]
    monkeypatch.setattr(time, "time", real)
    assert [is_pending(claim, None) for claim in claims.listed()] == [True, True]


# ---------------------------------------------------------------------- a full disk


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_claim_on_a_full_disk_is_an_error_and_free_again_afterwards(small_disk, kind):
    where = str(small_disk / "store") if kind == "folder" else f"sqlite://{small_disk / 'store.sqlite'}"
    with contextlib.closing(open_backend(where, create=True)) as store:
        store.documents.change("sweeps", SWEEP, lambda _: {"id": SWEEP})
        assert point_claims(store.documents, SWEEP, 0, "a").add(0)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(bytes(4096)):
                pass
        made = []

        def claim_all():
            for number in range(1, 10_000):
                assert point_claims(store.documents, SWEEP, number, "a").add(0)
                made.append(number)

        with pytest.raises(StoreError, match=r"cannot be (read or )?written"):
            claim_all()
        filler.unlink()
        assert last_claims(store.documents, SWEEP, range(10_000)).keys() == {0, *made}
        assert point_claims(store.documents, SWEEP, len(made) + 1, "b").add(0)


# ---------------------------------------------------------------------- other documents


def test_documents_are_read_by_name_after_a_name_and_by_their_entries(store):
    documents = store.documents
    if store.folder is not None:
        pytest.skip("a folder keeps the trials in Optuna's journal")
    for number in range(12):
        trial = {"study": SWEEP, "state": "RUNNING" if number % 5 == 0 else "COMPLETE", "reports": []}
        assert documents.change("sweep_trials", f"{number:03d}", lambda _, trial=trial: trial, SWEEP)
    assert documents.change("sweep_trials", "000", lambda _: {"study": "s-2", "state": "RUNNING"}, "s-2")
    assert list(documents.read("sweep_trials", SWEEP)) == [f"{number:03d}" for number in range(12)]
    assert list(documents.read("sweep_trials", SWEEP, ["002", "011", "no"])) == ["002", "011"]
    assert list(documents.read("sweep_trials", SWEEP, ["002"], after="009")) == ["002", "010", "011"]
    running = documents.read("sweep_trials", SWEEP, where={"study": [SWEEP], "state": ["RUNNING"]}, entries=())
    assert list(running) == ["000", "005", "010"]
    for number in range(3):
        documents.change("sweep_trials", "001", lambda now, n=number: {**now, "reports": [*now["reports"], n]}, SWEEP)
    assert documents.read("sweep_trials", SWEEP, ["001"])["001"]["reports"] == [0, 1, 2]


def test_stop_of_a_sweep_and_leases_of_agents_come_and_go(store):
    documents = store.documents
    for stopped in ({"stopped": True}, {}):
        documents.change("sweeps", SWEEP, lambda now, stopped=stopped: {"id": now["id"], **stopped})
        seen = documents.read("sweeps", names=[SWEEP], entries=("stopped",))[SWEEP]
        assert bool(seen.get("stopped")) == bool(stopped)
        assert documents.read("sweeps")[SWEEP] == {"id": SWEEP, **stopped}
    own = {"agent": "a", "lease": lease(5.0)}
    assert documents.change("sweep_agents", "a", lambda _: own, SWEEP)
    assert documents.read("sweep_agents", SWEEP) == {"a": own}
    assert documents.change("sweep_agents", "a", lambda _: None, SWEEP)
    assert documents.read("sweep_agents", SWEEP) == {}
