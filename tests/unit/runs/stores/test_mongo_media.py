"""Media in a database, of which other programs may have written some."""

import contextlib
from types import SimpleNamespace

from sacristan.observers.mongo.documents import object_id
from sacristan.runs import Run
from sacristan.runs.stores.mongo.batches import MongoBatches


def test_medium_with_a_number_of_another_type_hides_no_other():
    uid = "0" * 32
    documents = [
        {"_id": object_id(uid, "media", 2), "name": "c", "file": "media/c"},
        {"_id": 7, "name": "d", "file": "media/d", "number": "x"},
        {"_id": 8, "name": "b", "file": "media/b", "number": 1},
        {"_id": 9, "name": "a", "file": "media/a", "number": 0},
    ]
    media = SimpleNamespace(find=lambda query, **_: iter(documents))
    backend = SimpleNamespace(mongo=SimpleNamespace(errors=contextlib.nullcontext, media=media))
    for name in ("media", "_medium", "_whole", "_content"):
        setattr(backend, name, getattr(MongoBatches, name).__get__(backend))
    run = Run(SimpleNamespace(backend=backend, where=""), "1", {"uid": uid})
    assert [medium.name for medium in run.media] == ["a", "b", "c", "d"]
