from __future__ import annotations

import math

from sacristan.runs.query.flattening import changes, dotted, is_same, shallowest


def test_changes_of_flat_documents():
    old = dotted({"a": {"b": 1, "c": {}}, "nan": math.nan, "gone": 0, "flag": True, "list": [1, {"x": math.nan}]})
    new = dotted({"a": {"b": 2, "c": {}}, "nan": math.nan, "new": 0, "flag": 1, "list": [1, {"x": math.nan}]})
    found = changes(old, new)
    assert found.changed == {"a.b": (1, 2), "flag": (True, 1)}
    assert (found.added, found.removed) == ({"new": 0}, {"gone": 0})
    assert not changes(old, old)
    assert is_same(1, 1.0)


def test_shallowest_entries_come_first():
    document = {"a": {"b": {"c": 1}, "d": 2}, "e": {}, "f": 3}
    assert list(shallowest(document, 9).items()) == [("e", {}), ("f", 3), ("a.d", 2), ("a.b.c", 1)]
    assert shallowest(document, 9) == dotted(document)
    assert list(shallowest(document, 3)) == ["e", "f", "a.d"]
