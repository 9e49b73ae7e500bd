import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacristan.observers import ArtifactDamagedError, ArtifactError, ArtifactNotFoundError, ArtifactStore, Lineage
from sacristan.observers.artifacts import content_path
from sacristan.observers.artifacts.intake import Incoming
from sacristan.observers.record.identity import new_uid
from tests.folders import read_files, write_files


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "runs")


def contents(store):
    return sorted(path.name for path in store.contents.rglob("*") if path.is_file())


def left_over(store):
    """Return what is in the store but belongs to no version."""
    known = {file.sha256 for name in store.names() for version in store.versions(name) for file in version.files}
    return [*(store.root / "incoming").rglob("*"), *(name for name in contents(store) if name not in known)]


# ---------------------------------------------------------------------- what comes back


def test_folder_comes_back_as_it_was_with_its_facts(store, tmp_path):
    files = {"a.txt": b"one", "sub/b.bin": bytes(range(256)) * 9000, "sub/deep/c": b""}
    uid = new_uid()
    made = store.log("data", write_files(tmp_path / "in", files), "dataset", {"rows": 3}, uid)
    assert (str(made), made.type, made.metadata, made.made_by) == ("data:v1", "dataset", {"rows": 3}, uid)
    assert [file.path for file in made.files] == ["a.txt", "sub/b.bin", "sub/deep/c"]
    assert made.bytes == 3 + 256 * 9000
    assert store.resolve("data") == made
    assert hash(store.resolve("data")) == hash(made)
    shutil.rmtree(tmp_path / "in")
    assert read_files(made.copy_to(tmp_path / "out")) == files
    assert store.lineage("data", 1) == Lineage((uid,), ())


def test_one_file_comes_back_as_a_copy_and_as_a_stream(store, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"weights")
    made = store.log("net", tmp_path / "model.pt", "model")
    copy = made.path(tmp_path / "out")
    assert copy == tmp_path / "out" / "model.pt"
    with made.open() as stream:
        assert stream.read() == b"weights"
    copy.write_bytes(b"edited")
    assert store.resolve("net").path(tmp_path / "again").read_bytes() == b"weights"


def test_file_that_is_not_in_the_version_is_refused(store, tmp_path):
    made = store.log("data", write_files(tmp_path / "in", {"a": b"1", "b": b"2"}))
    with pytest.raises(ArtifactNotFoundError, match=r"got the file name 'c', expected one of: a, b"):
        made.path(tmp_path / "out", "c")
    with pytest.raises(ArtifactNotFoundError, match=r"got the file name None"):
        made.open()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True),
    paths=st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.binary(max_size=50), min_size=1),
)
def test_any_tree_under_any_name_comes_back(tmp_path, name, paths):
    shutil.rmtree(tmp_path)
    files = {}
    for parts, content in paths.items():  # a name cannot be a file and a folder
        if not any(parts != other and parts == other[: len(parts)] for other in paths):
            files["/".join(parts)] = content
    store = ArtifactStore(tmp_path / "runs")
    made = store.log(name, write_files(tmp_path / "in", files))
    assert read_files(made.copy_to(tmp_path / "out")) == files
    assert len(contents(store)) == len(set(files.values()))
    assert ArtifactStore(tmp_path / "runs").resolve(f"{name}@{made.digest[:12]}") == made
    assert store.log(name, tmp_path / "out") == made


def test_copy_leaves_equal_files_refuses_others_and_links(store, tmp_path):
    made = store.log("data", write_files(tmp_path / "in", {"a": b"1", "sub/b": b"2"}))
    out = write_files(tmp_path / "out", {"a": b"1", "mine": b"x"})
    assert read_files(made.copy_to(out)) == {"a": b"1", "sub/b": b"2", "mine": b"x"}
    (out / "a").write_bytes(b"edited")
    with pytest.raises(ArtifactError, match=r"out/a is there with another content"):
        made.copy_to(out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "sub").symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match="leads out of"):
        made.copy_to(tmp_path / "linked")
    assert list(elsewhere.iterdir()) == []


# ---------------------------------------------------------------------- versions and names


