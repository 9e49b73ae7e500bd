"""Whatever a folder or a database holds for a record, readers get an answer, or an error of `sacristan.runs.errors`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
from datetime import datetime
from pathlib import Path

import bson
import gridfs
import numpy as np
import psutil
import pytest

from sacristan.__main__ import main
from sacristan.observers.record.identity import lease
from sacristan.observers.record.points import POINT
from sacristan.runs import RunsError, StoreError, copy, open_store
from sacristan.runs.transfer.copying import stage

UID = "0" * 31 + "1"
PNG = b"\x89PNG"
MEDIUM = f"media/{hashlib.sha256(PNG).hexdigest()}.png"
ODD = [None, 3, "x\x00", [["a", "b"]], [{"name": 3}], {"name": [1]}]
RUN = {
    "format": "sacristan-1",
    "uid": UID,
    "experiment": {
        "name": "whole",
        "base_dir": "/lab",
        "mainfile": "exp.py",
        "sources": [["exp.py", "_sources/exp.py"]],
    },
    "command": "main",
    "status": "COMPLETED",
    "start_time": "2026-01-01T00:00:00",
    "stop_time": "2026-01-01T00:01:00",
    "heartbeat": "2026-01-01T00:01:00",
    "queue_time": None,
    "host": {"hostname": "there"},
    "meta": {"options": {"--force": True}},
    "result": 0.5,
    "artifacts": ["weights.txt"],
    "resources": [["data.csv", "_resources/data.csv"]],
    "artifact_details": {"weights.txt": {"metadata": {"a": 1}}},
    "artifacts_logged": [{"name": "model", "digest": "0" * 64, "version": 1, "type": "model"}],
    "artifacts_used": [],
    "sessions": [{"status": "COMPLETED", "start_time": "2026-01-01T00:00:00"}],
    "parent": "0" * 31 + "2",
    "folder": "/lab/my_runs/1",
    "cwd": "/lab",
}
ENTRY = {
    "name": "picture",
    "kind": "image",
    "step": 1,
    "time": 0.1,
    "content_type": "image/png",
    "meta": {},
    "file": MEDIUM,
}
PARTS = {
    "config.json": {"lr": 0.1, "checkpoint": {"last": True, "resume": "state.pt"}},
    "info.json": {"data": {"fingerprint": "f1"}},
    "provenance.json": {
        "git": {"commit": "0" * 40, "diff": "x"},
        "packages": {"numpy": "1"},
        "determinism": {"num_threads": 1},
    },
    "summary.json": {"loss": {"count": 2, "last": 1.0}},
    "notes.json": {"tags": {"best": True}, "note": "good", "reproductions": [{"verdict": "IDENTICAL"}]},
    "lease.json": lease(1.0),
}
QUESTIONS = {
    "document": lambda run: run.document,
    "times": lambda run: (run.start_time, run.stop_time, run.duration_s, run["duration"]),
    "status": lambda run: (run.status, run.is_living, run.is_whole, run.lease),
    "texts": lambda run: (run.uid, run.name, run.command, run.host, run.result, run.diff, run.note, run.tags),
    "lists": lambda run: (run.sessions, run.reproductions, run.notes()),
    "config": lambda run: run.config,
    "info": lambda run: run.info,
    "summary": lambda run: run.summary,
    "provenance": lambda run: run.provenance,
    "metrics": lambda run: [run.metric(name) for name in run.metrics],
    "output": lambda run: (run.output, run.read_output(3)),
    "artifacts": lambda run: [content.read() for content in run.artifacts.values()],
    "details": lambda run: run.artifact_details(),
    "sources": lambda run: [content.read() for content in run.sources.values()],
    "resources": lambda run: [content.sha256() for content in run.resources.values()],
    "media": lambda run: [(medium.content.read(), medium.images) for medium in run.media],
    "media entries": lambda run: run.media_entries(),
    "odd values": lambda run: run.odd_values(),
    "version": lambda run: run.fetch_version(RUN["artifacts_logged"][0], run.folder or Path("/nonexistent")),
    "original": lambda run: run.original(),
    "fields": lambda run: [run[name] for name in ("lr", "loss.last", "info.data.fingerprint", "meta.options.--force")],
}


def write(store):
    """Write a whole run, with all that a record can have."""
    folder = store / "1"
    (folder / "media").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(RUN))
    for name, document in PARTS.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "cout.txt").write_text("one\ntwo\n")
    np.array([(0, 1, 1, 0.5), (0, 2, 2, 0.25)], POINT).tofile(folder / "metrics.bin")
    (folder / "metrics.names.jsonl").write_text('{"id": 0, "name": "loss"}\n')
    (folder / "values.jsonl").write_text('{"name": "x", "value": "y"}\n')
    (folder / "media.jsonl").write_text(json.dumps(ENTRY) + "\n")
    (folder / MEDIUM).write_bytes(PNG)
    (folder / "weights.txt").write_text("weights")
    for kind, name in (("_sources", "exp.py"), ("_resources", "data.csv")):
        (store / kind).mkdir()
        (store / kind / name).write_text("content")
    return folder


def ask(store, what, target=None, id="1"):
    """Ask everything of a run, and write it into a folder; fail if anything but an error of the package comes out."""

    def copied():
        with (target or store).staging() as base:
            staged = stage(store.get(id), base)
            return target and target.remove([target.add(staged).run])

    store.find()
    for question, answer in [*QUESTIONS.items(), ("copy", lambda run: copied())]:
        try:
            answer(store.get(id))
        except RunsError:
            continue
        except Exception as error:
            pytest.fail(f"{question} of a run with {what}: {error!r}")


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    with open_store(tmp_path / "target") as target:
        yield target


def test_whole_record_answers_everything(tmp_path):
    write(tmp_path / "store")
    with open_store(tmp_path / "store") as store:
        for question, answer in QUESTIONS.items():
            if question != "version":  # which is in no store
                answer(store.get("1"))


def test_odd_values_that_cannot_be_read_are_not_taken_for_none(tmp_path):
    values = write(tmp_path / "store") / "values.jsonl"
    values.unlink()
    values.mkdir()
    with open_store(tmp_path / "store") as store, pytest.raises(StoreError, match=r"values\.jsonl cannot be read"):
        store.get("1").odd_values()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted(RUN))
def test_odd_entry_of_a_run_raises_nothing_unexpected(tmp_path, target, name):
    folder = write(tmp_path / "store")
    with open_store(tmp_path / "store") as store:
        for odd in ODD:
            (folder / "run.json").write_text(json.dumps({**RUN, name: odd}))
            ask(store, f"{name}: {odd!r}", target)
        run = store.get("1")
        assert (run.parent, store.unreadable()) is not None


FILES = [
    *PARTS,
    "run.json",
    "cout.txt",
    "metrics.bin",
    "metrics.names.jsonl",
    "values.jsonl",
    "media.jsonl",
    "metrics.json",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FILES)
def test_odd_file_of_a_run_raises_nothing_unexpected(tmp_path, name):
    folder = write(tmp_path / "store")
    if name == "metrics.json":  # stock Sacred's
        (folder / "metrics.bin").unlink()
    contents = [b"", b"\xff\xfe", b"{", b"[" * 100_000, *(json.dumps(odd).encode() + b"\n" for odd in ODD)]
    contents += [
        json.dumps({"loss": odd, "id": odd, "name": odd, "file": odd, "git": odd}).encode() + b"\n" for odd in ODD
    ]
    with open_store(tmp_path / "store") as store:
        for content in contents:
            (folder / name).write_bytes(content)
            ask(store, f"{name}: {content[:40]!r}")
        (folder / name).unlink()
        ask(store, f"no {name}")


CONTENTS = ["metrics.sums", "metrics.live", "metrics.children.jsonl", "lease.lock", "destination.json"]
CONTENTS += ["delivered.json", "weights.txt", MEDIUM, "../_sources/exp.py", "../_resources/data.csv"]


def put(kind, path):
    """Put what is no regular file in the place of one."""
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:  # a path may be too long
            server.bind(path.name)


@pytest.fixture
def _no_hang():
    """Fail after a while, or 4 GB, where a FIFO would be waited for, and a device read, without end."""

    def fail(number, frame):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 4 * 2**30, hard))
    signal.alarm(60)
    yield
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_hang")
@pytest.mark.parametrize(
    "kind", ["a FIFO", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("a folder", "a device", "a socket"))]
)
def test_what_is_no_regular_file_is_an_error_in_one_line(tmp_path, capsys, kind):
    whole, names = write(tmp_path), [*FILES, *CONTENTS]
    for id, name in enumerate(names, 2):
        folder = shutil.copytree(whole, tmp_path / str(id))
        if name == "metrics.json":  # stock Sacred's
            (folder / "metrics.bin").unlink()
        put(kind, folder / name)
    with open_store(tmp_path) as store:
        for id, name in enumerate(names, 2):
            ask(store, f"{kind} {name}", id=str(id))
    for command in ("reap", "sync", "reindex", "gc --store", "export --format csv --store"):
        assert main([*command.split(), str(tmp_path)]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err


def test_run_without_a_readable_record_is_named_with_the_reason(tmp_path, capsys):
    put("a FIFO", write(tmp_path) / "run.json")
    assert main(["show", "1", "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/1/run.json cannot be read (it is no regular file)\n"
    with open_store(tmp_path) as store:
        assert store.collect().unreadable == ["1"]  # which may name any content


def test_copy_tells_what_is_no_regular_file(tmp_path, target):
    put("a FIFO", write(tmp_path / "store") / "values.jsonl")
    with open_store(tmp_path / "store") as store:
        assert "'values.jsonl': it is no regular file" in copy(store.get("1"), target).left_out


def test_document_too_large_is_not_read(tmp_path):
    with (write(tmp_path) / "config.json").open("r+b") as stream:
        stream.truncate(2**40)
    with open_store(tmp_path) as store, pytest.raises(StoreError, match=r"it has 1,099,511,627,776 bytes, expected at"):
        _ = store.get("1").config


@pytest.mark.slow
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.nightly)])
def test_odd_entry_of_a_document_raises_nothing_unexpected(database, mongo_url, every):
    file_id = gridfs.GridFS(database).put(b"content", filename="x")
    whole = {**RUN, "_id": 1, "start_time": datetime(2026, 1, 1), "stop_time": None, "heartbeat": datetime(2026, 1, 1)}
    whole |= {"artifacts": [{"name": "weights.txt", "file_id": file_id}], "resources": [["data.csv", file_id]]}
    whole |= {part.removesuffix(".json"): document for part, document in PARTS.items() if part != "notes.json"}
    database.metrics.insert_one({"run_id": 1, "name": "loss", "steps": [1], "values": [0.5], "timestamps": []})
    medium = {**ENTRY, "_id": bson.ObjectId(), "run_id": 1, "uid": UID, "file_id": file_id, "number": 0}
    database.media.insert_one(medium)

    def each(names):
        """Each name with odd values: all, or so many places apart, another first one for each name."""
        return [(name, odd) for place, name in enumerate(sorted(names)) for odd in ODD[place % every :: every]]

    with open_store(f"{mongo_url}/{database.name}") as store:
        for name, odd in each([*whole.keys() - {"_id", "uid"}, "tags", "note", "captured_out"]):
            database.runs.replace_one({"_id": 1}, {**whole, name: odd}, upsert=True)
            ask(store, f"{name}: {odd!r}")
        database.runs.replace_one({"_id": 1}, whole)
        for collection, found in ((database.metrics, database.metrics.find_one()), (database.media, medium)):
            for name, odd in each(found.keys() - {"_id", "run_id"}):
                collection.replace_one({"_id": found["_id"]}, {**found, name: odd})
                ask(store, f"{collection.name}.{name}: {odd!r}")


FOREIGN = [
    {},
    {"config": 3, "summary": [1], "info": "x"},
    {"status": "RUNNING", "lease": {"heartbeat": "x"}, "uid": 7},
    {"status": ["x"], "config": [["a"]], "tags": 3},
    {"summary": {"loss": [1], "x": {"last": {}}}},
    {"lease": 1},
]


def test_commands_over_foreign_documents_end_in_one_line(database, mongo_url, tmp_path, capsys):
    database.runs.insert_many([{"_id": number, **document} for number, document in enumerate(FOREIGN)])
    where = f"{mongo_url}/{database.name}"
    once = ["reap", "gc --store", "ls --json --store", f"export -o {tmp_path}/t.csv --store"]
    each = ["config {} --store", "show {} --store", f"export {{}} --force -o {tmp_path}/{{}}.zip --store"]
    for command in [*once, *(command.format(n, n) for command in each for n in range(len(FOREIGN)))]:
        assert main([*command.split(), where]) in (0, 1), command
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
        assert len(lines) <= 1, command
