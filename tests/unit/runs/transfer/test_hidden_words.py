"""Names in files of all kinds: replaced, left out with a way to keep the file, or counted as not searched."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections import Counter

import numpy as np
import pandas
import pytest
import torch

from sacristan.runs import StoreError
from sacristan.runs.transfer import hidden_words, packed_files
from sacristan.runs.transfer.hidden_words import HiddenWords

NAME = "jdoesmith"


@pytest.fixture
def hidden():
    return HiddenWords({NAME: "person-1", "bob": "person-2", "Jürgen": "person-3", "Ann Lee": "person-4"})


ESCAPED = [
    rf'{{"log": "whoami:\n{NAME}"}}',
    rf"a\t{NAME}\r{NAME}",
    rf"b'\x00{NAME}\0{NAME}\012{NAME}'",
    rf"\u000a{NAME}\U0000000a{NAME}",
    json.dumps(json.dumps(f"\n{NAME}")),
    f"http://x/?q=%20{NAME}&r=%2520{NAME}&s=Ann+Lee&t=Ann%20Lee",
    f"\x1b[31m{NAME}\x1b[0m \\x1b[1;32m{NAME} \\033[m{NAME}",
    r"J\xfcrgen J\u00fcrgen J%C3%BCrgen J&#252;rgen",
    f"{NAME.upper()}_x {NAME.title()}'s",
]


@pytest.mark.parametrize("text", ESCAPED)
def test_name_after_an_escape_is_replaced(text, hidden):
    clean = hidden.text(text)
    assert "person-" in clean
    for word in (NAME, "rgen", "lee"):
        assert word not in clean.lower()


@pytest.mark.parametrize("text", ["bobbin", f"x{NAME}", f"{NAME}2", "kebob", "20bob"])
def test_part_of_another_word_stays(text, hidden):
    assert hidden.text(text) == text


def png(*chunks):
    """Return a picture of one pixel with further chunks, written without the lab's code."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    rest = chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(*one) for one in chunks) + rest


def pdf(content):
    packed = zlib.compress(content)
    return b"%%PDF-1.4\n1 0 obj\n<< /Filter /FlateDecode >>\nstream\n%s\nendstream\nendobj" % packed


def saved(save, *values):
    stream = io.BytesIO()
    save(stream, *values)
    return stream.getvalue()


def zipped(name, data):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return stream.getvalue()


def encrypted(data):
    """Return a ZIP whose one member is marked as encrypted."""
    packed = bytearray(zipped("a.txt", data))
    packed[6] |= 1
    packed[packed.find(b"PK\1\2") + 8] |= 1
    return bytes(packed)


def tarred(name, data):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


HEXED = f"\nexif\n      {len(NAME)}\n{NAME.encode().hex()}\n".encode()
WITH_A_NAME = {
    "ztxt.png": png((b"zTXt", b"Author\0\0" + zlib.compress(NAME.encode()))),
    "itxt.png": png((b"iTXt", b"Author\0\1\0en\0\0" + zlib.compress(NAME.encode()))),
    "hexed.png": png((b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(HEXED))),
    "exif.png": png((b"eXIf", b"MM\0*" + f"x{NAME}x".encode())),
    "behind.png": png() + gzip.compress(NAME.encode()),
    "exif.jpg": b"\xff\xd8\xff\xe1\0\x20Exif\0\0II*\0" + f"\0{NAME}\0".encode() + b"\xff\xd9",
    "xp_author.jpg": b"\xff\xd8\xff\xe1\0\x20Exif\0\0" + NAME.encode("utf-16-le"),
    "stream.pdf": pdf(b"BT (" + NAME.encode() + b") Tj ET"),
    "pieces.pdf": pdf(b"BT [(jdoe) -20 (smith)] TJ ET"),
    "hex.pdf": pdf(b"BT <" + NAME.encode("utf-16-be").hex().encode() + b"> Tj ET"),
    "wide.txt": f"by {NAME}".encode("utf-16"),
    "wider.txt": f"by {NAME.upper()}".encode("utf-32"),
    "latin.txt": "Jürgen".encode("latin-1"),
    "two.pickle": pickle.dumps([NAME, "x" * 60 + NAME], protocol=2),
    "bob.pickle": pickle.dumps(["bob"], protocol=2),
    "long.pb": b"\x12\x41" + f"{NAME}/{'x' * 55}".encode() + b"q\xff",
    "book.txt.gz": gzip.compress(f"by {NAME}".encode("utf-16")),
}