def test_versions_are_counted_and_the_same_content_gets_none(store, tmp_path):
    data, uids = tmp_path / "in", sorted(new_uid() for _ in range(3))
    first = store.log("data", write_files(data, {"a": b"1"}), made_by=uids[0])
    second = store.log("data", write_files(data, {"a": b"2"}), made_by=uids[1])
    again = store.log("data", write_files(data, {"a": b"1"}), made_by=uids[2])
    assert (first.version, second.version, again) == (1, 2, first)
    assert [str(version) for version in store.versions("data")] == ["data:v1", "data:v2"]
    assert store.resolve("data") == store.resolve("data:latest") == store.resolve("data:v2") == second
    assert store.lineage("data", 1).made_by == (uids[0], uids[2])
    store.note_use(first, uids[1])
    store.note_use(first, uids[1])
    assert store.lineage("data", 1).used_by == (uids[1],)
    assert store.log("other", data).version == 1
    assert store.names() == ["data", "other"]
    assert len(contents(store)) == 2


def test_renamed_file_is_another_version_of_one_content(store, tmp_path):
    store.log("data", write_files(tmp_path / "in", {"a": b"1"}))
    assert store.log("data", write_files(tmp_path / "in2", {"b": b"1"})).version == 2
    assert len(contents(store)) == 1


def test_type_and_metadata_of_a_known_content_stay_and_it_is_said(store, tmp_path, caplog):
    folder = write_files(tmp_path / "in", {"a": b"1"})
    assert store.log("data", folder, metadata={"x": 1}).type == "dataset"
    again = store.log("data", folder, "model", {"x": 2})
    assert (again.type, again.metadata) == ("dataset", {"x": 1})
    assert "stay as they were logged first" in caplog.text


@pytest.mark.parametrize("name", ["", ".hidden", "_private", "a/b", "a:b", "a b", "ä", "..", "x" * 129, None, "a\n"])
def test_bad_name_is_refused(store, tmp_path, name):
    with pytest.raises(ArtifactError, match=r"artifact name: got .*, expected up to 128 letters"):
        store.log(name, write_files(tmp_path / "in", {"a": b"1"}))


@pytest.mark.parametrize(
    "reference",
    ["data:3", "data:", "data:a/b", "data:-x", "data:" + "x" * 65, "data@xyz", "data@abc", "", None, "a:v1@abcd"],
)
def test_bad_reference_is_refused(store, reference):
    with pytest.raises(ArtifactError, match=r"artifact: got .*, expected name, name:v3, name:latest"):
        store.resolve(reference)


def test_what_is_not_there_is_named_with_what_is(store, tmp_path):
    with pytest.raises(ArtifactNotFoundError, match="has no artifact data; log it first"):
        store.resolve("data")
    for content in (b"1", b"2"):
        store.log("data", write_files(tmp_path / "in", {"a": content}))
    with pytest.raises(ArtifactNotFoundError, match=r"data:v9: .* has no such version of data; it has v1 to v2"):
        store.resolve("data:v9")
    with pytest.raises(ArtifactNotFoundError, match="has no such version"):
        store.resolve("data@0000")
    with pytest.raises(ArtifactNotFoundError, match=r"did you mean data\?"):
        store.resolve("dta")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([1], "it is a list"),
        ({"x": object()}, "it holds a object"),
        ({(1, 2): 3}, "keys must be str"),
        ({"x": "y" * 300_000}, "larger than 256 KiB"),
    ],
)
def test_bad_metadata_is_refused(store, tmp_path, metadata, words):
    with pytest.raises(ArtifactError, match=f"artifact metadata: .*{words}"):
        store.log("data", write_files(tmp_path / "in", {"a": b"1"}), metadata=metadata)
    assert not store.root.exists()


# ---------------------------------------------------------------------- what is read


def test_links_within_count_as_files_and_others_are_refused(store, tmp_path):
    folder = write_files(tmp_path / "in", {"a": b"1", "sub/b": b"2"})
    (folder / "link").symlink_to("sub/b")
    assert read_files(store.log("data", folder).copy_to(tmp_path / "out"))["link"] == b"2"
    for target, words in [
        ("/etc/hostname", "a link that leaves the folder"),
        ("sub", "a link to a folder"),
        ("nowhere", "cannot be read"),
        ("bad", "cannot be read"),
    ]:
        (folder / "bad").symlink_to(target)
        with pytest.raises(ArtifactError, match=f"in/bad: it.* {words}"):
            store.log("data", folder)
        (folder / "bad").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(ArtifactError, match="in/pipe: it is neither a file nor a folder"):
        store.log("data", folder)
    assert left_over(store) == []
    assert len(store.versions("data")) == 1


