"""A database that has not answered yet is waited for where it may be slow, and not where nobody listens."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pymongo
import pytest

from sacristan.runs import StoreAwayError
from sacristan.runs.stores.contract import Backend
from sacristan.runs.stores.mongo.database import errors_of
from sacristan.runs.stores.opening import open_backend
from sacristan.runs.sweeps.study import home as homes
from sacristan.runs.sweeps.study.home import PatientDocuments


@pytest.mark.parametrize("limits", [{"connectTimeoutMS": 60}, {"connectTimeoutMS": 5_000}])
def test_a_server_too_busy_to_answer_its_first_question_is_asked_again(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(homes, "_RETRY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as busy:  # accepts, and never answers
        address = {"host": "127.0.0.1", "port": busy.getsockname()[1], "serverSelectionTimeoutMS": 100, **limits}
        with pymongo.MongoClient(**address) as client:
            tries: list[int] = []

            def opened() -> Backend:
                tries.append(1)
                if len(tries) < 3:
                    with errors_of("db"):
                        client.admin.command("ping")
                return open_backend(str(tmp_path))

            with contextlib.closing(PatientDocuments(opened)) as documents:
                assert documents.read("sweeps") == {}
            assert len(tries) == 3


def test_a_port_where_nobody_listens_is_not_waited_for() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"mongodb://127.0.0.1:{unused.getsockname()[1]}/?serverSelectionTimeoutMS=100"
        with pytest.raises(StoreAwayError, match="MongoDB at mongodb://127"):
            PatientDocuments(lambda: open_backend(url)).read("sweeps")
