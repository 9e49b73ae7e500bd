"""Output of the commands, the same for runs in folders and in MongoDB."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import uuid
import warnings
from datetime import datetime

import pymongo
import pytest
import yaml

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import Store, open_store

ESC = "\x1b[31mred\x1b]0;title\x07"


def record(folder, observer):
    """Record four runs: two that end well, one that fails, and one of another experiment, with odd names."""
    (folder / "weights.txt").write_text("weights")
    ex = Experiment("plain", base_dir=folder, save_git_info=False)
    odd = Experiment(f"odd{ESC}\nname", base_dir=folder, save_git_info=False)

    def config():
        lr = 0.1
        model = {"name": "mlp", "hidden": [8, 8]}
        fail = False
        text = "plain"

    def train(_run, lr, fail):
        for step in range(100):
            _run.log_scalar("train/loss", lr / (step + 1), step)
        _run.log_scalar("val/accuracy", math.nan if lr == 1.0 else 1 - lr, 99)
        print("é trained with", lr)
        ex.add_artifact(folder / "weights.txt") if _run.experiment_info["name"] == "plain" else None
        if fail:
            raise RuntimeError("no luck")
        return 1 - lr if lr != 1.0 else math.nan

    def strange(_run):
        _run.log_scalar(f"loss{ESC}", 1.0, 0)
        print(f"out{ESC}\x1b[2Jdone\r100%")

    for each, main_ in ((ex, train), (odd, strange)):
        each.config(config)
        each.main(main_)
        each.observers.append(observer())
    for each, updates in (
        (ex, {"lr": 0.1}),
        (ex, {"lr": 0.01, "model": {"name": "cnn"}}),
        (ex, {"lr": 1.0, "fail": True}),
        (odd, {"text": f"text{ESC}"}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                each.run(config_updates=updates, options={"--capture": "sys"})
            except RuntimeError:
                assert updates["fail"]


@pytest.fixture(scope="module", params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def where(request, tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp(request.param)
    name = f"commands_{uuid.uuid4().hex}"
    if request.param == "files":
        record(folder, lambda: FileObserver(folder / "store"))
        yield str(folder / "store")
        return
    record(folder, lambda: MongoObserver(mongo_url, name, failure_dir=folder / "spool"))
    yield f"{mongo_url}/{name}"
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database(name)


@pytest.fixture
def runs(where, capsys, monkeypatch):
    """Run a command; return what it printed, or with `code=` what it said on stderr."""
    monkeypatch.setenv("SACRISTAN_STORE", where)

    def call(*words, code=0):
        assert main(list(words)) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return call


@pytest.fixture
def documents(runs):
    """Run a command with --json; return the document, which must be strict JSON in ASCII."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    def call(*words):
        text = runs(*words, "--json")
        assert text.isascii()
        return json.loads(text, parse_constant=refuse)

    return call


def set_notes(where, id, tags=(), note=""):
    with open_store(where) as store:
        run = store.get(id)
        store.write_note(store.tag(run, tags, set(run.tags) - set(tags)), note)


# ls


def test_ls_shows_newest_first_with_aligned_columns(runs):
    lines = runs("ls").splitlines()
    assert lines[0].split()[:3] == ["id", "name", "command"]
    assert [line.split()[0] for line in lines] == ["id", "4", "3", "2", "1"]
    end = lines[0].index("duration") + len("duration")
    assert all(line[:end].endswith("s") for line in lines[1:])  # numbers end where their heading does
    assert "COMPLETED" in lines[4]
    assert "FAILED" in lines[2]


def test_ls_shows_the_settings_that_differ_and_what_it_sorts_by(runs):
    head, *lines = runs("ls", "--where", "name=plain", "--sort", "-train/loss.min").splitlines()
    assert head.removesuffix("  tags").split()[6:] == [
        "result",
        "train/loss.min",
        "lr",
        "fail",
        "model.name",
        "seed",
    ]  # most runs set lr
    assert [line.split()[0] for line in lines] == ["3", "1", "2"]
    assert runs("ls", "--where", "id=1").splitlines()[0].split()[-1] in ("result", "tags")