def test_missing_path_empty_folder_bad_file_name_and_the_store_itself_are_refused(store, tmp_path):
    with pytest.raises(ArtifactError, match="No such file or directory"):
        store.log("data", tmp_path / "nothing")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="got a folder without files"):
        store.log("data", tmp_path / "empty")
    Path(os.fsdecode(bytes(tmp_path / "empty") + b"/\xff")).touch()
    with pytest.raises(ArtifactError, match="is no UTF-8; rename it"):
        store.log("data", tmp_path / "empty")
    write_files(tmp_path / "runs", {"1/run.json": b"{}"})
    with pytest.raises(ArtifactError, match="it holds the store of artifacts itself"):
        store.log("data", tmp_path / "runs")
    assert left_over(store) == []
    assert store.names() == []


GROWS = """
import os, sys, threading
sys.path.insert(0, {root!r})
from sacristan.observers.artifacts.store import ArtifactStore
stream = open({path!r}, "ab", buffering=0)
def grow():
    while True: stream.write(b"x" * 1000)
threading.Thread(target=grow, daemon=True).start()
try:
    ArtifactStore({store!r}).log("data", {path!r})
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


def run_script(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_file_that_is_written_while_it_is_read_is_refused(store, tmp_path, request):
    path = tmp_path / "growing"
    path.write_bytes(b"x" * 10_000_000)
    script = GROWS.format(root=str(request.config.rootpath), path=str(path), store=str(store.basedir))
    assert "it changed while it was read" in run_script(script).stdout
    assert left_over(store) == []
    assert store.names() == []


@pytest.mark.parametrize("change", ["same length", "new", "gone"])
def test_folder_that_changes_behind_the_reader_is_refused(store, tmp_path, monkeypatch, change):
    folder = write_files(tmp_path / "in", {"a": b"1", "b": b"2"})
    take = Incoming.take

    def meddle(self, stream, *options):
        taken = take(self, stream, *options)
        if stream.name.endswith("b"):
            if change == "gone":
                (folder / "a").unlink()
            else:
                (folder / ("a" if change == "same length" else "c")).write_bytes(b"3")
        return taken

    monkeypatch.setattr(Incoming, "take", meddle)
    with pytest.raises(ArtifactError, match=r"in/[ac]: it changed while it was read"):
        store.log("data", folder)
    assert left_over(store) == []


def test_large_file_is_not_held_in_memory(store, tmp_path, request):
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(200 * 2**20)
    script = f"""
