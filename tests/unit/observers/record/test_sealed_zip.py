from __future__ import annotations

import base64
import io
import zipfile

import pytest

from sacristan.observers import SealError
from sacristan.observers.record.sealed_zip import MAX_NOTE_BYTES, SealingStream, check_seal, read_note

OLD = (
    "UEsDBBQAAAAAAAAAIQCpMMX+BwAAAAcAAAABAAAAbmNvbnRlbnRQSwECFAMUAAAAAAAAACEAqTDF/gcAAAAHAAAAAQAAAAAAAAAA"
    "AAAAgAEAAAAAblBLBQYAAAAAAQABAC8AAAAmAAAAQwBkZDcyY2NmNGZjZWFkMzNiYzZmMmJjZTk2ZDJkMDIzMTIzMDI4NTFhNGFk"
    "MmQ0Y2QzZDU2ZWFhYmRiZWM5MDI5b2xk"
)
LONG = b"x" * MAX_NOTE_BYTES


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr("name", b"content" * 1000)
    return stream.getvalue()


def sealed(path, note=b"", piece=None):
    raw = archive()
    with path.open("wb") as stream:
        sealing = SealingStream(stream)
        for start in range(0, len(raw), piece or len(raw)):
            assert sealing.write(raw[start : start + (piece or len(raw))]) > 0
        sealing.seal(note)
    return path


@pytest.mark.parametrize("piece", [None, 1, 2, 3, 1000])
@pytest.mark.parametrize("note", [b"", b'{"step": 3}', b"PK\x05", LONG])
def test_sealed_file_is_good_and_still_a_zip_file(tmp_path, piece, note):
    path = sealed(tmp_path / "x.zip", note, piece)
    assert check_seal(path) == read_note(path) == note
    with zipfile.ZipFile(path) as zipped:
        assert zipped.read("name") == b"content" * 1000


def test_sealed_file_with_any_byte_changed_is_not_good(tmp_path):
    path = sealed(tmp_path / "x.zip", b"note")
    raw = path.read_bytes()
    for place in [*range(0, len(raw), 97), *range(len(raw) - 100, len(raw))]:
        changed = bytearray(raw)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(SealError, match=r"its SHA-256 is another|it has no SHA-256 at its end"):
            check_seal(path)


@pytest.mark.parametrize("length", [0, 1, 21, 22, 85, 4000, -1])
def test_sealed_file_cut_short_is_not_good(tmp_path, length):
    path = sealed(tmp_path / "x.zip")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(SealError, match="it has no SHA-256 at its end: it was cut short"):
        check_seal(path)


def test_file_sealed_by_earlier_versions_is_good(tmp_path):
    # Bytes of the ZIP file `n` with the text `content`, sealed with the note `old` before zipfile read the comment.
    (tmp_path / "x.zip").write_bytes(base64.b64decode(OLD))
    assert check_seal(tmp_path / "x.zip") == b"old"


def test_seal_covers_what_testzip_does_not(tmp_path):
    path = sealed(tmp_path / "x.zip", b"note")
    raw = bytearray(path.read_bytes())
    place = raw.rindex(b"PK\x01\x02") + 12  # the time of an entry, in the directory
    raw[place] ^= 1
    path.write_bytes(raw)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
    with pytest.raises(SealError, match="its SHA-256 is another"):
        check_seal(path)


def test_zip_file_that_was_never_sealed_is_not_good(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(archive())
    with pytest.raises(SealError, match="it has no SHA-256 at its end"):
        read_note(path)
