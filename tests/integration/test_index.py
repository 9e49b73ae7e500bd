"""The index with real folders, files and processes."""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import sacred
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacred.observers import FileStorageObserver

from sacristan.__main__ import main as command
from sacristan.observers import FileObserver
from sacristan.observers.record.identity import lease
from sacristan.runs import FilterError, StoreError, open_store
from sacristan.runs.query.filters import Question
from sacristan.runs.query.index import Index, scanning
from sacristan.runs.query.index import file as index_file
from sacristan.runs.query.index.fields import OF_CONFIG, OF_RUN, OF_SUMMARY, ORIGINS
from tests.processes import PIPE, Process


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Keep the user's cache out of it."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def index(store):
    with Index(store) as opened:
        yield opened


def put(store, name, *, status="COMPLETED", config=None, summary=None, **run):
    """Write a run as the recorder does: whole files, run.json last."""
    folder = store / str(name)
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"config": config or {}, "summary": summary or {}, "run": {"status": status, **run}}
    for part, document in documents.items():
        (folder / "new").write_text(json.dumps(document))
        (folder / "new").replace(folder / f"{part}.json")
    return folder


def find(index, *arguments, **options):
    return index.answer(Question.of(*arguments, **options))


def names(index, *conditions, **options):
    return [row["name"] for row in find(index, conditions, **options)]


def content(index):
    """Return everything that the index says, without numbers that depend on the order of its making."""
    query = """SELECT run.name, origin, key.name, kind, typeof(value), value FROM field JOIN run ON run.id = run
        JOIN key ON key.id = key ORDER BY 1, 2, 3"""

    def ask(connection):
        runs = connection.execute("SELECT name, is_readable, problems FROM run ORDER BY 1").fetchall()
        return connection.execute(query).fetchall(), runs

    return index._asked(ask, ORIGINS)


# Updates


@pytest.mark.parametrize("is_listed", [True, False])
def test_soon_after_a_look_at_all_runs_only_what_changes_by_itself_is_looked_at(store, index, monkeypatch, is_listed):
    monkeypatch.setattr(scanning, "COARSE_NS", 0)  # all that is written here would count as unsettled
    for number, status in enumerate(("COMPLETED", "RUNNING", "QUEUED", "FAILED"), start=1):
        put(store, number, status=status, uid=f"uid-{number}")
    (store / "5").mkdir()  # it is being made
    odd = os.fsdecode(b"odd-\xff '%")
    put(store, odd, status="RUNNING")
    index.update()
    index.update(math.inf)
    for number in (1, 2, 3, odd):
        put(store, number, status="INTERRUPTED", uid=f"uid-{number}")
    put(store, 5, uid="uid-5")
    if is_listed:
        put(store, 6, uid="uid-6")
        shutil.rmtree(store / "4")
    else:
        monkeypatch.setattr(scanning, "scan", None)  # no run came or went
    seen, stamp_of = [], scanning._stamp_of
    monkeypatch.setattr(scanning, "_stamp_of", lambda folder: seen.append(Path(folder).name) or stamp_of(folder))
    index.update(math.inf)
    monkeypatch.undo()
    assert names(index, ("status", "==", "INTERRUPTED")) == ["2", "3", odd]
    assert names(index, ("status", "!=", "INTERRUPTED")) == (["1", "5", "6"] if is_listed else ["1", "4", "5"])
    assert "1" not in seen
    index.update(3600.0)
    assert names(index, ("status", "==", "INTERRUPTED")) == ["2", "3", odd]
    index.expire()
    index.update(3600.0)
    assert names(index, ("status", "==", "INTERRUPTED")) == ["1", "2", "3", odd]


# Questions


