"""Words to hide: replacing them in texts and files, and searching every byte of the output for them.

A word is found as a whole word, in any case, as JSON, URLs, HTML and Python write it, also after an escape.
In binary files it is found in UTF-8, 16 and 32, and inside of what `sacristan.runs.transfer.packed_files` unpacks.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import html
import io
import json
import re
import shlex
import tarfile
import unicodedata
import zipfile
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import quote, quote_plus

from sacristan.runs.errors import StoreError, UnsearchableError
from sacristan.runs.transfer.packed_files import (
    COMPRESSED,
    IN_BASE64,
    MOST_BYTES,
    PACKED,
    PARTS,
    PIECE,
    TOO_LARGE,
    Budget,
    in_base64,
    is_tar,
    is_text,
    members,
    numbers_from,
    part_left,
    unpacking,
)

# Binary files whose strings may be replaced by others of the same length.
_MASKED = (".pkl", ".npy", ".safetensors")
_MOST_DEPTH = 8
# A shorter word stands in numbers and packed bytes by chance.
_LEAST_BYTES = 6
_PIECE_BYTES = 2**24
_FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: text.replace("/", "\\/"),
    lambda text: text.replace("\\", "\\\\"),
    quote,
    quote_plus,
    lambda text: quote(text, safe=""),
    html.escape,
    lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
)
# Escapes of Python, JSON, C and URLs, and colours of terminals: a word may begin right after them.
_HEX = "[0-9A-Fa-f]"
_ESCAPES = (
    *(r"\\[abefnrtv]", rf"\\x{_HEX * 2}", rf"\\u{_HEX * 4}", rf"\\U{_HEX * 8}", rf"%{_HEX * 2}", rf"%25{_HEX * 2}"),
    *(r"\\" + "[0-7]" * digits for digits in (1, 2, 3)),
    *(r"\[" + "[0-9;]" * digits + "m" for digits in range(12)),
)
_BEFORE = "(?:(?<![A-Za-z0-9])|" + "|".join(f"(?<={escape})" for escape in _ESCAPES) + ")"
# In binary files a length may stand before a word, and an opcode of pickle after it.
_BEFORE_BINARY = rb"(?:(?<![A-Za-z0-9])|(?<=[\0-\x1f\x80-\xff][0-9A-Za-z]))"
_PATCH = re.compile(rb"GIT binary patch\n(?:(?:literal|delta) \d+\n(?:[A-Za-z]\S+\n)+\n?)+")


class HiddenWords:
    """Words with their replacements; words of one letter are too short.

    Files whose names match `keep`, names or patterns, are kept though they cannot be searched. `removed` counts runs of
    base64 with a word, and binary patches, that were removed; `unsearched` what `found_in` could not search. `dropped`
    has a sentence for each member of an archive that was left out.
    """

    def __init__(self, replacements: Mapping[str, str], keep: Sequence[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()
        self.dropped: list[str] = []
        self.unsearched: Counter[str] = Counter()
        self._keep = keep
        self._forms: dict[bytes, tuple[str, bytes]] = {}
        wide: set[bytes] = set()
        coded: set[bytes] = set()
        for word, replacement in replacements.items():
            for variant in _variants(word):
                for form in _FORMS:
                    text = form(variant).encode(errors="surrogateescape")
                    self._forms.setdefault(text.lower(), (word, form(replacement).encode()))
                for code in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "latin-1"):
                    with contextlib.suppress(UnicodeEncodeError):
                        wide.add(variant.encode(code).lower())
            coded |= set(_in_base64(word))
        # The longest first, as a path contains the paths above it. A word begins and ends at no letter or digit.
        self._text = _pattern(self._forms, _BEFORE.encode())
        self._binary = _pattern(self._forms | dict.fromkeys(wide), _BEFORE_BINARY, rb"(?!(?-i:[A-Za-ps-z0-9]))")
        self._long = _pattern({form for form in {*self._forms, *wide} if len(form) >= _LEAST_BYTES}, b"")
        self._needles = _shortest(self._forms), _shortest({*self._forms, *wide})
        self._coded = _shortest(coded)
        self._margin = max(map(len, {*self._forms, *wide}), default=0) + 64

    def text(self, text: str) -> str:
        return self._replaced(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def document(self, value: Any) -> Any:
        """Return JSON with each word replaced, in keys as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.document(item) for key, item in value.items()}
        return [self.document(item) for item in value] if isinstance(value, list | tuple) else value

    def file(self, name: str, data: bytes | None) -> bytes | None:
        """Return the content of a file with each word replaced; None for a large file that is kept as it is.

        `data` is None if it is too large; the suffix of the name counts. A StoreError means that the file must be left
        out: it holds a word and is neither text nor an archive, or it cannot be searched and is not to be kept.
        """
        if data is None:
            return None if self._is_kept(name) else _refuse(name, TOO_LARGE)
        return self._cleaned(name, data, 0, Budget(), is_kept=False)

    def _is_kept(self, name: str) -> bool:
        names = {name, Path(name).name, self.text(name), Path(self.text(name)).name} if self._keep else ()
        return any(fnmatch.fnmatchcase(each, pattern) for each in names for pattern in self._keep)

    def _cleaned(self, name: str, data: bytes, depth: int, budget: Budget, *, is_kept: bool) -> bytes:
        is_kept = is_kept or self._is_kept(name)
        unsearched: Counter[str] = Counter()
        try:
            packed = self._repacked(name, data, depth, budget, is_kept=is_kept) if depth < _MOST_DEPTH else None
        except UnsearchableError as error:
            packed, unsearched[str(error)] = None, 1
        if packed is not None:
            data = packed
            is_found = self._word_in(name, data) is not None
        else:
            if is_text(data):
                data = self._replaced(data)
            elif name.endswith(_MASKED):
                start = numbers_from(name, data)
                data = self._binary.sub(lambda match: re.sub(rb"[^\0]", b"x", match[0]), data[:start]) + data[start:]
            is_found = any(self._found(name, data, depth, budget, unsearched))
        if is_found:
            raise StoreError("it is left out, as it holds words to hide and is neither text nor an archive")
        reasons = unsearched.keys() - PARTS
        if reasons and not is_kept:
            _refuse(name, min(reasons))
        return data

    def _replaced(self, data: bytes) -> bytes:
        def replacement(match: re.Match[bytes]) -> bytes:
            word, text = self._forms[match[0].lower()]
            self.counts[word] += 1
            return text

        if b"GIT binary patch" in data:
            data, count = _PATCH.subn(b"Binary files differ\n", data)
            self.removed.update({"binary patch": count} if count else {})
        data = self._text.sub(replacement, data) if _has(self._needles[0], data) else data
        if self._first_in("", data) is None:
            return data
        pieces, end = [], 0
        for (start, stop), content in in_base64(data):
            run = data[start:stop]
            if any(code in run for code in self._coded) or self._first_in(IN_BASE64, content):
                pieces += [data[end:start], b"x" * (stop - start)]
                self.removed["text in base64"] += 1
                end = stop
        return b"".join((*pieces, data[end:]))

    def _first_in(self, name: str, data: bytes) -> str | None:
        return next(self._found(name, data, 0, Budget(), Counter()), None)

    def _word_in(self, name: str, data: bytes) -> bytes | None:
        """Return a word that occurs in the data without unpacking."""
        if is_text(data):
            match = self._text.search(data) if _has(self._needles[0], data) else None
        elif _has(self._needles[1], data):
            start = numbers_from(name, data)
            match = self._binary.search(data, 0, start) or self._long.search(data, start)
        else:
            match = None
        return match[0] if match else next((code for code in self._coded if code in data), None)

    def _repacked(self, name: str, data: bytes, depth: int, budget: Budget, *, is_kept: bool) -> bytes | None:
        """Return an archive with cleaned members; None for another file. Members that must be left out are missing."""
        with unpacking():
            for head, (opened, pack) in COMPRESSED.items():
                if data.startswith(head):
                    inner = budget.read(opened(io.BytesIO(data)))
                    return pack(self._cleaned(Path(name).stem, inner, depth + 1, budget, is_kept=is_kept))
            clean = functools.partial(self._cleaned_member, name, depth=depth + 1, budget=budget, is_kept=is_kept)
            if data.startswith(PACKED):
                return self._rezipped(data, clean)
            return self._retarred(data, clean) if is_tar(data) else None

    def _cleaned_member(self, archive: str, name: str, stream: IO[bytes], **how: Any) -> bytes | None:
        data = how["budget"].read(stream)
        try:
            return self._cleaned(name, data, **how)
        except StoreError as error:
            self.dropped.append(f"{name!r} in {archive!r}: {error}")
            return None

    def _rezipped(self, data: bytes, clean: Callable[[str, IO[bytes]], bytes | None]) -> bytes:
        result = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w") as new:
            for info in old.infolist():
                with old.open(info) as stream:
                    content = clean(info.filename, stream)
                if content is not None:
                    member = zipfile.ZipInfo(self.text(info.filename), info.date_time)
                    member.compress_type, member.external_attr = info.compress_type, info.external_attr
                    new.writestr(member, content)
        return result.getvalue()

    def _retarred(self, data: bytes, clean: Callable[[str, IO[bytes]], bytes | None]) -> bytes:
        result = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=result, mode="w") as new:
            for info in old:
                stream = old.extractfile(info) if info.isfile() else None
                content = b"" if stream is None else clean(info.name, stream)
                if content is not None:
                    member = tarfile.TarInfo(self.text(info.name))
                    member.type, member.mode, member.mtime = info.type, info.mode, info.mtime
                    member.linkname, member.size = self.text(info.linkname), len(content)
                    new.addfile(member, io.BytesIO(content))
        return result.getvalue()

    def _found(self, name: str, data: bytes, depth: int, budget: Budget, unsearched: Counter[str]) -> Iterator[str]:
        """Yield the places where a word is left in a file, and count what cannot be searched."""
        if (word := self._word_in(name, data)) is not None:
            yield f"{name}: {word!r}"
        is_base64 = IN_BASE64 in name
        part = "" if is_base64 or name.endswith(PIECE) else part_left(name, data)
        if part != "":
            unsearched[part or "its format cannot be searched"] += 1
        try:
            for inner, content in members(name, data, budget):
                if depth > _MOST_DEPTH:
                    raise UnsearchableError(f"more than {_MOST_DEPTH} archives lie inside each other")
                yield from self._found_named(name, inner, content, depth + 1, budget, unsearched)
        except UnsearchableError as error:
            unsearched[str(error)] += not is_base64

    def _found_named(self, archive: str, name: str, *searched: Any) -> Iterator[str]:
        path = f"{archive}/{name}" if archive else name
        if (word := self._word_in("", name.encode(errors="surrogatepass"))) is not None:
            yield f"the name {path!r}: {word!r}"
        yield from self._found(path, *searched)

    def found_in(self, path: Path) -> Iterator[str]:
        """Yield the places where a word is left in a file, or in all files below a folder."""
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            if not file.is_dir() and file.stat().st_size > MOST_BYTES:
                yield from self._found_in_large(name, file)
            else:
                data = b"" if file.is_dir() else file.read_bytes()
                yield from self._found_named("", name, data, 0, Budget(), self.unsearched)

    def _found_in_large(self, name: str, path: Path) -> Iterator[str]:
        """Search the bytes in pieces that overlap, and the members of a ZIP one by one."""
        yield from self._found_named("", name, b"", 0, Budget(), Counter())
        with path.open("rb") as stream:
            head = b""
            piece = stream.read(_PIECE_BYTES)
            while piece:
                rest = stream.read(_PIECE_BYTES)
                pattern = self._binary if b"\0" in piece else self._text
                match = pattern.search(piece, self._margin * bool(head)) if _has(self._needles[1], piece) else None
                if match and (match.end() < len(piece) or not rest):
                    yield f"{name}: {match[0]!r}"
                head = head or piece
                piece = rest and piece[-2 * self._margin :] + rest
        if not head.startswith(PACKED):
            self.unsearched[TOO_LARGE] += 1
            return
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                budget = Budget()
                try:
                    with archive.open(info) as member:
                        data = budget.read(member)
                except UnsearchableError as error:
                    self.unsearched[str(error)] += 1
                else:
                    yield from self._found_named(name, info.filename, data, 1, budget, self.unsearched)


