from __future__ import annotations

import io
import types

import pytest

from sacristan.runs import Content
from sacristan.runs.rerun.record import Record
from sacristan.runs.rerun.reproducing import cause_notes, hash_order_sources
from sacristan.runs.rerun.verdict import DIVERGED, IDENTICAL, Deviation


class Recorded:
    """A run with sources."""

    def __init__(self, sources):
        self.sources = sources

    def __getitem__(self, name):
        return "train.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for name in {'a', 'b'}: print(name)", True),
        ("names = list(set(words))", True),
        ("seed = hash(name)", True),
        ("total = sum({0.1, 0.2})", True),
        ("names = sorted(set(words))", False),
        ("found = name in {'a', 'b'}", False),
        ("count = len({len(word) for word in words})", False),
        ("def hash_of(names: set[str]) -> None: pass", False),
        ("no python", False),
    ],
)
def test_sources_that_may_depend_on_hashes_are_found(text, expected):
    sources = {name: Content(name, lambda: io.BytesIO(text.encode())) for name in ("train.py", "runs/part.py")}
    assert hash_order_sources(Record(Recorded(sources))) == (["train.py"] if expected else [])


def notes_of(sessions, step, verdict=DIVERGED):
    run = types.SimpleNamespace(id="3", sessions=sessions)
    record = types.SimpleNamespace(id="3", run=run)
    environment = types.SimpleNamespace(loud=[types.SimpleNamespace(name="numpy")])
    plan = types.SimpleNamespace(record=record, environment=environment, restored=object())
    first = None if step is None else Deviation("loss", step, 1.0, 2.0, 1)
    return list(cause_notes(plan, types.SimpleNamespace(verdict=verdict, first=first), {}, ()))


SESSIONS = [{"status": "INTERRUPTED"}, {"step": 10}, {"step": 20, "changed_sources": ["nets.py"]}]


@pytest.mark.parametrize(
    ("sessions", "step", "expected"),
    [
        (
            SESSIONS,
            15,
            "its session 2 of 3 began at step 10, before the first difference, and is a suspect (if it was not",
        ),
        (
            SESSIONS,
            25,
            "its session 3 of 3 began at step 20, before the first difference, and is a suspect (nets.py had",
        ),
        (SESSIONS, None, "its session 3 of 3 began at step 20"),
        ([*SESSIONS[:1], {}], 3, "its session 2 of 2 began, before the first difference"),
        (SESSIONS, 5, "the first difference lies in session 1 of 3, so no resuming explains it"),
    ],
)
def test_session_before_the_first_difference_is_a_suspect(sessions, step, expected):
    [note] = notes_of(sessions, step)
    assert expected in note


@pytest.mark.parametrize(("sessions", "verdict"), [([], DIVERGED), (SESSIONS[:1], DIVERGED), (SESSIONS, IDENTICAL)])
def test_run_of_one_session_or_one_that_is_identical_has_no_suspect(sessions, verdict):
    assert notes_of(sessions, 5, verdict) == []