import resource, sys
sys.path.insert(0, {str(request.config.rootpath)!r})
from sacristan.observers.artifacts.store import ArtifactStore
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = ArtifactStore({str(store.basedir)!r}).log("data", {str(tmp_path / "large")!r})
made.copy_to({str(tmp_path / "out")!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(run_script(script).stdout) < 50_000  # kilobytes
    assert (tmp_path / "out" / "large").stat().st_size == 200 * 2**20


def test_file_known_by_name_and_length_is_not_copied_again(store, tmp_path, monkeypatch):
    folder = write_files(tmp_path / "in", {"a": b"1" * 1000, "b": b"2" * 1000})
    store.log("data", folder)
    taken = []
    take = Incoming.take
    monkeypatch.setattr(
        Incoming, "take", lambda self, stream, *options: taken.append(stream.name) or take(self, stream, *options)
    )
    (folder / "b").write_bytes(b"3" * 1000)
    assert store.log("data", folder).version == 2
    assert taken == [str(folder / "b")]


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_damaged_content_is_named_and_nothing_of_it_is_copied(store, tmp_path, how):
    folder = write_files(tmp_path / "in", {"good": b"1", "bad": b"22"})
    made = store.log("data", folder)
    content = content_path(store.contents, made.files[0].sha256)
    content.unlink()
    if how == "changed":
        content.write_bytes(b"23")
    with pytest.raises(ArtifactDamagedError, match=rf"data:v1: the content of bad .*: {content}"):
        made.copy_to(tmp_path / "out")
    assert not (tmp_path / "out" / "bad").exists()
    with pytest.raises(ArtifactDamagedError, match="the content of bad"):
        made.open("bad")
    content.unlink(missing_ok=True)
    assert store.log("data", folder) == made
    assert read_files(made.copy_to(tmp_path / "out")) == {"good": b"1", "bad": b"22"}


@pytest.mark.parametrize("manifest", [b"{torn", b"null", b"[]", b"{}", b"\xff", b'{"format": 1}'])
def test_damaged_manifest_hides_no_other_version(store, tmp_path, manifest, caplog):
    for content in (b"1", b"2", b"3"):
        store.log("data", write_files(tmp_path / "in", {"a": content}))
    path = store.root / "versions" / "data" / "v3.json"
    path.unlink()
    path.write_bytes(manifest)
    with caplog.at_level(logging.ERROR):
        assert [version.version for version in store.versions("data")] == [1, 2]
    assert len(caplog.records) == 1
    for reference in ("data:v3", "data"):
        with pytest.raises(ArtifactDamagedError, match=r"data:v3: its (manifest .*is damaged|format is 1, this)"):
            store.resolve(reference)
    assert store.resolve("data:v2").version == 2
    assert store.log("data", tmp_path / "in").version == 4


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", "a//b", "", "a\0b"])
def test_manifest_whose_names_leave_the_folder_is_refused(store, tmp_path, path):
    made = store.log("data", write_files(tmp_path / "in", {"a": b"1"}))
    manifest = store.root / "versions" / "data" / "v1.json"
    document = json.loads(manifest.read_text())
    document["files"][0]["path"] = path
    manifest.unlink()
    manifest.write_text(json.dumps(document))
    with pytest.raises(ArtifactDamagedError, match=r"its manifest is damaged \(it has a file"):
        store.resolve(str(made))


# ---------------------------------------------------------------------- failures and races

FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, {root!r})
from sacristan.observers.artifacts.store import ArtifactStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))   # no file may grow beyond: as on a full disk
store = ArtifactStore({store!r})
try:
    store.log("data", {folder!r})
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("files", [{"a": b"1", "b": b"x" * 9000}, {f"{n:0100d}": b"" for n in range(100)}])
def test_full_disk_raises_and_leaves_nothing(store, tmp_path, request, files):
    folder = write_files(tmp_path / "in", files)
    script = FULL_DISK.format(root=str(request.config.rootpath), folder=str(folder), store=str(store.basedir))
    out = run_script(script).stdout
    assert "ArtifactError data: " in out
    assert "cannot be written (File too large); make room" in out
    assert left_over(store) == []
    assert store.names() == []
    assert store.log("data", folder).version == 1


def test_store_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "runs").write_text("a file stands in the way")
    with pytest.raises(ArtifactError, match=r"data: .*_artifacts cannot be written \(Not a directory\)"):
        ArtifactStore(tmp_path / "runs").log("data", write_files(tmp_path / "in", {"a": b"1"}))


def test_what_a_killed_process_left_is_removed_later(store, tmp_path):
    folder = write_files(tmp_path / "in", {"a": b"1"})
    store.log("data", folder)
    old, new = store.root / "incoming" / "old", store.root / "incoming" / "new"
    for left in (old, new):
        write_files(left, {"part": b"xx"})
    for path in (old / "part", old):
        os.utime(path, (time.time() - 90_000,) * 2)
    store.log("data", folder)
    assert [path.name for path in (store.root / "incoming").iterdir()] == ["new"]


RACE = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from sacristan.observers.artifacts.store import ArtifactStore
if {no_links}:
    def link(*arguments): raise OSError(1, "Operation not permitted")
    os.link = link
me = int(sys.argv[1])
store = ArtifactStore({store!r})
folder = Path({home!r}) / str(me)
folder.mkdir()
Path({home!r}, f"ready{{me}}").touch()
while not Path({home!r}, "go").exists(): time.sleep(0.001)
for turn in range({turns}):
    same = (folder / "file")
    same.write_bytes(b"common %d" % turn)
    store.log("common", folder, made_by=f"{{me:032x}}")
    same.write_bytes(b"own %d %d" % (me, turn) * 1000)
    store.log("own", folder)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("no_links", [False, True])