def _refuse(name: str, why: str) -> NoReturn:
    raise UnsearchableError(f"it is left out, as {why}; --keep {shlex.quote(Path(name).name)} exports it as it is")


def _variants(word: str) -> set[str]:
    cases = (word, word.lower(), word.upper(), word.title())
    return {unicodedata.normalize(form, case) for case in cases for form in ("NFC", "NFD")} | set(cases)


def _pattern(forms: Iterable[bytes], before: bytes, after: bytes = rb"(?![A-Za-z0-9])") -> re.Pattern[bytes]:
    """Return a pattern of whole words, the longest first; of words anywhere if `before` is empty."""
    groups: dict[bool, list[bytes]] = {True: [], False: []}
    for form in sorted(forms, key=len, reverse=True):
        is_whole = bool(before) and not (before == _BEFORE_BINARY and len(form) >= _LEAST_BYTES)
        end = after if is_whole and form[-1:].isalnum() else b""
        groups[is_whole and form[:1].isalnum()].append(re.escape(form) + end)
    parts = [
        prefix + b"(?:" + b"|".join(groups[key]) + b")" for key, prefix in ((True, before), (False, b"")) if groups[key]
    ]
    return re.compile(b"|".join(parts) or b"(?!)", re.IGNORECASE)


def _shortest(forms: Iterable[bytes]) -> list[bytes]:
    """Return the forms that contain no other form."""
    kept: list[bytes] = []
    for form in sorted(forms, key=len):
        if not any(one in form for one in kept):
            kept.append(form)
    return kept


def _has(needles: Sequence[bytes], data: bytes) -> bool:
    """Tell quickly whether a word may be in data; finding it takes much longer."""
    lowered = data.lower()
    return any(needle in lowered for needle in needles)


def _in_base64(word: str) -> Iterator[bytes]:
    """Yield a word's letters in base64 at each offset, without those shared with its neighbours."""
    for data in {case.encode(errors="surrogateescape") for case in _variants(word)}:
        for shift in range(3) if len(data) >= _LEAST_BYTES else ():
            coded = b64encode(bytes(shift) + data)
            yield coded[(shift * 8 + 5) // 6 : (shift + len(data)) * 8 // 6]
