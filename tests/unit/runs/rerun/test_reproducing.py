from __future__ import annotations

import io
import types

import pytest

from sacristan.runs import Content
from sacristan.runs.rerun import Record
from sacristan.runs.rerun.reproducing import cause_notes, hash_order_sources
from sacristan.runs.rerun.verdict import DIVERGED, IDENTICAL, Deviation


class Recorded:
    """A run with sources."""

    def __init__(self, sources, mainfile="train.py"):
        self.sources, self._mainfile = sources, mainfile

    def __getitem__(self, name):
        return self._mainfile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for name in {'a', 'b'}: print(name)", True),
        ("names = list(set(words))", True),
        ("seed = hash(name)", True),
        ("total = sum({0.1, 0.2})", True),
        ("names = [*frozenset(words)]", True),
        ("(lambda: words)()", False),
        *((f"found = {name}(set(words))", False) for name in ("min", "max", "any", "all")),
        ("found = set(frozenset(words)) == frozenset(set(words))", False),
        ("names = sorted(set(words))", False),
        ("found = name in {'a', 'b'}", False),
        ("count = len({len(word) for word in words})", False),
        ("def hash_of(names: set[str]) -> None: pass", False),
        ("no python", False),
    ],
)
def test_sources_that_may_depend_on_hashes_are_found(text, expected):
    folders = ("configs", "experiments", "ingredients", "observers", "runs", "sacristan")
    names = ["nets/runs.py", "train.py", *(f"{folder}/part.py" for folder in folders)]
    sources = {name: Content(name, lambda: io.BytesIO(text.encode())) for name in names}
    assert hash_order_sources(Record(Recorded(sources))) == (names[:2] if expected else [])


def test_main_file_counts_even_in_a_folder_of_the_lab():
    sources = {"experiments/gan.py": Content("experiments/gan.py", lambda: io.BytesIO(b"hash(x)"))}
    assert hash_order_sources(Record(Recorded(sources, "experiments/gan.py"))) == ["experiments/gan.py"]


def notes_of(
    sessions=(), step=None, verdict=DIVERGED, *, loud=("numpy",), in_place=False, sources=(), shown=(), **recorded
):
    """The notes on a verdict; `loud` differs before the new run, `shown` and `sources` with it."""
    run = types.SimpleNamespace(id="3", sessions=sessions)
    recorded = {"flags": {}, "libraries": (), "text": "", **recorded}
    record = types.SimpleNamespace(
        id="3",
        run=run,
        libraries=recorded["libraries"],
        mainfile_text="train.py",
        sources={"train.py": Content("train.py", lambda: io.BytesIO(recorded["text"].encode()))},
        part=lambda name: recorded["flags"] if name == "determinism" else {},
    )
    environment = types.SimpleNamespace(loud=[types.SimpleNamespace(name=name) for name in loud])
    plan = types.SimpleNamespace(record=record, environment=environment, restored=None if in_place else object())
    first = None if step is None else Deviation("loss", step, 1.0, 2.0, 1)
    differences = tuple(types.SimpleNamespace(name=name) for name in shown)
    verdict = types.SimpleNamespace(verdict=verdict, first=first)
    return list(cause_notes(plan, verdict, dict.fromkeys(sources, "diff"), differences))


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


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ({"changed_sources": ["nets.py", "data.py"]}, "nets.py, data.py had changed by then"),
        (
            {"changed_environment": {"library": {"numpy": ["1", "2"]}, "flag": {"TF32": [0, 1]}}},
            "library numpy, flag TF32 had changed by then",
        ),
        ({"changed_sources": ["nets.py"], "changed_environment": {"library": {"numpy": []}}}, "nets.py, library numpy"),
        ({"step": None}, "if it was not resumed exactly, an unbroken run differs"),
    ],
)
def test_suspect_names_what_had_changed_when_it_began(session, why):
    [note] = notes_of([{}, session], 5)
    assert "run 3 was resumed: its session 2 of 2 began, before the first difference" in note
    assert f"({why}" in note


def test_session_that_begins_at_the_first_difference_is_no_suspect():
    [note] = notes_of(SESSIONS, 10)
    assert note.startswith("the first difference lies in session 1 of 3")


NOTHING_RECORDED = "nothing recorded differs; a record does not include the time"


@pytest.mark.parametrize(
    ("differing", "expected"),
    [
        (
            {"sources": ["train.py", "nets.py"], "shown": ["TF32"]},
            "code (train.py, nets.py) and environment (numpy, TF32) both differ; to tell them apart",
        ),
        (
            {"sources": ["nets.py"], "loud": []},
            "the environment is the same: the difference comes from the code (nets.py)",
        ),
        ({}, "the sources are the same: the difference comes from the environment (numpy)"),
        ({"loud": [], "shown": ["TF32"]}, "the difference comes from the environment (TF32)"),
        ({"loud": []}, NOTHING_RECORDED),
        (
            {"loud": [], "libraries": None},
            "libraries on PYTHONPATH or installed in editable form are not in the record",
        ),
    ],
)
def test_cause_of_a_difference_in_place_is_code_environment_or_neither(differing, expected):
    [note] = notes_of(in_place=True, **differing)
    assert expected in note
    assert ("PYTHONPATH" in note) == ("libraries" in differing)
    assert notes_of(in_place=True, verdict=IDENTICAL, **differing) == []


@pytest.mark.parametrize("verdict", [DIVERGED, IDENTICAL])
def test_sources_that_differ_are_named_whatever_the_verdict(verdict):
    [note] = notes_of(verdict=verdict, sources=["nets.py"], loud=[])
    assert note == "the new run was not made of the recorded sources alone: nets.py differ"


def test_difference_without_a_cause_in_the_record_is_said_only_where_there_is_one():
    assert notes_of(loud=[])[0].startswith(NOTHING_RECORDED)
    assert notes_of(loud=[], verdict=IDENTICAL) == notes_of(loud=["numpy"]) == notes_of(loud=[], shown=["TF32"]) == []


@pytest.mark.parametrize(
    ("flags", "text", "is_named"),
    [
        ({"PYTHONHASHSEED": None}, "hash(x)", True),
        ({"PYTHONHASHSEED": ""}, "hash(x)", True),
        ({"PYTHONHASHSEED": "random"}, "hash(x)", True),
        ({"PYTHONHASHSEED": "0"}, "hash(x)", False),
        ({"PYTHONHASHSEED": "1"}, "hash(x)", False),
        ({}, "hash(x)", False),  # an earlier version did not record it
        ({"PYTHONHASHSEED": None}, "x", False),
    ],
)
def test_order_of_sets_is_a_cause_only_without_a_hash_seed(flags, text, is_named):
    [note] = notes_of(loud=[], flags=flags, text=text)
    assert ("train.py may depend on the order of a set" in note) == is_named
    assert ("PYTHONHASHSEED was not set for run 3" in note) == is_named
