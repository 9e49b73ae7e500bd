"""Words that must not leave: replacing them in texts and files, and searching every byte of what was written for them.

A word is found as a whole word, in any case, and as JSON, URLs and HTML write it. It is also searched for in UTF-16 and
base64, and inside of what `runs.transfer.packed_files` unpacks. Pixels, sounds and weights cannot be searched.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runs.transfer.packed_files import BROKEN, COMPRESSED, PARQUET, members

__all__ = ["HiddenWords"]

# Binary files whose strings may be replaced by others of the same length.
_MASKED = (".pkl", ".npy", ".safetensors")
_MOST_DEPTH = 8
_LEAST_BASE64 = 6
_FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: text.replace("/", "\\/"),
    lambda text: text.replace("\\", "\\\\"),
    quote,
    lambda text: quote(text, safe=""),
    html.escape,
)


class HiddenWords:
    """Words with their replacements.

    Args:
        replacements: What to write instead of each word; words of one letter are too short.

    Attributes:
        counts: How often each word was replaced.
    """

    def __init__(self, replacements: Mapping[str, str]) -> None:
        self.counts: Counter[str] = Counter()
        self._forms: dict[bytes, tuple[str, bytes]] = {}
        exact: set[bytes] = set()
        for word, replacement in replacements.items():
            for variant in {word, word.lower(), word.upper(), word.title()}:
                for form in _FORMS:
                    text = form(variant).encode(errors="surrogateescape")
                    self._forms.setdefault(text.lower(), (word, form(replacement).encode()))
                exact |= {variant.encode(code, "surrogateescape") for code in ("utf-16-le", "utf-16-be")}
            exact |= set(_in_base64(word))
        # The longest first, as a path contains the paths above it. A word begins and ends at no letter or digit.
        forms = sorted(self._forms, key=len, reverse=True)
        whole = b"|".join(_bounded(form) for form in forms)
        self._pattern = re.compile(whole or b"(?!)", re.IGNORECASE)
        self._exact = sorted(exact)

    def text(self, text: str) -> str:
        """Return a text with each word replaced.

        Args:
            text: The text.
        """
        return self._replaced(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def document(self, value: Any) -> Any:
        """Return JSON with each word replaced, in keys as well.

        Args:
            value: The content.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.document(item) for key, item in value.items()}
        return [self.document(item) for item in value] if isinstance(value, list | tuple) else value

    def file(self, name: str, data: bytes, depth: int = 0) -> bytes | None:
        """Return the content of a file with each word replaced.

        Args:
            name: The file's name; its suffix counts.
            data: The content.
            depth: The number of archives around it.

        Returns:
            The content; None if it must be left out: it holds a word and is neither text nor an archive, or it cannot
            be searched.
        """
        if data.startswith(PARQUET) and find_spec("pyarrow") is None:
            return None
        if depth < _MOST_DEPTH and (packed := self._repacked(name, data, depth)) is not None:
            data = packed
        elif _is_text(data):
            data = self._replaced(data)
        elif name.endswith(_MASKED):
            data = self._substituted(lambda match: b"x" * len(match[0]), data)
        return None if next(self.found("", data), None) else data

    def _replaced(self, data: bytes) -> bytes:
        def replacement(match: re.Match[bytes]) -> bytes:
            word, text = self._forms[match[0].lower()]
            self.counts[word] += 1
            return text

        return self._substituted(replacement, data)

    def _substituted(self, replacement: Callable[[re.Match[bytes]], bytes], data: bytes) -> bytes:
        return self._pattern.sub(replacement, data) if self._may_have(data) else data

    def _may_have(self, data: bytes) -> bool:
        """Tell whether a word may be in data, which is much faster than to find it."""
        lowered = data.lower()
        return any(form in lowered for form in self._forms)

    def _left_in(self, data: bytes) -> bytes | None:
        match = self._pattern.search(data) if self._may_have(data) else None
        return match[0] if match else next((code for code in self._exact if code in data), None)

    def _repacked(self, name: str, data: bytes, depth: int) -> bytes | None:
        """Return an archive with cleaned members; None for another file. Members that must be left out are missing."""
        try:
            for head, (unpack, pack) in COMPRESSED.items():
                if data.startswith(head):
                    inner = self.file(Path(name).stem, unpack(data), depth + 1)
                    return None if inner is None else pack(inner)
            if data.startswith(b"PK\x03\x04"):
                return self._rezipped(data, depth)
            if data[257:262] == b"ustar":
                return self._retarred(data, depth)
        except BROKEN:
            return None
        return None

    def _rezipped(self, data: bytes, depth: int) -> bytes:
        result = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w") as new:
            for info in old.infolist():
                content = self.file(info.filename, old.read(info), depth + 1)
                if content is not None:
                    member = zipfile.ZipInfo(self.text(info.filename), info.date_time)
                    member.compress_type, member.external_attr = info.compress_type, info.external_attr
                    new.writestr(member, content)
        return result.getvalue()

    def _retarred(self, data: bytes, depth: int) -> bytes:
        result = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=result, mode="w") as new:
            for info in old:
                stream = old.extractfile(info) if info.isfile() else None
                content = b"" if stream is None else self.file(info.name, stream.read(), depth + 1)
                if content is not None:
                    member = tarfile.TarInfo(self.text(info.name))
                    member.type, member.mode, member.mtime = info.type, info.mode, info.mtime
                    member.linkname, member.size = self.text(info.linkname), len(content)
                    new.addfile(member, io.BytesIO(content))
        return result.getvalue()

    def found(self, name: str, data: bytes, depth: int = 0) -> Iterator[str]:
        """Yield the places where a word is left in a file, with the word.

        Args:
            name: The file's name, which is searched too.
            data: Its content, which is unpacked if it is an archive.
            depth: The number of archives around it.
        """
        for place, searched in ((f"the name {name!r}", name.encode(errors="surrogatepass")), (name, data)):
            if (word := self._left_in(searched)) is not None:
                yield f"{place}: {word!r}"
        if depth < _MOST_DEPTH:
            for inner, content in members(name, data):
                yield from self.found(f"{name}/{inner}", content, depth + 1)
        elif next(members(name, data), None):
            yield f"{name}: more than {_MOST_DEPTH} archives inside each other, which are not searched"

    def found_in(self, path: Path) -> Iterator[str]:
        """Yield the places where a word is left in a file, or in all files below a folder.

        Args:
            path: The file or folder.
        """
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            yield from self.found(name, b"" if file.is_dir() else file.read_bytes())


def _bounded(form: bytes) -> bytes:
    before = rb"(?<![A-Za-z0-9])" if form[:1].isalnum() else b""
    return before + re.escape(form) + (rb"(?![A-Za-z0-9])" if form[-1:].isalnum() else b"")


def _in_base64(word: str) -> Iterator[bytes]:
    """Yield the letters that a word has in base64 wherever it begins, without those it shares with its neighbours."""
    data = word.encode(errors="surrogateescape")
    if len(data) >= _LEAST_BASE64:
        for shift in range(3):
            coded = base64.b64encode(bytes(shift) + data)
            yield coded[(shift * 8 + 5) // 6 : (shift + len(data)) * 8 // 6]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data
