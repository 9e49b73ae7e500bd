"""Sessions: scripts that begin a run and end it, or are ended, in any way; the record says how, and has all points."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from sacristan.experiments.scripts.session import Session
from sacristan.ingredients import ConcurrentRunError
from sacristan.runs import open_store
from tests.processes import DEVNULL, PIPE, run

HEAD = """
import os, signal, sys, threading
from sacristan.experiments.scripts.session import Session, active_session

session = Session.begin("mine", {"lr": 0.1, "model": {"width": 4}})
for step in range(20):
    session.run.log({"loss": 1 / (step + 1)}, step)
session.run.update_config({"model.depth": 3, "seed": 7}, typed=["seed"])
print("logged")
"""
# The end of a script, the exit code of the process, and the status of the run with what else its record says.
ENDS = {
    "falls off its end": ("", 0, "COMPLETED"),
    "ends the session": ("session.end()", 0, "COMPLETED"),
    "exits": ("sys.exit()", 0, "COMPLETED"),
    "exits with a code": ("sys.exit(3)", 3, "FAILED"),
    "exits with a text": ("sys.exit('no')", 1, "FAILED"),
    "quits": ("exit()", 0, "COMPLETED"),
    "quits with a code": ("quit(3)", 3, "FAILED"),
    "goes on after it would quit": ("try: exit(3)\nexcept SystemExit: pass", 0, "COMPLETED"),
    "goes on after an exit": ("try: sys.exit(3)\nexcept SystemExit: pass", 0, "COMPLETED"),
    "raises": ("1 / 0", 1, "FAILED"),
    "raises in a thread": (
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
        0,
        "COMPLETED",
    ),
    "leaves at once": ("os._exit(0)", 0, "COMPLETED"),
    "leaves at once with a code": ("os._exit(5)", 5, "FAILED"),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT, "INTERRUPTED"),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM, "INTERRUPTED"),
    "loses its terminal": ("os.kill(os.getpid(), signal.SIGHUP); signal.pause()", -signal.SIGHUP, "INTERRUPTED"),
    "crashes": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, "DEAD"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "DEAD"),
    "catches its own signal": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGTERM)",
        9,
        "FAILED",
    ),
}


def run_script(text, folder, env=None):
    (folder / "train.py").write_text(text)
    command = [sys.executable, "train.py"]
    return run(command, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, env=env)


@pytest.mark.parametrize("name", [*ENDS])
def test_session_ends_with_the_process(tmp_path, name):
    text, code, status = ENDS[name]
    done = run_script(HEAD + text, tmp_path)
    assert (done.returncode, done.stdout) == (code, "logged\n"), done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.status == status
        assert found.metric("loss").values.tolist() == [1 / (step + 1) for step in range(20)]
        assert found.config == {"lr": 0.1, "model": {"width": 4, "depth": 3}, "seed": 7}
        assert found.get("meta.origins") == [{"origin": "command line", "entries": ["seed"]}]
        assert found.get("meta.script") == {"kind": "file", "program": "train.py", "args": []}
        assert [name for name, _ in found.get("experiment.sources")] == ["train.py"]
        if status != "DEAD":  # a killed process may lack its last second of output
            assert "logged" in found.output
        if code < 0 and status == "INTERRUPTED":
            assert found.get("meta.interrupted_by") == signal.Signals(-code).name
        assert ("ZeroDivisionError" in str(found.get("fail_trace"))) == (name == "raises")


def test_traceback_is_that_of_the_script_alone(tmp_path):
    done = run_script(HEAD + "def fail():\n    1 / 0\nfail()\n", tmp_path)
    plain = subprocess.run(
        [sys.executable, "-c", "def fail():\n    1 / 0\nfail()\n"], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if line.startswith("  File")] == [
        f'  File "{tmp_path}/train.py", line {number}, in {where}' for number, where in ((12, "<module>"), (11, "fail"))
    ]
    assert done.stderr.splitlines()[-1].startswith("sacristan: Recorded in")
    assert plain.stderr.splitlines()[-1] in done.stderr.splitlines()


def test_signals_look_to_the_script_as_without_a_session(tmp_path):
    text = """
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert signal.signal(signal.SIGTERM, signal.SIG_IGN) == signal.SIG_DFL
assert signal.signal(signal.SIGTERM, signal.SIG_DFL) == signal.SIG_IGN
session.end()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert run_script(HEAD + text, tmp_path).returncode == -signal.SIGTERM
    with open_store(tmp_path / "my_runs") as store:
        assert [found.status for found in store.find()] == ["COMPLETED"]


def test_children_that_a_script_forks_do_not_end_its_run(tmp_path):
    text = """
for end in (lambda: sys.exit(3), lambda: os._exit(4), lambda: os.kill(os.getpid(), signal.SIGTERM)):
    pid = os.fork()
    if pid == 0:
        session.run.log({"child": 1})
        assert active_session() is None
        end()
    os.waitpid(pid, 0)
session.run.log({"loss": 0.5}, 20)
"""
    done = run_script(HEAD + text, tmp_path)
    assert (done.returncode, done.stdout) == (0, "logged\n"), done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.status == "COMPLETED"
        assert (len(found.metric("loss")), len(found.metric("child"))) == (21, 3)


def test_sessions_follow_each_other_in_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        with Session.begin("seeds", {"seed": seed}) as session:
            session.run.log({"loss": seed}, 0)
            with pytest.raises(ConcurrentRunError, match="records a run already, my_runs"):
                Session.begin("another")
    with pytest.raises(ValueError, match="of the script"), Session.begin("seeds", {"seed": 3}):
        raise ValueError("of the script")
    with open_store("my_runs") as store:
        found = store.find(sort="id")
        assert [(each.config, each.status) for each in found] == [
            *(({"seed": seed}, "COMPLETED") for seed in range(3)),
            ({"seed": 3}, "FAILED"),
        ]


def test_config_after_the_start_arrives_in_the_database(tmp_path, mongo_url, database):
    text = HEAD + "session.run.update_config({'opt': {'name': 'adam'}, 'token': 'hf_1'}); os.kill(os.getpid(), 9)"
    store_of = f"{mongo_url}/{database.name}"
    code = run_script(HEAD, tmp_path, {"SACRISTAN_STORE": store_of}).returncode
    assert code == 0
    [document] = database.runs.find()
    assert document["config"] == {"lr": 0.1, "model": {"width": 4, "depth": 3}, "seed": 7}
    assert document["meta"]["origins"] == [{"origin": "command line", "entries": ["seed"]}]
    assert document["status"] == "COMPLETED"
    run_script(text, tmp_path, {"SACRISTAN_STORE": store_of})
    config = json.loads((tmp_path / "my_runs" / "2" / "config.json").read_bytes())
    assert config["opt"] == {"name": "adam"}
    assert config["token"] == "***"
