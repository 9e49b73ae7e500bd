"""Claims in files that cannot be read or written."""

import os
import shutil
from types import SimpleNamespace

import pytest

from sacristan.runs import StoreError
from sacristan.runs.stores.folders.documents import FolderDocuments
from sacristan.runs.work import End, run_claims
from sacristan.runs.work.run_queue import QueuedTask, QueueEntry


def test_claims_that_cannot_be_read_or_written_are_an_error_of_the_store(tmp_path):
    folder = tmp_path / "claims"
    claims = run_claims(FolderDocuments(tmp_path), "")
    assert claims.add(1)
    shutil.rmtree(folder)
    folder.write_text("")
    for ask in (claims.listed, lambda: claims.begin(1, {"pid": 1}), lambda: claims.release(1), lambda: claims.add(1)):
        with pytest.raises(StoreError, match=f"{folder} cannot be (read|written)"):
            ask()


def queued_task(folder, told, store, command=("python", "exp.py")):
    run = SimpleNamespace(id="1", folder=folder, store=store)
    launch = SimpleNamespace(command=command)
    return QueuedTask(
        run,
        launch,
        QueueEntry(((FolderDocuments(folder.parent), folder.name),), folder),
        attempt=1,
        is_resumed=False,
        tell=told.append,
    )


def test_run_that_is_removed_before_it_begins_does_not_end_its_worker(tmp_path):
    task = queued_task(tmp_path / "1", [], None)
    assert task.may_begin({"pid": os.getpid()})


def test_run_of_several_ranks_that_is_removed_does_not_end_its_worker(tmp_path):
    def get(id):
        raise StoreError("there is no run 1")

    told = []
    task = queued_task(tmp_path / "1", told, SimpleNamespace(get=get), ("python", "-m", "torch.distributed.run"))
    assert task.ended(End(code=1))
    assert told == ["run 1 has ended (exit code 1): there is no run 1"]