def test_conditions_sort_limit_and_columns(store, index):
    for number in range(1, 21):
        config = {"lr": 10.0**-number, "optimizer": {"name": "SGD" if number % 2 else "AdamW"}}
        put(store, number, config=config, summary={"val/acc.top1": {"max": number / 20}}, host={"hostname": "h"})
    put(store, 21, status="FAILED", config={"lr": "auto"})
    assert names(index, limit=3) == ["1", "2", "3"]
    assert names(index, ("lr", "<", 1e-3), ("optimizer.name", "==", "SGD"), sort="-val/acc.top1.max", limit=2) == [
        "19",
        "17",
    ]
    assert names(index, ("val/acc.top1.max", ">=", 0.95)) == ["19", "20"]
    assert names(index, sort="val/acc.top1.max")[0] == "1"
    assert names(index, sort="-val/acc.top1.max")[-1] == "21"  # what has no such metric comes last
    assert names(index, ("status", "!=", "COMPLETED")) == ["21"]
    assert names(index, ("nothing", "==", None), ("lr", "==", "auto")) == ["21"]
    assert names(index, ("optimizer.name", "==", None)) == ["21"]
    assert names(index, ("lr", "in", ["auto", 0.1])) == ["1", "21"]
    assert names(index, ("lr", "in", [])) == []
    assert names(index, ("status", ">", "D"), ("status", "<", "G")) == ["21"]
    rows = find(index, [("status", "==", "FAILED")], columns=["lr", "host.hostname", "val/acc.top1.max"])
    assert rows == [{"name": "21", "lr": "auto", "host.hostname": None, "val/acc.top1.max": None}]


def test_values_of_all_kinds_come_back_and_do_not_mix(store, index):
    values = [1, 1.5, True, None, "1", "", math.inf, -math.inf, 2**63, -(10**30), [1, "a"], {}, "ä\0'\"", "x" * 4096]
    for number, value in enumerate(values, 1):
        put(store, number, config={"x": value})
    put(store, 99, config={"x": math.nan})
    rows = find(index, columns=["x"])
    assert [row["x"] for row in rows[:-1]] == values
    assert [type(row["x"]) for row in rows[:-1]] == [type(value) for value in values]
    assert math.isnan(rows[-1]["x"])
    for number, value in enumerate(values, 1):
        if value != {}:  # with which nothing is compared
            assert names(index, ("x", "==", value)) == [str(number)], value
    assert names(index, ("x", "==", math.nan)) == ["99"]
    assert names(index, ("x", ">", 1)) == ["2", "7", "9"]
    assert names(index, ("x", "<", -(10**29))) == ["8", "10"]
    assert names(index, ("x", "<", math.nan)) == []
    assert names(index, sort="x", limit=6) == ["8", "10", "1", "2", "9", "7"]


def test_name_of_the_run_goes_before_the_same_of_the_config(store, index):
    put(store, 1, config={"status": "mine"})
    assert find(index, columns=["status", "config.status"]) == [
        {"name": "1", "status": "COMPLETED", "config.status": "mine"}
    ]


def test_questions_without_sense_are_refused(store, index):
    with pytest.raises(FilterError, match="got the operator '=>'"):
        find(index, [("lr", "=>", 1)])
    with pytest.raises(FilterError, match=r"lr <: got \[1\], expected a number or a text"):
        find(index, [("lr", "<", [1])])
    with pytest.raises(StoreError, match="there is no folder"):
        Index(store / "nowhere").update()
    assert not (store / "nowhere").exists()


def test_running_is_judged_by_the_lease_at_the_time_of_the_question(store, index):
    process = Process([sys.executable, "-c", "input()"], stdin=PIPE)
    held = lease(1.0)
    held |= {"pid": process.pid, "pid_start": int(Path(f"/proc/{process.pid}/stat").read_text().split()[21])}
    for number in (1, 2):
        put(store, number, status="RUNNING")
    (store / "1" / "lease.json").write_text(json.dumps(held))
    (store / "2" / "lease.json").write_text('{"host": 1, "heartbeat": "x"}')
    put(store, 3, status="RUNNING")  # Sacred's own, without a lease
    index.update()
    assert names(index, ("status", "==", "RUNNING")) == ["1", "2", "3"]
    process.communicate()
    assert names(index, ("status", "==", "RUNNING")) == ["2", "3"]
    assert names(index, ("status", "==", "DEAD")) == ["1"]
    assert [row["status"] for row in find(index, sort="status", columns=["status"])] == ["DEAD", "RUNNING", "RUNNING"]
    (store / "1" / "lease.json").write_text(json.dumps(lease(1.0)))
    assert names(index, ("status", "==", "DEAD")) == []


# Changes


def test_update_takes_in_what_is_new_changed_and_gone(store, index):
    put(store, 1)
    put(store, 2)
    first = index.update()
    assert (first.num_runs, first.num_read, first.num_removed, first.num_problems) == (2, 2, 0, 0)
    assert index.update().num_read == 0
    put(store, 1, status="FAILED", config={"lr": 1})
    put(store, 3)
    shutil.rmtree(store / "2")
    second = index.update()
    assert (second.num_runs, second.num_read, second.num_removed) == (2, 2, 1)
    assert names(index, ("status", "==", "FAILED"), ("lr", "==", 1)) == ["1"]
    assert names(index) == ["1", "3"]


