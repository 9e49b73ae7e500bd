"""Media on disk: a content before its entry, each content once, a full disk survived and told of."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from sacristan.observers import Image, MediaEntry, Text, read_media
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.schema import MEDIA


def entry(media, name="x", step=0):
    return MediaEntry(name, media.kind, step, 100.0, media.encode())


def test_content_is_kept_once_and_each_entry_leads_to_it(tmp_path):
    journal = Journal(tmp_path)
    for step in range(3):
        journal.media.add(entry(Text("same"), step=step), 0.5 + step)
    journal.media.add(entry(Image([[0.0]], "dark"), "y", 0.25), 4)
    journal.close()
    assert len(list((tmp_path / "media").iterdir())) == 2
    found = read_media(tmp_path)
    assert [(r.name, r.kind, r.step, r.time) for r in found] == [
        ("x", "text", 0, 0.5),
        ("x", "text", 1, 1.5),
        ("x", "text", 2, 2.5),
        ("y", "image", 0.25, 4),
    ]
    for record in found:
        assert hashlib.sha256(record.path.read_bytes()).hexdigest() == record.sha256 == record.path.stem
    assert found[3].meta == {"width": 1, "height": 1, "channels": 1, "caption": "dark"}
    assert found[3].content_type == "image/png"


def test_torn_tail_is_passed_over_and_cut_off(tmp_path):
    journal = Journal(tmp_path)
    journal.media.add(entry(Text("one")), 0)
    journal.close()
    with (tmp_path / MEDIA).open("ab") as stream:
        stream.write(b'{"name": "to')
    assert len(read_media(tmp_path)) == 1
    again = Journal(tmp_path)
    again.media.add(entry(Text("two")), 1)
    again.close()
    assert [record.path.read_text() for record in read_media(tmp_path)] == ["one", "two"]


@pytest.mark.parametrize("file", ["../run.json", "/etc/passwd", "media/../../x.png", "media/" + "0" * 64 + ".a/b", 3])
def test_entry_that_leads_out_of_the_folder_is_refused(tmp_path, file):
    row = {
        "name": "x",
        "kind": "image",
        "step": 0,
        "time": 0,
        "file": file,
        "sha256": "",
        "content_type": "",
        "meta": {},
    }
    (tmp_path / MEDIA).write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"expected media/SHA256\.SUFFIX"):
        read_media(tmp_path)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from sacristan.observers import Text, Table, Image
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.media_files import MediaEntry
import sacristan.observers.record.media_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path({folder!r}))
def add(media, step):
    journal.media.add(MediaEntry("x", media.kind, step, 0.0, media.encode()), 0.0)
add(Text("before"), 0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))   # no file may grow beyond: as on a full disk
add(Text("x" * 10_000), 1)
add(Text("behind"), 2)
assert [path.name for path in Path({folder!r}).joinpath("media").iterdir() if path.suffix != ".txt"] == []
assert (Path({folder!r}) / "media.jsonl").read_bytes().count(b"\\n") == 1
{middle}
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))   # there is room again
add(Text("after"), 3)
journal.close()
print(journal.media.num_lost, journal.num_lost_bytes)
"""


@pytest.mark.parametrize(
    ("middle", "steps", "lost"),
    [
        ("", [0, 1, 2, 3], "0 0"),
        ("sacristan.observers.record.media_files.MAX_WAITING_BYTES = 9000; journal.retry()", [0, 2, 3], "1 10000"),
        ("journal.media.give_up()", [0, 3], "2 10006"),
    ],
)
def test_full_disk_delays_media_and_counts_what_it_had_to_give_up(tmp_path, request, middle, steps, lost):
    script = FULL_DISK.format(root=str(request.config.rootpath), folder=str(tmp_path), middle=middle)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [record.step for record in read_media(tmp_path)] == steps
    assert all(record.path.exists() for record in read_media(tmp_path))
    assert done.stdout.split("\n")[0] == lost
    assert done.stderr.count("cannot be written") == 1


def test_content_that_a_power_cut_has_emptied_is_written_again(tmp_path):
    content = Image(np.zeros((2, 2))).encode()
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / content.file).touch()
    journal = Journal(tmp_path)
    journal.media.add(MediaEntry("x", "image", 0, 0.0, content), 0)
    assert (tmp_path / "media" / content.file).read_bytes() == content.data
