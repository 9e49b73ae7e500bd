"""ZIP files with their own SHA-256 in their comment, so that copies, links and moves keep it.

Torch saves ZIP files. The comment follows the last byte, where all readers of ZIP files ignore it, and has a note that
can be read without reading the file, and without torch:

    the bytes of the file, except the two of the comment's length | those two | SHA-256 of bytes and note | note

`zipfile.ZipFile.testzip` is not enough: it compares a CRC-32 of each entry's content, and nothing in the directory, the
padding and the note. The seal is written by hand, because `zipfile` sets a comment only by writing the directory again,
and then the file would have to be read again for its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from sacristan.observers.errors import SealError

MAX_NOTE_BYTES = 4096
_DIGEST_BYTES = 64
_CHUNK_BYTES = 2**20
# The size of the length of a ZIP file's comment, before the comment.
_LENGTH_BYTES = 2
# A comment has at most 65,535, and the directory's end before it 22.
_END_BYTES = 2**16 + 22
_NO_SEAL = "it has no SHA-256 at its end: it was cut short there, or damaged, or saved by something else"


class SealingStream:
    """Takes a ZIP file without a comment, written from its first byte to its last, and seals it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._held = b""

    def write(self, data: bytes) -> int:
        """Write the next piece; its last two bytes are held back, because they may be the length of the comment."""
        whole = memoryview(data).cast("B")
        if len(whole) < _LENGTH_BYTES:
            whole = memoryview(self._held + bytes(whole))
        elif self._held:
            self._pass_on(self._held)
        self._pass_on(whole[:-_LENGTH_BYTES])
        self._held = bytes(whole[-_LENGTH_BYTES:])
        return len(data)

    def _pass_on(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._stream.write(data)

    def flush(self) -> None:
        """Do nothing, because the end of the file is held back until `seal`."""

    def seal(self, note: bytes = b"") -> None:
        """Write the end of the file, and the seal with a `note` that `read_note` finds without reading the rest."""
        self._digest.update(note)
        self._stream.write(struct.pack("<H", _DIGEST_BYTES + len(note)))
        self._stream.write(self._digest.hexdigest().encode() + note)


def read_note(path: Path) -> bytes:
    """Return the note in a seal, without checking the file; raise SealError if there is no seal."""
    return _comment(path)[_DIGEST_BYTES:]


def check_seal(path: Path) -> bytes:
    """Check that a file is unchanged since it was sealed, and return the note."""
    comment = _comment(path)
    expected, note = comment[:_DIGEST_BYTES], comment[_DIGEST_BYTES:]
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        left = path.stat().st_size - len(comment) - _LENGTH_BYTES
        while left > 0 and (piece := stream.read(min(left, _CHUNK_BYTES))):
            digest.update(piece)
            left -= len(piece)
        # The digest does not cover the two bytes.
        is_at_end = stream.read() == struct.pack("<H", len(comment)) + comment
    digest.update(note)
    if not is_at_end or digest.hexdigest().encode() != expected:
        raise SealError("its bytes are not those that were saved: its SHA-256 is another")
    return note


def _comment(path: Path) -> bytes:
    """Return the comment of a ZIP file, which is the seal."""
    with path.open("rb") as stream:
        # zipfile mistakes an error of the disk for damage, so the parts that it needs are read first.
        stream.read(1)
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END_BYTES))
        stream.read()
    try:
        with zipfile.ZipFile(path) as archive:
            comment = archive.comment
    except OSError:
        raise
    except Exception as error:  # damage: BadZipFile, struct.error, UnicodeDecodeError, NotImplementedError, ...
        raise SealError(_NO_SEAL) from error
    if len(comment) < _DIGEST_BYTES:
        raise SealError(_NO_SEAL)
    return comment