def test_change_in_place_within_the_grain_of_the_clock_is_seen(store, index, monkeypatch):
    folder = put(store, 1, status="RUNNING1")
    now = time.time_ns()
    monkeypatch.setattr(scanning, "_stamp_of", lambda folder: f"{now} {now} {now} {now} 1 1")
    index.update()
    with (folder / "run.json").open("r+") as stream:  # as Sacred's observer does, same length
        stream.write('{"status": "RUNNING2')
    index.update()
    assert names(index, ("status", "==", "RUNNING2")) == ["1"]


def test_settled_runs_are_not_read_again(store, monkeypatch):
    put(store, 1)
    monkeypatch.setattr(scanning, "was_touched_just_now", lambda stamp: False)
    with Index(store) as index:
        index.update()
    (store / "1" / "run.json").stat()
    with Index(store) as index:
        known = index.update()
        assert known.num_read == 0
        # Nothing was even opened: the stamp is the one that was stored.
        assert index._stamps["1"] == scanning.look(store, "1")


def test_fields_of_a_part_are_taken_in_when_they_are_first_asked_for(store, monkeypatch):
    monkeypatch.setattr(scanning, "was_touched_just_now", lambda stamp: False)
    for number in range(1, 6):
        put(store, number, config={"x": number}, summary={"m": {"max": number}})
    (store / "4" / "config.json").write_text('{"x"')
    (store / "5" / "run.json").write_text('{"status"')

    def origins_held(index):
        held = index._asked(lambda connection: connection.execute("SELECT DISTINCT origin FROM key").fetchall())
        return {origin for (origin,) in held}

    with Index(store) as index, Index(store) as other:
        index.update()
        assert [name for name, _ in index.problems()] == ["4", "5"]
        assert sorted(names(index, ("status", "==", "COMPLETED"))) == ["1", "2", "3", "4"]
        assert origins_held(index) == {OF_RUN}
        assert names(index, ("x", ">", 1), sort="x") == ["2", "3"]
        assert names(other, ("x", "<", 3), sort="x") == ["1", "2"]
        assert origins_held(index) == {OF_RUN, OF_CONFIG}
        put(store, 6, config={"x": 0}, summary={"m": {"max": 6}})
        put(store, 4, config={"x": 4, "y": 1}, summary={"m": {"max": 4}})
        other.update()
        assert names(index, ("x", ">=", 0), sort="x") == ["6", "1", "2", "3", "4"]
        assert origins_held(index) == {OF_RUN, OF_CONFIG}
        assert names(index, sort="-m.max") == ["6", "4", "3", "2", "1"]
        assert origins_held(index) == {OF_RUN, OF_CONFIG, OF_SUMMARY}
        assert set(index.fields()) == {"status", "config.x", "config.y", "summary.m.max"}
        assert [name for name, _ in index.problems()] == ["5"]


def test_list_of_runs_that_differ_takes_no_configs_into_the_index(store, capsys):
    for number, config in enumerate(({"x": 1}, {"x": 2}, {}), start=1):
        put(store, number, config=config)
    assert command(["ls", "--store", str(store)]) == 0
    assert " ".join(capsys.readouterr().out.split()) == "id status x 1 COMPLETED 1 2 COMPLETED 2 3 COMPLETED -"
    with contextlib.closing(sqlite3.connect(store / ".index.sqlite")) as connection:
        assert connection.execute("SELECT DISTINCT origin FROM key").fetchall() == [(OF_RUN,)]


def test_only_runs_are_taken_for_runs(store, index, tmp_path):
    put(store, 1)
    put(store, "by_name")
    put(store / "_spool" / "20260101", "run")
    put(store / "loose", "run")
    put(tmp_path, "elsewhere")
    (store / "link").symlink_to(tmp_path / "elsewhere")
    (store / "broken").symlink_to(tmp_path / "nothing")
    (store / "loop").symlink_to(store)
    for other in ("_sources", "_resources", "_mongod", "notes"):
        (store / other).mkdir()
    (store / "file").write_text("x")
    (store / "7").write_text("x")
    assert names(index) == sorted(
        ["1", "by_name", "_spool/20260101/run", "loose/run", "link"], key=lambda n: (n != "1", n)
    )
    put(store, "loose")
    index.update()
    assert "loose" in names(index)
    assert "loose/run" not in names(index)


