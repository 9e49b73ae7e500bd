"""Aliases of artifacts in a folder: names of versions that move, with all their moves."""

import io
import itertools
import json
import os
import pickle
import subprocess
import sys

import pytest

from sacristan.observers import (
    ArtifactDamagedError,
    ArtifactError,
    ArtifactMovedError,
    ArtifactNotFoundError,
    ArtifactStore,
)
from sacristan.observers.artifacts import content_path
from sacristan.observers.artifacts.aliases import AliasMoves, Move
from sacristan.observers.record.copies import clone
from tests.folders import write_files

UNTIL_KILLED_OR_MOVED = """
import sys
sys.path.insert(0, {root!r})
from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactMovedError
store = ArtifactStore({store!r})
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path):
    store = ArtifactStore(tmp_path / "runs")
    for number in (1, 2, 3):
        store.log("net", write_files(tmp_path / f"in{number}", {"net.pt": b"%d" % number}), "model")
    return store


def moves_of(store):
    return [(move.alias, move.was, move.version) for move in store.alias_moves("net")]


def test_alias_names_the_version_that_it_was_moved_to(store, monkeypatch):
    monkeypatch.setenv("SACRISTAN_USER", "ada")
    store.alias("net", "champion", 1)
    store.resolve("net:v3").alias("champion", was="v1")
    store.alias("net", "last.good-1", 2, was="")
    assert str(store.resolve("net:champion")) == "net:v3"
    assert str(store.resolve("net:last.good-1")) == "net:v2"
    assert [store.aliases("net")[alias].by for alias in ("champion", "last.good-1")] == ["ada", "ada"]
    assert moves_of(store) == [("champion", None, 1), ("champion", 1, 3), ("last.good-1", None, 2)]


def test_move_to_the_same_version_changes_nothing(store):
    first = store.alias("net", "champion", 1)
    assert store.alias("net", "champion", 1) == first
    assert len(store.alias_moves("net")) == 1


def test_removed_alias_names_nothing_and_its_moves_stay(store):
    store.alias("net", "champion", 1)
    store.alias("net", "champion", None, was=1)
    with pytest.raises(ArtifactNotFoundError, match="has no such alias of net; it has none"):
        store.resolve("net:champion")
    with pytest.raises(ArtifactNotFoundError, match="net:champion: there is no such alias"):
        store.alias("net", "champion", None)
    store.alias("net", "champion", 2, was="")
    assert moves_of(store) == [("champion", None, 1), ("champion", 1, None), ("champion", None, 2)]


@pytest.mark.parametrize(
    "alias",
    ["", "../x", "a/b", "a:b", "a b", "ü", ".hidden", "-x", "x" * 65, None, 7, "a\n", "v7", "V7", "7", "latest"],
)
def test_hostile_alias_is_refused(store, alias):
    with pytest.raises(ArtifactError, match=r"^alias: got "):
        store.alias("net", alias, 1)
    assert moves_of(store) == []


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("net", 9, r"net:v9: .* has no such version of net; it has v1 to v3"),
        ("met", 1, r"met:v1: .* has no artifact met; did you mean net\?"),
        ("../net", 1, "artifact name: got"),
    ],
)
def test_alias_of_a_version_that_is_not_there_is_refused(store, name, version, message):
    with pytest.raises(ArtifactError, match=message):
        store.alias(name, "champion", version)


def test_unknown_alias_is_named_with_the_nearest(store):
    store.alias("net", "champion", 1)
    with pytest.raises(ArtifactNotFoundError, match=r"net:champoin: .* no such alias of net; did you mean champion"):
        store.resolve("net:champoin")


def test_move_from_another_version_than_expected_is_refused_with_what_it_is(store):
    store.alias("net", "champion", 2, by="ada")
    for was, expected in (("v1", "v1"), ("", "no version")):
        with pytest.raises(ArtifactMovedError, match=rf"net:champion names v2 since .* by ada; expected {expected}"):
            store.alias("net", "champion", 3, was=was)
    with pytest.raises(ArtifactError, match="was: got 'best', expected a version such as v6"):
        store.alias("net", "champion", 3, was="best")
    assert moves_of(store) == [("champion", None, 2)]


def test_move_that_another_process_made_first_is_refused_with_what_it_is(store, monkeypatch):
    store.alias("net", "champion", 1)
    seen = AliasMoves.last(AliasMoves(store.root / "versions" / "net" / "aliases"), "champion")
    store.alias("net", "champion", 2, by="ada")
    stale = iter([seen])
    monkeypatch.setattr(
        AliasMoves, "last", lambda self, alias, last=AliasMoves.last: next(stale, None) or last(self, alias)
    )
    with pytest.raises(ArtifactMovedError, match=r"net:champion names v2 .* by ada: another process was faster"):
        store.alias("net", "champion", 3, by="bob")
    assert moves_of(store) == [("champion", None, 1), ("champion", 1, 2)]


def test_processes_that_move_one_alias_at_once_lose_no_move(store, request):
    script = UNTIL_KILLED_OR_MOVED.format(root=str(request.config.rootpath), store=str(store.basedir)) + (
        "done = 0\n"
        "while done < 20:\n"
        "    now = store.aliases('net').get('champion')\n"
        "    try:\n"
        "        store.alias('net', 'champion', 1 + (now.version if now else 0) % 3, now.version if now else '')\n"
        "        done += 1\n"
        "    except ArtifactMovedError:\n"
        "        pass\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    moves = store.alias_moves("net")
    assert [move.number for move in moves] == list(range(1, 61))
    assert all(after.was == before.version for before, after in itertools.pairwise(moves))


KILLED_AT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from sacristan.observers.artifacts.store import ArtifactStore
STEPS = {{"open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.utime"}}
store, at = ArtifactStore({store!r}), 0
while True:
    at += 1
    store.alias("net", f"alias-{{at}}", 1)
    child = os.fork()
    if child == 0:
        left = at
        def step(event, arguments):
            global left
            if event in STEPS:  # os.kill is an event, too
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(step)
        store.alias("net", f"alias-{{at}}", 2)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(at)
"""


