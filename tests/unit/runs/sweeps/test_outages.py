"""A database that has not answered yet is waited for where it may be slow, and not where nobody listens."""

from __future__ import annotations

import socket

import pymongo
import pytest

from sacristan.runs import StoreError
from sacristan.runs.sweeps.study import outages
from sacristan.runs.sweeps.study.outages import Outages


@pytest.mark.parametrize("limits", [{"connectTimeoutMS": 60}, {"connectTimeoutMS": 5_000}])
def test_a_server_too_busy_to_answer_its_first_question_is_asked_again(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_RETRY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as busy:  # accepts, and never answers
        address = {"host": "127.0.0.1", "port": busy.getsockname()[1], "serverSelectionTimeoutMS": 100, **limits}
        with pymongo.MongoClient(**address) as client:
            tries: list[int] = []

            def question() -> str:
                tries.append(1)
                if len(tries) < 3:
                    client.admin.command("ping")
                return "answer"

            assert Outages("db").ask(question) == "answer"


def test_a_port_where_nobody_listens_is_not_waited_for() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = pymongo.MongoClient("127.0.0.1", unused.getsockname()[1], serverSelectionTimeoutMS=100)
        with client, pytest.raises(StoreError):
            Outages("db").ask(lambda: client.admin.command("ping"))