def test_folder_with_a_name_that_is_no_text_is_a_run(store, index):
    name = os.fsdecode(b"run\xff")
    put(store, name)
    assert names(index) == [name]
    assert index.update().num_read == 0
    shutil.rmtree(store / name)
    assert index.update().num_runs == 0


def test_unreadable_runs_hide_no_others_and_are_taken_again(store, index):
    put(store, 1)
    put(store, 2)
    (store / "2" / "run.json").write_text('{"status": ')
    (store / "3").mkdir()
    put(store, 4)
    (store / "4" / "config.json").write_text("{")
    assert names(index) == ["1", "4"]
    problems = dict(index.problems())
    assert problems["2"].startswith("run.json is not JSON")
    assert problems["3"].startswith("run.json is missing")
    assert problems["4"].startswith("config.json is not JSON")
    for number in (2, 3, 4):
        put(store, number, status="FAILED")
    index.update()
    assert names(index, ("status", "==", "FAILED")) == ["2", "3", "4"]
    assert index.problems() == []


@pytest.mark.parametrize("observer", [FileStorageObserver, FileObserver])
def test_recorded_runs_are_indexed_with_config_metrics_and_info(store, index, observer):
    ex = sacred.Experiment("stock", save_git_info=False, base_dir=str(Path(__file__).parent))
    ex.observers.append(observer(store))
    ex.add_config({"lr": 0.25, "layers": [1, 2]})

    @ex.main
    def main(_run):
        for step in range(5):
            _run.log_scalar("val/acc", step / 10, step)
        _run.info["note"] = "n"
        return 7

    ex.run(options={"--capture": "no"})
    rows = find(
        index, [("lr", "==", 0.25)], columns=["result", "val/acc.max", "layers", "info.note", "experiment.name"]
    )
    assert rows == [
        {
            "name": "1",
            "result": 7,
            "val/acc.max": 0.4,
            "layers": [1, 2],
            "info.note": "n",
            "experiment.name": "stock",
        }
    ]
    assert index.problems() == []


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "change", "delete", "corrupt", "cut", "empty", "spool", "update", "ask"]),
        st.integers(1, 6),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, values=st.lists(st.integers(0, 3) | st.none() | st.text(max_size=3), min_size=1))
def test_updates_lead_to_what_a_rebuild_gives(steps, values):
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        with Index(store) as index:
            for position, (step, number) in enumerate(steps):
                run = store / str(number)
                value = values[position % len(values)]
                if step == "put" or (step == "change" and run.exists()):
                    put(store, number, config={"x": value, f"only{value}": {"y": 1}}, summary={"m": {"max": position}})
                elif step == "delete":
                    shutil.rmtree(run, ignore_errors=True)
                elif step in ("corrupt", "cut") and (run / "run.json").exists():
                    name = "run.json" if step == "corrupt" else "config.json"
                    (run / name).write_text((run / name).read_text()[:5])
                elif step == "empty":
                    run.mkdir(exist_ok=True)
                elif step == "spool":
                    put(store / "_spool" / str(number), "run", config={"x": value})
                elif step == "update":
                    index.update()
                elif step == "ask":
                    index.has_field(["config.x", "summary.m.max", "info.note"][number % 3])
            index.update()
            updated = content(index)
            index.rebuild()
            assert content(index) == updated


# Damage


def damage_by(kind, path):
    if kind == "text":
        path.write_text("no database at all, but long enough to look at " * 100)
    elif kind == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "deleted":
        path.unlink()
    elif kind == "zeros":
        with path.open("r+b") as stream:
            stream.seek(4096)
            stream.write(bytes(path.stat().st_size - 4096))
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            statement = {"version": "PRAGMA user_version = 999", "tables": "DROP TABLE field"}[kind]
            connection.execute(statement)
            connection.commit()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", ["text", "cut", "empty", "deleted", "zeros", "version", "tables"])
