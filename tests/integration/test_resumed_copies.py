"""Large files that are copied into a store: killed in the middle, on a full disk, without MongoDB, in a terminal."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pymongo
import pytest

from sacristan.__main__ import main as runs_command
from sacristan.observers import ArtifactError, ArtifactStore
from sacristan.observers.artifacts import content_path
from sacristan.observers.mongo.contents import send_file
from sacristan.observers.mongo.documents import content_id
from sacristan.observers.mongo.layout import Collections, make_run_indexes
from sacristan.runs import open_store
from tests.terminals import run_in_terminal

MB = 1_000_000
SIZE = 200 * MB

# `wchar` counts the bytes that a process passes to the system to write.
COPIES = """
import pathlib
ex.observers.append(FileObserver("runs"))

def written():
    return int(pathlib.Path("/proc/self/io").read_text().partition("wchar: ")[2].split()[0])

@ex.main
def main(_run):
    before = written()
    _run.{call}
    pathlib.Path("written").write_text(str(written() - before))

resume = os.environ.get("SACRISTAN_RESUME")
ex.run(meta_info={{"resume": resume}} if resume else {{}}, options={{"--beat-interval": 1}})
"""
CALLS = {"add_artifact": 'add_artifact("net.pt")', "log_artifact": 'log_artifact("net", "net.pt", type="model")'}
PARTS = {"add_artifact": "1/.net.pt.part.tmp", "log_artifact": "_artifacts/incoming/*/part-*"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts what a process writes by /proc")


def make_file(path, num_bytes=SIZE):
    """Write a file whose megabytes all differ."""
    block = os.urandom(MB - 8)
    with path.open("wb") as stream:
        for number in range(num_bytes // MB):
            stream.write(number.to_bytes(8, "big") + block)
    return path


def sha256_of(path):
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copy_in(folder, call):
    """Return where the copy is, and None as long as readers find none."""
    if call == "add_artifact":
        path = folder / "1" / "net.pt"
        return path if path.exists() else None
    versions = ArtifactStore(folder).versions("net")
    return versions[0].stored_path() if versions else None


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("call", CALLS)
def test_copy_that_was_cut_short_goes_on_where_it_stopped(tmp_path, start, call, how):
    source, runs = make_file(tmp_path / "net.pt"), tmp_path / "runs"
    killed = start(tmp_path, COPIES.format(call=CALLS[call]))
    deadline = time.monotonic() + 60
    while not (parts := [path for path in runs.glob(PARTS[call]) if path.stat().st_size > 50 * MB]):
        assert time.monotonic() < deadline
        assert killed.process.poll() is None, killed.err.read_text()
    killed.process.send_signal(how)
    killed.process.wait()
    if how == signal.SIGINT:
        assert json.loads((runs / "1" / "run.json").read_text())["status"] == "INTERRUPTED"
    num_there = parts[0].stat().st_size
    assert num_there < SIZE
    assert copy_in(runs, call) is None
    resumed = start(tmp_path, COPIES.format(call=CALLS[call]), env={**os.environ, "SACRISTAN_RESUME": str(runs / "1")})
    resumed.finish()
    num_written = int((tmp_path / "written").read_text())
    assert SIZE - num_there <= num_written < SIZE - num_there + 5 * MB
    assert sha256_of(copy_in(runs, call)) == sha256_of(source)
    assert not list(runs.glob(PARTS[call]))


LIMITED = """
import resource, signal, sys
sys.path.insert(0, {root!r})
from sacristan.observers import ArtifactStore
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
ArtifactStore({store!r}).log("net", {source!r})
"""


def log_up_to(source, store, most, root):
    """Log a file in a process that the system kills as soon as a file has more than `most` bytes."""
    script = LIMITED.format(root=str(root), most=most, store=str(store), source=str(source))
    return subprocess.run([sys.executable, "-c", script]).returncode


def parts_in(store):
    return sorted((store / "_artifacts" / "incoming").glob("*/part-*"))


def test_folder_of_large_files_takes_over_what_is_complete_and_what_is_begun(tmp_path, request, capsys):
    folder, store = tmp_path / "in", tmp_path / "runs"
    folder.mkdir()
    for name in ("a", "b"):
        make_file(folder / name, 20 * MB)
    make_file(folder / "c", 30 * MB)
    assert log_up_to(folder, store, 25 * MB, request.config.rootpath) < 0
    assert [path.stat().st_size for path in parts_in(store)][:2] == [20 * MB] * 2 or len(parts_in(store)) == 3
    inodes = {path.stat().st_ino for path in parts_in(store)}
    version = ArtifactStore(store).log("net", folder)
    assert {content_path(version.contents, file.sha256).stat().st_ino for file in version.files} == inodes
    for file in version.files:
        assert sha256_of(content_path(version.contents, file.sha256)) == file.sha256 == sha256_of(folder / file.path)
    with open_store(store) as opened:
        opened.collect()
    assert not parts_in(store)


def test_changed_file_is_copied_right_and_parts_are_collected_after_an_hour(tmp_path, request):
    source, store = make_file(tmp_path / "net.pt", 30 * MB), tmp_path / "runs"
    assert log_up_to(source, store, 20 * MB, request.config.rootpath) < 0
    [part] = parts_in(store)
    content = bytearray(source.read_bytes())
    content[10 * MB] ^= 255
    source.write_bytes(content)
    version = ArtifactStore(store).log("net", source)
    assert sha256_of(version.stored_path()) == sha256_of(source) == version.files[0].sha256
    assert log_up_to(make_file(source, 30 * MB), store, 20 * MB, request.config.rootpath) < 0
    [part] = parts_in(store)
    for age_s, is_kept in ((3000, True), (4000, False)):
        for path in (part, part.parent):
            os.utime(path, (time.time() - age_s,) * 2)
        ArtifactStore(store).log("other", make_file(tmp_path / "other", MB))  # which sweeps, too
        with open_store(store) as opened:
            assert opened.collect().num_bytes == (0 if is_kept else 20 * MB)
        assert part.exists() == is_kept
    assert [str(each) for each in ArtifactStore(store).versions("net")] == ["net:v1"]


@pytest.fixture
def disk(tmp_path):
    """A disk of 48 MB of its own, and what makes it larger; skips a test that may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=128m", str(folder)], check=True)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_copy_on_a_full_disk_leaves_room_and_goes_on_when_there_is_more(tmp_path, disk):
    folder, enlarge = disk
    source, store = make_file(tmp_path / "net.pt", 60 * MB), ArtifactStore(folder / "runs")
    with pytest.raises(ArtifactError, match=r"cannot be written \(No space left on device\); make room"):
        store.log("net", source)
    assert store.versions("net") == []
    [part] = parts_in(folder / "runs")
    assert part.stat().st_blocks * 512 > 30 * MB
    assert shutil.disk_usage(folder).free > 7 * MB  # for the records of runs
    inode = part.stat().st_ino
    enlarge()
    version = store.log("net", source)
    assert version.stored_path().stat().st_ino == inode
    assert sha256_of(version.stored_path()) == sha256_of(source)