@pytest.mark.parametrize("name", WITH_A_NAME)
def test_binary_file_with_a_name_is_left_out(name, hidden):
    keeping = HiddenWords({NAME: "p", "bob": "q", "Jürgen": "r"}, keep=["*"])
    for words in (hidden, keeping):
        with pytest.raises(StoreError, match="it is left out, as it holds words to hide"):
            words.file(name, WITH_A_NAME[name])


def test_table_of_parquet_with_a_name_is_left_out():
    pytest.importorskip("pyarrow.parquet")
    hidden = HiddenWords({NAME: "person-1", "Jürgen": "person-2", "𝒥ane": "person-3"})
    for columns in ({"who": ["Jürgen"]}, {"who": ["𝒥ane"]}, {"who": [{"names": [NAME]}]}, {NAME: [1]}):
        stream = io.BytesIO()
        pandas.DataFrame(columns).to_parquet(stream, compression="gzip")
        with pytest.raises(StoreError, match="it is left out, as it holds words to hide"):
            hidden.file("table.parquet", stream.getvalue())


@pytest.mark.parametrize("dtype", ["<U12", ">U12", "S12"])
@pytest.mark.parametrize("word", [NAME, NAME.upper()])
def test_text_of_numpy_is_overwritten(dtype, word, hidden):
    array = saved(np.save, np.array([word, "kept"], dtype))
    clean = [
        hidden.file("a.npy", array),
        np.load(io.BytesIO(hidden.file("a.npz", saved(np.savez_compressed, np.array([word, "kept"], dtype))))),
        gzip.decompress(hidden.file("a.tar.gz", gzip.compress(tarred("a.npy", array)))),
    ]
    with tarfile.open(fileobj=io.BytesIO(clean[2])) as tar:
        unpacked = tar.extractfile("a.npy").read()
    for values in (np.load(io.BytesIO(clean[0])), clean[1]["arr_0"], np.load(io.BytesIO(unpacked))):
        assert values.astype(str).tolist() == ["x" * len(NAME), "kept"]


def test_numbers_are_never_changed(hidden):
    numbers = np.frombuffer(b"\0bob" * 1000, "<f4")
    kept = np.load(io.BytesIO(hidden.file("a.npy", saved(np.save, numbers))))
    assert kept.tobytes() == numbers.tobytes()
    weights = {"w": torch.from_numpy(numbers.copy()), "by": NAME}
    stream = io.BytesIO()
    torch.save(weights, stream)
    clean = torch.load(io.BytesIO(hidden.file("w.pt", stream.getvalue())))
    assert clean["w"].numpy().tobytes() == numbers.tobytes()
    assert clean["by"] == "x" * len(NAME)


UNSEARCHABLE = {
    "plain.bin": bytes(range(256)),
    "paper.pdf": pdf(b"BT (nobody) Tj ET"),
    "secret.zip": encrypted(b"nobody"),
    "cut.gz": gzip.compress(b"nobody" * 99)[:-9],
    "old.h5": b"\x89HDF\r\n\x1a\n" + bytes(99),
}


@pytest.mark.parametrize("name", UNSEARCHABLE)
def test_file_that_cannot_be_searched_is_kept_only_if_named(name, hidden, tmp_path):
    data = UNSEARCHABLE[name]
    with pytest.raises(StoreError, match=f"it is left out, as it.* --keep {name} exports it as it is"):
        hidden.file(name, data)
    (tmp_path / name).write_bytes(data)
    outer = zipped(f"in/{name}", data)
    assert zipfile.ZipFile(io.BytesIO(hidden.file("a.zip", outer))).namelist() == []
    assert len(hidden.dropped) == 1
    for pattern in (name, f"*.{name.partition('.')[2]}"):
        keeping = HiddenWords({NAME: "person-1"}, keep=[pattern])
        assert keeping.file(name, data) == data
        assert zipfile.ZipFile(io.BytesIO(keeping.file("a.zip", outer))).namelist() == [f"in/{name}"]
        assert list(keeping.found_in(tmp_path)) == []
        assert sum(keeping.unsearched.values()) == 1


