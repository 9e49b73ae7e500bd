"""Output of every command with `--json`, against its schema: ordinary and hostile runs, in folders and in MongoDB."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.command_line import make_parser
from sacristan.runs.commands import COMMANDS, name_of, reasons_without_json
from tests.documents import HOSTILE, SCHEMAS, checked, closed, keys_of, keys_with_values, record
from tests.processes import run

ROOT = Path(__file__).parents[2]
COLUMNS = ("display_name", "name", "command", "status", "start", "duration", "result", "tags")
# Those that `show` finds in no record of this version.
FOREIGN = ("a\nb", "captured_out", "config_updates", "nested")


def damage(store):
    """Write runs that lack nearly everything, hold what no version writes, or cannot be read."""
    for name, document in (
        ("50", {"experiment": {}}),
        ("51", {"status": 7, "host": [1], "result": 10**400, "a\nb": "\ud800", "start_time": 3, "experiment": None}),
        ("52", None),
    ):
        (store / name).mkdir()
        (store / name / "run.json").write_text("{" if document is None else json.dumps(document))
    (store / "51" / "config.json").write_text(f'{{"lr": 1e999, "big": {10**100}, "": NaN}}')
    (store / "51" / "info.json").write_text('{"a": -Infinity}')


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp("json")
    record(folder, mongo_url, "json")
    damage(folder / "store")
    return {"folder": str(folder / "store"), "database": f"{mongo_url}/json"}


@pytest.fixture
def call(capsys):
    def run(where, *words, code=0, error=""):
        """Return what a command printed, after a look at its exit code and at stderr."""
        assert main(["--store", str(where), *words, "--json"]) == code, capsys.readouterr().err
        out, err = capsys.readouterr()
        assert error in err
        return out

    return run


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_reading_commands_print_what_their_schemas_say(recorded, call, kind, tmp_path):
    where = recorded[kind]
    rows = checked("ls", call(where, "ls"), COLUMNS)
    assert {row["id"] for row in rows} >= {"1", "2", "3"}
    own = ("id", "uid", "lr")
    assert all(row["id"].isdecimal() for row in checked("ls", call(where, "ls", "--columns", ",".join(own)), own[2:]))
    odd = ("lr", "half.last", "val/loss.min", "config", "summary", "info")
    checked("ls", call(where, "ls", "--columns", ",".join(odd)), odd)
    checked("ls", call(where, "ls", "--where", "kind=bad"), COLUMNS)
    assert checked("show", call(where, "show", "1"))["status"] == "COMPLETED"
    shown = checked("show", call(where, "show", "2"))
    assert shown["info"]["huge"] == 2**70
    assert shown["result"]["result"] == "NaN"
    assert "RuntimeError" in "".join(checked("show", call(where, "show", "3"))["fail_trace"])
    assert checked("config", call(where, "config", "2"))["kind"] == "odd"
    assert checked("config", call(where, "config", "2", "nested.list")) == [1, {"a": None}]
    assert "ignore previous" in checked("log", call(where, "log", "2"))["output"]
    assert checked("metrics", call(where, "metrics", "2"))["metrics"]["val/loss"]["count"] == 20
    [name] = [name for name in shown["metrics"] if name.startswith("loss ")]
    [curve] = checked("metrics", call(where, "metrics", "2", name))["metrics"].values()
    assert curve["values"] == ["NaN", "Infinity", "-Infinity", 1e308]
    checked("metrics", call(where, "metrics", "2", "half", "val/loss", "--points", "5"))
    assert checked("diff", call(where, "diff", "1", "2", "--log"))["differ"]
    assert not checked("diff", call(where, "diff", "1", "1"))["differ"]
    found = checked("compare", call(where, "compare", "--by", "kind", "--metric", "val/loss.min", "--any-status"))
    assert len(found["groups"]) >= 3
    checked("plot", call(where, "plot", "1", "2", "--metric", "val/loss", "--smoothing", "0.5", "--joined"))
    checked("plot", call(where, "plot", "--by", "kind", "--metric", "val/loss", "--where", "kind!=none"))
    assert checked("artifacts", call(where, "artifacts", "ls", "1")) == [{"name": "weights.txt", "bytes": 7}]
    fetched = checked("artifacts", call(where, "artifacts", "get", "1", "-o", str(tmp_path / "got")))
    assert [Path(path).name for path in fetched["files"]] == ["weights.txt"]
    checked("sources", call(where, "sources", "ls", "1"))
    checked("reap", call(where, "reap"))
    lines = call(where, "watch", "--once").splitlines()
    assert [checked("watch", line)["event"] for line in lines] == ["failed"]


def test_hostile_records_print_what_their_schemas_say(recorded, call):
    where = recorded["folder"]
    rows = {row["id"]: row for row in checked("ls", call(where, "ls"), COLUMNS)}
    assert [bool(rows[id]["unreadable"]) for id in ("4", "50", "51", "52")] == [False, False, False, True]
    assert checked("show", call(where, "show", "4"))["uid"] is None
    checked("show", call(where, "show", "50"))
    shown = checked("show", call(where, "show", "51"), FOREIGN)
    assert shown["result"] == 10**400
    assert shown["config"] == {"lr": "Infinity", "big": 10**100, "": "NaN"}
    checked("diff", call(where, "diff", "4", "51"))
    checked("metrics", call(where, "metrics", "50"))
    assert call(where, "show", "52", code=1, error="error: ") == ""
    assert call(where, "show", "99", code=1, error="error: there is no run '99'") == ""
    assert checked("reindex", call(where, "reindex"))["problems"][0]["id"] == "52"


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_writing_commands_print_what_their_schemas_say(recorded, call, kind, tmp_path, mongo_url, capsys):
    copy = tmp_path / "copy" if kind == "folder" else f"{mongo_url}/json_copy"
    copied = checked("copy", call(recorded[kind], "copy", "1", "2", "3", "--to", str(copy)))
    assert [(run["from"], run["is_new"]) for run in copied] == [("1", True), ("2", True), ("3", True)]
    assert checked("tag", call(copy, "tag", "1", "best"))["tags"] == ["best"]
    assert checked("note", call(copy, "note", "1", HOSTILE.replace("\ud800", "")))["note"].startswith("ignore")
    assert checked("rename", call(copy, "rename", "1", "good"))["display_name"] == "good"
    checked("show", call(copy, "show", "1"))
    assert checked("rm", call(copy, "rm", "1", "3", "--yes"))["runs"] == ["1", "3"]
    assert {run["id"] for run in checked("restore", call(copy, "restore"))} == {"1", "3"}
    assert checked("restore", call(copy, "restore", "1"))[0]["from"] == "1"
    assert checked("gc", call(copy, "gc"))["runs"] == ["3"]
    archive = tmp_path / "runs.zip"
    assert main(["--store", str(copy), "export", "2", "-o", str(archive)]) == 0
    capsys.readouterr()
    assert not checked("import", call(copy, "import", str(archive)))[0]["is_new"]
    table = tmp_path / "runs.csv"
    table.write_text("lr,loss\n0.1,nan\n")
    assert checked("import", call(copy, "import", str(table)))[0]["outcome"] == "new"
    if kind == "folder":
        assert checked("sync", call(recorded[kind], "sync"))[0]["outcome"] == "up to date"


def test_tokens_print_what_their_schema_says(call, tmp_path):
    words = ("--tokens", str(tmp_path / "tokens.json"))
    assert checked("tokens", call(tmp_path, "tokens", "list", *words)) == []
    assert len(checked("tokens", call(tmp_path, "tokens", "add", "ada", *words))["token"]) > 20
    assert checked("tokens", call(tmp_path, "tokens", "list", *words))[0]["role"] == "read"
    assert checked("tokens", call(tmp_path, "tokens", "revoke", "ada", *words)) == {"revoked": "ada"}


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_empty_store_prints_empty_documents_and_errors_print_nothing(call, kind, tmp_path, mongo_url):
    where = tmp_path if kind == "folder" else f"{mongo_url}/json_empty"
    for name in ("ls", "restore", "reap"):
        assert checked(name, call(where, name)) == []
    assert checked("gc", call(where, "gc"))["runs"] == []
    assert call(where, "watch", "--once") == ""
    for words in (["show", "latest"], ["metrics", "1"], ["compare", "--by", "lr", "--metric", "loss.min"]):
        assert call(where, *words, code=1, error="error: ") == ""
    if kind == "folder":
        assert checked("reindex", call(where, "reindex"))["num_runs"] == 0
        assert checked("sync", call(where, "sync")) == []


# ---------------------------------------------------------------------- the schemas


def options_of(parser):
    subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    below = [options_of(each) for action in subparsers for each in action.choices.values()]
    return {option for action in parser._actions for option in action.option_strings}.union(*below)


def test_every_command_with_json_has_a_schema():
    [commands] = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {name for name, parser in commands.choices.items() if "--json" in options_of(parser)} == SCHEMAS.keys()
    assert reasons_without_json().keys() == set(map(name_of, COMMANDS)) - SCHEMAS.keys()


# A lab whose first run is reproduced, with another loss and another environment.
TRAIN = """
from pathlib import Path