@pytest.mark.slow
def test_blocks_are_shared_on_a_file_system_that_can(tmp_path):
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as stream:
        stream.truncate(400 * MB)
    if shutil.which("mkfs.xfs") is None:
        pytest.skip("needs mkfs.xfs")
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], capture_output=True).returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    try:
        source = make_file(disk / "net.pt", 100 * MB)
        os.sync()
        free = shutil.disk_usage(disk).free
        version = ArtifactStore(disk / "runs").log("net", source)
        out = version.path(disk / "out")
        os.sync()
        assert free - shutil.disk_usage(disk).free < 5 * MB
        assert sha256_of(version.stored_path()) == sha256_of(out) == sha256_of(source)
        source.write_bytes(b"changed")
        assert sha256_of(out) == version.files[0].sha256
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# ---------------------------------------------------------------------- MongoDB

SENDS = """
ex.observers.extend([FileObserver("runs"), MongoObserver({url!r}, db_name="lab")])
@ex.automain
def main(_run):
    _run.log_artifact("net", "net.pt", type="model")
    while True: time.sleep(1)
"""


@pytest.mark.slow
def test_upload_goes_on_after_both_server_and_process_were_killed(tmp_path, mongod, start, wait_for):
    make_file(tmp_path / "net.pt", 150 * MB)
    mongod.start()
    recorded = start(tmp_path, SENDS.format(url=mongod.url), "-b", "0.2")
    with pymongo.MongoClient(mongod.url) as client:
        wait_for(lambda: client.lab.fs.chunks.estimated_document_count() > 100, "a part of the upload")
    mongod.kill()
    recorded.process.kill()
    recorded.process.wait()
    mongod.start()
    with pymongo.MongoClient(mongod.url) as client:
        assert client.lab.artifacts.count_documents({}) == 0
        num_there, total = client.lab.fs.chunks.count_documents({}), -(-150 * MB // (255 * 1024))
        assert 0 < num_there < total
        before = client.admin.command("serverStatus")["opcounters"]["insert"]
        assert runs_command(["sync", "--store", str(tmp_path / "runs")]) == 0
        num_inserted = client.admin.command("serverStatus")["opcounters"]["insert"] - before
        assert total - num_there <= num_inserted < total - num_there + 30
        assert runs_command(["artifacts", "show", "net", "--store", f"{mongod.url}/lab"]) == 0
    with open_store(f"{mongod.url}/lab") as store:
        [content] = store.aliases.resolve("net").files.values()
        assert content.sha256() == sha256_of(tmp_path / "net.pt")


def test_pieces_of_an_upload_that_nobody_goes_on_with_are_collected(mongo_url, database):
    make_run_indexes(Collections(database))
    content = os.urandom(600_000)
    sending = send_file(Collections(database), io.BytesIO(content), content_id("ab" * 32), {"filename": "net.pt"})
    next(sending)
    database.fs.chunks.insert_one({"files_id": "of another program", "n": 0, "data": b"x"})
    with open_store(f"{mongo_url}/{database.name}") as store:
        assert store.collect().num_young == 1
        assert store.collect().num_young == 1
        next(sending)  # somebody goes on
        store.collect()
        past = {"$set": {"at": datetime.now(UTC) - timedelta(hours=2)}}
        assert database.removed.update_many({"pieces_of": {"$exists": True}}, past).modified_count == 1
        assert store.collect().num_bytes == 2 * 255 * 1024
        assert [piece["files_id"] for piece in database.fs.chunks.find()] == ["of another program"]
        for _ in send_file(Collections(database), io.BytesIO(content), content_id("ab" * 32), {"filename": "net.pt"}):
            pass
        assert database.fs.chunks.count_documents({}) == 4
    assert database.removed.count_documents({}) == 0


# ---------------------------------------------------------------------- a terminal

WATCHED = """
import sys, pathlib
sys.path.insert(0, {root!r})
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.observers.record import copies
copies._PATIENCE_S = copies._REDRAWN_S = 0.0
ex = Experiment("watched", save_git_info=False, system_metrics_s=None)
ex.observers.append(FileObserver("runs"))

@ex.main
def main(_run):
    print("begin")
    _run.add_artifact("net.pt")
    _run.log_artifact("net", "net.pt")
    print("end")

ex.run_commandline(["watched.py"])
"""


def test_progress_is_on_the_terminal_and_not_in_the_record(tmp_path, request):
    make_file(tmp_path / "net.pt", 20 * MB)
    (tmp_path / "watched.py").write_text(WATCHED.format(root=str(request.config.rootpath)))
    code, text = run_in_terminal([sys.executable, "watched.py"], tmp_path)
    assert code == 0, text
    assert text.count("copying net.pt: 100% of 20 MB") >= 2
    folder = tmp_path / "runs" / "1"
    assert "copying" not in (folder / "cout.txt").read_text()
    assert json.loads((folder / "run.json").read_text())["status"] == "COMPLETED"
