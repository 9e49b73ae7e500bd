from __future__ import annotations

import compileall
import contextlib
import fcntl
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before torch is loaded, and for the processes that tests start: on tensors this small, threads that wait for each
# other cost more than they bring, on a busy machine a hundred times more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests leave nothing in the user's home.
os.environ["SACRISTAN_CACHE"] = ""
# They send no messages to the user either.
os.environ["SACRISTAN_NOTIFY"] = ""
# Python knows stale bytecode by size and second, and tests change sources more quickly than that: processes write none,
# and find that of the lab, which is compiled when pytest starts.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

import hypothesis
import pymongo
import pytest

from tests import processes

processes.become_worker()  # before it imports the lab

from sacristan.configs.importing import import_sacred

# Before a test module imports it.
import_sacred()

from sacristan.runs import Mongod, ServerError

if TYPE_CHECKING:
    from sacristan.ingredients import Data

# What only workers need, torch above all, is imported where it is needed: the process that hands out tests has none.

# Records and databases ask the disk for their durability, which takes a third of the time of the tests that make them.
MEMORY = Path("/dev/shm")
NEEDED_BYTES = 8 * 2**30

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("lab", deadline=None)
hypothesis.settings.load_profile("lab")


def pytest_configure(config: pytest.Config) -> None:
    """Let the folders of tests lie in memory, where there is enough of it; those of killed sessions are removed."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of what a script starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = False
    gc.disable()  # till all is collected: thousands of tests and torch, none of which will go
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        for name in ("configs", "experiments", "ingredients", "observers", "runs", "sacristan"):
            compileall.compile_dir(config.rootpath / name, quiet=2)
    if is_worker or config.option.basetemp or not MEMORY.is_dir():
        return
    for folder in MEMORY.glob("sacristan-tests-*"):
        with contextlib.suppress(OSError), (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    if shutil.disk_usage(MEMORY).free < NEEDED_BYTES:
        return
    folder = Path(tempfile.mkdtemp(prefix="sacristan-tests-", dir=MEMORY))
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    config.option.basetemp = folder / "tests"

    def clean_up() -> None:
        lock.close()
        if not any((folder / "tests").rglob("test_*")):  # what is there was kept for a look at a failure
            shutil.rmtree(folder)

    config.add_cleanup(clean_up)


def pytest_collection_finish() -> None:
    """Let each test find itself alone, and the garbage collector look at what the tests make, and at nothing before.

    A run that a test records has the modules that are imported for its sources: hundreds of other tests among them.
    """
    for name in [name for name in sys.modules if name.startswith("tests.") and ".test_" in name]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # syntax trees and configs are many small objects, none of which are garbage yet


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, object, object]:
    """Put the module of a test where modules are, as long as the test runs."""
    module = item.module
    sys.modules[module.__name__] = module
    try:
        return (yield)
    finally:
        del sys.modules[module.__name__]


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None]:
    """Fork the workers from one warm process: each has packages imported, and a warm process of its own."""
    if not session.config.getoption("tx", None) or sys.platform != "linux":  # others let no process adopt its workers
        return (yield)
    with processes.warm_children(starts_python=True):
        yield
    processes.shut_down()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores: many tests wait, for a server that is away or a process that ends."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a sampled test `slow`, all but the first ones."""
    counts: Counter[str] = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) and not item.get_closest_marker("slow"):
            name = item.nodeid.partition("[")[0]
            counts[name] += 1
            if counts[name] > sampled.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say that the ordinary suite is not all."""
    if "not slow" in config.option.markexpr:
        terminalreporter.write_line('Left out the slow tests, which CI runs: python -m pytest -m "not nightly"')


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """Take back what `--loglevel` does to a run in this process: Sacred sets the level of the root logger."""
    root = logging.getLogger()
    level = root.level
    yield
    if root.level != level:  # setting it goes through all loggers
        root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _no_records_unasked() -> Iterator[None]:
    """Let experiments that tests make in this process record where observers say so, and not in `my_runs/`, too."""
    from sacristan.experiments import Experiment

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Experiment.__init__.__kwdefaults__, "record_to", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_process() -> Iterator[None]:
    """End the process that others are forked from, if a test has needed it."""
    yield
    processes.shut_down()


# Every second the server would look at itself, and write that down.
QUIET = ["--setParameter", "diagnosticDataCollectionEnabled=false"]


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory) -> Iterator[str]:
    """The URL of a real server, which keeps its data in memory; or the one that SACRISTAN_TEST_MONGO names.

    Files for each collection and index would take most of its time.
    """
    yield from _served(tmp_path_factory.mktemp("mongod"), [*QUIET, "--storageEngine", "ephemeralForTest"])


@pytest.fixture(scope="session")
def journaled_mongo_url(tmp_path_factory) -> Iterator[str]:
    """The URL of a server with a journal, for the trials of sweeps: a module of them has it for its `mongo_url`."""
    yield from _served(tmp_path_factory.mktemp("journaled"), QUIET)


def _served(folder: Path, options: list[str]) -> Iterator[str]:
    given = os.environ.get("SACRISTAN_TEST_MONGO")
    if given:
        yield given
        return
    server = Mongod(folder, options=options)
    try:
        server.start()
    except ServerError:  # MongoDB 7 has no engine that keeps all in memory
        server = Mongod(folder, options=QUIET)
        server.start()
    yield server.url
    server.stop()


@pytest.fixture
def database(mongo_url) -> Iterator[pymongo.database.Database]:
    """An empty database of its own on the server."""
    with pymongo.MongoClient(mongo_url) as client:
        name = f"test_{uuid.uuid4().hex}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def mongod() -> Iterator[Mongod]:
    """A server of the test's own, to be stopped, killed and started; not started yet. Its data lie on a disk."""
    with tempfile.TemporaryDirectory() as folder:
        server = Mongod(Path(folder) / "mongod")
        yield server
        server.stop()


@pytest.fixture
def tensor_data() -> Callable[..., Data]:
    """Return what makes `Data` of tensors: integer targets (N,) are classes, others (N, D) are values or labels.

    `train`, `val` and `test` are pairs (inputs, targets); without a `val` or `test` that split is empty.
    """
    import torch

    from sacristan.ingredients import Data, TensorBatches

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