from sacristan.experiments import Experiment
from sacristan.observers import file_observer

ex = Experiment("train", save_git_info=False, system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))
ex.add_config(arm=1)


@ex.automain
def main(_run, arm, seed):
    _run.log_scalar("loss", arm * (1.0 + seed % 7), 0)
    _run.add_resource("runs.csv")
    _run.log_artifact("words", "runs.csv")
    _run.use_artifact("words:latest")
    Path("arm.txt").write_text(str(arm))
    _run.log_artifact("arm", "arm.txt", metadata={"arm": arm}).alias("last")
    _run.use_artifact("arm:latest")
    return arm
"""
# Every command with --json, and each kind of document that it prints: runs in `store`, then those of the lab.
STEPS = """
ls
config 1
log 2
metrics 1
metrics 1 val/loss
diff 1 2 --log
diff 2 1
plot 1 2 --metric val/loss --smoothing 0.5
plot --by kind --metric val/loss
compare --by kind --metric val/loss.min
artifacts ls 1
artifacts get 1 -o {}/artifacts
sources ls 1
sources get 1 -o {}/sources
tokens add ada --user ada --tokens {}/tokens.json
tokens list --tokens {}/tokens.json
tokens revoke ada --tokens {}/tokens.json
tag 1 best
rename 1 good
note 1 word
show 1
show 2
show 3
watch --once
reap
reindex
copy 4 --to {}/more
import {}/runs.zip
import {}/runs.csv
rm 3 --yes
restore
restore 3
rm 3 --yes
gc
sync
"""
LAB = """
compare --by arm --metric loss.last
compare --by arm --over seed --metric loss.last
reproduce 1 --env {}/env
reproduce 1 --in-place --dry --tolerance loss=0.1
reproduce 1 --in-place --tolerance loss=0.1
show latest
diff 1 latest
check stock.py --commands lines.txt
artifacts alias arm v1 champion
artifacts alias arm
artifacts alias arm v2 champion
artifacts alias arm --history
artifacts show arm:champion
artifacts compare arm:v1 arm:v2
artifacts alias arm v2 last
artifacts alias arm --remove champion
artifacts rm arm v1 --yes
artifacts show arm:v2
artifacts gc --older-than 0d --yes
"""
# A script of stock Sacred, and command lines that only one of the two accepts, or that have another config.
STOCK = """
import os
from sacred import Experiment

