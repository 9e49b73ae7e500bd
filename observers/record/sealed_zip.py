"""ZIP files that carry the SHA-256 of themselves in their comment: a copy, a link or a move keeps it.

What torch saves is such a file. The seal is behind its last byte, where every reader of ZIP files passes over it, with
a note that can be read without reading the file:

    the bytes of the file, but for the two of the comment's length | those two | SHA-256 of bytes and note | note
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import BinaryIO

from observers.errors import SealError

__all__ = ["MAX_NOTE_BYTES", "SealingStream", "check_seal", "read_note"]

MAX_NOTE_BYTES = 4096
_DIGEST_BYTES = 64
_CHUNK_BYTES = 2**20
# What a ZIP file ends with: this mark, 16 bytes of other things, the comment's length, the comment.
_END_MARK, _END_BYTES, _LENGTH_BYTES = b"PK\x05\x06", 22, 2


class SealingStream:
    """Takes a ZIP file without a comment, as it is written from its first byte to its last, and seals it.

    Args:
        stream: What the file is written to.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._held = b""

    def write(self, data: bytes) -> int:
        """Write the next piece."""
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
        """Do nothing: the end of the file is held back until `seal`."""

    def seal(self, note: bytes = b"") -> None:
        """Write the end of the file, and the seal with a note of at most `MAX_NOTE_BYTES`."""
        self._digest.update(note)
        self._stream.write(struct.pack("<H", _DIGEST_BYTES + len(note)))
        self._stream.write(self._digest.hexdigest().encode() + note)


def read_note(path: Path) -> bytes:
    """Return the note in a seal, without looking whether the file is as it was sealed.

    Raises:
        SealError: If there is no seal.
        OSError: If the file cannot be read.
    """
    return _read_seal(path)[2]


def check_seal(path: Path) -> bytes:
    """Check that a file is as it was sealed, and return the note.

    Raises:
        SealError: If it is not.
        OSError: If the file cannot be read.
    """
    left, expected, note = _read_seal(path)
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while left and (piece := stream.read(min(left, _CHUNK_BYTES))):
            digest.update(piece)
            left -= len(piece)
    digest.update(note)
    if digest.hexdigest().encode() != expected:
        raise SealError("its bytes are not those that were saved: its SHA-256 is another")
    return note


def _read_seal(path: Path) -> tuple[int, bytes, bytes]:
    """Return how many bytes a seal is about, their SHA-256, and the note."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _END_BYTES - _DIGEST_BYTES - MAX_NOTE_BYTES))
        tail = stream.read()
    place = tail.rfind(_END_MARK)
    comment = tail[place + _END_BYTES :]
    length = tail[place + _END_BYTES - _LENGTH_BYTES : place + _END_BYTES]
    if place < 0 or len(comment) < _DIGEST_BYTES or length != struct.pack("<H", len(comment)):
        raise SealError("it has no SHA-256 at its end: it was cut short, or was saved by something else")
    return size - len(comment) - _LENGTH_BYTES, comment[:_DIGEST_BYTES], comment[_DIGEST_BYTES:]
