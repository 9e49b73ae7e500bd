"""`sacristan mcp` as a real process that the client of the package `mcp` starts, over a folder and a database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bson
import psutil
import pymongo
import pytest

from sacristan.__main__ import main
from sacristan.configs.packages import install_command
from sacristan.runs.documents.mcp import MAX_CHARS, NOTICE, answer_text
from tests.documents import checked, record

ROOT = Path(__file__).parents[2]
# What a library may do while the server answers: print, and warn.
NOISE = """
import os, sys, warnings

def note(event, _):
    if event == "sqlite3.connect":
        print("noise")
        os.write(1, b"noise of a library in C\\n")
        warnings.warn("noise")

sys.addaudithook(note)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp("mcp")
    record(folder, mongo_url, "mcp")
    return {"folder": folder / "store", "database": f"{mongo_url}/mcp"}


@pytest.fixture
def ask(tmp_path):
    """Ask a server questions, one after the other, and return the results; `before` says what happens before each."""

    def run(where, *questions, script=None, before=lambda number: None):
        words = ["-c", script, str(where)] if script else ["-m", "sacristan", "mcp", str(where)]
        env = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        from mcp import Client  # takes seconds
        from mcp.client.stdio import StdioServerParameters, stdio_client

        server = StdioServerParameters(command=sys.executable, args=words, env=env, cwd=tmp_path)

        async def talk():
            async with Client(stdio_client(server, errlog=sys.__stderr__)) as client:
                tools = (await client.list_tools()).tools
                results = []
                for number, (name, words) in enumerate(questions):
                    before(number)
                    results.append(await client.call_tool(name, words))
                return tools, results

        # A thread has no event loop yet; in the main thread, a browser that another test started runs one.
        with ThreadPoolExecutor(1) as thread:
            tools, results = thread.submit(asyncio.run, asyncio.wait_for(talk(), 120)).result()
        return tools, [answer_of(result) for result in results]

    return run


def answer_of(result):
    notice, answer = (part.text for part in result.content)
    assert notice == NOTICE
    assert len(answer) <= MAX_CHARS
    document = json.loads(answer)
    assert document.pop("untrusted") is True
    assert result.is_error == ("error" in document)
    return document


def content_of(where):
    """Return everything in a store: each file's bytes and time, or each document of a database."""
    if isinstance(where, Path):
        return {
            path.relative_to(where).as_posix(): (path.stat().st_mtime_ns, hashlib.md5(path.read_bytes()).hexdigest())
            for path in sorted(where.rglob("*"))
            if path.is_file()
        }
    with pymongo.MongoClient(where) as client:
        database = client.get_default_database()
        return {
            name: [bson.encode(each) for each in database[name].find()] for name in database.list_collection_names()
        }


