"""Answers to pages that ask again."""

from __future__ import annotations

import time

import pytest
from starlette.requests import Request

from sacristan.runs.board.visits import look_again_s, watched


def ask(**headers):
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_page_is_sent_once_and_its_headers_each_time():
    first = watched(ask(), "<p>é", 2.04, x_total="3")
    again = watched(ask(if_none_match=first.headers["etag"]), "<p>é", 5.0, x_total="4")
    other = watched(ask(if_none_match=first.headers["etag"]), "<p>other", 2.0)
    assert [(answer.status_code, answer.body) for answer in (first, again, other)] == [
        (200, "<p>é".encode()),
        (304, b""),
        (200, b"<p>other"),
    ]
    assert (first.headers["x-look-again-s"], first.headers["x-total"]) == ("2.0", "3")
    assert (again.headers["x-look-again-s"], again.headers["x-total"]) == ("5.0", "4")
    assert first.headers["etag"] != other.headers["etag"]


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1.0), (0.01, 1.0), (3.0, 60.0)])
def test_page_asks_again_so_that_it_takes_a_twentieth_of_the_time(monkeypatch, seconds, expected):
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0 + seconds)
    assert look_again_s(100.0, 1.0) == pytest.approx(expected)