def test_kill_at_every_step_leaves_the_old_version_or_the_new(store, request):
    script = KILLED_AT.format(root=str(request.config.rootpath), store=str(store.basedir))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    steps = int(done.stdout)
    assert steps > 5
    named = [store.resolve(f"net:alias-{at}").version for at in range(1, steps + 1)]
    assert set(named) == {1, 2}
    assert named == sorted(named)
    for at in range(1, steps + 1):
        store.alias("net", f"alias-{at}", 3)
        assert store.resolve(f"net:alias-{at}").version == 3


def test_full_disk_leaves_the_alias_where_it_was(store, request):
    store.alias("net", "champion", 1)
    script = (
        f"import resource, signal, sys; sys.path.insert(0, {str(request.config.rootpath)!r})\n"
        "from sacristan.observers.artifacts.store import ArtifactStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        f"try: ArtifactStore({str(store.basedir)!r}).alias('net', 'champion', 2)\n"
        "except Exception as error: sys.stderr.write(f'{type(error).__name__} {error}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("ArtifactError net:champion: ")
    assert "cannot be written (File too large); make room" in done.stderr
    assert store.resolve("net:champion").version == 1
    left = (store.root / "versions" / "net" / "aliases").iterdir()
    assert [path.name for path in left] == ["champion.1.json"]


def test_file_system_without_hard_links_keeps_moves_as_well(store, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.alias("net", "champion", 1)
    store.alias("net", "champion", 2)
    assert moves_of(store) == [("champion", None, 1), ("champion", 1, 2)]
    # A process that was killed after it claimed a number.
    (store.root / "versions" / "net" / "aliases" / "champion.3.json").touch()
    assert store.resolve("net:champion").version == 2


def test_damaged_move_is_named_and_never_passed_over(store):
    store.alias("net", "champion", 1)
    store.alias("net", "champion", 2)
    path = store.root / "versions" / "net" / "aliases" / "champion.2.json"
    whole = json.loads(path.read_text())
    for content in ("{", "[]", json.dumps(whole | {"version": "2"}), json.dumps(whole | {"alias": "other"})):
        path.chmod(0o644)
        path.write_text(content)
        with pytest.raises(ArtifactDamagedError, match=r"champion\.2\.json: this"):
            store.resolve("net:champion")
    path.unlink()
    assert store.resolve("net:champion").version == 1


def test_version_with_its_store_can_be_pickled(store):
    assert pickle.loads(pickle.dumps(store.resolve("net:v1"))) == store.resolve("net:v1")
    with pytest.raises(ArtifactError, match="net:v1: its store is not known"):
        pickle.loads(pickle.dumps(store.resolve("net:v1"))).alias("champion")


def test_move_of_another_form_is_no_move():
    assert Move.of({"alias": "a"}) is None
    assert Move.of(None) is None


# ---------------------------------------------------------------------- removing versions


def test_version_that_an_alias_names_is_not_removed(store):
    store.alias("net", "champion", 1)
    with pytest.raises(ArtifactError, match=r"net:v1 is champion: .* artifacts alias net --remove champion"):
        store.remove("net", 1)
    with pytest.raises(ArtifactError, match="net:v3 is the newest version, which net:latest names"):
        store.remove("net", 3)
    store.alias("net", "champion", 2)
    store.remove("net", 1)
    assert [version.version for version in store.versions("net")] == [2, 3]
    for call in (lambda: store.remove("net", 1), lambda: store.alias("net", "champion", 1)):
        with pytest.raises(ArtifactNotFoundError, match=r"net:v1: .* has no such version"):
            call()


def test_number_of_a_removed_version_is_not_given_again(store, tmp_path):
    for number in (1, 2):
        store.remove("net", number)
    assert str(store.log("net", write_files(tmp_path / "in1", {"net.pt": b"1"}), "model")) == "net:v4"


def test_contents_that_no_version_has_are_deleted_once_they_are_old(store, tmp_path):
    store.log("other", write_files(tmp_path / "in1", {"net.pt": b"1"}))
    for number in (1, 2):
        store.remove("net", number)
    assert store.reclaim(3600) == ([], 1)
    assert store.reclaim(-1) == ([1], 0)  # that of v2: `other` has the other one
    for version in (store.resolve("net"), store.resolve("other")):
        version.copy_to(tmp_path / "out" / version.name)


def test_content_that_was_set_aside_by_a_killed_process_comes_back_or_goes(store, tmp_path):
    named = content_path(store.contents, store.resolve("net:v3").files[0].sha256)
    named.rename(named.with_name(f".removing-{named.name}"))
    assert store.reclaim(3600) == ([], 0)
    assert store.resolve("net:v3").copy_to(tmp_path / "out")


def test_damaged_manifest_keeps_all_contents(store):
    store.remove("net", 1)
    path = store.root / "versions" / "net" / "v2.json"
    path.chmod(0o644)
    path.write_text("{")
    with pytest.raises(ArtifactDamagedError, match="net:v2"):
        store.reclaim(-1)
    assert len([path for path in store.contents.rglob("*") if path.is_file()]) == 3


# ---------------------------------------------------------------------- clones


def test_clone_shares_blocks_or_says_that_it_cannot(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("xb") as target:
        is_clone = clone(source, target)
    assert (tmp_path / "b").stat().st_size == (10_000 if is_clone else 0)
    with (tmp_path / "c").open("xb") as target:
        assert not clone(io.BytesIO(b"no file"), target)