def test_base64_with_a_name_is_removed_from_a_text(hidden):
    wrapped = base64.encodebytes(b"x" * 49 + f" {NAME} ".encode() + b"y" * 50).decode()
    picture = base64.b64encode(WITH_A_NAME["ztxt.png"]).decode()
    for coded in (base64.b64encode(NAME.encode()).decode(), wrapped.strip(), json.dumps(wrapped)[1:-3], picture):
        clean = hidden.file("a.py", f"TOKEN = '''{coded}'''  # by {NAME}".encode())
        assert clean.startswith(b"TOKEN = '''xx")
        assert clean.endswith(b"x'''  # by person-1")
    assert hidden.removed == {"text in base64": 4}
    harmless = b"TOKEN = '" + base64.b64encode(b"nobody at all") + b"'"
    assert hidden.file("a.py", harmless) == harmless


def test_binary_patch_is_removed(hidden, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    (tmp_path / "a.bin").write_bytes(bytes(99))
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "a.bin").write_bytes(b"\0" + NAME.encode() * 9)
    (tmp_path / "b.py").write_text("a = 1\n")
    subprocess.run([*git, "add", "."], check=True)
    diff = subprocess.run([*git, "diff", "--binary", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert "GIT binary patch" in diff
    clean = hidden.text(diff)
    assert "literal" not in clean
    assert "+a = 1\n" in clean
    assert hidden.removed["binary patch"] == 1


def test_what_unpacks_too_large_is_left_out(hidden, monkeypatch):
    monkeypatch.setattr(packed_files, "MOST_BYTES", 100_000)
    bombs = {
        "a.gz": gzip.compress(bytes(10**7)),
        "a.png": png((b"zTXt", b"a\0\0" + zlib.compress(bytes(10**7)))),
    }
    for name, data in bombs.items():
        with pytest.raises(StoreError, match=r"it is left out, as it holds more than .* --keep"):
            hidden.file(name, data)
    with pytest.raises(StoreError, match=r"it is left out, as it holds more than .* --keep"):
        hidden.file("a.zip", zipped("a", bytes(10**7)))
    with pytest.raises(StoreError, match=r"it is left out, as it holds more than .* --keep"):
        hidden.file("large.txt", None)
    assert HiddenWords({}, keep=["large.txt"]).file("large.txt", None) is None


def test_large_output_is_searched_in_pieces(hidden, monkeypatch, tmp_path):
    for module in (packed_files, hidden_words):
        monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    monkeypatch.setattr(hidden_words, "_PIECE_BYTES", 1000)
    for at in (*range(985, 1005), 150_000):
        (tmp_path / "large.csv").write_bytes(b" " * at + NAME.encode() + b" " * 150_000)
        assert list(hidden.found_in(tmp_path / "large.csv"))
    (tmp_path / "large.csv").write_bytes(b"kebob " * 30_000)
    assert not list(hidden.found_in(tmp_path / "large.csv"))
    hidden.unsearched = Counter()
    with zipfile.ZipFile(tmp_path / "large.zip", "w") as archive:
        archive.writestr("a.txt", b" " * 150_000)
        archive.writestr("b.txt.gz", gzip.compress(NAME.encode()))
    (found,) = hidden.found_in(tmp_path / "large.zip")
    assert found.startswith("large.zip/b.txt.gz/b.txt")
    assert sum(hidden.unsearched.values()) == 1


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("a.txt", b"words", ""),
        ("a.gz", gzip.compress(b"words", mtime=0), ""),
        ("a.pdf", b"%PDF-1.7", None),
        ("a.png", b"\x89PNG\r\n\x1a\n", "pixels"),
        ("a.jpg", b"\xff\xd8\xff\xe0", "pixels"),
        ("a.webm", b"\x1aE\xdf\xa3\0", "pixels and sounds"),
        ("a.mp4", b"\0\0\0\x18ftypmp42", "pixels and sounds"),
        ("a.flac", b"fLaC\0", "sounds"),
        ("a.npy", b"\x93NUMPY\x01\0", "numbers"),
        ("a.pkl", b"\x80\x04\x95", "numbers"),
        ("net.safetensors", b"\0\x01\xff", "numbers"),
        ("net/data/0", b"\0\x01\xff", "numbers"),
        ("a.bin", b"\0\x01\xff", None),
        ("a.bin", b"ftyp\xff\0\x01", None),
    ],
)
def test_part_of_a_file_that_is_not_searched_is_named_by_its_first_bytes(name, data, part):
    assert packed_files.part_left(name, data) == part