def test_ls_on_a_narrow_terminal_leaves_out_the_settings_that_fewer_runs_set(runs, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    head, row, *_, note = runs("ls", "--where", "name=plain").splitlines()
    assert head.split() == ["id", "status", "start", "duration", "result", "lr", "fail", "model.name"], note
    assert re.search(r"FAILED     ([A-Z][a-z]{2} \d\d \d\d:\d\d|20\d\d-\d\d-\d\d) ", row)  # a whole time
    # All runs have the same name and command: these give way first.
    # Another test may have given these runs tags.
    room = r"\(no room for name, command, seed(, tags)?: widen the terminal, or choose with --columns\)"
    assert re.fullmatch(room, note)
    assert runs("ls", "--columns", "model.name").split()[:2] == ["id", "model.name"]
    for columns in ("id,status", "status,id"):
        assert runs("ls", "--columns", columns).splitlines()[0].split() == columns.split(",")
    monkeypatch.setenv("COLUMNS", "40")
    assert "COMPLETED" in runs("ls", "--where", "name=plain")


def test_ls_that_follows_keeps_the_columns_in_which_later_runs_may_differ(runs, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(Store, "watch", lambda *_: iter(()))  # else it goes on for ever
    head = runs("ls", "--follow", "--where", "name=plain").splitlines()[0]
    assert {"name", "command"} <= {*head.split()}, head


def test_ls_json_has_the_documented_keys(documents):
    rows = documents("ls", "--sort", "id")
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    usual = [
        "id",
        "uid",
        "display_name",
        "name",
        "command",
        "status",
        "start",
        "duration",
        "result",
        "tags",
        "unreadable",
    ]
    assert all(list(row) == usual for row in rows)
    assert rows[0]["result"] == 0.9
    assert rows[0]["start"].endswith("Z")
    assert rows[0]["duration"] > 0
    assert all(len(row["uid"]) == 32 and row["unreadable"] is None for row in rows)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--where", "lr<0.05"], "2"),
        (["--where", "lr<=0.1", "--where", "val/accuracy.max>=0.95"], "2"),
        (["--where", "status=COMPLETED", "--sort", "lr"], "214"),
        (["--where", "name=plain", "--sort", "-val/accuracy.max"], "213"),
        (["--sort", "id", "--limit", "2"], "12"),
        (["--where", "duration<1000", "--sort", "id", "--limit", "2"], "12"),
        (["--where", "duration>1000"], ""),
        (["--tag", "baseline", "--sort", "id"], "12"),
        (["--tag", "baseline", "--tag", "good"], "2"),
        (["--tag", "nobody"], ""),
        (["--where", "note~^tried"], "1"),
    ],
    ids=str,
)
def test_ls_selects(where, documents, words, expected):
    set_notes(where, "1", ["baseline"], "tried")
    set_notes(where, "2", ["baseline", "good"])
    rows = documents("ls", *words)
    assert [row["id"] for row in rows] == list(expected)
    assert all(row["tags"] == ["baseline", "good"] for row in rows if row["id"] == "2")


def test_ls_sorts_by_duration(documents):
    durations = [row["duration"] for row in documents("ls", "--sort", "-duration", "--columns", "duration")]
    assert durations == sorted(durations, reverse=True)


def test_ls_columns_of_all_kinds(runs, documents):
    rows = documents("ls", "--columns", "lr, val/accuracy.max,model,host", "--where", "name=plain", "--sort", "id")
    assert [row["lr"] for row in rows] == [0.1, 0.01, 1.0]
    assert rows[1]["model"] == {"name": "cnn", "hidden": [8, 8]}
    assert rows[0]["host"]
    table = runs("ls", "--columns", "lr,train/loss.last,val/accuracy.last", "--where", "name=plain", "--sort", "id")
    assert [line.split() for line in table.splitlines()] == [
        ["id", "lr", "train/loss.last", "val/accuracy.last"],
        ["1", "0.1", "0.001", "0.9"],
        ["2", "0.01", "0.0001", "0.99"],
        ["3", "1", "0.01", "nan"],
    ]


@pytest.mark.parametrize("option", ["--columns", "--sort", "--where"])
def test_ls_of_an_unknown_field_names_the_nearest(runs, option):
    text = runs("ls", option, "modle.name" + ("=cnn" if option == "--where" else ""), code=1)
    assert text.startswith("error: no run has a field 'modle.name'; did you mean model.name")
    assert text.count("\n") == 1


@pytest.mark.parametrize("is_json", [False, True])
def test_store_without_runs_is_said_in_a_line(is_json, tmp_path, mongo_url, capsys):
    words = ["ls", "--json"] if is_json else ["ls"]
    for where in (str(tmp_path), f"{mongo_url}/nothing_{uuid.uuid4().hex}"):
        expected = "[]\n" if is_json else f"there is no run in {where} yet\n"
        for form in (["--store", where, *words], [*words, "--store", where]):
            assert main(form) == 0
            assert capsys.readouterr().out == expected
        assert main(["show", "latest", "--store", where]) == 1
        assert capsys.readouterr().err == f"error: there is no run in {where} yet\n"


