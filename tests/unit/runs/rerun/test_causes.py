from __future__ import annotations

import io

import pytest

from runs.rerun.causes import hash_order_sources
from runs.rerun.record import Record
from runs.stores.content import Content


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