ex = Experiment("stock")

@ex.config
def config():
    lr = 0.1
    process = os.getpid()
    if lr == 2:
        import math

@ex.automain
def train(lr):
    return lr
"""
LINES = "with lr=abc\nwith lr=2\nwith unknown=1\n"
# Keys that are empty in these documents, such as those of failed or resumed runs. Other tests look at their values.
UNUSUAL = {
    "AliasMove": {"via"},
    "CopiedRun": {"left_out"},
    "Delivered": {"error"},
    "Fetched": {"refused"},
    "GroupPair": {"unpaired"},
    "Imported": {"left_out"},
    "PlannedReproduction": {"commit", "num_sources"},
    "PlottedCurve": {"own_from"},
    "RemovedRuns": {"kept"},
    "RemovedVersion": {"via"},
    "Reproduced": {"reasons"},
    "ShownRun": {
        *("checkpoints", "children", "lease", "queue_time", "revision", "sessions", "states_folder", "warnings"),
    },
}


@pytest.fixture
def ready(recorded, tmp_path, monkeypatch):
    """A copy of the runs with a dead one, an archive, a table, and a lab whose runs have another loss now."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded["folder"], tmp_path / "store")
    dead = tmp_path / "store" / "50"
    dead.joinpath("run.json").write_text(json.dumps({"status": "RUNNING", "uid": "d" * 32}))
    dead.joinpath("lease.json").write_text('{"host": "elsewhere", "pid": 1, "heartbeat": 1.0, "beat_interval": 1.0}')
    assert main(["--store", recorded["folder"], "export", "2", "-o", "runs.zip"]) == 0
    Path("runs.csv").write_text("lr,loss\n0.1,nan\n")
    Path("train.py").write_text(TRAIN)
    for arm, seed in ((1, 1), (1, 2), (2, 1), (2, 2)):
        run(
            [sys.executable, "train.py", "with", f"arm={arm}", f"seed={seed}"],
            check=True,
            capture_output=True,
        )
    Path("train.py").write_text(TRAIN.replace("1.0", "1.5"))
    Path("stock.py").write_text(STOCK)
    Path("lines.txt").write_text(LINES)
    provenance = json.loads(Path("my_runs/1/provenance.json").read_text())
    provenance["packages"]["sacred"] = "0.7.0"
    Path("my_runs/1/provenance.json").write_text(json.dumps(provenance))
    return tmp_path