def test_damaged_index_is_built_anew_in_its_place(store, kind, is_open, changes):
    for number in range(1, 40):
        put(store, number, config={f"key{i}": f"value {i}" for i in range(30)})
    path = store / ".index.sqlite"
    with Index(store) as index:
        index.update()
        if not is_open:
            index.close()
        damage_by(kind, path)
        if changes:
            put(store, 40)
            put(store, 1, status="FAILED")
        index.update()
        assert len(names(index, ("key7", "==", "value 7"))) == 39 - changes
        assert len(names(index)) == 39 + changes
        assert path.exists()
    with Index(store) as index:
        found = content(index)
        index.rebuild()
        assert content(index) == found
        assert index.path == path


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_bytes_gone_bad_never_show_as_errors(store, num_seeds):
    for number in range(1, 30):
        put(store, number, config={f"key{i}": [i, "x" * i, None][i % 3] for i in range(30)})
    with Index(store) as index:
        index.update()
    path = store / ".index.sqlite"
    good = path.read_bytes()
    for seed in range(num_seeds):
        chance = random.Random(seed)
        bad = bytearray(good)
        for _ in range(chance.choice([1, 30])):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        path.write_bytes(bad)
        with Index(store) as index:
            index.update()
            find(index, [("key3", "==", 3)], sort="-key0", columns=[*(f"key{i}" for i in range(30)), "status"])
            index.problems()
            assert index.path == path
            index.rebuild()
            assert len(names(index)) == 29


def test_folder_that_cannot_hold_the_index_leaves_it_to_the_cache(store, cache):
    (store / ".index.sqlite").mkdir()
    put(store, 1)
    with Index(store) as index:
        assert names(index) == ["1"]
        assert index.path.parent == cache / "sacristan"
        index.rebuild()
        assert names(index) == ["1"]
    with Index(store) as index:
        assert index.update().num_read == 0


