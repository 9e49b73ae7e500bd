from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

# Before torch is loaded, and for the processes that tests start: on tensors this small, threads that wait for each
# other cost more than they bring, on a busy machine a hundred times more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pymongo
import pytest
import torch

from ingredients.datasets.batches import Data, TensorBatches
from runs.mongod import Mongod
from tests import processes


@pytest.fixture(scope="session", autouse=True)
def _warm_process() -> Iterator[None]:
    """End the process that others are forked from, if a test has needed it."""
    yield
    processes.shut_down()


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory) -> Iterator[str]:
    """The URL of a real server: the one that SACRISTAN_TEST_MONGO names, or one for these tests."""
    given = os.environ.get("SACRISTAN_TEST_MONGO")
    if given:
        yield given
        return
    with Mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server.url


@pytest.fixture
def database(mongo_url) -> Iterator[pymongo.database.Database]:
    """An empty database of its own on the server."""
    with pymongo.MongoClient(mongo_url) as client:
        name = f"test_{uuid.uuid4().hex}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def mongod(tmp_path) -> Iterator[Mongod]:
    """A server of the test's own, to be stopped and started; not started yet."""
    server = Mongod(tmp_path / "mongod")
    yield server
    server.stop()


@pytest.fixture
def tensor_data() -> Callable[..., Data]:
    """Return what makes `Data` of tensors: integer targets (N,) are classes, others (N, D) are values or labels.

    `train`, `val` and `test` are pairs (inputs, targets); without a `val` or `test` that split is empty.
    """

    def make(
        train,
        val=None,
        test=None,
        *,
        task=None,
        batch_size=8,
        classes=(),
        shuffle=False,
        target_mean=None,
        target_std=None,
    ):
        inputs, targets = train
        empty = inputs[:0], targets[:0]
        task = task or ("classification" if not targets.is_floating_point() else "regression")
        names = tuple(classes) or (tuple("abcdefghij"[: int(targets.max()) + 1]) if task == "classification" else ())
        counts = torch.bincount(targets, minlength=len(names)) if task == "classification" else targets.sum(0)
        return Data(
            train=TensorBatches(inputs, targets, batch_size, shuffle=shuffle),
            val=TensorBatches(*(val or empty), batch_size),
            test=TensorBatches(*(test or empty), batch_size),
            task=task,
            input_shape=tuple(inputs.shape[1:]),
            num_targets=len(names) if task == "classification" else targets.shape[1],
            classes=names,
            class_counts=() if task == "regression" else tuple(int(count) for count in counts),
            target_mean=target_mean,
            target_std=target_std,
            fingerprint="",
        )

    return make
