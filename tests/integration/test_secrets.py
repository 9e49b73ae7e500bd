"""Passwords in URLs: nowhere in what is written down of a run, in files, MongoDB and event files."""

from __future__ import annotations

import json
from pathlib import Path

import gridfs
import pytest

from sacristan.__main__ import main as runs_command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver, TensorBoardObserver

# In two parts: the sources of a run are recorded as they are.
PASSWORD = "hunter" + "2"
URL = f"postgresql://ann:{PASSWORD}@db.lab/lab"
SHOWN = "postgresql://ann:***@db.lab/lab"


def test_passwords_are_in_no_part_of_a_record(tmp_path, database, mongo_url, monkeypatch):
    monkeypatch.setattr("sys.argv", ["exp.py", "with", f"db.url={URL}"])
    (tmp_path / "made").write_text("made")
    ex = Experiment("secret", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.extend(
        [
            FileObserver(tmp_path / "runs"),
            MongoObserver(mongo_url, database.name),
            TensorBoardObserver(tmp_path / "events"),
        ]
    )
    ex.add_config({"db": {"url": "", "others": []}})

    @ex.main
    def main(_run, db):
        assert db["url"] == URL
        _run.info["asked"] = {"url": db["url"]}
        _run.add_artifact(tmp_path / "made", metadata={"from": db["url"]})
        _run.log_scalar("loss", 0.5)
        raise ConnectionError(f"cannot reach {db['url']}")

    with pytest.raises(ConnectionError):
        ex.run(config_updates={"db": {"url": URL, "others": [URL]}}, options={"--capture": "no"})
    folder = tmp_path / "runs" / "1"
    written = [path for root in ("runs", "events") for path in (tmp_path / root).rglob("*") if path.is_file()]
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []
    run = json.loads((folder / "run.json").read_text())
    assert f"cannot reach {SHOWN}" in run["fail_trace"][-1]
    assert run["command_line"][-1] == f"db.url={SHOWN}"
    assert json.loads((folder / "config.json").read_text())["db"] == {"url": SHOWN, "others": [SHOWN]}
    assert json.loads((folder / "info.json").read_text())["asked"] == {"url": SHOWN}
    stored = database.runs.find_one()
    assert stored["config"]["db"]["url"] == stored["info"]["asked"]["url"] == SHOWN
    assert PASSWORD not in str(stored)
    files = gridfs.GridFS(database)
    assert [file.filename for file in files.find() if PASSWORD.encode() in file.read()] == []
    assert PASSWORD not in str(list(database.fs.files.find()))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["reproduce", "resume"])
def test_run_is_not_started_again_without_its_password(tmp_path, capsys, command):
    ex = Experiment("secret", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.add_config({"url": URL, "checkpoint": {"last": True}})

    @ex.main
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ex.run(options={"--capture": "no"})
    words = [command, "1", "--store", str(tmp_path / "runs"), "--dry"]
    assert runs_command(words) != 0
    asked = f"run 1 was recorded without the password in its config: url={SHOWN}; give it: with url=..."
    assert asked in capsys.readouterr().err
    assert runs_command([*words, "with", f"url={URL}", "seed=3"]) != 0
    assert "got seed, expected url, which lacks its password; to change other settings: fork" in capsys.readouterr().err
    assert runs_command([*words, "with", f"url={URL}"]) == 0
    printed = capsys.readouterr()
    assert f"url={SHOWN}" in printed.out + printed.err
    assert PASSWORD not in printed.out + printed.err