@pytest.fixture
def disk(tmp_path):
    """Give a block device that holds nothing."""
    (tmp_path / "disk").write_bytes(bytes(2**20))
    try:
        made = subprocess.run(
            ["losetup", "-f", "--show", tmp_path / "disk"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no block device can be made here ({error})")
    yield Path(made.stdout.strip())
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


@pytest.mark.parametrize("kind", ["disk", "device", "pipe"])
def test_index_behind_a_link_to_no_regular_file_is_left_alone(store, cache, tmp_path, request, kind):
    os.mkfifo(tmp_path / "pipe")
    place = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe"}.get(kind) or request.getfixturevalue("disk")
    (link := store / ".index.sqlite").symlink_to(place)
    put(store, 1)
    with Index(store) as index:
        assert index.update().num_runs == 1
        assert index.path.parent == cache / "sacristan"
    assert link.is_symlink()
    if kind == "disk":
        assert not any(place.read_bytes())


def test_index_that_stays_locked_is_left_alone_and_another_made(store, cache, monkeypatch):
    put(store, 1)
    with Index(store) as index:
        index.update()
    path = store / ".index.sqlite"
    before = path.stat().st_ino
    monkeypatch.setattr(index_file, "_BUSY_S", 0.05)
    with contextlib.closing(sqlite3.connect(path)) as holder, Index(store) as index:
        holder.execute("BEGIN EXCLUSIVE")
        assert names(index) == ["1"]
        assert index.path.parent == cache / "sacristan"
    assert path.stat().st_ino == before


def test_without_folder_and_cache_the_index_lies_in_memory(store, cache):
    (store / ".index.sqlite").mkdir()
    (cache / "sacristan").write_text("in the way")
    put(store, 1)
    with Index(store) as index:
        assert names(index) == ["1"]
        assert index.path is None
        put(store, 2)
        index.update()
        assert names(index) == ["1", "2"]
        assert index.rebuild().num_runs == 2


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_index_has_the_mode_that_the_umask_leaves(store, mask, mode):
    put(store, 1)
    before = os.umask(mask)
    try:
        with Index(store) as index:
            index.update()
            assert stat.S_IMODE(index.path.stat().st_mode) == mode
    finally:
        os.umask(before)


@pytest.fixture
def nobody():
    """Give up the rights of root, which no permission binds."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("has_index", [False, True])
def test_folder_without_right_to_write_is_read_all_the_same(has_index, monkeypatch, request):
    with tempfile.TemporaryDirectory() as outer:
        outer = Path(outer)
        store, cache = outer / "runs", outer / "cache"
        put(store, 1)
        cache.mkdir()
        if has_index:
            with Index(store) as index:
                index.update()
        put(store, 2)
        for path, mode in ((outer, 0o755), (store, 0o555), (cache, 0o777)):
            path.chmod(mode)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        request.getfixturevalue("nobody")
        with Index(store) as index:
            assert index.rebuild().num_read == 2
            assert index.path.parent == cache / "sacristan"
        with Index(store) as index:
            index.update()
            assert names(index) == ["1", "2"]
            assert index.path.parent == cache / "sacristan"
            index.rebuild()
            assert index.path.parent == cache / "sacristan"
        if os.getuid() == 0:
            os.seteuid(0)
        store.chmod(0o755)


# Processes

UPDATE = """
import sys
from sacristan.runs.query.filters import Question
from sacristan.runs.query.index import Index
from pathlib import Path
for _ in range(int(sys.argv[2])):
    with Index(sys.argv[1]) as index:
        index.update() if len(sys.argv) < 4 else index.rebuild()
        index.answer(Question.of(columns=["config.key1"]))
"""


def start_update(store, *arguments):
    return Process([sys.executable, "-c", UPDATE, str(store), *arguments], cwd=Path(__file__).parents[2])


@pytest.fixture
def many(store):
    for number in range(1, 400):
        put(store, number, config={f"key{i}": number * i for i in range(10)})
    return store


@pytest.mark.slow
@pytest.mark.parametrize("others", [pytest.param(("4",), marks=pytest.mark.slow), ("2", "rebuild")])
def test_processes_that_update_at_once_end_right(many, others):
    processes = [start_update(many, "4"), start_update(many, *others), start_update(many, "4")]
    for number in range(300, 500):
        put(many, number, status="FAILED", config={f"new{number % 50}": number})
    shutil.rmtree(many / "1")
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    with Index(many) as index:
        index.update()
        updated = content(index)
        assert index.path == many / ".index.sqlite"
        index.rebuild()
        assert content(index) == updated
    assert len(updated[1]) == 498


def test_process_killed_while_it_writes_leaves_a_good_index(many, wait_for):
    process = start_update(many, "1000", "rebuild")
    journal = many / ".index.sqlite-journal"
    wait_for(lambda: journal.exists() and journal.stat().st_size, "a transaction")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Index(many) as index:
        index.update()
        updated = content(index)
        index.rebuild()
        assert content(index) == updated
    assert len(updated[1]) == 399


# The command


def test_reindex_prints_counts_and_what_cannot_be_read(store, capsys):
    put(store, 1)
    (store / "2").mkdir()
    assert command(["reindex", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{store}/2: run.json is missing")
    assert lines[1].startswith("2 runs in ")
    assert lines[1].endswith(f"1 with problems ({store}/.index.sqlite)")
    assert command(["reindex", str(store / "nowhere")]) == 1


def test_runs_that_come_one_after_another_are_all_seen_soon_after_a_look_at_all(store, index):
    index.update()
    for number in range(1, 4):  # the times of the folder may be the same each time
        put(store, number)
        index.update(math.inf)
        assert len(names(index, ("status", "==", "COMPLETED"))) == number


def test_change_during_a_look_at_all_runs_is_seen_by_the_next(store, index, monkeypatch):
    monkeypatch.setattr(scanning, "COARSE_NS", 0)
    put(store, 1)
    index.update()
    scan = scanning.scan

    def changing(*arguments):
        found = list(scan(*arguments))
        put(store, 1, status="FAILED")
        index.expire()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(scanning, "scan", changing)
        index.update()
    index.update(3600.0)
    assert names(index, ("status", "==", "FAILED")) == ["1"]


def test_store_looks_at_ended_runs_when_what_it_knows_is_too_old(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "COARSE_NS", 0)
    for number in (1, 2):
        put(tmp_path, number)
        if number == 1:
            store, other = open_store(tmp_path), open_store(tmp_path)
            assert [len(store.find()), store.count(), other.count()] == [1, 1, 1]
            store.max_age_s = other.max_age_s = 3600.0
    assert len(store.find()) == 2
    put(tmp_path, 1, status="FAILED")
    assert [len(store.find("status=FAILED")), len(other.find("status=FAILED"))] == [0, 0]
    # What this process changes is seen at once, whichever of its threads does it.
    store.tag(store.get(2), ["best"])
    assert [run.id for run in other.find("tags.best=True")] == ["2"]
    assert [run.id for run in store.find("tags.best=True")] == ["2"]
    put(tmp_path, 2, status="FAILED")
    store.max_age_s = 0.0
    assert [run.id for run in store.find("status=FAILED", sort="id")] == ["1", "2"]
    store.close()
    other.close()
