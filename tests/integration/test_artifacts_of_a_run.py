"""`_run.add_artifact` and `add_resource`: kept or refused in the call, in every store; the record goes on meanwhile."""

import hashlib
import os
import threading

import gridfs
import pytest

from sacristan.experiments import Experiment
from sacristan.observers import ArtifactError, FileObserver, MongoObserver, read_metrics
from sacristan.runs import open_store


def record(main, *observers, **options):
    ex = Experiment("recorded", system_metrics_s=None)
    ex.observers.extend(observers)
    ex.main(main)
    return ex.run(options={"--capture": "sys", "--beat-interval": 0.02}, **options)


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "made.txt"
    path.write_text("made")
    return path


def test_artifact_that_is_not_copied_is_delivered_from_where_it_lies(tmp_path, database, mongo_url, made):
    record(
        lambda _run: _run.add_artifact(made),
        FileObserver(tmp_path / "runs", copy_artifacts=False),
        MongoObserver(mongo_url, database.name),
    )
    [entry] = database.runs.find_one()["artifacts"]
    assert entry["name"] == "made.txt"
    assert gridfs.GridFS(database).get(entry["file_id"]).read() == b"made"
    assert not (tmp_path / "runs" / "1" / "made.txt").exists()


def test_artifact_that_is_not_copied_and_gone_before_it_is_delivered_is_said(
    tmp_path, database, mongo_url, made, caplog
):
    def main(_run):
        _run.add_artifact(made)
        made.unlink()

    record(main, FileObserver(tmp_path / "runs", copy_artifacts=False), MongoObserver(mongo_url, database.name))
    assert "artifact 'made.txt' is not delivered" in caplog.text


@pytest.mark.parametrize("with_folder", [False, True])
def test_name_that_is_logged_twice_has_both_files_in_the_database(tmp_path, database, mongo_url, made, with_folder):
    """As with Sacred's observers: in a folder the last one takes the name."""

    def main(_run):
        for _ in range(2):
            _run.add_artifact(made, metadata={"epoch": 1})
        for epoch, content in enumerate(["better", "best"], 2):
            made.write_text(content)
            _run.add_artifact(made, metadata={"epoch": epoch})

    folder = [FileObserver(tmp_path / "runs")] if with_folder else []
    record(main, *folder, MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"))
    entries = database.runs.find_one()["artifacts"]
    assert [entry["name"] for entry in entries] == ["made.txt"] * 3
    files = [gridfs.GridFS(database).get(entry["file_id"]) for entry in entries]
    assert [file.read() for file in files] == [b"made", b"better", b"best"]
    assert [file.metadata for file in files] == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}]
    stores = [f"{mongo_url}/{database.name}", *([tmp_path / "runs"] if with_folder else [])]
    for where in stores:
        with open_store(where) as store:
            run = store.get(1)
            assert {name: content.read() for name, content in run.artifacts.items()} == {"made.txt": b"best"}


NAMES = ["", ".", "..", "a\nb", "a\\b", "../a", "/a", "a//b", "a/./b", "\0", "run.json", "x" * 300]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_name_that_no_file_can_have_is_refused_in_the_call(tmp_path, made, name):
    def main(_run):
        with pytest.raises(ArtifactError, match="artifact name: got "):
            _run.add_artifact(made, name=name)
        _run.add_artifact(made, name="a:b")

    record(main, FileObserver(tmp_path / "runs"))
    assert (tmp_path / "runs" / "1" / "a:b").read_text() == "made"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["fifo", "folder", "nothing", "device", "unwritable"])
def test_artifact_that_cannot_be_kept_is_refused_in_the_call(tmp_path, made, what, caplog):
    path = {"folder": tmp_path, "nothing": tmp_path / "nothing", "device": "/dev/zero"}.get(what, tmp_path / "fifo")
    os.mkfifo(tmp_path / "fifo")

    def main(_run):
        if what == "unwritable":
            (tmp_path / "runs" / "1" / "made.txt").mkdir()
            with pytest.raises(ArtifactError, match=r"made.txt: it cannot be kept in .*; make room or check"):
                _run.add_artifact(made)
            return
        with pytest.raises(ArtifactError, match=f"{path}: .*(No such file|is a folder|no regular file)"):
            _run.add_artifact(path)
        _run.add_resource(path)

    record(main, FileObserver(tmp_path / "runs"))
    assert "Traceback" not in caplog.text
    assert ("cannot be kept as a resource" in caplog.text) == (what != "unwritable")


def test_artifact_on_a_file_system_that_stalls_holds_up_no_beat(tmp_path, made, monkeypatch, wait_for):
    """Stands for a network folder: reading the file takes until the run has recorded more."""
    stalled, go_on = threading.Event(), threading.Event()

    def stall(*arguments):
        stalled.set()
        assert go_on.wait(20)
        return copy(*arguments)

    from sacristan.observers.record import copies

    copy = copies.copy_stream

    def main(_run):
        monkeypatch.setattr(copies, "copy_stream", stall)
        adding = threading.Thread(target=_run.add_artifact, args=[made])
        adding.start()
        assert stalled.wait(20)
        folder = tmp_path / "runs" / "1"
        before = (folder / "lease.json").read_text()
        _run.log_scalar("loss", 1.0)
        wait_for(lambda: (folder / "lease.json").read_text() != before, "a beat", timeout_s=20)
        wait_for(lambda: (folder / "metrics.bin").stat().st_size, "the point", timeout_s=20)
        go_on.set()
        adding.join(60)

    record(main, FileObserver(tmp_path / "runs"))
    assert (tmp_path / "runs" / "1" / "made.txt").read_text() == "made"
    assert len(read_metrics(tmp_path / "runs" / "1")["loss"]) == 1


def test_file_that_grows_while_it_is_added_is_refused_and_leaves_nothing(tmp_path, made, caplog):
    made.write_bytes(b"x" * 30_000_000)
    is_over = threading.Event()

    def grow():
        with made.open("ab", buffering=0) as stream:
            while not is_over.is_set():
                stream.write(b"x")

    def main(_run):
        growing = threading.Thread(target=grow)
        growing.start()
        try:
            with pytest.raises(ArtifactError, match=r"made.txt: it changed while it was read; add it when nobody"):
                _run.add_artifact(made)
            _run.add_resource(made)
        finally:
            is_over.set()
            growing.join()
        _run.add_artifact(made)

    record(main, FileObserver(tmp_path / "runs"))
    assert f"{made} cannot be kept as a resource: {made}: it changed while it was read" in caplog.text
    folder = tmp_path / "runs" / "1"
    assert (folder / "made.txt").read_bytes() == made.read_bytes()
    assert [path.name for path in (*folder.rglob("*.tmp"), *(tmp_path / "runs" / "_resources").glob("*"))] == []


@pytest.mark.slow
def test_sparse_artifact_stays_sparse(tmp_path, made):
    with made.open("wb") as stream:
        stream.seek(2**20 + 5)
        stream.write(b"made")
        stream.truncate(2**26)
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()

    def main(_run):
        _run.add_artifact(made)
        version = _run.log_artifact("data", made)
        version.copy_to(tmp_path / "restored")
        [stored] = (path for path in (tmp_path / "runs" / "_artifacts" / "contents").rglob("*") if path.is_file())
        for path in (_run.folder / "made.txt", stored, tmp_path / "restored" / "made.txt"):
            assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == (2**26, sha256)
            assert path.stat().st_blocks * 512 <= 2**20

    record(main, FileObserver(tmp_path / "runs"))
