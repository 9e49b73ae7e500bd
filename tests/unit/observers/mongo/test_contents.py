"""A content that is in the database is not sent again, and is noted as used where that was long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sacristan.observers.mongo.contents import StoredContents
from sacristan.observers.mongo.layout import Collections


@pytest.mark.parametrize(("age", "is_renewed"), [(timedelta(minutes=5), False), (timedelta(hours=2), True)])
def test_content_that_is_there_is_noted_as_used_if_it_is_old_and_not_sent_again(tmp_path, database, age, is_renewed):
    collections, path = Collections(database), tmp_path / "weights"
    path.write_bytes(b"content")
    file_id = StoredContents(collections).store(path, "weights")
    collections.files.update_one({"_id": file_id}, {"$set": {"uploadDate": datetime.now(UTC) - age}})
    collections.file_chunks.delete_many({})  # would return if it was sent

    assert StoredContents(collections).store(path, "weights") == file_id
    assert collections.file_chunks.count_documents({}) == 0
    file = collections.files.find_one({"_id": file_id})
    assert ("used" in file) == is_renewed
    if is_renewed:
        assert datetime.now(UTC).replace(tzinfo=None) - file["used"] < timedelta(minutes=5)
