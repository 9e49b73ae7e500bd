"""Records, archives, artifacts and sweeps that a later version of the lab wrote in another format."""

from __future__ import annotations

import json
import shutil
import zipfile

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import ArtifactDamagedError, ArtifactStore, FileObserver, MongoObserver, ResumeError
from sacristan.observers.file.sessions import open_for_resuming
from sacristan.runs import ArchiveError, SweepError, export_runs, import_runs, open_store, reap, sync
from sacristan.runs.sweeps.study.home import Place

NEWER = "its format is sacristan-2, this version reads up to sacristan-1; use the version of the lab that recorded it"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    """A folder with a run, in a database, too, and its archive; later tests change copies."""
    folder = tmp_path_factory.mktemp("newer")
    ex = Experiment("newer", base_dir=folder, save_git_info=False)
    name = f"newer_{folder.name}"
    ex.observers.extend([FileObserver(folder / "my_runs"), MongoObserver(mongo_url, name)])

    @ex.main
    def run(_run):
        _run.log_scalar("loss", 0.5, 0)
        (folder / "table.csv").write_text("a\n")
        _run.log_artifact("table", folder / "table.csv")

    ex.run()
    with open_store(folder / "my_runs") as store:
        export_runs([store.get(1)], folder / "one.zip")
    return folder, f"{mongo_url}/{name}"


@pytest.fixture
def folder(recorded, tmp_path):
    """A copy of the folder."""
    shutil.copytree(recorded[0], tmp_path / "lab")
    return tmp_path / "lab"


@pytest.fixture
def newer(folder):
    """A copy of the folder whose run has a newer format."""
    path = folder / "my_runs" / "1" / "run.json"
    path.write_text(path.read_text().replace('"sacristan-1"', '"sacristan-2"').replace('"COMPLETED"', '"RUNNING"'))
    return folder / "my_runs"


@pytest.mark.parametrize("command", ["show 1", "metrics 1", "config 1", "log 1", "copy 1 --to copies", "resume 1"])
def test_run_of_a_newer_format_in_a_folder_is_refused(newer, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = main(["--store", str(newer), *command.split()])
    out, err = capsys.readouterr()
    if command.startswith("log"):  # text is text
        assert (found, err) == (0, "")
    else:
        assert (found, out, err) == (1, "", f"error: {newer / '1'} cannot be read: {NEWER}\n")
    assert not (tmp_path / "copies" / "1").exists()


def test_run_of_a_newer_format_is_listed_as_one_that_cannot_be_read(newer, capsys):
    assert main(["--store", str(newer), "ls"]) == 0
    assert f"cannot be read completely:\n  1  {NEWER}\n" in capsys.readouterr().out


def test_run_of_a_newer_format_is_not_changed(newer):
    before = (newer / "1" / "run.json").read_bytes()
    assert reap(newer) == []
    assert [result.error for result in sync(newer)] == [f"{newer / '1'} cannot be delivered: {NEWER}"]
    with pytest.raises(ResumeError, match=f"1 cannot be resumed: {NEWER}"), open_for_resuming(newer / "1", newer):
        pass
    with open_store(newer) as store:
        assert store.collect().unreadable == ["1"]
    assert (newer / "1" / "run.json").read_bytes() == before


@pytest.mark.parametrize("command", ["show 1", "metrics 1 loss", "config 1", "copy 1 --to copies"])
def test_run_of_a_newer_format_in_a_database_is_refused(recorded, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, url = recorded
    with open_store(url) as store:
        store.backend.mongo.runs.update_one({"_id": 1}, {"$set": {"format": "sacristan-2"}})
    found = main(["--store", url, *command.split()])
    assert (found, capsys.readouterr().err) == (1, f"error: run 1 of {url} cannot be read: {NEWER}\n")


def test_archive_of_a_newer_format_is_refused(folder):
    with zipfile.ZipFile(folder / "one.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(folder / "two.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(b"sacristan-archive-1", b"sacristan-archive-3"))
    reason = (
        "its format is 'sacristan-archive-3', this version reads sacristan-archive-1 and sacristan-archive-2; use the "
        "version of the lab that"
    )
    with open_store(folder / "copies", create=True) as store, pytest.raises(ArchiveError, match=reason):
        import_runs(folder / "two.zip", store)


def test_artifact_of_a_newer_format_is_refused(folder):
    (manifest,) = (path for path in (folder / "my_runs" / "_artifacts").rglob("*.json") if "format" in path.read_text())
    manifest.write_text(manifest.read_text().replace("sacristan-artifact-1", "sacristan-artifact-2"))
    reason = (
        "table:v1: its format is 'sacristan-artifact-2', this version reads sacristan-artifact-1; use the version of"
    )
    with pytest.raises(ArtifactDamagedError, match=reason):
        ArtifactStore(folder / "my_runs").resolve("table")


def test_sweep_of_a_newer_format_is_refused(tmp_path):
    home = Place(tmp_path).home("lr")
    folder = tmp_path / "sweeps" / "lr"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"format": "sacristan-sweep-4"}))
    reason = "its format is 'sacristan-sweep-4', this version reads up to sacristan-sweep-3; use the version of the lab"
    with pytest.raises(SweepError, match=reason):
        home.definition()