# show, config, log, metrics


def test_show_has_all_that_matters(where, runs):
    set_notes(where, "2", ["good"], "a note")
    text = runs("show", "2")
    for part in ("COMPLETED", "0.99", "plain", "weights.txt", "good", "a note", "train/loss", where.rpartition("/")[2]):
        assert part in text
    assert "system/" not in text
    assert "RuntimeError: no luck" in runs("show", "3").splitlines()[-1]


def test_renamed_run_is_listed_and_shown_by_its_name(where, runs, documents):
    assert documents("rename", "2", " wider,\tlonger ")["display_name"] == "wider, longer"
    lines = runs("ls").splitlines()
    assert "display_name" in lines[0]
    assert [line.split()[0] for line in lines if "wider, longer" in line] == ["2"]
    assert "wider, longer" in runs("show", "2")
    assert documents("show", "2")["display_name"] == "wider, longer"
    panel = documents("plot", "2", "--metric", "train/loss")["panels"][0]
    assert panel["curves"][0]["label"].startswith("wider, longer (run 2)")
    assert runs("rename", "2", "") == "run 2: no display name\n"
    assert "display_name" not in runs("ls")


def test_show_folds_the_settings_of_a_run_that_has_them_all_at_their_defaults(tmp_path, capsys):
    for size in (20, 2):
        ex = Experiment("usual", base_dir=tmp_path, save_git_info=False)
        ex.add_config({"seed": 0, **{f"entry_{n}": n for n in range(size - 1)}})
        ex.main(lambda: None)
        ex.observers.append(FileObserver(tmp_path / "runs"))
        ex.run()
    shown = []
    for words in (["1"], ["1", "--config"], ["2"]):
        assert main(["--store", str(tmp_path / "runs"), "show", *words]) == 0
        shown.append(capsys.readouterr().out)
    assert f"all 20 settings are at their defaults: sacristan --store {tmp_path}/runs show 1 --config" in shown[0]
    assert "entry_5" not in shown[0]
    assert "entry_5" in shown[1]
    assert "entry_0" in shown[2]  # few need no folding


def test_show_lists_the_settings_that_are_not_at_their_defaults_and_all_when_asked(where, runs):
    rows = [line.split() for line in runs("show", "2").partition("config\n")[2].splitlines()]
    assert rows[0] == ["lr", "0.01", "command", "line"]
    assert rows[1] == ["model.name", "cnn", "command", "line"] or rows[1][0] == "seed"
    assert any("more at their defaults: sacristan show 2 --config" in " ".join(row) for row in rows)
    every = runs("show", "2", "--config").partition("config\n")[2]
    assert every.startswith("  lr ")
    assert "at their defaults" not in every
    assert all(f"  {name} " in every for name in ("model.name", "seed", "fail"))


def test_show_json(documents):
    run = documents("show", "3")
    assert (run["id"], run["status"], run["config"]["lr"]) == ("3", "FAILED", 1.0)
    assert run["metrics"]["val/accuracy"]["last"] == "NaN"
    assert run["start_time"].endswith("Z")
    assert {"tags", "note", "children", "info", "artifacts", "sources", "resources", "provenance"} <= run.keys()
    assert documents("show", "latest")["id"] == "4"
    assert documents("show", run["uid"][:20])["id"] == "3"


def test_config_is_yaml_that_says_the_same(runs, documents):
    config = yaml.safe_load(runs("config", "2"))
    assert config == documents("config", "2")
    assert config["model"] == {"name": "cnn", "hidden": [8, 8]}
    assert runs("config", "2", "model.name") == "cnn\n"
    assert documents("config", "2", "model.hidden") == [8, 8]
    assert yaml.safe_load(runs("config", "4"))["text"] == f"text{ESC}"
    message = runs("config", "2", "model.nmae", code=1)
    assert message == "error: the config of run 2 has no 'model.nmae'; see: sacristan config 2\n"


def test_log_into_a_pipe_is_the_output_byte_for_byte(runs, documents):
    assert "é trained with 0.01\n" in runs("log", "2")
    assert f"out{ESC}\x1b[2Jdone\r100%\n" in runs("log", "4")
    assert f"out{ESC}\x1b[2Jdone\r100%\n" in documents("log", "4")["output"]


def test_log_follow_ends_with_the_run(runs):
    assert "é trained with 0.1\n" in runs("log", "1", "--follow")


