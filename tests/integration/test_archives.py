"""Archives out of every kind of store and into each, archives that mean harm, and tables."""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
import sys
import uuid
import warnings
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pymongo
import pytest
import sacred

from sacristan.__main__ import main
from sacristan.configs.packages import install_command
from sacristan.experiments import Experiment
from sacristan.observers import Image
from sacristan.observers.file.recording import recording_of
from sacristan.runs import RunsError, export_runs, import_runs, open_store
from sacristan.runs.stores.changes import Author
from sacristan.runs.transfer import archives
from tests.recording import observer_of

KINDS = ("our-files", "our-mongo", "sacred-files", "sacred-mongo")
# The ordinary suite takes one of each recorder, and one of each store.
MARKED = [
    "our-files",
    "sacred-mongo",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("our-mongo", "sacred-files")),
]


def record(kind, folder, url, name):
    """Record two runs."""
    experiment = Experiment if kind.startswith("our") else sacred.Experiment
    ex = experiment("archived", base_dir=folder, save_git_info=False)
    ex.add_config({"lr": 0.1, "hidden": [8, 8], "text": "plain"})

    @ex.main
    def train(_run, lr):
        ex.open_resource(str(folder / "data.csv")).close()
        for step, value in enumerate([lr, math.nan, math.inf]):
            _run.log_scalar("train/loss", value, step + 0.5)
        if kind.startswith("our"):
            _run.log_media("image", Image(np.zeros((2, 2), np.uint8)), 0)
            ranks = recording_of(_run.uid).folder / "ranks"
            ranks.mkdir()
            (ranks / "1.txt").write_text(f"hello from 1, with {lr}")
            _run.alert("look here", level="error")
        print("trained with", lr)
        (folder / "weights.txt").write_text(f"weights {lr}")
        ex.add_artifact(folder / "weights.txt")
        return lr

    (folder / "data.csv").write_text("1,2\n")
    observer = observer_of(kind, folder, url, name)
    ex.observers.append(observer)
    for updates in ({"lr": 0.1}, {"lr": 0.2, "text": "a\x1b[31mb"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ex.run(config_updates=updates, options={"--capture": "sys"})
    if kind == "sacred-mongo":
        observer.runs.database.client.close()
    return str(folder / "store") if kind.endswith("files") else f"{url}/{name}"


@pytest.fixture(scope="module", params=MARKED)
def origin(request, tmp_path_factory, mongo_url):
    name = f"archives_{uuid.uuid4().hex}"
    where = record(request.param, tmp_path_factory.mktemp(request.param), mongo_url, name)
    with open_store(where) as store:
        store.author = Author("ann", "token")
        store.rename(store.write_note(store.tag(store.get("1"), ["best"]), "a note é"), "wider é")
    yield where
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(name)


@pytest.fixture(params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def target(request, tmp_path, mongo_url, database):
    return str(tmp_path / "target") if request.param == "files" else f"{mongo_url}/{database.name}"


@pytest.fixture
def runs(capsys):
    def call(*words, code=0):
        assert main([str(word) for word in words]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return call


def holds(run):
    return (
        dict(run.config),
        run.status,
        run.output,
        (run.display_name, run.tags, run.note, run.alerts, run.changes),
        repr(run.metric("train/loss").values.tolist()),
        run.metric("train/loss").steps.tolist(),
        {name: content.read() for name, content in run.artifacts.items()},
        {name: content.read() for name, content in run.sources.items()},
        {rank: content.read() for rank, content in run.rank_outputs.items()},
        [(entry["sha256"], [content.read() for content in contents]) for entry, contents in run.media_entries()],
    )


@pytest.mark.sampled(1)
def test_archive_goes_into_any_store_and_again_changes_nothing(origin, target, tmp_path, runs):
    archive = tmp_path / "two.zip"
    assert "two.zip: runs 1, 2, " in runs("--store", origin, "export", "1", "2", "-o", archive)
    assert "already exists; choose another name" in runs("--store", origin, "export", "1", "-o", archive, code=1)
    first = json.loads(runs("--store", target, "import", archive, "--json"))
    assert [(row["id"], row["is_new"]) for row in first] == [("1", True), ("2", True)]
    with open_store(origin) as here, open_store(target) as there:
        for id in ("1", "2"):
            assert holds(here.get(id)) == holds(there.get(id))
        assert [change["by"] for change in there.get("1").changes] == ["ann"] * 3
    again = runs("--store", target, "import", archive)
    assert again.count("already, as run") == 2
    with open_store(target) as there:
        assert len(there.find()) == 2
    with zipfile.ZipFile(archive) as members:
        manifest = json.loads(members.read("manifest.json"))
        assert {name: sha256(members.read(name)).hexdigest() for name in manifest["files"]} == {
            name: entry["sha256"] for name, entry in manifest["files"].items()
        }
        assert set(members.namelist()) == {*manifest["files"], "manifest.json"}
        members.extractall(tmp_path / "unpacked")
    with open_store(tmp_path / "unpacked") as unpacked, open_store(origin) as here:
        assert holds(unpacked.get("2")) == holds(here.get("2"))


def test_copy_command_says_what_it_did(origin, target, runs):
    said = runs("--store", origin, "copy", "1", "latest", "--to", target)
    assert said.startswith("run 1 is run 1 of ")
    assert json.loads(runs("--store", origin, "copy", "1", "--to", target, "--json"))[0]["is_new"] is False
    assert "there is no run '9'" in runs("--store", origin, "copy", "9", "--to", target, code=1)


def test_tables_hold_what_runs_do(origin, tmp_path, runs):
    import pandas

    table = pandas.read_csv(io.StringIO(runs("--store", origin, "export", "--format", "csv", "--sort", "id")))
    assert table["config.lr"].tolist() == [0.1, 0.2]
    assert table["config.hidden"].tolist() == ["[8, 8]"] * 2
    rows = json.loads(
        runs("--store", origin, "export", "--format", "json", "--where", "lr>0.1", "--columns", "lr,hidden")
    )
    assert rows == [{"id": "2", "lr": 0.2, "hidden": [8, 8]}]
    runs("--store", origin, "export", "-o", tmp_path / "t.parquet", "--sort", "id")
    parquet = pandas.read_parquet(tmp_path / "t.parquet")
    assert parquet["config.lr"].tolist() == [0.1, 0.2]
    assert parquet["config.hidden"].tolist() == ["[8, 8]"] * 2
    runs("--store", origin, "export", "1", "--metrics", "train/loss", "-o", tmp_path / "m.parquet")
    points = pandas.read_parquet(tmp_path / "m.parquet")
    assert points["step"].tolist() == [0.5, 1.5, 2.5]
    assert repr(points["value"].tolist()) == "[0.1, nan, inf]"
    points = json.loads(runs("--store", origin, "export", "1", "--metrics", "train/loss", "--format", "json"))
    assert [row["value"] for row in points] == [0.1, "NaN", "Infinity"]
    newest = json.loads(runs("--store", origin, "export", "--format", "json", "--sort", "-start", "--limit", "2"))
    assert [row["id"] for row in newest] == [
        row["id"] for row in json.loads(runs("ls", "--store", origin, "--json"))[:2]
    ]
    assert "no run matches" in runs("--store", origin, "export", "--where", "lr>7", "-o", tmp_path / "n.csv", code=1)
    assert not (tmp_path / "n.csv").exists()


def test_export_that_makes_no_sense_is_refused(origin, tmp_path, runs):
    assert "expected -o FILE.zip" in runs("--store", origin, "export", "1", code=1)
    assert "got no run; name some, such as latest, or choose with --where or --limit" in runs(
        "--store", origin, "export", "-o", tmp_path / "x.zip", code=1
    )
    assert "got runs and conditions, expected either" in runs(
        "--store", origin, "export", "1", "--tag", "x", "-o", tmp_path / "x.zip", code=1
    )
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_package_names_the_extra(origin, tmp_path, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = runs("--store", origin, "export", "-o", tmp_path / "t.parquet", code=1)
    assert install_command("parquet") in said


# Archives that mean harm


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The members of a good archive, by name."""
    folder = tmp_path_factory.mktemp("good")
    where = record("our-files", folder, "", "")
    with open_store(where) as store:
        export_runs([store.get("1")], folder / "good.zip")
    with zipfile.ZipFile(folder / "good.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def listed(members):
    """Return members with a manifest that is right."""
    manifest = json.loads(members["manifest.json"])
    manifest["files"] = {
        name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in members.items()
        if name != "manifest.json"
    }
    return members | {"manifest.json": json.dumps(manifest).encode()}


def make(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def with_name(name):
    return lambda path, good: make(path, listed(good | {name: b"evil"}))


def link(path, good):
    make(path, listed(good))
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("1/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")


def twice(path, good):
    make(path, listed(good))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("1/run.json", "{}")


def wrong_digest(path, good):
    make(path, good | {"1/config.json": bytes(len(good["1/config.json"]))})


def wrong_length(path, good):
    make(path, good | {"1/config.json": b"{}"})


def bomb(path, good):
    # Zeros beyond what the test allows, as declared: a thousandth of them in bytes.
    make(path, listed(good))
    digest, zeros = sha256(), bytes(2**20)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("1/zeros", "w", force_zip64=True) as s,
    ):
        for _ in range(2**6 + 1):
            s.write(zeros)
            digest.update(zeros)
    entry = {"bytes": (2**6 + 1) * 2**20, "sha256": digest.hexdigest()}
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["files"]["1/zeros"] = entry
    rewrite(path, {"manifest.json": json.dumps(manifest).encode()})


def rewrite(path, changed):
    """Replace members without unpacking the others: the old manifest goes out of the directory."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in changed.items():
            archive.filelist.remove(archive.NameToInfo.pop(name))
            archive.writestr(name, data)


def lying_length(path, good):
    """The directory says 77 bytes of what unpacks to 64 MB."""
    make(path, listed(good | {"1/zeros": bytes(2**26 + 12345)}))
    members = listed(good | {"1/zeros": bytes(77)})
    rewrite(path, {"manifest.json": members["manifest.json"]})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(struct.pack("<I", 2**26 + 12345), struct.pack("<I", 77)))


def cut_off(path, good):
    make(path, good)
    path.write_bytes(path.read_bytes()[:-40])


HOSTILE = {
    "above": (with_name("../evil"), r"'../evil', which does not stay in its folder"),
    "above-within": (with_name("1/../../evil"), "does not stay in its folder"),
    "absolute": (with_name("/tmp/evil"), "does not stay in its folder"),
    "backslash": (with_name("1\\..\\..\\evil"), "does not stay in its folder"),
    "drive": (with_name("C:/evil"), "does not stay in its folder"),
    "control": (with_name("1/a\x1b[31m"), "does not stay in its folder"),
    "foreign": (with_name("exp.py"), "is none of a run"),
    "foreign-run": (with_name("2/run.json"), "is none of a run"),
    "foreign-artifact": (with_name("_artifacts/versions/../../x"), "does not stay in its folder"),
    "index": (with_name(".index.sqlite"), "is none of a run"),
    "unlisted": (lambda path, good: make(path, listed(good) | {"1/extra": b""}), "is not in its manifest"),
    "link": (link, "is no plain file"),
    "twice": (twice, "it has two members '1/run.json'"),
    "wrong-digest": (wrong_digest, "is not what its manifest.json says"),
    "wrong-length": (wrong_length, "has another length than its manifest.json says"),
    "lying-length": (lying_length, "is damaged|is not what"),
    "bomb": (bomb, "it unpacks to 68.* bytes, expected at most 67108864; if you trust it, use --max-bytes"),
    "cut-off": (cut_off, "it is damaged, or no ZIP file"),
    "no-zip": (lambda path, good: path.write_bytes(b"no zip"), "no ZIP file"),
    "no-manifest": (lambda path, good: make(path, {"1/run.json": b"{}"}), r"it has no manifest.json"),
    "odd-manifest": (lambda path, good: make(path, good | {"manifest.json": b"[]"}), "is invalid"),
    "no-run": (
        lambda path, good: make(path, listed({n: d for n, d in good.items() if n != "1/run.json"})),
        "names runs that are not there",
    ),
    "file-as-folder": (lambda path, good: make(path, listed(good | {"1/a": b"", "1/a/b": b""})), "cannot be unpacked"),
    "damaged-run": (
        lambda path, good: make(path, listed(good | {"1/run.json": b"[]"})),
        "holds list, expected an object",
    ),
    "damaged-source": (
        lambda path, good: make(
            path, listed({name: b"evil" if name.startswith("_resources/") else data for name, data in good.items()})
        ),
        "resource '.*data.csv' has the MD5 .*, recorded was",
    ),
    "packed-otherwise": (lambda path, good: make(path, listed(good), zipfile.ZIP_LZMA), "packed in another way"),
}


@pytest.fixture(scope="module")
def evil(good, tmp_path_factory):
    """Return a copy of an archive of a kind in a folder: `evil(name, folder)`; each kind is made once."""
    made = {}

    def copy(name, folder):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("made") / "evil.zip"
            HOSTILE[name][0](made[name], dict(good))
        return Path(shutil.copy(made[name], folder))

    return copy


def test_archive_of_too_many_members_is_refused(good, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", len(good) - 1)
    make(tmp_path / "large.zip", listed(good))
    with open_store(tmp_path / "target", create=True) as store:
        with pytest.raises(RunsError, match=rf"it has {len(good)} members, expected at most {len(good) - 1};"):
            import_runs(tmp_path / "large.zip", store)
        assert store.find() == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", HOSTILE)
def test_archive_that_means_harm_is_refused_whole(evil, name, target, tmp_path, monkeypatch):
    message = HOSTILE[name][1]
    assert archives.PLAIN_BYTES == 2**30  # which takes seconds to pack
    monkeypatch.setattr(archives, "PLAIN_BYTES", 2**26)
    archive = evil(name, tmp_path)
    before = {path for path in tmp_path.rglob("*") if "target" not in path.parts}
    with open_store(target, create=True) as store:
        with pytest.raises(RunsError, match=message):
            import_runs(archive, store)
        assert store.find() == []
        if not target.startswith("mongodb"):
            assert [path.name for path in store.backend.folder.iterdir() if not path.name.startswith(".index")] == []
    assert {path for path in tmp_path.rglob("*") if "target" not in path.parts} == before
    assert not list(tmp_path.rglob("evil"))