def test_eight_processes_at_once_count_without_gaps_and_doubles(store, tmp_path, request, no_links):
    turns, home = 6, tmp_path / "home"
    home.mkdir()
    root = str(request.config.rootpath)
    script = RACE.format(root=root, store=str(store.basedir), home=str(home), turns=turns, no_links=no_links)
    processes = [subprocess.Popen([sys.executable, "-c", script, str(me)]) for me in range(8)]
    while len(list(home.glob("ready*"))) < 8:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    (home / "go").touch()
    assert [process.wait(120) for process in processes] == [0] * 8
    own, common = store.versions("own"), store.versions("common")
    assert [version.version for version in own] == list(range(1, 8 * turns + 1))
    assert len({version.digest for version in own}) == 8 * turns
    assert [version.version for version in common] == list(range(1, turns + 1))
    assert len({version.digest for version in common}) == turns
    assert all(len(store.lineage("common", version.version).made_by) == 8 for version in common)
    for version in own + common:
        version.copy_to(tmp_path / "out" / str(version))
    assert left_over(store) == []


def test_claim_of_a_killed_process_is_passed_over(store, tmp_path, monkeypatch):
    monkeypatch.setattr("sacristan.observers.artifacts.manifests._CLAIM_S", 0.0)
    store.log("data", write_files(tmp_path / "in", {"a": b"1"}))
    (store.root / "versions" / "data" / "v2.json").touch()
    assert store.resolve("data").version == 1
    with pytest.raises(ArtifactNotFoundError, match="has no such version"):
        store.resolve("data:v2")
    assert store.log("data", write_files(tmp_path / "in", {"a": b"2"})).version == 3
    assert [version.version for version in store.versions("data")] == [1, 3]


KILLED = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from sacristan.observers.artifacts.store import ArtifactStore
store, folder = ArtifactStore({store!r}), Path({folder!r})
turn = 0
while True:
    turn += 1
    (folder / "small").write_bytes(b"%d" % turn)
    (folder / "large").write_bytes(b"%d" % turn * 500_000)
    print(store.log("data", folder).version, flush=True)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.007, 0.02])
def test_kill_in_the_middle_leaves_whole_versions_only(store, tmp_path, request, delay_s):
    folder = write_files(tmp_path / "in", {"small": b""})
    script = KILLED.format(root=str(request.config.rootpath), store=str(store.basedir), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    for _ in range(3):
        last = int(process.stdout.readline())
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        pass
    process.kill()
    last = max([last, *map(int, process.communicate()[0].splitlines())])
    versions = store.versions("data")
    assert len(versions) >= last
    assert [version.version for version in versions] == list(range(1, len(versions) + 1))
    for version in versions:
        out = read_files(version.copy_to(tmp_path / "out" / str(version)))
        assert out == {"small": b"%d" % version.version, "large": b"%d" % version.version * 500_000}
    for sha256 in contents(store):
        assert hashlib.sha256(content_path(store.contents, sha256).read_bytes()).hexdigest() == sha256
    assert store.log("data", folder).version in (len(versions), len(versions) + 1)


KILLED_AT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from sacristan.observers.artifacts.store import ArtifactStore
STEPS = {{"open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.utime"}}
at = 0
while True:
    at += 1
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
        ArtifactStore(Path({store!r}) / str(at)).log("data", {folder!r}, made_by="ab")
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(at)
"""


def test_kill_at_every_step_leaves_a_whole_version_or_none(tmp_path, request):
    folder, root = write_files(tmp_path / "in", {"a": b"1", "sub/b": b"2" * 100_000}), tmp_path / "stores"
    script = KILLED_AT.format(root=str(request.config.rootpath), store=str(root), folder=str(folder))
    steps = int(run_script(script).stdout)
    assert steps > 20
    counts = []
    for at in range(1, steps + 1):
        store = ArtifactStore(root / str(at))
        versions = store.versions("data")
        counts.append(len(versions))
        for version in versions:
            assert read_files(version.copy_to(tmp_path / "out" / str(at))) == read_files(folder)
            assert store.lineage("data", 1).made_by == ("ab",)
        assert str(store.log("data", folder, made_by="cd")) == "data:v1"
        assert store.resolve("data").made_by in ("ab", "cd")
    assert counts == sorted(counts)
    assert set(counts) == {0, 1}


def test_metadata_of_arrays_have_null_for_masked_values_and_texts_for_times(store, tmp_path):
    metadata = {
        "a": np.ma.array([1, 2], mask=[0, 1]),
        "b": np.array(["2020-01-02"], "datetime64[ns]"),
        "c": np.ma.masked,
    }
    version = store.log("data", write_files(tmp_path / "in", {"a": b"1"}), metadata=metadata)
    assert version.metadata == {"a": [1, None], "b": ["2020-01-02T00:00:00.000000000"], "c": None}