def test_metrics_summary_and_points(runs, documents):
    lines = runs("metrics", "1").splitlines()
    assert lines[0].split() == ["name", "count", "last", "last_step", "min", "min_step", "max", "max_step", "mean"]
    assert lines[1].split()[:4] == ["train/loss", "100", "0.001", "99"]
    assert runs("metrics", "1", "train/loss", "--points", "4").splitlines()[0] == "train/loss: 4 of 100 points"
    rows = list(csv.DictReader(io.StringIO(runs("metrics", "1", "train/loss", "--csv"))))
    assert [int(row["step"]) for row in rows] == list(range(100))
    assert float(rows[1]["value"]) == 0.05
    points = documents("metrics", "1", "train/loss", "--points", "10")["metrics"]["train/loss"]
    assert len(points["values"]) == 10
    assert points["steps"][0] == 0
    assert points["steps"][-1] == 99
    assert documents("metrics", "3", "val/accuracy")["metrics"]["val/accuracy"]["values"] == ["NaN"]
    assert "there are: " in runs("metrics", "1", "nope", code=1)


# diff


def test_diff_tells_what_differs(runs, documents):
    lines = [line.split() for line in runs("diff", "1", "2").splitlines()]
    assert ["lr", "0.1", "0.01"] in lines
    assert ["model.name", "mlp", "cnn"] in lines
    assert ["train/loss.last", "0.001", "0.0001", "-0.0009"] in lines
    statistics = [words[0] for words in lines if words[0].startswith("train/loss.")]
    assert statistics == ["train/loss.min", "train/loss.last"]  # the rest is counted
    [note] = [" ".join(words) for words in lines if "--all" in words]
    whole = [line.split()[0] for line in runs("diff", "1", "2", "--all").splitlines()]
    assert "train/loss.mean" in whole
    assert note == f"({len(whole) - len(lines) + 1} more statistics differ; --all shows them)"
    sections = [words[0] for words in lines if words[0] in ("config", "outcome", "metrics")]
    assert sections == ["config", "outcome", "metrics"]
    assert not any("system/" in word for words in lines for word in words)
    found = documents("diff", "1", "2", "--log")
    assert found["differ"] is True
    assert found["config"]["changed"]["lr"] == [0.1, 0.01]
    assert found["outcome"]["changed"]["result"] == [0.9, 0.99]
    assert "-é trained with 0.1\n+é trained with 0.01\n" in found["output"]
    assert runs("diff", "1", "1") == "runs 1 and 1 do not differ\n"


def test_diff_exit_code(runs):
    runs("diff", "1", "1", "--exit-code")
    runs("diff", "1", "2", "--exit-code", code=1)
    assert runs("diff", "1", "99", "--exit-code", code=2).startswith("error: there is no run '99' in ")


# Names that a terminal would obey


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["ls", "--columns", "name,text"],
        ["show", "4"],
        ["config", "4"],
        ["config", "4", "text"],
        ["metrics", "4"],
        ["metrics", "4", f"loss{ESC}"],
        ["diff", "1", "4"],
        ["diff", "1", "4", "--log"],
    ],
    ids=lambda words: " ".join(words).replace(ESC, "ESC"),
)
def test_control_characters_are_shown_and_not_obeyed(runs, words):
    text = runs(*words)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"\x1b" in text or r"\e" in text  # YAML's way


def test_control_characters_in_errors_are_shown(runs):
    text = runs("show", f"4{ESC}", code=1)
    assert "\x1b" not in text
    assert r"\x1b[31m" in text


# Broken and foreign runs

ODD = [5, "x", [1], [["a", {}]], {"a": {"b": 1}}, None, True]
PARTS = ["experiment", "status", "start_time", "stop_time", "heartbeat", "host", "meta", "result", "artifacts"]
PARTS += ["resources", "fail_trace", "command_line", "tags", "note", "parent", "uid", "command", "lease"]
OF_FILES = ["config", "info", "summary", "provenance"]
ALL_PARTS = [*PARTS, *OF_FILES, "captured_out"]
# Runs by id: 1 to 161 have one odd part each; those from 201 on have four, which an error in one of them would hide.
ODD_RUNS = {str(id): {name: value} for id, (name, value) in enumerate(itertools.product(ALL_PARTS, ODD), 1)}
GROUPS = {
    str(id): dict.fromkeys(names, value)
    for id, (names, value) in enumerate(itertools.product([ALL_PARTS[i::6] for i in range(6)], ODD), 201)
}