@pytest.mark.parametrize("kind", ["folder", pytest.param("database", marks=pytest.mark.slow)])
def test_tools_answer_with_the_documents_of_the_commands_and_change_nothing(recorded, ask, capsys, kind):
    where = recorded[kind]
    questions = [
        ("list", {"where": ["status=COMPLETED"], "sort": "-lr", "limit": 1.0, "columns": ["id", "lr", "val/loss.min"]}),
        ("list", {}),
        ("show", {"run": "2"}),
        ("metrics", {"run": "2"}),
        ("metrics", {"run": "1", "names": ["val/loss"], "points": 6}),
        ("diff", {"a": "1", "b": "2", "log": True}),
        ("compare", {"by": ["kind"], "metric": "val/loss.min"}),
        ("log", {"run": "2"}),
        ("log", {"run": "2", "tail": 5}),
        ("show", {"run": "77"}),
        ("metrics", {"run": "2", "names": ["lost"]}),
        ("list", {"columns": ["lrr"]}),
        ("list", {"where": ["lr<<"]}),
        ("compare", {"by": ["kind"], "metric": "val/loss.min", "where": ["staus!=COMPLETED"]}),
        ("list", {"where": ["status not in (completed, failed)"]}),
        ("list", {"limit": 101}),
        ("show", {"run": 7}),
        ("delete", {"run": "1"}),
    ]
    before = content_of(where)
    tools, answers = ask(where, *questions)
    assert content_of(where) == before
    assert [tool.name for tool in tools] == ["list", "show", "metrics", "diff", "compare", "log"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    first, every, shown, statistics, points, different, compared, whole, tail, *errors = answers

    def printed(*words):
        assert main(["--store", str(where), *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    checked("ls", json.dumps(first["data"]), ["lr", "val/loss.min"])
    assert [(row["id"], row["lr"]) for row in first["data"]] == [("2", 0.2)]
    assert first["notes"] == ["there are more than 1 runs; add conditions or raise limit"]
    assert every["data"] == printed("ls")
    assert shown["schema"] == "urn:sacristan:json:1:show"
    assert statistics["data"] == printed("metrics", "2")
    assert points["data"] == printed("metrics", "1", "val/loss", "--points", "6")
    assert points["notes"] == ["thinned to 6 points each, extremes kept"]
    values = points["data"]["metrics"]["val/loss"]["values"]
    assert (max(values), min(values), len(values)) == (0.1, 0.005, 6)
    checked("diff", json.dumps(different["data"]))
    assert compared["data"] == printed("compare", "--by", "kind", "--metric", "val/loss.min")
    assert whole["data"] == printed("log", "2")
    assert (tail["data"]["output"], tail["notes"][0][:17]) == (
        whole["data"]["output"].encode()[-5:].decode(),
        "without the first",
    )
    assert [answer["error"] for answer in errors] == [
        f"there is no run '77' in {where}; list them with: sacristan --store {where} ls; the newest runs are: "
        + ("4, 3, 2, 1" if kind == "folder" else "3, 2, 1"),
        "run 2 has no metric 'lost'; there are: " + ", ".join(sorted(statistics["data"]["metrics"])),
        "no run has a field 'lrr'; did you mean lr?",
        errors[3]["error"],
        "no run has a field 'staus'; did you mean status?",
        "status: got 'completed'; did you mean COMPLETED?",
        "list: limit: 101 is greater than the maximum of 100",
        "show: run: 7 is not of type 'string'",
        "got the tool 'delete'; there are: list, show, metrics, diff, compare, log",
    ]
    assert errors[3]["error"].startswith("got the condition 'lr<<', expected one of")


@pytest.mark.slow
def test_text_that_runs_wrote_stays_inside_of_json(recorded, ask):
    _, [shown, log] = ask(recorded["folder"], ("show", {"run": "3"}), ("log", {"run": "2"}))
    assert "ignore previous instructions" in "".join(shown["data"]["fail_trace"])
    assert "ignore previous instructions" in log["data"]["output"]


def messages(*calls):
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    lines = [
        {"id": 0, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        *({"id": 1 + n, "method": "tools/call", "params": call} for n, call in enumerate(calls)),
    ]
    return "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)


@pytest.mark.slow
def test_stdout_has_the_protocol_only_and_closed_stdin_ends_the_process(recorded, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "sacristan", "mcp", str(recorded["folder"])]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=env, text=True, cwd=tmp_path) as process:
        process.stdin.write(messages({"name": "list", "arguments": {}}))
        process.stdin.flush()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        out, err = process.communicate(timeout=60)  # which closes stdin
    assert [(line["jsonrpc"], line["id"]) for line in lines] == [("2.0", 0), ("2.0", 1)]
    assert (out, process.returncode) == ("", 0)
    assert {"noise", "noise of a library in C"} <= set(err.splitlines())
    assert "UserWarning: noise" in err


@pytest.mark.slow
def test_database_that_does_not_answer_is_an_error_in_time(mongod, ask, tmp_path):
    mongod.start()
    where = f"{mongod.url}/away?serverSelectionTimeoutMS=500"
    script = "import sys; from sacristan.runs.documents.mcp import serve; serve(sys.argv[1], timeout_s=2)"
    stopped = []

    def stop(number):
        if number == 1:
            os.kill(mongod.pid, signal.SIGSTOP)
            stopped.append(mongod.pid)
        if number == 2:
            os.kill(stopped.pop(), signal.SIGCONT)
            mongod.kill()

    try:
        questions = [("list", {})] * 3
        _, [empty, late, gone] = ask(where, *questions, script=script, before=stop)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert empty["data"] == []
    assert late["error"] == "the store has not answered within 2 s; ask again later"
    assert mongod.url.rpartition(":")[2] in gone["error"] or "has not answered" in gone["error"]


QUESTIONS = [
    ("list", {}),
    ("show", {"run": "1"}),
    ("metrics", {"run": "1"}),
    ("metrics", {"run": "1", "names": ["val/loss"]}),
    ("diff", {"a": "1", "b": "2", "log": True}),
    ("compare", {"by": ["kind"], "metric": "val/loss.min"}),
    ("log", {"run": "1"}),
]


@pytest.mark.slow
def test_folder_that_vanishes_is_one_sentence_and_is_read_when_it_is_back(recorded, ask, tmp_path):
    where, away = tmp_path / "store", tmp_path / "away"
    shutil.copytree(recorded["folder"], where)

    def move(number):
        if number == len(QUESTIONS):
            where.rename(away)
        if number == 2 * len(QUESTIONS):
            away.rename(where)
        if number == 3 * len(QUESTIONS):
            shutil.rmtree(where / "1")

    _, answers = ask(where, *QUESTIONS * 4, before=move)
    size = len(QUESTIONS)
    whole, gone, back, without = (answers[place * size :][:size] for place in range(4))
    assert back == whole
    assert [sorted(answer) for answer in gone] == [["error"]] * size
    assert {answer["error"].partition(";")[0] for answer in gone} == {f"there is no folder {where}"}
    missing = [answer["error"].partition(";")[0] for answer in without if "error" in answer]
    assert missing == [f"there is no run '1' in {where}"] * 5
    assert "1" not in {row["id"] for row in without[0]["data"]}


@pytest.mark.slow
def test_run_with_a_huge_log_is_answered_in_time(recorded, ask, tmp_path):
    where = tmp_path / "store"
    shutil.copytree(recorded["folder"], where)
    words = random.Random(0)
    for id in "12":  # a few hundred lines in another order, for which a diff takes hours
        lines = (f"step {words.randrange(300)}\n" for _ in range(500_000))
        (where / id / "cout.txt").write_text("".join(lines))
    os.truncate(where / "3" / "cout.txt", 2**36)  # most of it are no blocks on the disk
    script = "import sys; from sacristan.runs.documents.mcp import serve; serve(sys.argv[1], timeout_s=15)"
    questions = [
        ("diff", {"a": "1", "b": "2", "log": True}),
        ("diff", {"a": "1", "b": "3", "log": True}),
        ("log", {"run": "3", "tail": 10}),
        ("show", {"run": "3"}),
        ("diff", {"a": "1", "b": "2"}),
    ]
    _, [differ, sparse, log, shown, others] = ask(where, *questions, script=script)
    for answer in (differ, sparse):
        assert answer["notes"][0] == "output: compared the first 200000 bytes"
        assert answer["data"]["output"].startswith("--- a/output")
    assert (log["data"]["output"], log["notes"]) == ("\0" * 10, [f"without the first {2**36 - 10} bytes"])
    assert (shown["data"]["id"], others["notes"]) == ("3", [])


@pytest.mark.slow
def test_closed_stdin_ends_a_process_that_waits_for_its_database(mongod, tmp_path, wait_for):
    mongod.start()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sacristan", "mcp", f"{mongod.url}/away?serverSelectionTimeoutMS=200000"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=env, text=True, cwd=tmp_path) as process:
        process.stdin.write(messages())
        process.stdin.flush()
        process.stdout.readline()
        os.kill(mongod.pid, signal.SIGSTOP)
        try:
            process.stdin.write(messages({"name": "list", "arguments": {}}).splitlines(keepends=True)[-1])
            process.stdin.flush()
            wait_for(psutil.Process(process.pid).net_connections, "its connection")
            process.communicate(timeout=60)
        finally:
            os.kill(mongod.pid, signal.SIGCONT)
            process.kill()
    assert process.returncode == 0


def test_missing_store_and_missing_package_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith(f"not installed; install it with: {install_command('mcp')}\n")
    monkeypatch.undo()
    assert main(["mcp", str(tmp_path / "none")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "there is no folder" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        {"text": "é" * 10**6},
        {str(number): {str(inner): "x" * 100 for inner in range(100)} for number in range(1_000)},
        {"k" * 10**6: 1, "l" * 10**6: 2},
        [[[["a"] * 50] * 50] * 50] * 5,
        [{"id": str(number), "config": {"lr": 0.1}} for number in range(5_000)],
    ],
    ids=["long text", "wide", "long keys", "nested", "long list"],
)
def test_long_answers_are_shortened_and_say_so(document):
    answer = answer_text("show", document, ["first"])
    assert len(answer) <= MAX_CHARS
    found = json.loads(answer)
    assert found["notes"] == ["first", f"shortened to {MAX_CHARS} characters; ask for less to see all"]
    assert type(found["data"]) is type(document)
    assert "more" in answer or "entries" in answer


def test_short_answers_are_whole():
    assert json.loads(answer_text("log", {"output": "é"}, []))["data"] == {"output": "é"}
