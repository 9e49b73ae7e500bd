"""One damaged run hides no other: commands, Python and the board show the rest, and say what is wrong with that one."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.runs import StoreError, compare, open_store
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import create_app

DEEP = '{"a":' * 900 + "1" + "}" * 900
DAMAGE = {
    "config cut off": ("config.json", '{"lr": 0.1'),
    "config too deep": ("config.json", DEEP),
    "config that is a list": ("config.json", "[1]"),
    "notes cut off": ("notes.json", '{"tags"'),
    "notes too deep": ("notes.json", DEEP),
    "notes that are null": ("notes.json", "null"),
    "summary cut off": ("summary.json", "{"),
    "run too deep": ("run.json", DEEP),
    "run cut off": ("run.json", "{"),
}
COMMANDS = (
    ("ls",),
    ("ls", "--json"),
    ("ls", "--where", "lr!=77"),
    ("ls", "--columns", "lr,config,tags,note,status,summary,loss.min,info,host,provenance"),
    ("export", "--format", "csv"),
    ("export", "--format", "json", "--columns", "lr,config,tags,loss.min"),
    ("export", "--format", "csv", "--metrics"),
    ("compare", "--by", "model", "--metric", "loss.min"),
    ("plot", "--limit", "0", "--metric", "loss"),
    ("plot", "--by", "model", "--metric", "loss"),
)


def put(folder, number, **change):
    """Write a run that completed, with a metric."""
    run = {"uid": f"{number:032x}", "format": "sacristan-1", "experiment": {"name": "whole"}, "status": "COMPLETED"}
    run |= {"command": "main", "start_time": "2026-01-01T00:00:00", "stop_time": "2026-01-01T00:01:00", "result": 0.5}
    points = {"loss": {"steps": [1, 2], "values": [number, 1.0], "timestamps": ["2026-01-01T00:00:01"] * 2}}
    parts = {
        "run.json": {**run, **change},
        "config.json": {"lr": number, "model": "cnn"},
        "summary.json": {"loss": {"last": 1.0, "min": number}},
        "notes.json": {"tags": {"good": True}, "note": "n"},
        "metrics.json": points,
    }
    (folder / str(number)).mkdir(parents=True)
    for name, document in parts.items():
        (folder / str(number) / name).write_text(json.dumps(document))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_run_hides_no_other(tmp_path, capsys, caplog, damage):
    where, (name, content) = tmp_path / "store", DAMAGE[damage]
    for number in (1, 2, 3):
        put(where, number)
    (where / "2" / name).write_text(content)
    for words in (*COMMANDS, ("report", "--limit", "0", "-o", str(tmp_path / "report.html"))):
        assert main(["--store", str(where), *words]) == 0, (words, capsys.readouterr().err)
        out, err = capsys.readouterr()
        notes = [line for line in err.splitlines() if "completely" in line or words[0] != "export"]
        assert len(notes) <= 1, words
        if words[0] == "ls" and words[1:] != ("--json",):
            lines = [line.split() for line in out.splitlines()]
            assert {"1", "3"} <= {line[0] for line in lines if line}, words
        if words == ("ls",):
            assert out.splitlines()[-1].startswith(f"  2  {name}")
        elif words == ("ls", "--json"):
            assert {row["id"]: bool(row["unreadable"]) for row in json.loads(out)} == {
                "1": False,
                "2": True,
                "3": False,
            }
        elif words[:3] == ("export", "--format", "csv") and name == "config.json" and len(words) == 3:
            assert f"note: 1 run cannot be read completely: run 2 ({name}" in err
            assert len(out.splitlines()) == 4
    with open_store(where) as store:
        whole = {"1", "3"} | ({"2"} if name != "run.json" else set())
        frame = store.frame()
        assert set(frame.index) == whole
        if name != "run.json":
            assert frame.attrs["problems"]["2"].startswith(name)
            assert "run 2 cannot be read completely" in caplog.text
            assert f"run 2 cannot be read completely: {name}" in store.find()._repr_html_()
            with pytest.raises(StoreError, match=name):  # asked for by itself it says so
                print(store.get("2").config, store.get("2").summary, store.get("2").document)
        assert set(store.curves("loss")["id"]) == whole
    with TestClient(create_app(lambda: open_store(where), Policy()), base_url="http://127.0.0.1") as client:
        for page in ("/runs", "/list/rows", "/runs?group=lr", "/compare?run=1&run=3&run=2", "/compare?where=status~.*"):
            answer = client.get(page)
            expected = 404 if name == "run.json" and "run=2" in page else 200
            assert answer.status_code in (200, expected), page


def test_run_with_a_damaged_config_is_in_no_group(tmp_path):
    for number in (1, 2, 3):
        put(tmp_path, number)
    (tmp_path / "2" / "config.json").write_text('{"lr"')
    with open_store(tmp_path) as store:
        found = compare(store.find(), "model", None, "loss.min")
    assert [(group.name, group.runs) for group in found.groups] == [("cnn", ("1", "3"))]
    [excluded] = found.excluded
    assert (excluded.run.id, excluded.reason[:36]) == ("2", "cannot be read completely: config.js")


def test_odd_statuses_are_shown_as_text(tmp_path, capsys):
    put(tmp_path, 1)
    for number, status in enumerate((["COMPLETED"], {"a": 1}, 3, None, True), 2):
        put(tmp_path, number, status=status)
    with open_store(tmp_path) as store:
        assert "[&#x27;COMPLETED&#x27;]" in store.find()._repr_html_()
        assert all(isinstance(run.status, str) and run._repr_html_() for run in store.find())
    assert main(["--store", str(tmp_path), "report", "--limit", "0", "-o", str(tmp_path / "r.html")]) == 0


def test_odd_document_in_a_database_hides_no_other(database, mongo_url, tmp_path, capsys):
    run = {"experiment": {"name": "whole"}, "command": "main", "status": "COMPLETED", "result": 0.5, "uid": "1" * 32}
    run |= {"summary": {"loss": {"min": 1.0}}}
    odd = [
        {"config": [1]},
        {"config": "x"},
        {"config": {"large": {"$file": "x"}}},
        {"status": ["X"], "config": {"lr": 2}},
    ]
    database.runs.insert_many([{"_id": 1, **run, "config": {"lr": 1}}, {"_id": 9, **run, "config": {"lr": 1}}])
    database.runs.insert_many([{"_id": number, **run, **change} for number, change in enumerate(odd, 2)])
    where = f"{mongo_url}/{database.name}"
    for words in (*COMMANDS[:6], ("compare", "--by", "lr", "--metric", "loss.min")):
        assert main(["--store", where, *words]) == 0, (words, capsys.readouterr().err)
        out, err = capsys.readouterr()
        notes = [line for line in err.splitlines() if "completely" in line or words[0] != "export"]
        assert len(notes) <= 1, words
    assert "excluded: run 2 (no group) cannot be read completely: config of run 2 holds list" in out
    assert "\n1     2" in out
    with open_store(where) as store:
        assert set(store.frame().index) == {"1", "2", "3", "4", "5", "9"}
        assert "config of run 2 holds list" in store.find()._repr_html_()