@pytest.fixture(scope="module")
def odd_store(where, tmp_path_factory, mongo_url):
    """A store of the runs in `ODD_RUNS` and `GROUPS`, and of a good one, 1000."""
    good = {"status": "COMPLETED", "experiment": {"name": "good"}}
    odd_runs = {**ODD_RUNS, **GROUPS, "1000": {}}
    if where.startswith("mongodb"):
        rows = [{"_id": int(id), **good, "uid": f"{id:0>32}", **odd} for id, odd in odd_runs.items()]
        rows[-1]["start_time"] = datetime(2026, 1, 1)
        database = f"odd_{uuid.uuid4().hex}"
        with pymongo.MongoClient(mongo_url) as client:
            client[database]["runs"].insert_many(rows)
            yield f"{mongo_url}/{database}"
            client.drop_database(database)
        return
    store = tmp_path_factory.mktemp("odd")
    for id, odd in odd_runs.items():
        (store / id).mkdir()
        run = {**good, "uid": f"{id:0>32}"}
        for name, value in odd.items():
            if name in OF_FILES or name == "lease":
                (store / id / f"{name}.json").write_text(json.dumps(value))
            else:
                run[name] = value
        (store / id / "run.json").write_text(json.dumps(run))
    yield str(store)


@pytest.mark.parametrize("sort", ["id", "-start", "result", "-duration"])
def test_odd_documents_hide_no_run_from_ls(odd_store, runs, sort):
    rows = json.loads(runs("ls", "--json", "--sort", sort, "--limit", "0", "--store", odd_store))
    assert sorted(row["id"] for row in rows) == sorted([*ODD_RUNS, *GROUPS, "1000"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("form", [pytest.param([], marks=pytest.mark.slow), ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", [["show"], ["config"], ["log"], ["metrics"], ["diff", "1000"]], ids=" ".join)
def test_odd_documents_end_no_command(odd_store, command, form, every, capsys):
    def is_answered(id):
        code = main([*command, id, *form, "--store", odd_store])
        printed = capsys.readouterr()
        odd = (ODD_RUNS | GROUPS)[id]
        assert code == 0 or (code == 1 and printed.err.startswith("error: ")), (odd, printed.err)
        assert printed.err.count("\n") <= 1, odd
        return code == 0

    # All, or so many places apart, from another first one for each command and form.
    for id, group in list(GROUPS.items())[(len(command[0]) + len(form)) % every :: every]:
        if not is_answered(id):  # an error hides what comes of the other parts
            for name, value in group.items():
                alone = next(id for id, odd in ODD_RUNS.items() if odd == {name: value} and odd[name] is value)
                is_answered(alone)


def test_unreadable_runs_are_listed_with_the_reason(where, runs, tmp_path, mongo_url, monkeypatch):
    good = {"status": "COMPLETED", "experiment": {"name": "good"}}
    database = f"odd_{uuid.uuid4().hex}"
    if where.startswith("mongodb"):
        monkeypatch.setenv("SACRISTAN_STORE", f"{mongo_url}/{database}")
        with pymongo.MongoClient(mongo_url) as client:
            client[database]["runs"].insert_many([{"_id": 1, **good}, {"_id": 2, "config": [1], "status": "X"}])
        reason = "config: got list, expected an object"
    else:
        monkeypatch.setenv("SACRISTAN_STORE", str(tmp_path))
        for id, content in (("1", json.dumps(good)), ("2", '{"status": \x1b')):
            (tmp_path / id).mkdir()
            (tmp_path / id / "run.json").write_text(content)
        reason = "run.json is not JSON"
    try:
        lines = runs("ls").splitlines()
        place = lines.index("cannot be read completely:")
        assert lines[place + 1].startswith(f"  2  {reason}")
        assert any(line.startswith("1 ") for line in lines[:place])
        [row] = [row for row in json.loads(runs("ls", "--json")) if row["id"] == "2"]
        assert row["unreadable"].startswith(reason)
        assert "2" not in [row["id"] for row in json.loads(runs("ls", "--json", "--where", "name=good"))]
    finally:
        if where.startswith("mongodb"):
            with pymongo.MongoClient(mongo_url) as client:
                client.drop_database(database)


def test_upkeep_commands_print_json(tmp_path, capsys):
    ex = Experiment("kept", base_dir=tmp_path, system_metrics_s=None)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    ex.main(lambda: 1)
    ex.run(options={"--capture": "no"})
    (tmp_path / "runs" / "2").mkdir()
    capsys.readouterr()
    assert main(["reindex", "--store", str(tmp_path / "runs"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_runs"] == 2
    assert [problem["id"] for problem in found["problems"]] == ["2"]
    for command in ("sync", "reap"):
        assert main([command, "--store", str(tmp_path / "runs"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