@pytest.mark.slow
def test_every_command_prints_each_key_of_its_schema(ready, call):
    """Run for real, as an empty list fits any schema; only `reproduce` and `check` start processes."""
    seen, commands = set(), set()
    for where, steps in (("store", STEPS), ("my_runs", LAB)):
        for line in steps.strip().splitlines():
            name, *words = line.replace("{}", str(ready)).split()
            if name in ("reproduce", "check"):
                command = [sys.executable, "-m", "sacristan", "--store", where, name, *words, "--json"]
                text = run(command, capture_output=True, text=True).stdout
            else:
                text = call(where, name, *words)
            for document in text.splitlines() if name == "watch" else [text]:
                seen |= keys_with_values(name, checked(name, document, COLUMNS if name == "ls" else ()))
            commands.add(name)
    assert commands == SCHEMAS.keys()
    missing = set().union(*map(keys_of, SCHEMAS)) - seen
    assert missing == {(kind, key) for kind, keys in UNUSUAL.items() for key in keys}


def test_schemas_are_valid_and_name_each_object_once():
    import jsonschema  # takes seconds

    objects = {}
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:sacristan:json:1:{name}"
        for key, definition in schema.get("$defs", {}).items():
            assert objects.setdefault(key, definition) == definition


def test_shipped_schema_allows_keys_of_later_versions_and_the_tests_do_not():
    import jsonschema

    later = {"id": "1", "uid": None, "tags": [], "later": 1}
    jsonschema.validate(later, SCHEMAS["tag"])
    with pytest.raises(jsonschema.ValidationError, match="later"):
        jsonschema.validate(later, closed("tag"))


def test_schema_command_prints_a_schema_and_suggests_a_name(capsys):
    assert main(["schema", "tag"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMAS["tag"]
    assert main(["schema", "tga"]) == 1
    assert "did you mean tag?" in capsys.readouterr().err
    assert main(["schema", "board"]) == 1
    assert capsys.readouterr().err == "error: schema: board has no --json: it is a server\n"


def test_reference_page_has_each_command_and_a_row_for_each_key(capsys):
    assert main(["schema"]) == 0
    page = capsys.readouterr().out
    assert [name for name in (*SCHEMAS, *reasons_without_json()) if f"| `{name}` |" not in page] == []
    objects = {name: each for schema in SCHEMAS.values() for name, each in schema.get("$defs", {}).items()}
    for name in objects.keys() - {"number"}:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert [key for key in objects[name]["properties"] if f"\n| `{key}` |" not in section] == []
