"""A board over real runs, and a real browser to look at it."""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pymongo
import pytest
from starlette.testclient import TestClient

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import copy, open_store
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import BoardServer, create_app

# All pages in one process, which compiles the script of the plots once: half of the time of the tests in the browser.
ONE_PROCESS = ("--renderer-process-limit=1", "--process-per-site", "--disable-site-isolation-trials", "--disable-gpu")


def record(folder: Path) -> None:
    """Record four runs: two that are good, one that fails, and one that was called to do nothing else."""
    ex = Experiment("digits", base_dir=folder, save_git_info=False)

    @ex.config
    def config():
        # learning rate
        lr = 0.1
        model = {"name": "mlp", "hidden": [8, 8]}
        fails = False

    @ex.main
    def main(_run, lr, fails):
        for step in range(40):
            _run.log_scalar("train/loss", lr / (step + 1), step)
            _run.log_scalar("val/accuracy", step / 40 + lr, step)
        _run.log_scalar("system/cpu", 50.0, 0)
        print("\x1b[32mtrained\x1b[0m with", lr)
        (folder / "weights.txt").write_text(f"weights {lr}")
        ex.add_artifact(folder / "weights.txt")
        if fails:
            raise RuntimeError("no luck")
        return {"accuracy": 1 - lr}

    (folder / "layers.py").write_text(f"name = {'x' * 200!r}\n")
    ex.add_source_file(folder / "layers.py")
    ex.observers.append(FileObserver(folder / "store"))
    for updates in ({}, {"lr": 0.01}, {"fails": True}, {"model": {"name": "cnn"}}):
        with contextlib.suppress(RuntimeError):
            ex.run(config_updates=updates)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Call a test in the browser slow that sees pages of a database: ordinary tests see those of a folder."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "watched" in item.fixturenames and "database" in parameters.values():
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """A folder of runs, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("board")
    record(folder)
    return folder / "store"


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def store(request, recorded) -> str:
    """The runs, in a folder and in a database, which tests leave as they are."""
    return str(recorded) if request.param == "folder" else request.getfixturevalue("recorded_database")


@pytest.fixture(scope="session")
def recorded_database(recorded, mongo_url) -> Iterator[str]:
    """A database with the same runs."""
    yield from database_of(recorded, mongo_url)


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def placed(request) -> Iterator[Callable[[Path], str]]:
    """Return where a test finds the runs of a folder: in the folder, or in a database with the same runs."""
    with contextlib.ExitStack() as stack:

        def place(folder: Path) -> str:
            if request.param == "folder":
                return str(folder)
            database = contextlib.contextmanager(database_of)
            return stack.enter_context(database(folder, request.getfixturevalue("mongo_url")))

        yield place


@pytest.fixture
def own_store(placed, recorded, tmp_path) -> str:
    """A copy of the runs that a test may change."""
    return placed(shutil.copytree(recorded, tmp_path / "store"))


def database_of(folder: Path, mongo_url: str) -> Iterator[str]:
    """Copy runs into a database of their own, which goes in the end."""
    name = f"board_{uuid.uuid4().hex}"
    with open_store(folder) as source, open_store(f"{mongo_url}/{name}") as target:
        for run in source.find(sort="id"):
            copy(run, target)
    yield f"{mongo_url}/{name}"
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(name)


@pytest.fixture
def client_of() -> Iterator[Callable[..., TestClient]]:
    """Ask a board without a browser, as its own pages do: `client_of(where, **policy)`; several stores by name."""
    with contextlib.ExitStack() as stack:

        def connect(where: str | Path | dict[str, str], **policy: object) -> TestClient:
            several = (
                {name: partial(open_store, one) for name, one in where.items()} if isinstance(where, dict) else None
            )
            app = create_app(several or (lambda: open_store(where)), Policy(**policy))
            client = TestClient(app, base_url="http://127.0.0.1", headers={"origin": "http://127.0.0.1"})
            return stack.enter_context(client)

        yield connect


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Debian's chromium, or another that is there."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", *ONE_PROCESS])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def context_of(browser) -> Callable[..., object]:
    """Return the browser's context with the options given: one for all tests, as each costs half a second of CPU."""
    contexts: dict[str, object] = {}

    def get(**options: object) -> object:
        key = repr(sorted(options.items()))
        if key not in contexts:
            contexts[key] = browser.new_context(**options)
            contexts[key].set_default_timeout(30_000)
            # The process of the pages would end with the last of them.
            stays = contexts[key].new_page()
            stays.route("**", lambda route: route.fulfill(body=""))
            stays.goto("http://127.0.0.1/")
        return contexts[key]

    return get


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Serve a store, and return the address: `serve(where, **options)`; of the same options there is one server."""
    started: dict[str, tuple[BoardServer, threading.Thread]] = {}

    def start(where: str | Path | dict[str, str], **options: object) -> str:
        key = repr((str(where), sorted(options.items())))
        if key not in started:
            server = BoardServer(where if isinstance(where, dict) else str(where), Policy(**options), port=0)
            thread = threading.Thread(target=server.serve, daemon=True)
            thread.start()
            started[key] = server, thread
        return started[key][0].url.rstrip("/")

    yield start
    for server, thread in started.values():
        server.stop()
        thread.join(20)


class Watched:
    """A page of the browser, and what went wrong in it.

    Attributes:
        page: Playwright's page.
        errors: Errors on the console, exceptions, and what the content security policy forbade.
        requests: Addresses of all requests.
    """

    def __init__(self, page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location['url']}")


@pytest.fixture
def watched(context_of) -> Iterator[Callable[..., Watched]]:
    """Open pages: `watched(**context)`; at the end, none of them may have had an error or asked another machine."""
    pages: list[Watched] = []

    def new(**options: object) -> Watched:
        pages.append(Watched(context_of(**options).new_page()))
        return pages[-1]

    yield new
    for watch in pages:
        watch.page.close()
        watch.page.context.clear_cookies()
    assert [error for watch in pages for error in watch.errors] == []
    there = ("http://127.0.0.1:", "data:", "blob:", "file:///")
    assert [url for watch in pages for url in watch.requests if not url.startswith(there)] == []
